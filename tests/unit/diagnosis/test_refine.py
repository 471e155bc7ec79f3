"""
What a rank was doing on its host, joined with what the dumps say.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time

import attrs
import pytest

from distdebug.diagnosis.hosts import ended_well, host_views
from distdebug.diagnosis.refine import refine
from distdebug.findings import Cause, Location, Missing
from distdebug.flight_recorder import Sidecar, analyze_dumps
from distdebug.flight_recorder.sidecar import SidecarFrame
from distdebug.stacks import ProcessStacks, StackFrame, SystemCall, ThreadStack
from distdebug.testing import SimulatedJob


LOADER = (
    ("_try_get_data", "torch/utils/data/dataloader.py", 1251),
    ("__next__", "torch/utils/data/dataloader.py", 701),
    ("read_shard", "train.py", 41),
    ("main", "train.py", 9),
)
WAITING = (
    ("all_reduce", "torch/distributed/distributed_c10d.py", 2800),
    ("backward", "train.py", 50),
)


def sidecar(rank, **options):
    """
    The side-car of a rank that was asked for its dump.
    """
    stack = options.pop("stack", None)
    fields = {
        "path": f"rank_{rank}.sidecar.json",
        "world_size": 4,
        "host": "node1",
        "pid": 100 + rank,
        "started": 0.0,
        "written": 1000.0 + rank,
        "reason": "request",
    }
    if stack:
        frames = tuple(SidecarFrame(*line) for line in stack)
        fields["threads"] = (
            ("pin_memory", (SidecarFrame("run", "threading.py", 1),)),
            ("MainThread", frames),
        )
    return Sidecar(rank=rank, **(fields | options))


def process(stack, **options):
    """
    What py-spy saw.
    """
    frames = tuple(StackFrame(*line) for line in stack)
    thread = ThreadStack(name="MainThread", frames=frames, is_main=True)
    fields = {"pid": 102, "source": "pyspy_node1_102.txt"}
    return ProcessStacks(threads=(thread,), **(fields | options))


@pytest.fixture(name="diagnose")
def _diagnose(dumps_of):
    """
    Diagnoses a job of four, in which rank 2 is absent from the second call.
    """

    def diagnose(*sidecars, stacks=(), missing=(), absent=(2,)):
        job = SimulatedJob(4)
        job.collective("all_reduce")
        others = [r for r in range(4) if r not in absent]
        job.collective("all_reduce", ranks=others)
        dumps = dumps_of(
            job, missing=missing, sidecars={s.rank: s for s in sidecars}
        )
        found = analyze_dumps(dumps).to_diagnosis()
        return refine(found, host_views(dumps, stacks), dumps)

    return diagnose


ABSENT = "rank 2 never entered all_reduce #2 of group 'default_pg'"


class TestReason:
    def test_own_stack(self, diagnose):
        """
        The stack that the process took of itself tells why it is absent.
        """
        verdict = diagnose(sidecar(2, stack=LOADER)).verdict

        assert (
            f"{ABSENT} (3 ranks wait): it is waiting for data in "
            "read_shard (train.py:41)" == verdict.summary
        )
        assert Cause.RANK_NOT_ARRIVED is verdict.cause
        assert Cause.DATALOADER_WAIT is verdict.detail_cause
        assert Location(function="read_shard", file="train.py", line=41) == (
            verdict.location
        )
        assert "certain" == verdict.confidence

    def test_evidence(self, diagnose):
        """
        The stack comes first among the evidence, with its file.
        """
        first, *others = diagnose(sidecar(2, stack=LOADER)).verdict.evidence

        assert ("stack", "rank_2.sidecar.json") == (first.kind, first.source)
        assert "rank 2, thread MainThread" == first.location
        assert first.quote.startswith("_try_get_data (torch/utils/data/")
        assert {"dump"} == {e.kind for e in others}

    def test_unknown_reason(self, diagnose):
        """
        A stack that no rule knows tells at least where the rank is.
        """
        stack = [("crunch", "model.py", 7)]

        verdict = diagnose(sidecar(2, stack=stack)).verdict

        assert verdict.summary.endswith(": it is in crunch (model.py:7)")
        assert verdict.detail_cause is None

    def test_captured_wins(self, diagnose):
        """
        What was captured from outside is newer.
        """
        captured = process([("sleep", "train.py", 3)], rank=2)

        verdict = diagnose(sidecar(2, stack=LOADER), stacks=[captured]).verdict

        assert Cause.SLEEPING is verdict.detail_cause
        assert "pyspy_node1_102.txt" == verdict.evidence[0].source

    @pytest.mark.parametrize("host", ["node1", None])
    def test_rank_by_pid(self, diagnose, host):
        """
        Side-cars tell which rank a process is, if need be without its host.
        """
        captured = process(LOADER, host=host)

        verdict = diagnose(sidecar(2), stacks=[captured]).verdict

        assert Cause.DATALOADER_WAIT is verdict.detail_cause

    def test_ambiguous_pid(self, diagnose):
        """
        A process that may be one of two ranks is neither.
        """
        twins = [sidecar(1, pid=102, host="node2"), sidecar(2)]

        verdict = diagnose(*twins, stacks=[process(LOADER)]).verdict

        assert verdict.detail_cause is None

    def test_no_stack(self, diagnose):
        """
        Without a stack the verdict is that of the dumps.
        """
        empty = ProcessStacks(pid=1, source="x", threads=(), rank=2)

        assert (
            diagnose().verdict
            == diagnose(sidecar(2)).verdict
            == diagnose(stacks=[empty]).verdict
        )

    def test_several(self, diagnose):
        """
        Of several absent ranks, it is said whose stack it is.
        """
        verdict = diagnose(sidecar(2, stack=LOADER), absent=(1, 2)).verdict

        assert (1, 2) == verdict.ranks
        assert ": rank 2 is waiting for data in read_shard" in verdict.summary

    def test_several_reasons(self, diagnose):
        """
        Of ranks that are absent for several reasons, each is told.
        """
        sleeping = (("poll", "train.py", 70),)
        verdict = diagnose(
            sidecar(0, stack=LOADER),
            sidecar(1, stack=sleeping),
            sidecar(2, stack=LOADER),
            sidecar(3, stack=sleeping),
            absent=(0, 1, 2),
        ).verdict

        assert (0, 1, 2) == verdict.ranks
        assert verdict.summary.endswith(
            ": rank 0 is waiting for data in read_shard (train.py:41); rank 1 "
            "is in poll (train.py:70)"
        )

    def test_arrived(self, dumps_of):
        """
        The line of a culprit that did arrive is added where dumps have none.
        """
        job = SimulatedJob(2, stack_depth=0)
        a, b = (job.new_group([0, 1], name) for name in "ab")
        job.collective("all_reduce", a, ranks=[0])
        job.collective("all_reduce", b, ranks=[1])
        dumps = dumps_of(job, sidecars={0: sidecar(0, stack=WAITING)})

        found = analyze_dumps(dumps).to_diagnosis()
        verdict = refine(found, host_views(dumps, ()), dumps).verdict

        assert Cause.GROUP_ORDER_DEADLOCK is verdict.cause
        assert "backward (train.py:50)" == str(verdict.location)
        assert "stack" == verdict.evidence[-1].kind

    def test_contradiction(self, diagnose):
        """
        If the stack waits in a collective that the dump does not know, both
        are told, and nothing is certain.
        """
        verdict = diagnose(sidecar(2, stack=WAITING)).verdict

        assert "possible" == verdict.confidence
        assert verdict.summary.startswith(ABSENT)
        assert verdict.summary.endswith(
            "; but rank 2 is waiting in all_reduce at backward (train.py:50)"
        )
        assert "take both again" in verdict.remedy

    def test_contradiction_of_two(self, diagnose):
        """
        A call to one other rank is named as such, and is in no dump on Gloo.
        """
        stack = (
            ("recv", "torch/distributed/distributed_c10d.py", 2300),
            ("exchange", "train.py", 8),
        )

        verdict = diagnose(sidecar(2, stack=stack)).verdict

        assert verdict.summary.endswith(
            "; but rank 2 is waiting in recv at exchange (train.py:8)"
        )
        assert "no dump shows it" in verdict.remedy

    def test_contradiction_of_several(self, diagnose):
        """
        Each call in which they wait is told, with a line.
        """
        verdict = diagnose(
            sidecar(1, stack=in_torch("send", 17)),
            sidecar(2, stack=in_torch("recv", 12)),
            absent=(1, 2),
        ).verdict

        assert verdict.summary.endswith(
            "; but rank 1 is waiting in send at main (train.py:17), rank 2 is "
            "waiting in recv at main (train.py:12)"
        )
        assert "no dump shows it" in verdict.remedy


def in_torch(call, line):
    """
    The stack of a rank that waits in a call of torch.
    """
    if call == "store":
        return (
            ("_create_c10d_store", "torch/distributed/rendezvous.py", 1),
            ("main", "train.py", line),
        )
    file = "torch/distributed/distributed_c10d.py"
    return ((call, file, 1), ("main", "train.py", line))


@pytest.fixture(name="verdict_of")
def _verdict_of(dumps_of):
    """
    The diagnosis of four ranks, of which some wait in a second call that
    is on record, and the others where their stacks tell.
    """

    def verdict_of(there, *sidecars, stacks=()):
        job = SimulatedJob(4)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=there)
        dumps = dumps_of(job, sidecars={s.rank: s for s in sidecars})
        flight = analyze_dumps(dumps)
        views = host_views(dumps, stacks)
        return refine(flight.to_diagnosis(), views, dumps, flight.waits)

    return verdict_of


class TestCrossed:
    @pytest.mark.parametrize("call", ["monitored_barrier", "new_group"])
    def test_one_left(self, verdict_of, call):
        """
        Who is in another call than all others left their order; they wait.
        """
        ranks = (0, 2, 3)
        others = [sidecar(r, stack=in_torch(call, 13)) for r in ranks]
        mine = sidecar(1, stack=in_torch("all_reduce", 10))

        got = verdict_of([1], mine, *others)

        assert Cause.GROUP_ORDER_DEADLOCK is got.verdict.cause
        assert "likely" == got.verdict.confidence
        assert (1,) == got.verdict.ranks
        assert ranks == got.victims
        assert (
            "rank 1 left the order of the others: rank 1 in all_reduce #2 of "
            "group 'default_pg' at main (train.py:10), ranks 0,2-3 in "
            f"{call} at main (train.py:13)" == got.verdict.summary
        )
        assert "main (train.py:10)" == str(got.verdict.location)
        assert call in got.verdict.remedy

    def test_one_ahead(self, verdict_of):
        """
        It is the same if that one is in the call that is not on record.
        """
        mine = sidecar(2, stack=in_torch("monitored_barrier", 13))

        got = verdict_of([0, 1, 3], mine)

        assert (2,) == got.verdict.ranks
        assert Cause.GROUP_ORDER_DEADLOCK is got.verdict.cause
        assert "main (train.py:13)" == str(got.verdict.location)
        assert (0, 1, 3) == got.victims

    def test_halves(self, verdict_of):
        """
        Two against two: nobody is blamed before the others.
        """
        stack = in_torch("monitored_barrier", 13)

        got = verdict_of([0, 1], *(sidecar(r, stack=stack) for r in (2, 3)))

        assert (0, 1, 2, 3) == got.verdict.ranks
        assert "possible" == got.verdict.confidence
        assert "wait for each other" in got.verdict.summary

    @pytest.mark.parametrize(
        "stacks",
        [
            # A call between two: whose other end that is, nobody tells.
            {0: "recv", 2: "recv", 3: "recv"},
            # For whom ranks wait at the store, nobody tells either.
            dict.fromkeys((0, 2, 3), "store"),
            # One of them waits elsewhere, or nothing is known of it.
            {0: "new_group", 2: "recv", 3: "new_group"},
            {0: "new_group", 2: "new_group"},
        ],
    )
    def test_open(self, verdict_of, stacks):
        """
        Where not all of them wait in one call of all, nobody left the order.
        """
        got = verdict_of(
            [1],
            *(sidecar(r, stack=in_torch(c, 13)) for r, c in stacks.items()),
        )

        assert (Cause.RANK_NOT_ARRIVED, "possible") == (
            got.verdict.cause,
            got.verdict.confidence,
        )


def test_too_late(dumps_of):
    """
    Who is in the call by now, and came too late, waits nowhere else.
    """
    job = SimulatedJob(4, timeout_s=20)
    job.collective("all_reduce")
    job.collective("all_reduce", late={2: 25}, state="started")
    for records in job.records.values():
        records[-1].call.members |= {-1}
    stack = in_torch("all_reduce", 13)
    dumps = dumps_of(job, sidecars={2: sidecar(2, stack=stack)})
    flight = analyze_dumps(dumps)
    views = host_views(dumps, ())

    got = refine(flight.to_diagnosis(), views, dumps, flight.waits).verdict

    assert (Cause.RANK_NOT_ARRIVED, (2,)) == (got.cause, got.ranks)
    assert got.summary.endswith(
        "25 s after ranks 0-1,3, when the time-out was over"
    )


class TestHeld:
    def test_circle(self, verdict_of):
        """
        Who takes a lock into a call that others cannot reach without it is at
        fault, and not they.
        """
        stacks = [locking(rank, held_by=102) for rank in (0, 1, 3)]
        mine = captured(2, in_torch("all_reduce", 12))

        got = verdict_of([2], stacks=[*stacks, mine])

        assert (Cause.LOCK_DEADLOCK, (2,)) == (
            got.verdict.cause,
            got.verdict.ranks,
        )
        assert (0, 1, 3) == got.victims
        assert (
            "rank 2 holds the lock of a file that ranks 0-1,3 wait for in "
            "refresh (vocab.py:6), and waits for them in all_reduce #2 of "
            "group 'default_pg' in main (train.py:12)" == got.verdict.summary
        )
        assert "main (train.py:12)" == str(got.verdict.location)
        assert "let go of the lock" in got.verdict.remedy

    @pytest.mark.parametrize("is_seen", [True, False])
    def test_elsewhere(self, verdict_of, is_seen):
        """
        Who keeps a lock from others while it does something else holds up
        those, too, who wait for them.
        """
        mine = captured(2, LOADER) if is_seen else process((), rank=2)
        stacks = [locking(1, held_by=102), attrs.evolve(mine, host="node1")]

        got = verdict_of([0, 3], stacks=stacks)

        assert (Cause.RANK_NOT_ARRIVED, (2,)) == (
            got.verdict.cause,
            got.verdict.ranks,
        )
        assert (0, 1, 3) == got.victims
        assert got.verdict.summary.startswith(
            "rank 2 holds the lock of a file that rank 1 waits for in refresh "
            "(vocab.py:6), and "
        )
        cause = Cause.DATALOADER_WAIT if is_seen else None
        assert cause is got.verdict.detail_cause
        assert got.verdict.remedy

    @pytest.mark.parametrize(
        ("holder", "options"),
        [
            # No rank, one of another node, and not known at all.
            (77, {}),
            (102, {"host": "node2"}),
            (None, {}),
        ],
    )
    def test_open(self, verdict_of, holder, options):
        """
        Where no rank is known to hold the lock, those who wait for it do not
        arrive.
        """
        stacks = [locking(r, held_by=holder, **options) for r in (0, 1, 3)]
        mine = captured(2, in_torch("all_reduce", 12))

        got = verdict_of([2], stacks=[*stacks, mine])

        assert (0, 1, 3) == got.verdict.ranks
        assert Cause.LOCK_DEADLOCK is got.verdict.detail_cause

    def test_others(self, verdict_of):
        """
        A rank that is late for another reason stays at fault.
        """
        stacks = [locking(0, held_by=102), captured(1, LOADER)]

        got = verdict_of([2, 3], stacks=stacks)

        assert (0, 1) == got.verdict.ranks


def captured(rank, stack):
    """
    What was seen of a rank on its node.
    """
    return process(stack, pid=100 + rank, rank=rank, host="node1")


def locking(rank, *, held_by, **options):
    """
    A rank that waits for the lock of a file.
    """
    said = "" if held_by is None else f", held by process {held_by}"
    thread = ThreadStack(
        name="MainThread",
        frames=(StackFrame("refresh", "vocab.py", 6),),
        is_main=True,
        system_call=SystemCall(name="flock", target=f"/data/x.lock{said}"),
    )
    fields = {"pid": 100 + rank, "rank": rank, "host": "node1"}
    fields["source"] = f"pyspy_node1_{100 + rank}.json"
    return ProcessStacks(threads=(thread,), **(fields | options))


class TestEnd:
    def test_exception(self, diagnose):
        """
        A rank that an exception ended crashed; the others wait for it.
        """
        error = "ValueError: bad batch"

        verdict = diagnose(sidecar(2, error=error, stack=LOADER)).verdict

        assert (Cause.RANK_CRASHED, (2,)) == (verdict.cause, verdict.ranks)
        assert (
            "rank 2 died of ValueError: bad batch at read_shard (train.py:41);"
            " the others wait for it in all_reduce #2 of group 'default_pg'"
            == verdict.summary
        )
        assert ("all_reduce", 2) == (
            verdict.collective.op,
            verdict.collective.seq,
        )
        assert "certain" == verdict.confidence
        assert ("sidecar", "rank_2.sidecar.json", error) == (
            verdict.evidence[0].kind,
            verdict.evidence[0].source,
            verdict.evidence[0].quote,
        )

    def test_no_dump(self, diagnose):
        """
        Likewise if it left a side-car, but no dump.
        """
        diagnosis = diagnose(sidecar(2, error="OSError: x"), missing=[2])

        assert [Cause.RANK_CRASHED] == [f.cause for f in diagnosis.findings]
        assert "rank 2 died of OSError: x;" in diagnosis.verdict.summary

    def test_first(self, diagnose):
        """
        Of several that died, the first one did it.
        """
        first = sidecar(3, error="KeyError: 'a'", written=500.0)
        second = sidecar(1, error="KeyError: 'b'", written=501.0)

        diagnosis = diagnose(first, second)

        assert (3,) == diagnosis.verdict.ranks
        assert [(3,), (2,)] == [f.ranks for f in diagnosis.findings]
        assert 3 not in diagnosis.victims

    def test_other_absent(self, diagnose):
        """
        The death of one absent rank does not hide that another is absent.
        """
        diagnosis = diagnose(sidecar(2, error="OSError: x"), absent=(1, 2))

        assert [(2,), (1, 2)] == [f.ranks for f in diagnosis.findings]

    @pytest.mark.parametrize(
        "error",
        [
            "RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:1",
            "DistBackendError: NCCL communicator was aborted on rank 1",
            "torch.distributed.DistNetworkError: gone",
            "KeyboardInterrupt: ",
        ],
    )
    def test_no_crash(self, diagnose, error):
        """
        Who fails because a peer is gone, or is interrupted, is no culprit.
        """
        verdict = diagnose(sidecar(1, error=error)).verdict

        assert (Cause.RANK_NOT_ARRIVED, (2,)) == (verdict.cause, verdict.ranks)

    def test_healthy(self, diagnose):
        """
        A rank that died is a finding also if nobody waits.
        """
        diagnosis = diagnose(sidecar(1, error="OSError: x"), absent=())

        assert Cause.RANK_CRASHED is diagnosis.verdict.cause
        assert diagnosis.verdict.group is None

    @pytest.mark.parametrize(
        "before",
        [
            {"error": "RuntimeError: [x/gloo/y.cc:81] Timed out waiting"},
            {"reason": "SIGTERM"},
            {
                "reason": "SIGTERM",
                "error": "RuntimeError: Connection closed by peer [10.0.0.1]",
            },
        ],
    )
    @pytest.mark.parametrize(
        ("after_s", "host", "expected"),
        [
            (-5.0, "node1", Cause.RANK_CRASHED),
            (0.3, "node2", Cause.RANK_CRASHED),
            (5.0, "node1", Cause.RANK_NOT_ARRIVED),
            (5.0, "node2", Cause.RANK_NOT_ARRIVED),
        ],
    )
    def test_after_others(self, diagnose, before, after_s, host, expected):
        """
        Who dies after calls have failed elsewhere, or others were ended, dies
        because of that, as far as the clocks of several hosts can tell.
        """
        failed = sidecar(1, written=500.0, **before)
        died = sidecar(
            3, error="KeyError: 'loss'", written=500.0 + after_s, host=host
        )

        verdict = diagnose(failed, died).verdict

        assert expected is verdict.cause

    @pytest.mark.parametrize(
        ("after_s", "expected"),
        [(5.0, Cause.RANK_CRASHED), (15.0, Cause.RANK_NOT_ARRIVED)],
    )
    def test_closed_first(self, diagnose, after_s, expected):
        """
        An exception may destroy the process groups on its way, so that calls
        fail elsewhere before it is noted.
        """
        failed = sidecar(
            1,
            error="RuntimeError: Connection closed by peer [10.0.0.1]:1",
            written=500.0,
        )
        died = sidecar(2, error="ValueError: x", written=500.0 + after_s)

        assert expected is diagnose(failed, died).verdict.cause

    @pytest.mark.parametrize(
        ("before_s", "expected"),
        [(0.01, Cause.RANK_NOT_ARRIVED), (0.5, Cause.RANK_CRASHED)],
    )
    def test_worker_ended_too(self, diagnose, before_s, expected):
        """
        The signal that ends a job ends the workers of its data loaders, too;
        one that died by itself did so some time before.
        """
        worker = "RuntimeError: DataLoader worker (pid(s) 9) exited "
        told = sidecar(1, reason="SIGTERM", written=500.0)
        died = sidecar(
            2, error=f"{worker}unexpectedly", written=500.0 - before_s
        )

        assert expected is diagnose(told, died).verdict.cause

    def test_interruption(self, diagnose):
        """
        Being interrupted is no failed call.
        """
        stopped = sidecar(1, error="KeyboardInterrupt: ", written=500.0)
        died = sidecar(3, error="KeyError: 'loss'", written=600.0)

        assert (3,) == diagnose(stopped, died).verdict.ranks

    @pytest.mark.parametrize("missing", [(), (2,)])
    def test_exit(self, diagnose, missing):
        """
        That a rank had ended in good order is part of the sentence.
        """
        verdict = diagnose(sidecar(2, reason="exit"), missing=missing).verdict

        assert verdict.summary.endswith("; rank 2 had ended without an error")
        assert Cause.RANK_NOT_ARRIVED is verdict.cause
        assert "fewer calls" in verdict.remedy

    def test_most_have_ended(self, diagnose):
        """
        If all but one ended, that one may have made a call too many.
        """
        ended = [sidecar(r, reason="exit") for r in (0, 1, 2)]

        verdict = diagnose(*ended, absent=(0, 1, 2), missing=[0, 1, 2]).verdict

        assert (0, 1, 2) == verdict.ranks
        assert (Cause.RANK_NOT_ARRIVED, "possible") == (
            verdict.cause,
            verdict.confidence,
        )

    def test_crash_without_reason(self, diagnose):
        """
        An old stack does not explain why a rank left no dump.
        """
        verdict = diagnose(sidecar(2, stack=LOADER), missing=[2]).verdict

        assert Cause.RANK_CRASHED is verdict.cause
        assert verdict.detail_cause is None


def exits(**options):
    """
    The side-cars of four ranks that came to their end.
    """
    return [sidecar(r, reason="exit", **options) for r in range(4)]


class TestEndedWell:
    @pytest.mark.parametrize("missing", [(), (2,), (0, 1, 2, 3)])
    def test_healthy(self, diagnose, missing):
        """
        A job that ended without an error was healthy, whatever older dumps
        show, or do not.
        """
        diagnosis = diagnose(*exits(), missing=missing)

        assert diagnosis.is_healthy
        assert "the job ended without an error on ranks 0-3" == (
            diagnosis.verdict.summary
        )
        assert "likely" == diagnosis.verdict.confidence
        assert ((), ()) == (diagnosis.findings, diagnosis.victims)
        assert () == diagnosis.missing
        assert all(not (g.waiting or g.absent) for g in diagnosis.groups)

    def test_progress(self, diagnose):
        """
        How far the groups were is still told.
        """
        (group,) = diagnose(*exits()).groups

        assert (1, 2) == (group.last_completed, group.furthest)

    def test_unreadable(self, dumps_of):
        """
        A file that could not be read is still told.
        """
        dumps = attrs.evolve(
            dumps_of(SimulatedJob(4), sidecars={s.rank: s for s in exits()}),
            problems=(Missing(what="dump", reason="damaged", source="x"),),
        )

        found = analyze_dumps(dumps).to_diagnosis()
        diagnosis = refine(found, host_views(dumps, ()), dumps)

        assert ["x"] == [m.source for m in diagnosis.missing]
        assert diagnosis.is_healthy

    @pytest.mark.parametrize(
        "other",
        [
            {"error": "OSError: x"},
            {"reason": "start"},
            {"reason": "request"},
            {"reason": "SIGTERM"},
        ],
    )
    def test_not_all(self, diagnose, other):
        """
        If one rank did not end well, the waits count.
        """
        odd = sidecar(2, **{"reason": "exit", **other})
        others = [s for s in exits() if s.rank != 2]

        diagnosis = diagnose(*others, odd)

        assert not diagnosis.is_healthy
        assert (2,) == diagnosis.verdict.ranks

    def test_one_is_silent(self, diagnose):
        """
        Likewise if one rank left no side-car.
        """
        verdict = diagnose(*exits()[:2], exits()[3]).verdict

        assert (Cause.RANK_NOT_ARRIVED, (2,)) == (verdict.cause, verdict.ranks)

    def test_nobody(self, dumps_of):
        """
        Without side-cars nobody knows how it ended.
        """
        assert not ended_well(dumps_of(SimulatedJob(2)))

    def test_lasting(self, dumps_of):
        """
        What was wrong without stopping the job is still told.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce", ranks=[0, 1, 2])
        job.collective("all_reduce", ranks=[3], sizes=[[7]])
        dumps = dumps_of(job, sidecars={s.rank: s for s in exits()})

        found = analyze_dumps(dumps).to_diagnosis()
        diagnosis = refine(found, host_views(dumps, ()), dumps)

        assert (Cause.SIZE_MISMATCH, (3,)) == (
            diagnosis.verdict.cause,
            diagnosis.verdict.ranks,
        )
        assert [diagnosis.verdict] == list(diagnosis.findings)


