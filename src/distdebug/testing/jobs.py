"""
Simulate a job: which ranks enter which calls, when, and where.

There are no tensors and no threads.  A call completes when all its members have
entered it, as in torch; so leaving out a rank makes a hang.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import attrs


Sizes = Sequence[Sequence[int]]

# Input sizes, input types, output sizes, output types.
Shape = tuple[Sizes, Sequence[str], Sizes, Sequence[str]]

# Function, file, and line; innermost first.
Stack = Sequence[tuple[str, str, int]]

State = Literal["scheduled", "started", "completed"]

_STEP_S = 0.001


class SimulatedGroup(NamedTuple):
    """
    One process group.

    Attributes:
        name: The name torch would give it.

        desc: Its description.

        ranks: Global ranks in group order.
    """

    name: str
    desc: str
    ranks: tuple[int, ...]


@attrs.define(eq=False)
class Call:
    """
    One collective, or a message from one rank to another.

    Attributes:
        members: The ranks that must enter it.

        entered: When each rank entered it, in seconds since the epoch.

        ops: The operation that each of them called.

        duration_s: How long it takes once all are there.
    """

    members: frozenset[int]
    duration_s: float
    entered: dict[int, float] = attrs.field(factory=dict)
    ops: set[str] = attrs.field(factory=set)

    @property
    def completed(self) -> float | None:
        """
        Return when it completed; ``None`` if it never does.
        """
        if self.members - self.entered.keys() or len(self.ops) != 1:
            return None

        return max(self.entered.values()) + self.duration_s


class Record(NamedTuple):
    """
    One call as one rank records it.

    Attributes:
        group: The process group.

        op: The operation without its backend.

        seq: Number of the collective in its group.

        p2p_seq: Number of the point-to-point operation in its group.

        op_id: Number of the operation in its group, of any kind.

        is_p2p: Whether it is point-to-point.

        created: When the rank entered it.

        call: The call; ``None`` for parts of a coalesced batch, whose end torch
            never records.

        shape: Input sizes, input types, output sizes, output types.

        stack: Where the rank called it.

        state: The recorded state, whatever happened.

        in_launch: Whether the rank never returns from enqueueing it.

        reached: When its GPU came to it, if later than *created*.
    """

    group: SimulatedGroup
    op: str
    seq: int
    p2p_seq: int
    op_id: int
    created: float
    call: Call | None
    shape: Shape
    stack: Stack
    is_p2p: bool = False
    state: State | None = None
    in_launch: bool = False
    reached: float | None = None


class SimulatedJob:
    """
    A job whose calls are scripted.

    >>> job = SimulatedJob(4)
    >>> job.collective("all_reduce")
    >>> job.collective("all_reduce", ranks=[0, 1, 3])

    Now ranks 0, 1, and 3 wait for rank 2.

    Args:
        world_size: How many ranks it has.

        backend: ``"nccl"``, ``"gloo"``, or any other name.

        timeout_s: Time-out of all its groups, in seconds.

        started: When it started, in seconds since the epoch.

        stack_depth: How many frames a call has if it is given none.

    Attributes:
        world: The process group of all ranks.

        groups: All process groups, in the order of their creation.

        clock: The time, in seconds since the epoch.

        records: What each rank recorded, oldest first.

        dumped: When the dump of a rank was taken, if before the end.
    """

    def __init__(
        self,
        world_size: int,
        *,
        backend: str = "nccl",
        timeout_s: float = 600.0,
        started: float = 1_750_000_000.0,
        stack_depth: int = 0,
    ) -> None:
        self.backend = backend
        self.timeout_s = timeout_s
        self.clock = started
        self.groups: list[SimulatedGroup] = []
        self.records: dict[int, list[Record]] = {
            rank: [] for rank in range(world_size)
        }
        self.dumped: dict[int, float] = {}
        self.world = self.new_group(range(world_size), "default_pg")
        self._stack_depth = stack_depth
        self._counters: dict[tuple[str, int], _Counter] = defaultdict(_Counter)
        self._calls: dict[tuple[Any, ...], Call] = {}

    def new_group(
        self,
        ranks: Iterable[int],
        desc: str = "undefined",
        name: str | None = None,
    ) -> SimulatedGroup:
        """
        Make a process group.

        Args:
            ranks: Its members as global ranks, in group order.

            desc: Its description.

            name: Its name; by default the number of groups so far.
        """
        name = str(len(self.groups)) if name is None else name
        group = SimulatedGroup(name, desc, tuple(ranks))
        self.groups.append(group)
        return group

    def wait(self, seconds: float) -> None:
        """
        Advance the clock.
        """
        self.clock += seconds

    def dump(self, rank: int) -> None:
        """
        Take the dump of *rank* now, without what comes later.
        """
        self.dumped[rank] = self.clock

    def collective(  # noqa: PLR0913
        self,
        op: str,
        group: SimulatedGroup | None = None,
        *,
        ranks: Iterable[int] | None = None,
        sizes: Sizes = ((1024,),),
        output_sizes: Sizes | None = None,
        dtype: str = "Float",
        late: Mapping[int, float] | None = None,
        state: State | None = None,
        in_launch: Collection[int] = (),
        stack: Stack | None = None,
        duration_s: float = 0.0005,
    ) -> None:
        """
        Let ranks enter their next collective in a group.

        Ranks that are left out do not count it, so what they enter next in
        this group meets it.  It completes if all members entered it, by the
        same operation.

        Args:
            op: The operation, such as ``"all_reduce"``.

            group: The process group; by default of all ranks.

            ranks: Who enters it; by default all members.

            sizes: Of the input tensors.

            output_sizes: Of the output tensors; by default the same.

            dtype: Type of the tensors.

            late: How many seconds ranks are behind the others.

            state: What is recorded, whatever happens.

            in_launch: The ranks that do not return from enqueueing it.

            stack: Where it is called.

            duration_s: How long it takes once all are there, in seconds.
        """
        group = group or self.world
        calls = set()
        for rank in group.ranks if ranks is None else ranks:
            counter = self._counters[group.name, rank]
            counter.seq += 1
            counter.op_id += 1
            key = group.name, counter.seq
            call = self._call(key, group.ranks, duration_s)
            created = self.clock + (late or {}).get(rank, 0.0)
            call.entered[rank] = created
            call.ops.add(op)
            calls.add(call)
            self._record(
                rank,
                group,
                op,
                created=created,
                call=call,
                shape=_shape(sizes, output_sizes, dtype),
                state=state,
                in_launch=rank in in_launch,
                stack=stack,
            )

        self._pass_time(calls)

    def send(  # noqa: PLR0913
        self,
        rank: int,
        to: int,
        group: SimulatedGroup | None = None,
        *,
        sizes: Sizes = ((1024,),),
        dtype: str = "Float",
        stack: Stack | None = None,
    ) -> None:
        """
        Let *rank* send to rank *to*; both are global ranks.
        """
        self._p2p(rank, "send", to, group, _shape(sizes, None, dtype), stack)

    def recv(  # noqa: PLR0913
        self,
        rank: int,
        source: int,
        group: SimulatedGroup | None = None,
        *,
        sizes: Sizes = ((1024,),),
        dtype: str = "Float",
        stack: Stack | None = None,
    ) -> None:
        """
        Let *rank* receive from rank *source*; both are global ranks.
        """
        shape = _shape(sizes, None, dtype)
        self._p2p(rank, "recv", source, group, shape, stack)

    def coalesced(  # noqa: PLR0913
        self,
        rank: int,
        calls: Sequence[tuple[Literal["send", "recv"], int]],
        group: SimulatedGroup | None = None,
        *,
        sizes: Sizes = ((1024,),),
        dtype: str = "Float",
        stack: Stack | None = None,
    ) -> None:
        """
        Let *rank* enter a batch of point-to-point operations.

        Args:
            rank: Global rank.

            calls: What it does, with the global rank of its peer.

            group: The process group; by default of all ranks.

            sizes: Of the tensors.

            dtype: Their type.

            stack: Where it is called.
        """
        group = group or self.world
        counter = self._counters[group.name, rank]
        counter.p2p_seq += 1
        whole = _Batch(frozenset(), 0.0)
        for kind, peer in calls:
            counter.op_id += 1
            whole.parts.append(self._message(rank, kind, peer, group))
            op = _p2p_name(group, rank, kind, peer)
            shape = _shape(sizes, None, dtype)
            self._record_p2p(rank, group, op, None, shape, stack)

        whole.ops.add("coalesced")
        whole.entered[rank] = self.clock
        nothing: Shape = ((), (), (), ())
        self._record_p2p(rank, group, "coalesced", whole, nothing, stack)
        self._pass_time({whole})

    def _p2p(  # noqa: PLR0913, PLR0917
        self,
        rank: int,
        kind: str,
        peer: int,
        group: SimulatedGroup | None,
        shape: Shape,
        stack: Stack | None,
    ) -> None:
        group = group or self.world
        counter = self._counters[group.name, rank]
        counter.op_id += 1
        if self.backend == "gloo":
            # Gloo counts messages, but does not record them.
            counter.seq += 1
            return

        counter.p2p_seq += 1
        call = self._message(rank, kind, peer, group)
        op = _p2p_name(group, rank, kind, peer)
        self._record_p2p(rank, group, op, call, shape, stack)
        self._pass_time({call})

    def _message(
        self, rank: int, kind: str, peer: int, group: SimulatedGroup
    ) -> Call:
        """
        The n-th send to a rank meets its n-th receive from there.
        """
        pair = (rank, peer) if kind == "send" else (peer, rank)
        counter = self._counters[group.name, rank]
        counter.messages[kind, peer] += 1
        key = (group.name, "p2p", *pair, counter.messages[kind, peer])
        call = self._call(key, pair, duration_s=0.0002)
        call.entered[rank] = self.clock
        call.ops.add("p2p")
        return call

    def _call(
        self, key: tuple[Any, ...], members: Iterable[int], duration_s: float
    ) -> Call:
        if key not in self._calls:
            self._calls[key] = Call(frozenset(members), duration_s)
        return self._calls[key]

    def _record(
        self,
        rank: int,
        group: SimulatedGroup,
        op: str,
        *,
        stack: Stack | None,
        **rest: Any,
    ) -> None:
        counter = self._counters[group.name, rank]
        if stack is None:
            stack = _stack(op, group, self._stack_depth)
        self.records[rank].append(
            Record(
                group=group,
                op=op,
                seq=counter.seq,
                p2p_seq=counter.p2p_seq,
                op_id=counter.op_id,
                stack=stack,
                **rest,
            )
        )

    def _record_p2p(  # noqa: PLR0913, PLR0917
        self,
        rank: int,
        group: SimulatedGroup,
        op: str,
        call: Call | None,
        shape: Shape,
        stack: Stack | None,
    ) -> None:
        now = {"is_p2p": True, "created": self.clock}
        self._record(
            rank, group, op, call=call, shape=shape, stack=stack, **now
        )

    def _pass_time(self, calls: Iterable[Call]) -> None:
        for call in calls:
            last = max(call.entered.values())
            self.clock = max(self.clock, call.completed or last)
        self.clock += _STEP_S


@attrs.define
class _Counter:
    seq: int = 0
    p2p_seq: int = 0
    op_id: int = 0
    messages: Counter[tuple[str, int]] = attrs.field(factory=Counter)


@attrs.define(eq=False)
class _Batch(Call):
    """
    A batch that completes when all its parts do.
    """

    parts: list[Call] = attrs.field(factory=list)

    @property
    def completed(self) -> float | None:
        ends = [part.completed for part in self.parts]
        return None if None in ends else max(filter(None, ends), default=None)


def _shape(sizes: Sizes, output_sizes: Sizes | None, dtype: str) -> Shape:
    outputs = sizes if output_sizes is None else output_sizes
    return sizes, [dtype] * len(sizes), outputs, [dtype] * len(outputs)


def _p2p_name(group: SimulatedGroup, rank: int, kind: str, peer: int) -> str:
    me, other = group.ranks.index(rank), group.ranks.index(peer)
    return f"{kind} {me}{'->' if kind == 'send' else '<-'}{other}"


def _stack(op: str, group: SimulatedGroup, depth: int) -> Stack:
    """
    Return a stack as of a training loop, with *depth* frames.
    """
    line = 10 * int(group.name) if group.name.isdecimal() else 0
    stack = [
        (op.partition(" ")[0], "torch/distributed/distributed_c10d.py", 3245),
        ("wrapper", "torch/distributed/c10d_logger.py", 83),
        (f"sync_{group.desc}", "train.py", 100 + line),
        ("train_step", "train.py", 40 + line),
        ("main", "train.py", 20),
        ("<module>", "train.py", 9),
    ]
    while len(stack) < depth:
        n = len(stack)
        stack.insert(4, (f"forward_{n}", f"torch/nn/modules/layer_{n}.py", n))
    return stack[:depth]
