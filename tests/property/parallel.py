"""
Jobs that train in parallel over data, tensors, and pipeline stages.

Each rank has its own list of calls, as in a real program, and waits where a real one
would wait; so a rank that stops makes all others stop sooner or later.
"""

from __future__ import annotations

import random

from collections import defaultdict
from typing import NamedTuple

from distdebug.testing import SimulatedJob


class Collective(NamedTuple):
    """
    One rank enters a collective.
    """

    group: str
    op: str
    size: int = 1024


class Transfer(NamedTuple):
    """
    One rank sends, receives, or both at once: (kind, peer) pairs.
    """

    group: str
    parts: tuple[tuple[str, int], ...]

    @property
    def blocks(self):
        """
        Nobody goes on without what it receives.
        """
        return any(kind == "recv" for kind, _ in self.parts)


class Plan(NamedTuple):
    """
    What all ranks are going to do.

    Attributes:
        groups: Members in group order, by name.

        programs: The calls of each rank.

        batched: Whether transfers are coalesced.

        ahead: How many calls a rank enqueues without waiting.
    """

    groups: dict[str, tuple[int, ...]]
    programs: dict[int, list[Collective | Transfer]]
    batched: bool = False
    ahead: int = 0


OPS = [
    *("all_reduce", "_all_gather_base", "_reduce_scatter_base"),
    *("broadcast", "all_gather"),
]
SIZES = [
    (dp, pp, tp)
    for dp in (1, 2, 4)
    for pp in (1, 2, 4)
    for tp in (1, 2, 4)
    if 2 <= dp * pp * tp <= 32
]


class Choices(NamedTuple):
    """
    How a job is parallel, and what it calls.

    Attributes:
        sizes: Data, pipeline, and tensor parallelism.

        tp_op: The collective of the tensor groups.

        dp_ops: Those at the end of a step in the data groups.

        world_ops: Those of all ranks after that.

        steps: How many steps there are.

        microbatches: How many parts a batch has in a pipeline.
    """

    sizes: tuple[int, int, int]
    tp_op: str
    dp_ops: list[str]
    world_ops: list[str]
    steps: int
    microbatches: int


