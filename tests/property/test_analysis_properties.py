"""
Laws that hold for every job, however its ranks are grouped.

The jobs train a model in parallel over data, tensors, and stages.  Each rank
has its own list of calls, as in a real program, and waits where a real one
would wait; so a rank that stops makes all others stop sooner or later, and who
was first is what the analysis has to find out.
"""

from __future__ import annotations

import random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distdebug.causes import Cause
from distdebug.flight_recorder import analyze_dumps, read_dumps
from distdebug.testing import make_dumps

from .parallel import OPS, SIZES, Choices, Play, make_plan


@st.composite
def plans(draw, sizes=SIZES):
    """
    Training with data, tensor, and pipeline parallelism (1F1B).
    """
    choices = Choices(
        sizes=draw(st.sampled_from(sizes)),
        tp_op=draw(st.sampled_from(OPS)),
        dp_ops=draw(st.lists(st.sampled_from(OPS), min_size=1, max_size=3)),
        world_ops=draw(st.lists(st.sampled_from(OPS), max_size=1)),
        steps=draw(st.integers(1, 3)),
        microbatches=draw(st.integers(1, 4)),
    )
    has_stages = choices.sizes[1] > 1
    return make_plan(
        choices,
        batched=draw(st.booleans()),
        ahead=0 if has_stages else draw(st.sampled_from([0, 2, 5])),
    )


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
    its last call in the group that waits for it.  If it goes on, all do.
    """
    play, rank = case

    report = analyze_dumps(dumps_of(play.job(), ring=ring, timed=timed))

    verdict, checked = report.verdict, report.to_diagnosis().checked
    assert (Cause.RANK_NOT_ARRIVED, (rank,)) == (verdict.cause, verdict.ranks)
    assert (len(report.waits), ()) == (checked.completed, checked.awaited)


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
