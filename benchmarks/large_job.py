"""
What would 16,384 ranks leave behind?

Simulating each of them would take longer than what is to be measured.  But
ranks of the same pipeline stage make the same calls: so one small job is
simulated, and its dumps are turned into those of all ranks by changing names
and members of groups, and every single time.

The job trains a model with tensor, pipeline, and data parallelism.  Its rings
have wrapped around.  One rank does not enter its last call: the others of its
tensor-parallel group wait for it, the stages around them for each other, and
all other replicas for this one.
"""

from __future__ import annotations

import struct
import time

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from numpy.typing import NDArray

from distdebug.testing import SimulatedGroup, SimulatedJob, plain_dump
from distdebug.testing.dumps import torch_pickle


__all__ = ["REPLICA", "culprit_of", "write_dumps"]

TENSOR, STAGES = 8, 8
# How many ranks have a copy of the whole model.
REPLICA = TENSOR * STAGES
# Ranks are counted along tensors first, then replicas, then stages.
BAD_STAGE = 3
BAD_PART = 5

LAYERS = 24
# Stands for a size, and takes two bytes.
ANY_SIZE = 54_321
# A time in a pickle: how many bytes follow, then the number.
_TIME = b"\x8a\x08"
_BEFORE_RECORDS = b"X\x07\x00\x00\x00entries"


def culprit_of(ranks: int) -> int:
    """
    Who holds up a job of so many ranks?
    """
    replicas = ranks // REPLICA
    bad_replica = replicas // 3
    return BAD_PART + TENSOR * (bad_replica + replicas * BAD_STAGE)


