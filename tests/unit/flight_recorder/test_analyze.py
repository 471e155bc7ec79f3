"""
From the dumps of a job to its verdict, for every cause that dumps can show.
"""

from __future__ import annotations

import sys

from collections import Counter
from functools import partial

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.errors import NoDumpsError
from distdebug.flight_recorder import Sidecar, analyze_dumps
from distdebug.testing import SimulatedJob


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
        job.records[rank][-1].call.members |= {-1}


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


def blame(dumps, **chosen):
    """
    What is wrong first of all, and whose fault it is.
    """
    verdict = analyze_dumps(dumps, **chosen).verdict
    return verdict.cause, verdict.ranks


def tenth(mine=None):
    """
    After three steps, rank 2 makes the next call in its own way, or not at
    all.
    """
    job = train()
    job.collective("all_gather", ranks=without(job, 2))
    if mine is not None:
        job.collective(ranks=[2], **{"op": "all_gather", **mine})
        never_completes(job)
    return job


not_arrived, in_flight = tenth, partial(tenth, {})
other_type = partial(tenth, {"op": "broadcast"})
other_size = partial(tenth, {"sizes": [[1000]]})
other_dtype = partial(tenth, {"dtype": "Half"})
in_launch = partial(tenth, {"in_launch": [2]})


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
    Rank 2 makes a call that no other rank makes, and goes on one call late.
    """
    job = train()
    job.collective("broadcast", ranks=[2])
    others = without(job, 2)
    for op in ("all_gather", "all_reduce", "reduce_scatter"):
        job.collective(op, ranks=others)
    for op in ("all_gather", "all_reduce"):
        job.collective(op, ranks=[2])
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
        assert (
            "rank 2 left no dump; 3 ranks are waiting for it"
            in verdict.summary
        )

    @pytest.mark.parametrize(
        ("missing", "lost"),
        [([1, 6], (1,)), ([1, 2], (1,)), ([1, 2, 3, 6], (1, 2, 3))],
    )
    def test_dump_lost(self, dumps_of, missing, lost):
        """
        Of several ranks without a dump, the one that others wait for in all
        of its groups is to blame, and with it its neighbours, if they are
        three in a row: they are a node.
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

        verdict = analyze_dumps(dumps_of(job, missing=missing)).verdict

        assert (Cause.RANK_CRASHED, lost) == (verdict.cause, verdict.ranks)

    def test_innocent(self, dumps_of):
        """
        A lost dump is no evidence where another rank is proven to be absent.
        """
        report = analyze_dumps(dumps_of(not_arrived(), missing=[3]))

        assert [(2,)] == [f.ranks for f in report.findings]
        assert [3] == [m.rank for m in report.missing]

    def test_at_rest(self, dumps_of):
        """
        If no rank waits, one without a dump may still have died.
        """
        report = analyze_dumps(dumps_of(train(), missing=[3]))

        verdict = report.verdict
        assert (Cause.RANK_CRASHED, (3,), "possible") == (
            *(verdict.cause, verdict.ranks, verdict.confidence),
        )
        assert verdict.summary.startswith("rank 3 left no dump, and nothing")

    @pytest.mark.parametrize("reason", ["SIGTERM", "start"])
    def test_at_the_end(self, dumps_of, reason):
        """
        Where all others wrote at their end, many may have died, too.
        """
        sidecars = {
            0: Sidecar("", 0, 2, "n", 1, 0.0, 1.0, reason),
            1: Sidecar("", 1, 2, "n", 2, 0.0, 0.0, "start"),
        }

        verdict = analyze_dumps(
            dumps_of(train(2), missing=[1], sidecars=sidecars)
        ).verdict

        assert (Cause.RANK_CRASHED is verdict.cause) == (reason == "SIGTERM")

    @pytest.mark.parametrize(
        ("missing", "alive"),
        [
            # Most dumps were not collected.
            ([1, 2, 3], frozenset()),
            # Its stack was taken from a process that runs.
            ([3], frozenset({3})),
        ],
    )
    def test_not_collected(self, missing, alive, dumps_of):
        """
        Where much is missing, or a rank lives, a lost dump is mentioned only.
        """
        report = analyze_dumps(dumps_of(train(), missing=missing))

        verdict = attrs.evolve(report, alive=alive).verdict

        assert Cause.HEALTHY is verdict.cause
        assert verdict.summary.endswith("left none")


