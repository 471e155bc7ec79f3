"""
Simulated jobs for the golden gate: every fault, many shapes of jobs and files.

A scenario is a function of a job's shape and of chance.  The same seed always gives the
same job.  What a rank does on its host (its stack) lies in sidecars beside the dumps of
every second case.
"""

from __future__ import annotations

import itertools
import random

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.property.parallel import Play, random_plan

from distdebug.flight_recorder import (
    Sidecar,
    SidecarFrame,
    SidecarGroup,
    write_sidecar,
)
from distdebug.testing import SimulatedGroup, SimulatedJob, Stack, make_dumps


STARTED = 1_750_000_000.0
READING: Stack = (
    ("_try_get_data", "/opt/venv/torch/utils/data/dataloader.py", 1251),
    ("__next__", "/opt/venv/torch/utils/data/dataloader.py", 701),
    ("read_shard", "/home/me/train.py", 41),
    ("main", "/home/me/train.py", 9),
)
SAVING: Stack = (
    ("_save", "/opt/venv/torch/serialization.py", 960),
    ("save", "/opt/venv/torch/serialization.py", 850),
    ("save_checkpoint", "/home/me/train.py", 77),
    ("main", "/home/me/train.py", 12),
)
LOCKED: Stack = (
    ("wait", "/usr/lib/python3.11/threading.py", 327),
    ("result", "/usr/lib/python3.11/concurrent/futures/_base.py", 451),
    ("log_metrics", "/home/me/metrics.py", 5),
    ("main", "/home/me/train.py", 30),
)
RECEIVING: Stack = (
    ("recv", "/opt/venv/torch/distributed/distributed_c10d.py", 2540),
    ("wrapper", "/opt/venv/torch/distributed/c10d_logger.py", 83),
    ("receive_activations", "/home/me/pipeline.py", 22),
    ("main", "/home/me/train.py", 18),
)
WAITING: Stack = (
    ("all_reduce", "/opt/venv/torch/distributed/distributed_c10d.py", 2800),
    ("wrapper", "/opt/venv/torch/distributed/c10d_logger.py", 83),
    ("backward", "/home/me/train.py", 50),
    ("main", "/home/me/train.py", 10),
)


class Shape(NamedTuple):
    """
    How large a job is, and how its files look.

    Attributes:
        world: How many ranks.

        backend: ``"nccl"`` or ``"gloo"``.

        options: Of :func:`distdebug.testing.make_dumps`.
    """

    world: int
    backend: str
    options: dict[str, object]


SHAPES = [
    Shape(4, "nccl", {}),
    Shape(4, "gloo", {"version": "2.11"}),
    Shape(8, "nccl", {"timed": True}),
    Shape(8, "nccl", {"version": "2.4", "ring": 12}),
    Shape(8, "gloo", {"version": "2.7"}),
    Shape(16, "nccl", {"as_json": True}),
    Shape(16, "gloo", {"compress": True}),
    Shape(64, "nccl", {"ring": 30}),
]


class Made(NamedTuple):
    """
    A job, and what else is known of it.

    Attributes:
        job: What its ranks recorded.

        missing: Ranks without a dump.

        stacks: What ranks do on their host; the others wait.

        goes_on: Whether the dumps were taken while it trained.

        has_ended: Whether all ranks came to their end.

        per_node: How many ranks a node has, each node with a folder of its
            own in which files are numbered by local rank; 0 for one folder.
    """

    job: SimulatedJob
    missing: tuple[int, ...] = ()
    stacks: Mapping[int, Stack] = MappingProxyType({})
    goes_on: bool = False
    has_ended: bool = False
    per_node: int = 0


class Mesh(NamedTuple):
    """
    A job of pairs (tp) and of those with the same place in their pair (dp).
    """

    job: SimulatedJob
    tp: list[SimulatedGroup]
    dp: list[SimulatedGroup]

    def step(self, skip: Sequence[int] = ()) -> None:
        """
        Let all ranks but those to *skip* make one step of training.
        """
        for group in (*self.tp, *self.dp, self.job.world):
            there = [r for r in group.ranks if r not in skip]
            self.job.collective("all_reduce", group, ranks=there)


def mesh(shape: Shape, steps: int) -> Mesh:
    """
    Return a job that has made some steps.
    """
    job = SimulatedJob(shape.world, backend=shape.backend, stack_depth=4)
    pairs = range(0, shape.world, 2)
    tp = [job.new_group([i, i + 1], "mesh_tp") for i in pairs]
    dp = [job.new_group(range(i, shape.world, 2), "mesh_dp") for i in range(2)]
    made = Mesh(job, tp, dp)
    for _ in range(steps):
        made.step()
    return made


def healthy(shape: Shape, chance: random.Random) -> Made:
    """
    All calls have completed.
    """
    return Made(mesh(shape, chance.randrange(2, 6)).job, has_ended=True)


