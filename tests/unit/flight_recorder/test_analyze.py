"""
From the dumps of a job to its verdict, for every cause that dumps can show.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.errors import NoDumpsError
from distdebug.findings import Cause
from distdebug.flight_recorder import Sidecar, analyze_dumps
from distdebug.flight_recorder.analysis.report import select
from distdebug.flight_recorder.sidecar import SidecarFrame, SidecarGroup
from distdebug.testing import SimulatedJob, make_dumps


def train(world=4, *, steps=3, **options):
    """
    A job that does the same three calls again and again.
    """
    job = SimulatedJob(world, **options)
    for _ in range(steps):
        step(job)
    return job


def step(job, ranks=None, *, leave_out=None):
    """
    One step of some ranks.
    """
    for op in ("all_gather", "all_reduce", "reduce_scatter"):
        if op != leave_out:
            job.collective(op, ranks=ranks)


def without(job, *ranks):
    """
    All other ranks.
    """
    return [r for r in job.records if r not in ranks]


def never_completes(job, *ranks):
    """
    The last call waits for more than ranks: a link is down, say.
    """
    for rank in ranks or job.records:
        call = job.records[rank][-1].call
        call.members |= {-1}


def verdict_of(dumps):
    """
    The verdict without its words.
    """
    v = analyze_dumps(dumps).verdict
    return (
        v.cause,
        v.ranks,
        v.group and v.group.desc,
        v.collective and (v.collective.op, v.collective.seq),
    )


def not_arrived():
    """
    Rank 2 does not enter the tenth call.
    """
    job = train()
    job.collective("all_gather", ranks=without(job, 2))
    return job


def skipped():
    """
    Rank 2 leaves out a call.
    """
    job = train()
    job.collective("all_gather")
    job.collective("all_reduce", ranks=without(job, 2))
    job.collective("reduce_scatter", ranks=[2])
    return job


def extra():
    """
    Rank 2 makes a call that nobody else makes, and goes on one call late.
    """
    job = train()
    job.collective("broadcast", ranks=[2])
    others = without(job, 2)
    for op in ("all_gather", "all_reduce", "reduce_scatter"):
        job.collective(op, ranks=others)
    for op in ("all_gather", "all_reduce"):
        job.collective(op, ranks=[2])
    return job


def other_type():
    """
    Rank 2 calls something else.
    """
    job = train()
    job.collective("all_gather", ranks=without(job, 2))
    job.collective("broadcast", ranks=[2])
    return job


def other_size():
    """
    Rank 2 passes another size.
    """
    job = train()
    job.collective("all_gather", ranks=without(job, 2))
    job.collective("all_gather", ranks=[2], sizes=[[1000]])
    never_completes(job)
    return job


def other_dtype():
    """
    Rank 2 passes another type.
    """
    job = train()
    job.collective("all_gather", ranks=without(job, 2))
    job.collective("all_gather", ranks=[2], dtype="Half")
    never_completes(job)
    return job


def group_order():
    """
    Two ranks enter the calls of two groups in different orders.
    """
    job = SimulatedJob(2)
    a = job.new_group([0, 1], "a")
    b = job.new_group([0, 1], "b")
    job.collective("all_reduce", a)
    job.collective("all_reduce", b)
    job.collective("all_reduce", a, ranks=[0])
    job.collective("all_reduce", b, ranks=[1])
    return job


def p2p_deadlock():
    """
    Two ranks wait for each other's message.
    """
    job = SimulatedJob(2)
    job.send(0, 1)
    job.recv(1, 0)
    job.recv(0, 1)
    job.recv(1, 0)
    return job


def straggler():
    """
    Rank 2 is always half a second late.
    """
    job = SimulatedJob(4)
    for _ in range(40):
        job.collective("all_reduce", late={2: 0.5})
        job.wait(1.0)
    return job


def in_flight():
    """
    All entered, and nothing goes on.
    """
    job = train()
    job.collective("all_gather")
    never_completes(job)
    return job


def in_launch():
    """
    Rank 2 recorded the call, but its launch did not return.
    """
    job = train()
    job.collective("all_gather", in_launch=[2])
    never_completes(job)
    return job


WORLD = "default_pg"
CASES = [
    (not_arrived, Cause.RANK_NOT_ARRIVED, (2,), WORLD, ("all_gather", 10)),
    (skipped, Cause.SKIPPED_COLLECTIVE, (2,), WORLD, ("all_reduce", 11)),
    (extra, Cause.EXTRA_COLLECTIVE, (2,), WORLD, ("all_gather", 10)),
    (other_type, Cause.TYPE_MISMATCH, (2,), WORLD, ("all_gather", 10)),
    (other_size, Cause.SIZE_MISMATCH, (2,), WORLD, ("all_gather", 10)),
    (other_dtype, Cause.DTYPE_MISMATCH, (2,), WORLD, ("all_gather", 10)),
    (group_order, Cause.GROUP_ORDER_DEADLOCK, (0, 1), "a", ("all_reduce", 2)),
    (p2p_deadlock, Cause.P2P_DEADLOCK, (0, 1), WORLD, ("recv", 2)),
    (straggler, Cause.STRAGGLER, (2,), WORLD, None),
    (
        in_flight,
        Cause.COLLECTIVE_STUCK_IN_FLIGHT,
        (0, 1, 2, 3),
        WORLD,
        ("all_gather", 10),
    ),
    (
        in_launch,
        Cause.RANK_BLOCKED_IN_LAUNCH,
        (2,),
        WORLD,
        ("all_gather", 10),
    ),
    (train, Cause.HEALTHY, (), None, None),
]


class TestCauses:
    @pytest.mark.parametrize(
        ("make", "expected"),
        [(case[0], case[1:]) for case in CASES],
        ids=[case[1] for case in CASES],
    )
    def test_each(self, dumps_of, make, expected):
        """
        Each cause is told, with its ranks, and the call it shows in.
        """
        assert expected == verdict_of(dumps_of(make()))

    @pytest.mark.parametrize(
        ("make", "expected"),
        [(c[0], c[1:]) for c in CASES if c[1] != Cause.RANK_BLOCKED_IN_LAUNCH],
        ids=[c[1] for c in CASES if c[1] != Cause.RANK_BLOCKED_IN_LAUNCH],
    )
    @pytest.mark.parametrize("version", ["2.3", "2.5", "2.9", "2.11"])
    def test_versions(self, dumps_of, make, expected, version):
        """
        It does not matter which torch wrote the dumps.
        """
        assert expected == verdict_of(dumps_of(make(), version=version))

    @pytest.mark.parametrize("version", ["", "1.2", "2.1"])
    def test_old(self, dumps_of, version):
        """
        Nor does it for the old ones, as far as they say anything.
        """
        cause, ranks, _, _ = verdict_of(
            dumps_of(not_arrived(), version=version)
        )

        assert (Cause.RANK_NOT_ARRIVED, (2,)) == (cause, ranks)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"as_json": True},
            {"compress": True},
            {"as_json": True, "compress": True},
        ],
        ids=["pickle", "json", "pickle.gz", "json.gz"],
    )
    def test_files(self, tmp_path, options):
        """
        Nor does it matter in which form they are.
        """
        make_dumps(tmp_path, not_arrived(), **options)

        expected = (
            *(Cause.RANK_NOT_ARRIVED, (2,), WORLD),
            ("all_gather", 10),
        )
        assert expected == verdict_of(tmp_path)

    @pytest.mark.parametrize(
        "make", [not_arrived, group_order, p2p_deadlock, in_flight, train]
    )
    def test_only_active(self, dumps_of, make):
        """
        Dumps of only what is active give the same verdict.
        """
        whole, active = dumps_of(make()), dumps_of(make(), only_active=True)

        assert verdict_of(whole) == verdict_of(active)

    def test_gloo(self, dumps_of):
        """
        On Gloo, "scheduled" and "retired" say it.
        """
        job = train(backend="gloo")
        job.collective("all_gather", ranks=without(job, 2))

        cause, ranks, _, call = verdict_of(dumps_of(job))

        assert (Cause.RANK_NOT_ARRIVED, (2,)) == (cause, ranks)
        assert ("all_gather", 10) == call


class TestCrash:
    def test_no_dump(self, dumps_of):
        """
        Who is waited for and left no dump has crashed, most likely.
        """
        verdict = analyze_dumps(dumps_of(not_arrived(), missing=[2])).verdict

        assert Cause.RANK_CRASHED is verdict.cause
        assert (2,) == verdict.ranks
        assert "likely" == verdict.confidence
        assert "rank 2 left no dump; 3 ranks wait for it" in verdict.summary

    def test_dump_lost(self, dumps_of):
        """
        Of two ranks without a dump, the one that others wait for in all of
        its groups is to blame.
        """
        job = SimulatedJob(8)
        pairs = [job.new_group([r, r + 1], "tp") for r in range(0, 8, 2)]
        for pair in pairs:
            job.collective("all_reduce", pair)
        job.collective("all_reduce")
        for pair in pairs[1:]:
            job.collective("all_reduce", pair)
        job.collective("all_reduce", pairs[0], ranks=[0])
        job.collective("all_reduce", ranks=range(2, 8))

        verdict = analyze_dumps(dumps_of(job, missing=[1, 6])).verdict

        assert (Cause.RANK_CRASHED, (1,)) == (verdict.cause, verdict.ranks)

    def test_innocent(self, dumps_of):
        """
        A lost dump is no evidence where somebody is proven to be absent.
        """
        report = analyze_dumps(dumps_of(not_arrived(), missing=[3]))

        assert [(2,)] == [f.ranks for f in report.findings]
        assert [3] == [m.rank for m in report.missing]

    def test_at_rest(self, dumps_of):
        """
        If nobody waits, a lost dump is merely mentioned.
        """
        report = analyze_dumps(dumps_of(train(), missing=[3]))

        assert Cause.HEALTHY is report.verdict.cause
        assert report.verdict.summary.endswith("; rank 3 left none")


class TestDevice:
    def test_not_started(self, dumps_of):
        """
        With timing, a call that some devices started and others did not
        tells who holds it up.
        """
        job = train()
        for ranks, state in ([[0, 1, 3], "started"], [[2], "scheduled"]):
            job.collective("all_gather", ranks=ranks, state=state)
        never_completes(job)

        verdict = analyze_dumps(dumps_of(job, timed=True)).verdict

        assert Cause.RANK_NOT_STARTED is verdict.cause
        assert (2,) == verdict.ranks
        assert "never started it (4 ranks wait in it)" in verdict.summary

    def test_all_in_launch(self, dumps_of):
        """
        If no launch returned, that tells nothing about any rank.
        """
        job = train()
        job.collective("all_gather", in_launch=range(4))
        never_completes(job)

        verdict = analyze_dumps(dumps_of(job)).verdict

        assert Cause.COLLECTIVE_STUCK_IN_FLIGHT is verdict.cause

    def test_aborted(self, dumps_of):
        """
        A call that the watchdog aborted is marked as completed, and is not.
        """
        job = train(timeout_s=60.0)
        job.collective("all_gather", ranks=without(job, 2), state="completed")
        for rank in (0, 1, 3):
            call = job.records[rank][-1].call
            call.members, call.duration_s = frozenset({0, 1, 3}), 60.0
        job.wait(70)

        verdict = analyze_dumps(dumps_of(job)).verdict

        assert Cause.RANK_NOT_ARRIVED is verdict.cause
        assert (2,) == verdict.ranks

    def test_numbers_of_transfers(self, dumps_of):
        """
        Counters that transfers overwrote are not taken for collectives.
        """
        job = train(steps=1)
        for _ in range(20):
            job.send(0, 1)
            job.recv(1, 0)
        job.collective("all_gather", in_launch=[2], ranks=[0, 1, 2])

        verdict = analyze_dumps(dumps_of(job)).verdict

        assert (Cause.RANK_NOT_ARRIVED, (3,)) == (verdict.cause, verdict.ranks)

    def test_batches(self, dumps_of):
        """
        The parts of a batch stay scheduled for ever, and that means nothing.
        """
        job = train(steps=1)
        for _ in range(3):
            job.coalesced(0, [("send", 1), ("recv", 1)])
            job.coalesced(1, [("recv", 0), ("send", 0)])

        assert Cause.HEALTHY is analyze_dumps(dumps_of(job)).verdict.cause

    @pytest.mark.parametrize("only_active", [False, True])
    def test_batch_waits(self, dumps_of, only_active):
        """
        A batch whose end is pending waits for the peer.
        """
        job = train(steps=1)
        job.coalesced(0, [("send", 1), ("recv", 1)])
        job.coalesced(1, [("recv", 0), ("send", 0)])
        job.coalesced(0, [("send", 1), ("recv", 1)])

        verdict = analyze_dumps(dumps_of(job, only_active=only_active)).verdict

        assert (Cause.RANK_NOT_ARRIVED, (1,)) == (verdict.cause, verdict.ranks)
        assert verdict.collective.p2p


class TestChains:
    @pytest.fixture(name="report")
    def _report(self, dumps_of):
        """
        Rank 3 stops; rank 2 waits for it in tp, and all others for rank 2.
        """
        job = SimulatedJob(4)
        tp = [job.new_group([0, 1], "tp"), job.new_group([2, 3], "tp")]
        dp = [job.new_group([0, 2], "dp"), job.new_group([1, 3], "dp")]
        for group in tp + dp:
            job.collective("all_reduce", group)
        job.collective("all_reduce", tp[0])
        job.collective("all_reduce", tp[1], ranks=[2])
        job.collective("all_reduce", dp[0], ranks=[0])
        job.collective("all_reduce", dp[1], ranks=[1])
        return analyze_dumps(dumps_of(job))

    def test_root(self, report):
        """
        The rank at the end of the chain is named, and no other.
        """
        assert [(Cause.RANK_NOT_ARRIVED, (3,))] == [
            (f.cause, f.ranks) for f in report.findings
        ]
        assert "certain" == report.verdict.confidence

    def test_victims(self, report):
        """
        Whoever merely waits is a victim.
        """
        assert (0, 1, 2) == report.victims

    def test_waits(self, report):
        """
        Every stuck call is told, with who is inside and who is awaited.
        """
        assert {
            ("tp", (2,), (3,)),
            ("dp", (0,), (2,)),
            ("dp", (1,), (3,)),
        } == {(w.desc, w.waiting, w.awaited) for w in report.waits}
        assert all(w.since_ns > 1_700_000_000 * 10**9 for w in report.waits)

    def test_progress(self, report):
        """
        Every group tells how far it got.
        """
        progress = {
            g.ranks: (g.last_completed, g.furthest, g.waiting, g.absent)
            for g in report.groups
        }

        assert {
            (0, 1): (2, 2, (), ()),
            (2, 3): (1, 2, (2,), (3,)),
            (0, 2): (1, 2, (0,), (2,)),
            (1, 3): (1, 2, (1,), (3,)),
        } == progress

    def test_text(self, report):
        """
        It prints itself, the verdict first.
        """
        first = str(report).splitlines()[0]

        assert (
            "rank 3 never entered all_reduce #2 of group 'tp' (2 ranks wait)"
            == first
        )


class TestSelection:
    @pytest.fixture(name="dumps")
    def _dumps(self, dumps_of):
        """
        Two halves that share no group; rank 3 stops in the second one.
        """
        job = SimulatedJob(4)
        halves = [
            job.new_group([0, 1], "left"),
            job.new_group([2, 3], "right"),
        ]
        for half in halves:
            job.collective("all_reduce", half)
        job.collective("all_reduce", halves[1], ranks=[2])
        return dumps_of(job)

    @pytest.mark.parametrize("ranks", [[3], [2], [0, 2]])
    def test_ranks(self, dumps, ranks):
        """
        What concerns a chosen rank stays, also if that merely waits.
        """
        report = analyze_dumps(dumps, ranks=ranks)

        assert (3,) == report.verdict.ranks
        assert "right" in {g.desc for g in report.groups}

    @pytest.mark.parametrize("group", ["right", "2"])
    def test_groups(self, dumps, group):
        """
        Groups are chosen by description or name.
        """
        report = analyze_dumps(dumps, groups=[group])

        assert (3,) == report.verdict.ranks
        assert ["right"] == [g.desc for g in report.groups]

    @pytest.mark.parametrize(
        ("chosen", "about"),
        [
            ({"ranks": [0, 1]}, "ranks 0-1"),
            ({"groups": ["left"]}, "group 'left'"),
            ({"ranks": [0], "groups": ["left"]}, "rank 0 and group 'left'"),
        ],
    )
    def test_others(self, dumps, chosen, about):
        """
        What does not concern them is left out, and the verdict says so.
        """
        report = analyze_dumps(dumps, **chosen)

        assert Cause.HEALTHY is report.verdict.cause
        assert f"nothing of {about} is stuck" in report.verdict.summary
        assert () == report.waits == report.victims

    def test_indirect(self, dumps_of):
        """
        What holds up a chosen rank stays, also if they share no group.
        """
        job = SimulatedJob(3)
        near, far = job.new_group([0, 1], "near"), job.new_group([1, 2], "far")
        job.collective("all_reduce", near)
        job.collective("all_reduce", far)
        job.collective("all_reduce", far, ranks=[1])
        job.collective("all_reduce", near, ranks=[0])

        report = analyze_dumps(dumps_of(job), groups=["near"], ranks=[0])

        assert (2,) == report.verdict.ranks
        assert (0,) == report.victims

    def test_straggler(self, dumps_of):
        """
        What shows in no wait is chosen by its group.
        """
        dumps = dumps_of(straggler())

        assert (2,) == analyze_dumps(dumps, ranks=[0]).verdict.ranks
        assert () == analyze_dumps(dumps, groups=["x"]).findings

    def test_without_group(self, dumps):
        """
        A finding that shows in no group is chosen by its ranks.
        """
        report = analyze_dumps(dumps)
        bare = attrs.evolve(report.verdict, group=None)
        report = attrs.evolve(report, findings=(bare,), waits=())

        assert (bare,) == select(report, ranks=[3]).findings
        assert () == select(report, ranks=[2]).findings
        assert (bare,) == select(report, groups=["left"]).findings


class TestOrder:
    def test_mismatch_first(self, dumps_of):
        """
        A group that is out of step is stuck for no other reason.
        """
        report = analyze_dumps(dumps_of(other_type()))

        assert [Cause.TYPE_MISMATCH] == [f.cause for f in report.findings]

    def test_outlived(self, dumps_of):
        """
        A difference that the job outlived comes last.
        """
        job = SimulatedJob(4)
        other = job.new_group(range(4), "other")
        job.collective("all_reduce", other, ranks=[0, 1, 2])
        job.collective("all_reduce", other, ranks=[3], sizes=[[5]])
        job.collective("all_reduce", ranks=[0, 2, 3])

        report = analyze_dumps(dumps_of(job))

        assert [Cause.RANK_NOT_ARRIVED, Cause.SIZE_MISMATCH] == [
            f.cause for f in report.findings
        ]

    def test_outdated(self, dumps_of):
        """
        A dump that is older than what others saw does not accuse its rank.
        """
        job = train(steps=1)
        job.dump(1)
        step(job)

        report = analyze_dumps(dumps_of(job))

        assert Cause.HEALTHY is report.verdict.cause
        assert (1,) == report.outdated

    def test_undecidable(self, dumps_of):
        """
        If the dump of the only absent rank is outdated, nobody is accused.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce")
        job.dump(1)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0, 2, 3])

        verdict = analyze_dumps(dumps_of(job)).verdict

        assert (Cause.UNKNOWN, (1,)) == (verdict.cause, verdict.ranks)
        assert "cannot be told" in verdict.summary
        assert "possible" == verdict.confidence
        assert verdict.remedy.startswith("take the dumps of all ranks again")