class TestDevice:
    def test_not_started(self, dumps_of):
        """
        With timing, a call that some devices started and others did not
        shows who holds it up.
        """
        job = train()
        for ranks, state in ([[0, 1, 3], "started"], [[2], "scheduled"]):
            job.collective("all_gather", ranks=ranks, state=state)
        never_completes(job)

        verdict = analyze_dumps(dumps_of(job, timed=True)).verdict

        assert Cause.RANK_NOT_STARTED is verdict.cause
        assert (2,) == verdict.ranks
        assert "never started it; 4 ranks are waiting in it" in verdict.summary

    def test_all_in_launch(self, dumps_of):
        """
        If no launch returned, that says nothing about any rank.
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

        assert (Cause.RANK_NOT_ARRIVED, (2,)) == blame(dumps_of(job))

    def test_numbers_of_transfers(self, dumps_of):
        """
        Counters that transfers overwrote are not taken for collectives.
        """
        job = train(steps=1)
        for _ in range(20):
            job.send(0, 1)
            job.recv(1, 0)
        job.collective("all_gather", in_launch=[2], ranks=[0, 1, 2])

        assert (Cause.RANK_NOT_ARRIVED, (3,)) == blame(dumps_of(job))

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
        The rank at the end of the chain is named, and no other; who
        merely waits is a victim.  The text begins with the verdict.
        """
        assert [(Cause.RANK_NOT_ARRIVED, (3,))] == [
            (f.cause, f.ranks) for f in report.findings
        ]
        assert "certain" == report.verdict.confidence
        assert (0, 1, 2) == report.victims
        assert (
            "rank 3 never entered all_reduce #2 of group 'tp'; 2 ranks are waiting"
            == str(report).splitlines()[0]
        )

    def test_waits(self, report):
        """
        Every stuck call is told, with who is inside and who is awaited, and
        how far every group got.
        """
        assert {
            ("tp", (2,), (3,)),
            ("dp", (0,), (2,)),
            ("dp", (1,), (3,)),
        } == {(w.desc, w.waiting, w.awaited) for w in report.waits}
        assert all(w.since_ns > 1_700_000_000 * 10**9 for w in report.waits)
        assert {
            (0, 1): (2, 2, (), ()),
            (2, 3): (1, 2, (2,), (3,)),
            (0, 2): (1, 2, (0,), (2,)),
            (1, 3): (1, 2, (1,), (3,)),
        } == {
            g.ranks: (g.last_completed, g.furthest, g.waiting, g.absent)
            for g in report.groups
        }


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

    @pytest.mark.parametrize("ranks", [[3], [2], [0, 2], "2-3", 3])
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
        If the dump of the only absent rank is outdated, no rank is accused.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce")
        job.dump(1)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0, 2, 3])

        verdict = analyze_dumps(dumps_of(job)).verdict

        assert (Cause.UNKNOWN, (1,)) == (verdict.cause, verdict.ranks)
        assert "is unclear" in verdict.summary
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