def not_arrived(shape: Shape, chance: random.Random) -> Made:
    """
    One rank stays away from a step; its neighbours wait for it.
    """
    made = mesh(shape, chance.randrange(2, 6))
    late = chance.randrange(shape.world)
    for group in made.tp:
        there = [r for r in group.ranks if r != late]
        made.job.collective("all_reduce", group, ranks=there)
    stuck = {r for g in made.tp if late in g.ranks for r in g.ranks}
    for group in made.dp:
        there = [r for r in group.ranks if r not in stuck]
        made.job.collective("all_reduce", group, ranks=there)
    stack = chance.choice([READING, SAVING, LOCKED])
    return Made(made.job, stacks={late: stack})


def two_not_arrived(shape: Shape, chance: random.Random) -> Made:
    """
    Two ranks stay away.
    """
    made = mesh(shape, chance.randrange(1, 4))
    late = chance.sample(range(shape.world), 2)
    there = [r for r in range(shape.world) if r not in late]
    made.job.collective("all_gather", ranks=there)
    return Made(made.job, stacks=dict.fromkeys(late, READING))


def not_started(shape: Shape, chance: random.Random) -> Made:
    """
    One rank never made a call.
    """
    job = SimulatedJob(
        shape.world,
        backend=shape.backend,
        # The dumps are as old as other jobs are when they start.
        started=STARTED - 60,
        stack_depth=4,
    )
    late = chance.randrange(shape.world)
    there = [r for r in range(shape.world) if r != late]
    job.collective("broadcast", ranks=there)
    return Made(job, stacks={late: READING})


def crashed(shape: Shape, chance: random.Random) -> Made:
    """
    One rank left no dump, and the others wait.
    """
    made = mesh(shape, chance.randrange(1, 5))
    gone = chance.randrange(shape.world)
    there = [r for r in range(shape.world) if r != gone]
    made.job.collective("all_reduce", ranks=there)
    return Made(made.job, missing=(gone,))


def skipped(shape: Shape, chance: random.Random) -> Made:
    """
    One rank leaves out a call that comes before others of another kind.
    """
    made = mesh(shape, chance.randrange(2, 4))
    odd = chance.randrange(shape.world)
    all_but = [r for r in range(shape.world) if r != odd]
    line = chance.randrange(10, 99)
    stack = (("broadcast_config", "/home/me/train.py", line), *WAITING[2:])
    made.job.collective("broadcast", ranks=all_but, stack=stack)
    made.job.collective("all_reduce", sizes=[[chance.choice([7, 1024])]])
    return Made(made.job)


def extra(shape: Shape, chance: random.Random) -> Made:
    """
    One rank makes a call that nobody else makes.
    """
    made = mesh(shape, chance.randrange(2, 4))
    odd = chance.randrange(shape.world)
    stack = (("evaluate", "/home/me/train.py", 66), *WAITING[2:])
    made.job.collective("barrier", ranks=[odd], stack=stack)
    others = [r for r in range(shape.world) if r != odd]
    made.job.collective("all_reduce", ranks=others)
    return Made(made.job)


def other_type(shape: Shape, chance: random.Random) -> Made:
    """
    One rank calls another operation than the others, at the same place.
    """
    made = mesh(shape, chance.randrange(2, 5))
    odd = chance.randrange(shape.world)
    group = made.job.world
    others = [r for r in group.ranks if r != odd]
    made.job.collective("all_reduce", ranks=others)
    made.job.collective("all_gather", ranks=[odd])
    return Made(made.job)


def other_size(shape: Shape, chance: random.Random) -> Made:
    """
    One rank passes a tensor of another size.
    """
    made = mesh(shape, chance.randrange(2, 5))
    odd = chance.randrange(shape.world)
    group = chance.choice([g for g in made.dp if odd in g.ranks])
    others = [r for r in group.ranks if r != odd]
    made.job.collective("all_reduce", group, ranks=others)
    made.job.collective("all_reduce", group, ranks=[odd], sizes=[[512]])
    _leave_open(made.job, group)
    return Made(made.job)


def other_dtype(shape: Shape, chance: random.Random) -> Made:
    """
    One rank passes a tensor of another type.
    """
    made = mesh(shape, chance.randrange(2, 5))
    odd = chance.randrange(shape.world)
    others = [r for r in range(shape.world) if r != odd]
    made.job.collective("all_reduce", ranks=others)
    made.job.collective("all_reduce", ranks=[odd], dtype="BFloat16")
    _leave_open(made.job, made.job.world)
    return Made(made.job)


def _leave_open(job: SimulatedJob, group: SimulatedGroup) -> None:
    """
    Let the last call of a group never complete, though all are there.
    """
    for rank in group.ranks:
        job.records[rank][-1].call.members |= {-1}