class TestNothing:
    def test_no_folder(self, tmp_path):
        """
        Without any file there is nothing to look at.
        """
        with pytest.raises(NoDumpsError):
            analyze_dumps(tmp_path)

    def test_no_dump(self, dumps_of):
        """
        If no rank left a dump, the job is not called healthy.
        """
        dumps = dumps_of(SimulatedJob(2), missing=[0, 1])

        verdict = analyze_dumps(dumps).verdict

        assert (Cause.UNKNOWN, ()) == (verdict.cause, verdict.ranks)
        assert "enable the Flight Recorder" in verdict.remedy

        known = {0: Sidecar("", 0, 2, "n", 1, 0.0, 0.0, "start")}
        dumps = dumps_of(SimulatedJob(2), missing=[0, 1], sidecars=known)
        assert "end it by SIGTERM" in analyze_dumps(dumps).verdict.remedy

    def test_problem_told_once(self, dumps_of):
        """
        A rank whose file could not be read is listed once, with its reason.
        """
        sidecar = Sidecar("", 0, 3, "n", 1, 0.0, 0.0, "call")

        report = analyze_dumps(
            dumps_of(SimulatedJob(2), sidecars={0: sidecar})
        )

        assert [(2, "there is no dump")] == [
            (m.rank, m.reason) for m in report.missing
        ]