def lost_half(world):
    """
    Each rank of one half waits for another one of the other half.
    """
    job = SimulatedJob(world)
    for rank in range(world // 2, world):
        job.recv(rank, rank - world // 2)
    return job


class TestScaling:
    @pytest.mark.parametrize(
        "make", [train, cascade, ring, circles, lost_half]
    )
    def test_linear(self, dumps_of, make):
        """
        Eight times the ranks are about eight times the work, also if half of
        them left no dump.
        """
        small, large = (
            _count_calls(
                dumps_of(
                    make(world),
                    missing=range(world // 2) if make is lost_half else (),
                )
            )
            for world in (16, 128)
        )

        assert large.total() / small.total() < 8 * 1.25
        # No set or list is filled or searched again and again.
        assert {} == {
            name: (small[name], count)
            for name, count in large.items()
            if isinstance(name, tuple) and count > 16 * max(small[name], 64)
        }


def _count_calls(dumps):
    """
    How often does each function run?  Unlike time, that is the same on every
    machine.
    """
    calls = Counter()

    def count(frame, event, argument):
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[argument.__qualname__, frame.f_code.co_qualname] += 1

    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        analyze_dumps(dumps)
    finally:
        sys.setprofile(previous)
    return calls


def test_others_left_no_dump(dumps_of):
    """
    Who left no dump may be missing, too: that is said, and it is not certain.
    """
    job = train()
    job.collective("all_reduce", ranks=[0, 1])

    verdict = analyze_dumps(dumps_of(job, missing=[3])).verdict

    assert (Cause.RANK_NOT_ARRIVED, (2,)) == (verdict.cause, verdict.ranks)
    assert "; rank 3 left no dump" in verdict.summary
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
            " s after ranks 0,3, after the timeout"
        )
        assert "raise the timeout" in verdict.remedy
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


def test_quote(dumps_of):
    """
    Evidence quotes the record, its state, and the line.
    """
    job = SimulatedJob(2, stack_depth=4)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0])

    waits, last = analyze_dumps(dumps_of(job)).verdict.evidence

    assert ("dump", "rank_0", "rank 0, record 1") == (
        waits.kind,
        waits.source,
        waits.location,
    )
    assert (
        "all_reduce #2 at sync_default_pg (train.py:100), scheduled, "
        "group 'default_pg'" == waits.quote
    )
    assert last.quote.startswith("last: all_reduce #1 at ")


@pytest.mark.parametrize(
    ("age_s", "text"),
    [
        (0.9, ""),
        (1.2, "1 s"),
        (99.0, "99 s"),
        (150.0, "2 min"),
        (36000.0, "10 h"),
    ],
)
def test_age(dumps_of, age_s, text):
    """
    A long wait is given in seconds, a very long one in minutes; a short one is
    not worth a word.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce", ranks=[0])
    written = job.records[0][-1].created + age_s
    sidecar = Sidecar("", 0, 2, "n", 1, 0.0, written, "SIGTERM")

    summary = analyze_dumps(
        dumps_of(job, sidecars={0: sidecar}, missing=[1])
    ).verdict.summary

    verb, end = ("has been", f", for {text}") if text else ("is", "")
    assert (
        f"rank 1 left no dump; 1 rank {verb} waiting for it in all_reduce #1 "
        f"of group 'default_pg'{end}" == summary
    )


def test_evidence_once(dumps_of):
    """
    A record that shows a rank waiting is not quoted again as its last one.
    """
    job = SimulatedJob(2)
    a, b = (job.new_group([0, 1], name) for name in "ab")
    job.collective("all_reduce", a, ranks=[0])
    job.collective("all_reduce", b, ranks=[1])

    evidence = analyze_dumps(dumps_of(job)).verdict.evidence

    assert ["rank 0, record 0", "rank 1, record 0"] == [
        e.location for e in evidence
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_quote_gloo(dumps_of, rank):
    """
    On Gloo a call is in flight, or returned; "scheduled" means nothing.
    """
    job = SimulatedJob(2, backend="gloo")
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0])

    evidence = analyze_dumps(dumps_of(job)).verdict.evidence

    assert [", in flight,", ", returned,"][rank] in evidence[rank].quote


def test_several_in_launch(dumps_of):
    """
    More ranks are stuck.
    """
    job = SimulatedJob(4)
    job.collective("all_reduce")
    job.collective("all_reduce", in_launch=[1, 2])
    job.records[0][-1].call.members |= {-1}

    verdict = analyze_dumps(dumps_of(job)).verdict

    assert Cause.RANK_BLOCKED_IN_LAUNCH is verdict.cause
    assert verdict.summary.startswith(
        "ranks 1-2 are stuck launching all_reduce #2"
    )