def group_order(shape: Shape, chance: random.Random) -> Made:
    """
    One rank enters its two groups in the other order.
    """
    made = mesh(shape, chance.randrange(2, 5))
    odd = chance.randrange(shape.world)
    (pair,) = [g for g in made.tp if odd in g.ranks]
    mates = [r for r in pair.ranks if r != odd]
    for group in made.tp:
        if group is not pair:
            made.job.collective("all_reduce", group)
    made.job.collective("all_reduce", pair, ranks=mates)
    away = {*mates}
    there = [r for r in range(shape.world) if r not in away]
    made.job.collective("all_reduce", ranks=there)
    return Made(made.job)


def in_flight(shape: Shape, chance: random.Random) -> Made:
    """
    All ranks have entered a call that does not end.
    """
    made = mesh(shape, chance.randrange(1, 5))
    group = chance.choice([made.job.world, *made.dp])
    made.job.collective("all_reduce", group)
    _leave_open(made.job, group)
    for rank in group.ranks:
        made.job.records[rank][-1] = made.job.records[rank][-1]._replace(
            state="started"
        )
    return Made(made.job)


def in_launch(shape: Shape, chance: random.Random) -> Made:
    """
    One rank does not return from enqueueing its call.
    """
    made = mesh(shape, chance.randrange(1, 5))
    odd = chance.randrange(shape.world)
    made.job.collective("all_reduce", in_launch=[odd])
    _leave_open(made.job, made.job.world)
    return Made(made.job)


def slow_host(shape: Shape, chance: random.Random) -> Made:
    """
    One rank comes late in every step.
    """
    job = SimulatedJob(shape.world, backend=shape.backend, stack_depth=4)
    slow, delay = chance.randrange(shape.world), chance.choice([0.2, 0.5])
    for _ in range(30):
        job.collective("all_reduce", late={slow: delay})
        job.wait(1.0)
    return Made(job, goes_on=True)


def two_faults(shape: Shape, chance: random.Random) -> Made:
    """
    Two ranks stay away, each from a group of its own.
    """
    made = mesh(shape, chance.randrange(1, 4))
    first, second = chance.sample(range(len(made.tp)), 2)
    late = [made.tp[first].ranks[0], made.tp[second].ranks[1]]
    for number, group in enumerate(made.tp):
        there = [r for r in group.ranks if r not in late]
        made.job.collective("all_reduce", group, ranks=there)
        if number not in {first, second}:
            made.job.collective("all_reduce", group)
    return Made(
        made.job, stacks=dict(zip(late, [READING, SAVING], strict=True))
    )


def pipeline(shape: Shape, chance: random.Random) -> Made:
    """
    A job with data, tensor, and pipeline parallelism in which a rank stops.
    """
    plan = random_plan(chance, shape.world)
    rank = chance.randrange(len(plan.programs))
    stop = chance.randrange(max(len(plan.programs[rank]), 1))
    play = Play(plan, stop=(rank, stop))
    return Made(play.job(shape.backend), stacks={rank: READING})


def crossed(shape: Shape, chance: random.Random) -> Made:
    """
    Neighbours receive from each other before they send.
    """
    made = mesh(shape, chance.randrange(1, 4))
    ring = range(shape.world)
    for rank in ring:
        made.job.recv(rank, (rank + 1) % shape.world)
    return Made(made.job, stacks=dict.fromkeys(ring, RECEIVING))


def never_sent(shape: Shape, chance: random.Random) -> Made:
    """
    A rank waits for a message that its peer does not send.
    """
    made = mesh(shape, chance.randrange(1, 4))
    rank, peer = chance.sample(range(shape.world), 2)
    made.job.send(peer, rank)
    made.job.recv(rank, peer)
    made.job.recv(rank, peer)
    others = [r for r in range(shape.world) if r not in {rank, peer}]
    made.job.collective("all_reduce", ranks=others)
    return Made(made.job, stacks={peer: READING, rank: RECEIVING})