def cascade(world):
    """
    One rank of the first pair stops, and all pairs with it.
    """
    job = SimulatedJob(world)
    pairs = [job.new_group([r, r + 1], "tp") for r in range(0, world, 2)]
    for pair in pairs:
        job.collective("all_reduce", pair)
    job.collective("all_reduce", ranks=without(job, 1))
    job.collective("all_reduce", pairs[0], ranks=[0])
    return job


def ring(world):
    """
    Each rank receives from the next one.
    """
    job = SimulatedJob(world)
    for rank in range(world):
        job.recv(rank, (rank + 1) % world)
    return job


def circles(world):
    """
    Each pair of ranks waits for one another.
    """
    job = SimulatedJob(world)
    for rank in range(world):
        job.recv(rank, rank ^ 1)
    return job


class TestScaling:
    @pytest.mark.parametrize("make", [train, cascade, ring, circles])
    def test_linear(self, dumps_of, make):
        """
        Eight times the ranks are about eight times the work.
        """
        work = {}
        for world in (16, 128):
            dumps = dumps_of(make(world))
            work[world] = _count_calls(lambda d=dumps: analyze_dumps(d))

        assert work[128] / work[16] < 8 * 1.25


def _count_calls(function):
    """
    How many functions run?  Unlike time, that is the same on every machine.
    """
    import sys

    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(previous)
    return calls


