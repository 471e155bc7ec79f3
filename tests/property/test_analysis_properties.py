"""
Laws that hold for every job, however its ranks are grouped.

The jobs train a model in parallel over data, tensors, and stages.  Each rank
has its own list of calls, as in a real program, and waits where a real one
would wait; so a rank that stops makes all others stop sooner or later, and who
was first is what the analysis has to find out.
"""

from __future__ import annotations

import random

from collections import defaultdict
from typing import NamedTuple

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distdebug.findings import Cause
from distdebug.flight_recorder import analyze_dumps, read_dumps
from distdebug.testing import SimulatedJob, make_dumps


class Collective(NamedTuple):
    """
    One rank enters a collective.
    """

    group: str
    op: str


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


@st.composite
def plans(draw, sizes=SIZES):
    """
    Training with data, tensor, and pipeline parallelism (1F1B).
    """
    dp, pp, tp = draw(st.sampled_from(sizes))
    ops = {
        "tp": draw(st.sampled_from(OPS)),
        "dp": draw(st.lists(st.sampled_from(OPS), min_size=1, max_size=3)),
        "world": draw(st.lists(st.sampled_from(OPS), max_size=1)),
    }
    steps = draw(st.integers(1, 3))
    microbatches = draw(st.integers(1, 4))
    groups = {"world": tuple(range(dp * pp * tp))}
    programs = {}
    for rank in groups["world"]:
        place = (*divmod(rank // tp, pp), rank % tp)
        own = _own_groups(place, (dp, pp, tp))
        groups |= own
        names = {name.partition("_")[0]: name for name in own}
        step = _pipeline(names, groups, rank, microbatches, ops["tp"])
        if dp > 1:
            step += [Collective(names["dp"], op) for op in ops["dp"]]
        step += [Collective("world", op) for op in ops["world"]]
        programs[rank] = step * steps
    return Plan(
        groups,
        programs,
        batched=draw(st.booleans()),
        ahead=draw(st.sampled_from([0, 2, 5])) if pp == 1 else 0,
    )


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

        stop: A rank, and how many calls it makes before it stops.

    Attributes:
        rounds: Which (rank, call) happens when.

        waiting: The calls of each rank that do not complete.
    """

    def __init__(self, plan, stop=None):
        self.plan = plan
        self.rounds = []
        self.limit = {r: len(p) for r, p in plan.programs.items()}
        if stop is not None:
            self.limit[stop[0]] = stop[1]
        self.waiting = {r: [] for r in plan.programs}
        self.entered = defaultdict(dict)
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
        self._keys[rank, i] = numbered
        self.waiting[rank].append(i)

    def _settle(self):
        """
        A device runs its collectives in the order of its program.
        """
        before = -1
        while before < len(self.complete):
            before = len(self.complete)
            for key, inside in self.entered.items():
                if len(inside) == len(key[0]) and (
                    key[1] != "collective"
                    or all(self._is_next(r, i) for r, i in inside.items())
                ):
                    self.complete.add(key)
            for rank, calls in self.waiting.items():
                self.waiting[rank] = [i for i in calls if self._waits(rank, i)]

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
            job.collective(call.op, group, ranks=[rename[rank]])
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


def verdict_of(dumps):
    """
    What compares: cause, ranks, group, and call.
    """
    v = analyze_dumps(dumps).verdict
    return v.cause, v.ranks, v.group, v.collective


@st.composite
def stopped(draw, sizes=SIZES):
    """
    A job in which one rank stops before any of its calls, and others wait.
    """
    plan = draw(plans(sizes))
    rank = draw(st.integers(0, len(plan.programs) - 1))
    calls = plan.programs[rank]
    stop = draw(st.integers(0, max(len(calls) - 1, 0)))
    play = Play(plan, stop=(rank, stop))
    assume(any(play.waiting.values()))
    return play, rank


@st.composite
def permutations(draw, size):
    """
    New numbers for all ranks.
    """
    return dict(enumerate(draw(st.permutations(range(size)))))


@given(
    plan=plans(),
    ring=st.sampled_from([5, 20, 2000]),
    timed=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_healthy(dumps_of, plan, ring, timed, seed):
    """
    In a job that ended well, nobody is to blame: whatever the rings lost, and
    however wrong the clocks of the hosts are.
    """
    play = Play(plan)
    clocks = random.Random(seed)
    offsets = {r: clocks.uniform(-2, 2) for r in plan.programs}

    report = analyze_dumps(
        dumps_of(play.job(), ring=ring, timed=timed, clock_offsets_s=offsets)
    )

    assert not any(play.waiting.values())
    assert (Cause.HEALTHY, ()) == (report.verdict.cause, report.findings)
    assert () == report.victims


@given(plan=plans(), data=st.data())
def test_skewed(dumps_of, plan, data):
    """
    Dumps of one running job may be taken after different steps.
    """
    job = Play(plan).job()
    ends = [r.created for r in job.records[0]] or [job.clock]
    for rank in job.records:
        job.dumped[rank] = data.draw(st.sampled_from(ends)) + 0.0019

    quiet = {
        rank: all(
            r.call is None
            or (r.call.completed or 0) <= job.dumped[rank]
            or r.created > job.dumped[rank]
            for r in records
        )
        for rank, records in job.records.items()
    }
    assume(all(quiet.values()))
    verdict = analyze_dumps(dumps_of(job)).verdict

    assert (Cause.HEALTHY, ()) == (verdict.cause, verdict.ranks)


@given(
    case=stopped(), ring=st.sampled_from([5, 20, 2000]), timed=st.booleans()
)
def test_stopped(dumps_of, case, ring, timed):
    """
    Wherever a rank stops, it is named, and it alone: also if the rings lost
    its last call in the group that waits for it.
    """
    play, rank = case

    verdict = analyze_dumps(
        dumps_of(play.job(), ring=ring, timed=timed)
    ).verdict

    assert (Cause.RANK_NOT_ARRIVED, (rank,)) == (verdict.cause, verdict.ranks)


@given(case=stopped([s for s in SIZES if s[1] == 1]))
def test_stopped_on_gloo(dumps_of, case):
    """
    Likewise on Gloo, which records neither transfers, of which there are none
    without stages, nor the members of groups, as far as those follow from who
    else used them.
    """
    play, rank = case
    # With nothing on record, who shares a group with whom cannot be told.
    first = play.plan.programs[rank][0]
    assume(play.limit[rank] > 0 or first.group == "world")

    verdict = analyze_dumps(dumps_of(play.job("gloo"))).verdict

    assert (Cause.RANK_NOT_ARRIVED, (rank,)) == (verdict.cause, verdict.ranks)


@given(case=stopped(), data=st.data())
def test_renumbered(dumps_of, case, data):
    """
    If the ranks are numbered otherwise, so are those in the verdict.
    """
    play, _ = case
    rename = data.draw(permutations(len(play.plan.programs)))
    before = analyze_dumps(dumps_of(play.job())).verdict

    after = analyze_dumps(dumps_of(play.job(rename=rename))).verdict

    renamed = tuple(sorted(rename[r] for r in before.ranks))
    assert (before.cause, renamed) == (after.cause, after.ranks)


@given(case=stopped())
def test_without_stacks(dumps_of, case):
    """
    Who waits for whom does not depend on stacks.
    """
    play, _ = case
    job = play.job()

    with_stacks = verdict_of(dumps_of(job))

    assert with_stacks == verdict_of(dumps_of(job, with_frames=False))


@given(case=stopped(), data=st.data())
def test_order_of_files(dumps_of, case, data):
    """
    The order in which files were read changes nothing.
    """
    play, _ = case
    job = play.job()
    order = data.draw(st.permutations(list(job.records)))

    sorted_verdict = verdict_of(dumps_of(job))

    assert sorted_verdict == verdict_of(dumps_of(job, order=order))


@settings(max_examples=5)
@given(case=stopped(), data=st.data())
def test_layout(tmp_path_factory, case, data):
    """
    Neither does how the files are spread over folders.
    """
    play, _ = case
    job = play.job()
    folder = tmp_path_factory.mktemp("dumps")
    paths = make_dumps(folder / "flat", job)
    for path in paths.values():
        host = data.draw(st.sampled_from(["node1", "node2"]))
        place = folder / "deep" / host
        place.mkdir(parents=True, exist_ok=True)
        (place / path.name).write_bytes(path.read_bytes())

    flat = verdict_of(read_dumps(folder / "flat"))

    assert flat == verdict_of(read_dumps(folder / "deep"))