@pytest.fixture(name="start")
def _start():
    """
    Starts processes that do nothing, and ends them.
    """
    started = []

    def start(command="sleep"):
        started.append(subprocess.Popen([command, "60"]))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def stop(one):
    """
    Stop a child, and wait until it is.
    """
    one.send_signal(signal.SIGSTOP)
    os.waitpid(one.pid, os.WUNTRACED)


def of_process(rank, one, **options):
    """
    The side-car that a process of this machine wrote just now.
    """
    fields = {
        "pid": one.pid,
        "host": socket.gethostname(),
        "started": time.time(),
        "reason": "start",
    }
    return sidecar(rank, **(fields | options))


class TestProcess:
    def test_stopped(self, diagnose, start):
        """
        A rank without a dump whose process is stopped is stopped.
        """
        one = start()
        stop(one)

        verdict = diagnose(of_process(2, one), missing=[2]).verdict

        assert (Cause.STOPPED, (2,)) == (verdict.cause, verdict.ranks)
        assert "likely" == verdict.confidence
        assert (
            "rank 2 is stopped, and gave no dump; 3 ranks wait for it in "
            "all_reduce #2 of group 'default_pg'" == verdict.summary
        )
        assert "kill -CONT" in verdict.remedy

    def test_alive(self, diagnose, start):
        """
        One that is alive did not crash; it does not answer.
        """
        verdict = diagnose(of_process(2, start()), missing=[2]).verdict

        assert (Cause.RANK_NOT_ARRIVED, (2,)) == (verdict.cause, verdict.ranks)
        assert verdict.summary.startswith("rank 2 is alive, and gave no dump;")
        assert "take its stacks" in verdict.remedy

    def test_alive_and_seen(self, diagnose, start):
        """
        If it was looked at, its line and what to do about it are told.
        """
        one = start()
        seen = process(
            [("sleep", "train.py", 3)], pid=one.pid, rank=2, state="S"
        )

        verdict = diagnose(
            of_process(2, one), stacks=[seen], missing=[2]
        ).verdict

        assert (Cause.RANK_NOT_ARRIVED, Cause.SLEEPING) == (
            verdict.cause,
            verdict.detail_cause,
        )
        assert "rank 2 is sleeping in sleep (train.py:3)" in verdict.summary
        assert "take its stacks" not in verdict.remedy

    def test_orphan(self, diagnose):
        """
        A child that outlives its rank, and bears its number, is not the rank.
        """
        ours = sidecar(1, pid=101)
        gone = sidecar(2, pid=102)
        peer = process([("f", "train.py", 1)], pid=101, rank=1, host="node1")
        orphan = process(
            [("sleep", "train.py", 3)],
            pid=999,
            rank=2,
            host="node1",
            state="S",
        )

        verdict = diagnose(
            ours, gone, stacks=[peer, orphan], missing=[2]
        ).verdict

        assert (Cause.RANK_CRASHED, (2,)) == (verdict.cause, verdict.ranks)

    def test_container(self, diagnose):
        """
        In a container a process has another number than on the node.
        """
        inside = sidecar(2, pid=12)
        seen = process(
            [("sleep", "train.py", 3)],
            pid=4012,
            rank=2,
            host="node1",
            state="S",
        )

        verdict = diagnose(inside, stacks=[seen], missing=[2]).verdict

        assert Cause.RANK_NOT_ARRIVED is verdict.cause

    def test_several(self, diagnose, start):
        """
        Of several, those that are stopped hold up the others.
        """
        stopped = [start(), start()]
        for one in stopped:
            stop(one)
        ones = [*stopped, start()]

        verdict = diagnose(
            *(of_process(r, p) for r, p in enumerate(ones, 1)),
            missing=[1, 2, 3],
            absent=(1, 2, 3),
        ).verdict

        assert (Cause.STOPPED, (1, 2)) == (verdict.cause, verdict.ranks)
        assert verdict.summary.startswith(
            "ranks 1-2 are stopped, and gave no dump (nor did rank 3); 1 rank"
        )

    @pytest.mark.parametrize(
        "options",
        [
            # Another machine has processes of its own.
            {"host": "elsewhere"},
            # The number belongs to a process that is younger than the rank.
            {"started": 1_000_000_000.0},
            {"pid": 0},
        ],
    )
    def test_other(self, diagnose, start, options):
        """
        A process that may be another one says nothing.
        """
        one = start()
        stop(one)

        verdict = diagnose(of_process(2, one, **options), missing=[2]).verdict

        assert diagnose(missing=[2]).verdict == verdict
        assert Cause.RANK_CRASHED is verdict.cause

    def test_dead(self, diagnose, start):
        """
        Neither does one that is dead, whether or not its parent knows.
        """
        one = start("true")
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        told = of_process(2, one)

        as_zombie = diagnose(told, missing=[2]).verdict
        one.wait()
        as_gone = diagnose(told, missing=[2]).verdict

        assert Cause.RANK_CRASHED is as_zombie.cause
        assert as_zombie == as_gone

    def test_with_dump(self, diagnose, start):
        """
        A rank that gave a dump is judged by it.
        """
        verdict = diagnose(of_process(2, start(), stack=LOADER)).verdict

        assert Cause.DATALOADER_WAIT is verdict.detail_cause


def test_straggler(dumps_of):
    """
    Where a straggler waits with the others is no line of its own.
    """
    job = SimulatedJob(4)
    for _ in range(20):
        job.collective("all_reduce", late={2: 0.5})
        job.wait(1.0)
    dumps = dumps_of(
        job,
        hosts=dict.fromkeys(range(4), "n"),
        sidecars={2: sidecar(2, stack=WAITING)},
    )
    found = analyze_dumps(dumps).to_diagnosis()

    verdict = refine(found, host_views(dumps, ()), dumps).verdict

    assert (Cause.STRAGGLER, None) == (verdict.cause, verdict.location)
    assert ["dump"] == [e.kind for e in verdict.evidence]