def write_dumps(
    folder: Path,
    ranks: int,
    *,
    entries: int = 2000,
    frames: int = 12,
    uneven: bool = False,
) -> float:
    """
    Write the dumps of a job of which one rank is stuck.

    Args:
        folder: Where to.

        ranks: How many ranks it has, a multiple of `REPLICA` above it.

        entries: How many records each of them keeps.

        frames: How deep their stacks are.

        uneven: Whether every third call is an all-to-all with sizes that no
            other call has, as in a mixture of experts.

    Returns:
        Their size in MB.
    """
    if ranks % REPLICA or ranks < 2 * REPLICA:
        msg = f"the number of ranks has to be {REPLICA} times 2, 3, or more"
        raise ValueError(msg)

    made = _templates(entries, _Small(frames, uneven=uneven))
    replicas = ranks // REPLICA
    groups = _Groups(replicas)
    rng = np.random.default_rng(0)
    size = 0
    for rank in range(ranks):
        _, replica, stage = groups.place(rank)
        is_bad = replica == replicas // 3
        is_culprit = rank == culprit_of(ranks)
        template = made[stage, is_bad, is_culprit]
        data = template.fill(groups.of(rank), rng)
        size += (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return size / 1e6


class _Groups:
    """
    The process groups of a large job: all that differs between two ranks.
    """

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        world = range(TENSOR * replicas * STAGES)
        self._texts: dict[Sequence[int], str] = {}
        self._world = ("0", str(list(world)))

    def place(self, rank: int) -> tuple[int, int, int]:
        """
        Which part of the tensors, which replica, and which stage.
        """
        rest, part = divmod(rank, TENSOR)
        stage, replica = divmod(rest, self.replicas)
        return part, replica, stage

    def of(self, rank: int) -> list[tuple[str, str]]:
        """
        Name and members of the groups of a rank, as templates have them.
        """
        part, replica, stage = self.place(rank)
        per_stage = TENSOR * self.replicas
        # In each process, torch gives a number to all groups of the job.
        row = stage * self.replicas + replica
        pipe = replica * TENSOR + part
        copies = stage * TENSOR + part
        first = STAGES * self.replicas
        second = first + TENSOR * self.replicas
        members = (
            range(rank - part, rank - part + TENSOR),
            range(pipe, per_stage * STAGES, per_stage),
            range(stage * per_stage + part, (stage + 1) * per_stage, TENSOR),
        )
        names = (1 + row, 1 + first + pipe, 1 + second + copies)
        return [
            self._world,
            *zip(map(str, names), map(self._text, members), strict=True),
        ]

    def _text(self, members: Sequence[int]) -> str:
        if members not in self._texts:
            self._texts[members] = str(list(members))
        return self._texts[members]


class _Template(NamedTuple):
    """
    The dump of a rank of which all that is its own can be replaced.

    Attributes:
        head: What comes before the records.

        names: Name and members of its groups, as they are in the head.

        records: The records.

        places: Where times are in the records.

        times: Those times.

        sizes: Where sizes are in the records that no other call has.
    """

    head: bytes
    names: list[tuple[str, str]]
    records: bytes
    places: NDArray[np.int64]
    times: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def fill(
        self, groups: list[tuple[str, str]], rng: np.random.Generator
    ) -> bytes:
        """
        Make the dump of a rank with these groups, and with times of its own.
        """
        head = self.head
        for before, after in zip(self.names, groups, strict=True):
            for old, new in zip(before, after, strict=True):
                head = head.replace(_text(old), _text(new), 1)
        records = np.frombuffer(self.records, np.uint8).copy()
        late = rng.integers(0, 300_000, len(self.times))
        clock = int(rng.normal(0, 5_000_000))
        _put(records, self.places, (self.times + late + clock).astype("<i8"))
        size = rng.integers(1 << 8, 1 << 16, len(self.sizes), dtype="<u2")
        _put(records, self.sizes, size)
        return head + records.tobytes()


def _put(
    data: NDArray[np.uint8], places: NDArray[np.int64], numbers: NDArray
) -> None:
    width = numbers.itemsize
    at = places[:, None] + np.arange(width)
    data[at] = numbers.view(np.uint8).reshape(-1, width)


def _templates(
    entries: int, small: _Small
) -> dict[tuple[int, bool, bool], _Template]:
    """
    A dump of each kind of rank: by stage, whether its replica is the bad one,
    and whether it is the culprit.
    """
    while len(small.job.records[0]) <= entries * 1.1:
        small.step(is_last=False)
    small.step(is_last=True)
    small.job.wait(600)
    made = {}
    for (stage, replica, part), rank in small.rank.items():
        # Of two parts, the first one waits for the second.
        is_culprit = (stage, replica, part) == (BAD_STAGE, 1, 1)
        if is_culprit or part == 0:
            key = stage, replica == 1, is_culprit
            made[key] = _template(small, rank, small.groups_of(rank), entries)
    return made


class _Small:
    """
    A job of two parts, two replicas, and all stages.
    """

    def __init__(self, frames: int, *, uneven: bool) -> None:
        self.rank = {
            (stage, replica, part): part + 2 * (replica + 2 * stage)
            for stage in range(STAGES)
            for replica in range(2)
            for part in range(2)
        }
        # Its last calls were an hour ago.
        self.job = SimulatedJob(
            len(self.rank), started=time.time() - 4000, stack_depth=frames
        )
        part, whole, any_size = (
            [[512, 1, 1024]],
            [[4096, 1, 1024]],
            [[ANY_SIZE, 1024]],
        )
        self.layer = [
            ("_all_gather_base", part, whole),
            *([("all_to_all", any_size, any_size)] if uneven else ()),
            ("_reduce_scatter_base", whole, part),
        ]
        self.rows = self._groups("tp", lambda s, r, _: (s, r))
        self.pipes = self._groups("pp", lambda _, r, p: (r, p))
        self.copies = self._groups("dp", lambda s, _, p: (s, p))

    def _groups(self, desc, key) -> dict[tuple[int, int], SimulatedGroup]:
        members: dict[tuple[int, int], list[int]] = {}
        for place, rank in self.rank.items():
            members.setdefault(key(*place), []).append(rank)
        return {
            k: self.job.new_group(m, desc, f"{desc} {k}")
            for k, m in members.items()
        }

    def groups_of(self, rank: int) -> list[SimulatedGroup]:
        """
        World, tensors, pipeline, and copies.
        """
        return [g for g in self.job.groups if rank in g.ranks]

    def step(self, *, is_last: bool) -> None:
        """
        Go through the model and back, then add up gradients.
        """
        for replica in range(2):
            is_bad = is_last and replica == 1
            if self._forward(replica, is_bad=is_bad):
                self._backward(replica)

        for group in self.copies.values():
            who = [r for r in group.ranks if self._gets_there(r, is_last)]
            self.job.collective(
                "all_reduce", group, ranks=who, sizes=[[25_000_000]]
            )
        if not is_last:
            self.job.collective("all_reduce", sizes=[[1]])

    def _gets_there(self, rank: int, is_last: bool) -> bool:  # noqa: FBT001
        return not is_last or rank // 2 % 2 == 0

    def _forward(self, replica: int, *, is_bad: bool) -> bool:
        """
        Go through the stages, and return whether that came to its end.
        """
        for stage in range(STAGES):
            if stage > 0:
                self._pass_on(replica, stage - 1, stage)
            row = self.rows[stage, replica]
            if is_bad and stage == BAD_STAGE:
                self._layer(row, ranks=row.ranks[:1])
                self._stall(replica)
                return False

            for _ in range(LAYERS):
                self._layer(row)
        return True

    def _backward(self, replica: int) -> None:
        for stage in reversed(range(STAGES)):
            if stage < STAGES - 1:
                self._pass_on(replica, stage + 1, stage)
            for _ in range(LAYERS):
                self._layer(self.rows[stage, replica])

    def _stall(self, replica: int) -> None:
        """
        Let all stages wait for the one that is stuck.
        """
        for part in range(2):
            pipe = self.pipes[replica, part]
            for stage in range(STAGES):
                source = stage + 1 if stage < BAD_STAGE else stage - 1
                if stage != BAD_STAGE:
                    self.job.recv(pipe.ranks[stage], pipe.ranks[source], pipe)

    def _pass_on(self, replica: int, source: int, target: int) -> None:
        for part in range(2):
            pipe = self.pipes[replica, part]
            a, b = pipe.ranks[source], pipe.ranks[target]
            sizes = [[4096, 1, 1024]]
            self.job.send(a, b, pipe, sizes=sizes, dtype="BFloat16")
            self.job.recv(b, a, pipe, sizes=sizes, dtype="BFloat16")

    def _layer(self, row: SimulatedGroup, ranks=None) -> None:
        calls = self.layer if ranks is None else self.layer[:1]
        for op, sizes, output_sizes in calls:
            self.job.collective(
                op,
                row,
                ranks=ranks,
                sizes=sizes,
                output_sizes=output_sizes,
                dtype="BFloat16",
            )


def _template(
    small: _Small, rank: int, groups: list[SimulatedGroup], entries: int
) -> _Template:
    data = torch_pickle(plain_dump(small.job, rank, ring=entries))
    cut = data.index(_BEFORE_RECORDS)
    head, records = data[:cut], data[cut:]
    names = [(g.name, str(list(g.ranks))) for g in groups]
    assert all(head.count(_text(x)) == 1 for pair in names for x in pair)
    places = _places_of_times(records)
    times = np.array(
        [struct.unpack_from("<q", records, at)[0] for at in places]
    )
    sizes = np.array(
        [at + 1 for at in _finds(records, _number(ANY_SIZE))], np.int64
    )
    return _Template(head, names, records, places, times, sizes)


def _places_of_times(records: bytes) -> NDArray[np.int64]:
    """
    Where eight bytes hold a moment of today, roughly.
    """
    places = []
    for at in _finds(records, _TIME):
        # The same two bytes are part of other numbers, too.
        number = struct.unpack_from("<q", records, at + len(_TIME))[0]
        if abs(number / 1e9 - time.time()) < 1e6:
            places.append(at + len(_TIME))
    return np.array(places)


def _finds(data: bytes, wanted: bytes) -> Iterator[int]:
    at = data.find(wanted)
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)


def _number(value: int) -> bytes:
    return b"M" + struct.pack("<H", value)


def _text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data