def make_plan(choices, *, batched=False, ahead=0):
    """
    Return what the ranks of such a job do, in 1F1B schedules.
    """
    dp, pp, tp = choices.sizes
    groups = {"world": tuple(range(dp * pp * tp))}
    programs = {}
    for rank in groups["world"]:
        place = (*divmod(rank // tp, pp), rank % tp)
        own = _own_groups(place, choices.sizes)
        groups |= own
        names = {name.partition("_")[0]: name for name in own}
        step = _pipeline(
            names, groups, rank, choices.microbatches, choices.tp_op
        )
        if dp > 1:
            step += [Collective(names["dp"], op) for op in choices.dp_ops]
        step += [Collective("world", op) for op in choices.world_ops]
        programs[rank] = step * choices.steps
    return Plan(groups, programs, batched=batched, ahead=ahead)


def random_plan(chance: random.Random, world: int):
    """
    Return the plan of a job of at most *world* ranks, with stages if it may.
    """
    sizes = [s for s in SIZES if world // 2 <= s[0] * s[1] * s[2] <= world]
    choices = Choices(
        sizes=chance.choice(sizes or SIZES[-3:]),
        tp_op=chance.choice(OPS),
        dp_ops=chance.choices(OPS, k=chance.randint(1, 3)),
        world_ops=chance.choices(OPS, k=chance.randint(0, 1)),
        steps=chance.randint(1, 3),
        microbatches=chance.randint(1, 4),
    )
    return make_plan(choices, batched=chance.random() < 0.5)


def _own_groups(place, sizes):
    """
    The groups of one rank: all that differ from it in one dimension only.
    """
    own = {}
    for axis, kind in enumerate(["dp", "pp", "tp"]):
        if sizes[axis] > 1:
            ranks = []
            for i in range(sizes[axis]):
                d, p, t = (*place[:axis], i, *place[axis + 1 :])
                ranks.append((d * sizes[1] + p) * sizes[2] + t)
            others = [x for i, x in enumerate(place) if i != axis]
            own["_".join(map(str, [kind, *others]))] = tuple(ranks)
    return own


def _pipeline(names, groups, rank, microbatches, op):
    """
    One forward, one backward; without stages, just some collectives.
    """
    compute = [Collective(names["tp"], op)] if "tp" in names else []
    if "pp" not in names:
        return compute * 2

    stages = groups[names["pp"]]
    at = stages.index(rank)
    after = stages[at + 1] if at + 1 < len(stages) else None
    before = stages[at - 1] if at else None

    def transfer(peer, *kinds):
        parts = tuple((kind, peer) for kind in kinds)
        return [] if peer is None else [Transfer(names["pp"], parts)]

    warm = min(len(stages) - at - 1, microbatches)
    steady = microbatches - warm
    calls = []
    for _ in range(warm):
        calls += transfer(before, "recv") + compute + transfer(after, "send")
    calls += transfer(before, "recv") if steady else []
    for i in range(steady):
        calls += compute + transfer(after, "send", "recv") + compute
        kinds = ("send",) if i == steady - 1 else ("send", "recv")
        calls += transfer(before, *kinds)
    for _ in range(warm):
        calls += transfer(after, "recv") + compute + transfer(before, "send")
    return calls


class Play:
    """
    Run all programs as far as they get.

    Args:
        plan: What the ranks are going to do.

        stop: Ranks, and how many calls each makes before it stops; or a pair.

    Attributes:
        rounds: Which (rank, call) happens when.

        waiting: The calls of each rank that do not complete.
    """

    def __init__(self, plan, stop=None):
        self.plan = plan
        self.rounds = []
        self.limit = {r: len(p) for r, p in plan.programs.items()}
        if stop is not None:
            self.limit |= stop if isinstance(stop, dict) else dict([stop])
        self.waiting = {r: [] for r in plan.programs}
        self.entered = defaultdict(dict)
        self.open = {}
        self.complete = set()
        self._keys = {}
        self._counts = defaultdict(int)
        position = dict.fromkeys(plan.programs, 0)
        while entering := [r for r in position if self._may(r, position[r])]:
            for rank in entering:
                self._enter(rank, position[rank])
                position[rank] += 1
            self.rounds.append([(r, position[r] - 1) for r in entering])
            self._settle()

    def _may(self, rank, i):
        program = self.plan.programs[rank]
        blocking = [
            i
            for i in self.waiting[rank]
            if self.plan.batched
            or isinstance(program[i], Collective)
            or program[i].blocks
        ]
        return i < self.limit[rank] and len(blocking) <= self.plan.ahead

    def _enter(self, rank, i):
        call = self.plan.programs[rank][i]
        members = self.plan.groups[call.group]
        if isinstance(call, Collective):
            keys = [(members, "collective")]
        else:
            keys = [
                ((rank, peer) if kind == "send" else (peer, rank), call.group)
                for kind, peer in call.parts
            ]
        numbered = []
        for key in keys:
            self._counts[rank, key, call.group] += 1
            number = self._counts[rank, key, call.group]
            numbered.append((*key, call.group, number))
            self.entered[numbered[-1]][rank] = i
            self.open[numbered[-1]] = None
        self._keys[rank, i] = numbered
        self.waiting[rank].append(i)

    def _settle(self):
        """
        A device runs its collectives in the order of its program.
        """
        before = -1
        while before < len(self.complete):
            before = len(self.complete)
            for key in list(self.open):
                inside = self.entered[key]
                if len(inside) == len(key[0]) and (
                    key[1] != "collective" or self._may_complete(inside)
                ):
                    self.complete.add(key)
                    del self.open[key]
            for rank, calls in self.waiting.items():
                self.waiting[rank] = [i for i in calls if self._waits(rank, i)]

    def _may_complete(self, inside):
        """
        Ranks that call something else never meet.
        """
        calls = {self.plan.programs[r][i] for r, i in inside.items()}
        return len(calls) == 1 and all(
            self._is_next(r, i) for r, i in inside.items()
        )

    def _is_next(self, rank, i):
        program = self.plan.programs[rank]
        return not any(
            j < i and isinstance(program[j], Collective)
            for j in self.waiting[rank]
        )

    def _waits(self, rank, i):
        return not self.complete.issuperset(self._keys[rank, i])

    def job(self, backend="nccl", rename=None):
        """
        What the ranks would have recorded.

        Args:
            backend: Whose calls they are.

            rename: The new number of each rank.
        """
        rename = rename or {r: r for r in self.plan.programs}
        job = SimulatedJob(len(rename), backend=backend)
        groups = {
            name: job.new_group([rename[r] for r in ranks], f"mesh_{name[:2]}")
            for name, ranks in self.plan.groups.items()
            if name != "world"
        }
        groups["world"] = job.world
        for entering in self.rounds:
            now = job.clock
            for rank, i in entering:
                # All at once: nobody is slower than the others.
                job.clock = now
                self._tell(job, groups, rank, i, rename)
            job.clock = now + 0.002
        return job

    def _tell(self, job, groups, rank, i, rename):
        call = self.plan.programs[rank][i]
        group = groups[call.group]
        if isinstance(call, Collective):
            job.collective(
                call.op, group, ranks=[rename[rank]], sizes=((call.size,),)
            )
            if not self.complete.issuperset(self._keys[rank, i]):
                # All may be there, and yet it is queued behind another one.
                job.records[rename[rank]][-1].call.members |= {-1}
            return

        parts = [(kind, rename[peer]) for kind, peer in call.parts]
        if self.plan.batched:
            job.coalesced(rename[rank], parts, group)
            return

        for kind, peer in parts:
            meet = job.send if kind == "send" else job.recv
            meet(rename[rank], peer, group)