def torn(shape: Shape, chance: random.Random) -> Made:
    """
    The dumps of a job that trains were taken after different steps.
    """
    made = mesh(shape, 2)
    for rank in chance.sample(range(shape.world), shape.world // 2):
        made.job.dump(rank)
    for _ in range(chance.randrange(1, 4)):
        made.step()
    return Made(made.job, goes_on=True)


def short_steps(shape: Shape, chance: random.Random) -> Made:
    """
    One rank is late for most of a step, and steps are short.
    """
    job = SimulatedJob(shape.world, backend=shape.backend, stack_depth=4)
    slow = chance.randrange(shape.world)
    for _ in range(40):
        job.collective("all_reduce", late={slow: 0.03})
        job.wait(0.005)
    return Made(job, goes_on=True)


def slow_device(shape: Shape, chance: random.Random) -> Made:
    """
    One rank is late in its own groups, and not in one that comes after them.
    """
    job = SimulatedJob(shape.world, backend=shape.backend, stack_depth=4)
    tp = [job.new_group([i, i + 1], "tp") for i in range(0, shape.world, 2)]
    other = job.new_group(range(shape.world), "metrics")
    slow = chance.randrange(shape.world)
    for _ in range(30):
        now, ends = job.clock, []
        for group in tp:
            job.clock = now
            late = {slow: 0.7} if slow in group.ranks else {}
            job.collective("all_reduce", group, late=late)
            ends.append(job.clock)
        job.clock = max(ends)
        job.collective("all_reduce", late={slow: 0.01})
        job.collective("all_reduce", other)
        job.wait(0.3)
    return Made(job, goes_on=True)


def gone_at_the_end(shape: Shape, chance: random.Random) -> Made:
    """
    One rank left nothing, and the calls of the others have ended.
    """
    made = mesh(shape, chance.randrange(2, 6))
    gone = chance.randrange(shape.world)
    return Made(made.job, missing=(gone,), has_ended=True)


def cycle_of_groups(shape: Shape, chance: random.Random) -> Made:
    """
    Three ranks wait for each other in three groups.
    """
    made = mesh(shape, chance.randrange(1, 4))
    ranks = chance.sample(range(shape.world), 3)
    for number, rank in enumerate(ranks):
        pair = sorted([rank, ranks[(number + 1) % 3]])
        group = made.job.new_group(pair, f"pair_{number}")
        made.job.collective("all_reduce", group)
    for number, rank in enumerate(ranks):
        group = made.job.groups[number - 3]
        made.job.collective("all_reduce", group, ranks=[rank])
    return Made(made.job)


def numbered_by_node(shape: Shape, chance: random.Random) -> Made:
    """
    A rank stays away, and each node numbers its files from 0.
    """
    return not_arrived(shape, chance)._replace(per_node=shape.world // 2)


SCENARIOS: dict[str, Callable[[Shape, random.Random], Made]] = {
    scenario.__name__: scenario
    for scenario in (
        *(healthy, not_arrived, two_not_arrived, not_started, crashed),
        *(skipped, extra, other_type, other_size, other_dtype, group_order),
        *(in_flight, in_launch, slow_host, two_faults, pipeline, crossed),
        *(never_sent, torn, short_steps, slow_device, gone_at_the_end),
        *(cycle_of_groups, numbered_by_node),
    )
}
SEEDS = range(2)


def names() -> Iterator[str]:
    """
    Return the names of all simulated cases.
    """
    for scenario, shape, seed in itertools.product(
        SCENARIOS, range(len(SHAPES)), SEEDS
    ):
        # Large jobs take long, and show little that smaller ones do not.
        if SHAPES[shape].world < 64 or seed == 0:
            yield f"{scenario}-{shape}-{seed}"


def write(name: str, folder: Path) -> None:
    """
    Write the dumps of a case, with sidecars if its seed is odd.

    Args:
        name: One of :func:`names`.

        folder: Where to.
    """
    scenario, number, seed = name.rsplit("-", 2)
    shape = SHAPES[int(number)]
    made = SCENARIOS[scenario](shape, random.Random(name))
    paths = make_dumps(folder, made.job, missing=made.missing, **shape.options)
    if int(seed) % 2:
        for rank, path in paths.items():
            write_sidecar(_sidecar(made, rank, path.name), path)
    if made.per_node:
        _number_by_node(paths, made.per_node)


def _number_by_node(paths: Mapping[int, Path], per_node: int) -> None:
    for rank, path in paths.items():
        node = path.parent / f"node{rank // per_node}"
        node.mkdir(exist_ok=True)
        name = path.name.replace(f"_{rank}", f"_{rank % per_node}")
        for file in path.parent.glob(f"{path.name}*"):
            if file.name in {path.name, f"{path.name}.sidecar.json"}:
                file.rename(node / file.name.replace(path.name, name))


def _sidecar(made: Made, rank: int, dump: str) -> Sidecar:
    job = made.job
    stack = made.stacks.get(rank, WAITING)
    frames = tuple(SidecarFrame(*line) for line in stack)
    moment = job.dumped.get(rank, job.clock)
    return Sidecar(
        path="",
        rank=rank,
        world_size=len(job.records),
        host=f"node{rank // 8}",
        pid=1000 + rank,
        started=STARTED,
        written=moment + (0.001 if made.goes_on else 30),
        reason="exit" if made.has_ended else "request",
        dump=dump,
        job="golden",
        torch="2.13.0",
        groups=tuple(
            SidecarGroup(group.name, group.desc, group.ranks, job.backend)
            for group in job.groups
            if rank in group.ranks
        ),
        threads=() if made.has_ended else (("MainThread", frames),),
    )