def test_failed_off_record(dumps_of):
    """
    Who failed in a receive, which Gloo does not record, did not fail in the
    call before; and that it is not in the next one is no fault of it.
    """
    job = SimulatedJob(6, backend="gloo")
    pairs = [job.new_group(pair, "dp") for pair in ([0, 2], [3, 4], [1, 5])]
    for pair in pairs:
        job.collective("all_reduce", pair)
    job.collective("all_reduce", pairs[0], ranks=[0])
    job.collective("all_reduce", pairs[1], ranks=[3])
    frame = SidecarFrame("recv", "torch/distributed/distributed_c10d.py", 9)
    failed = Sidecar(
        *("", 2, 6, "n", 1, 0.0, 0.0, "exception"),
        error="RuntimeError: [gloo] Connection closed by peer",
        threads=(("MainThread", (frame,)),),
    )
    groups = tuple(
        SidecarGroup(g.name, g.desc, g.ranks, "gloo") for g in job.groups
    )
    calm = failed._replace(error="", threads=())
    sidecars = {
        r: (failed if r in {1, 2, 5} else calm)._replace(rank=r, groups=groups)
        for r in range(6)
    }

    report = analyze_dumps(dumps_of(job, sidecars=sidecars, missing=[4]))

    assert [(Cause.RANK_CRASHED, (4,)), (Cause.UNKNOWN, (2,))] == [
        (f.cause, f.ranks) for f in report.findings
    ]


def test_others_left_no_dump(dumps_of):
    """
    Who left no dump may be missing, too: that is said, and it is not certain.
    """
    job = train()
    job.collective("all_reduce", ranks=[0, 1])

    verdict = analyze_dumps(dumps_of(job, missing=[3])).verdict

    assert (Cause.RANK_NOT_ARRIVED, (2,)) == (verdict.cause, verdict.ranks)
    assert "; rank 3 left no dump)" in verdict.summary
    assert "likely" == verdict.confidence


@pytest.mark.parametrize(("late_s", "is_late"), [(20.5, True), (19.5, False)])
def test_too_late(dumps_of, late_s, is_late):
    """
    Who enters a call when the time-out of the others is over holds it up, and
    not the network.
    """
    job = train(timeout_s=20)
    late = {1: late_s, 2: late_s}
    job.collective("all_gather", late=late, state="started")
    never_completes(job)

    verdict = analyze_dumps(dumps_of(job)).verdict

    if is_late:
        assert (Cause.RANK_NOT_ARRIVED, (1, 2)) == (
            verdict.cause,
            verdict.ranks,
        )
        assert verdict.summary.startswith("ranks 1-2 entered all_gather #10")
        assert verdict.summary.endswith(
            " s after ranks 0,3, when the time-out was over"
        )
        assert "raise the time-out" in verdict.remedy
    else:
        assert Cause.COLLECTIVE_STUCK_IN_FLIGHT is verdict.cause


def test_other_root(dumps_of):
    """
    A broadcast that completed for other members may have two roots.
    """
    job = train(backend="gloo")
    job.collective("broadcast", ranks=[1, 3], state="completed")
    job.collective("broadcast", ranks=[0, 2], state="started")
    job.collective("all_gather", ranks=[1, 3])

    verdict = analyze_dumps(dumps_of(job)).verdict

    assert Cause.COLLECTIVE_STUCK_IN_FLIGHT is verdict.cause
    assert "compare src or dst" in verdict.remedy
