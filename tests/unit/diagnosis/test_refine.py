"""
What a rank was doing on its host, joined with what the dumps say.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time

from pathlib import Path

import attrs
import pytest

import distdebug

from distdebug.causes import Cause
from distdebug.diagnosis.rank_state import is_peer_lost_error
from distdebug.findings import Location
from distdebug.flight_recorder import Sidecar, SidecarFrame, write_sidecar
from distdebug.stacks import (
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadStack,
    stacks_to_json,
)
from distdebug.testing import SimulatedJob, make_dumps


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
        "path": "",
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


@pytest.fixture(name="diagnose_job")
def _diagnose_job(tmp_path):
    """
    Diagnoses what is left of a job, and of no other before it.
    """
    folder = tmp_path / "job"

    def diagnose_job(job, *sidecars, stacks=(), missing=(), damaged=()):
        shutil.rmtree(folder, ignore_errors=True)
        paths = make_dumps(folder, job, missing=missing)
        for name in damaged:
            (folder / name).write_text('{"entries": [')
        for told in sidecars:
            path = folder / f"nccl_trace_rank_{told.rank}"
            dump = path.name if told.rank in paths else ""
            write_sidecar(told._replace(dump=dump), path)
        for number, seen in enumerate(stacks):
            name = f"pyspy_{seen.host or number}_{seen.pid}.json"
            (folder / name).write_text(stacks_to_json(seen))
        return distdebug.diagnose(folder)

    return diagnose_job


@pytest.fixture(name="diagnose")
def _diagnose(diagnose_job):
    """
    Diagnoses a job of four, in which rank 2 is absent from the second call.
    """

    def diagnose(*sidecars, absent=(2,), **options):
        job = SimulatedJob(4)
        job.collective("all_reduce")
        others = [r for r in range(4) if r not in absent]
        job.collective("all_reduce", ranks=others)
        return diagnose_job(job, *sidecars, **options)

    return diagnose


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


ABSENT = "rank 2 never entered all_reduce #2 of group 'default_pg'"


class TestReason:
    def test_own_stack(self, diagnose):
        """
        The stack that the process took of itself explains why it is absent.
        """
        verdict = diagnose(sidecar(2, stack=LOADER)).verdict

        assert (
            f"{ABSENT}; 3 ranks are waiting. Rank 2 is waiting for data in "
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

        assert ("stack", "nccl_trace_rank_2.sidecar.json") == (
            first.kind,
            Path(first.source).name,
        )
        assert "rank 2, thread MainThread" == first.location
        assert "→ _try_get_data (dataloader.py:" in first.quote
        assert {"dump"} == {e.kind for e in others}

    def test_captured_wins(self, diagnose):
        """
        What was captured from outside is newer.
        """
        captured = process([("sleep", "train.py", 3)], rank=2)

        verdict = diagnose(sidecar(2, stack=LOADER), stacks=[captured]).verdict

        assert Cause.SLEEPING is verdict.detail_cause
        assert verdict.evidence[0].source.endswith("_102.json")

    @pytest.mark.parametrize("host", ["node1", None])
    def test_rank_by_pid(self, diagnose, host):
        """
        Side-cars show which rank a process is, if need be without its host.
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
        assert ". Rank 2 is waiting for data in read_shard" in verdict.summary

    def test_several_reasons(self, diagnose):
        """
        Each reason of several absent ranks is reported.
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
            ". Rank 0 is waiting for data in read_shard (train.py:41); rank 1 "
            "is in poll (train.py:70)"
        )

    def test_arrived(self, diagnose_job):
        """
        The line of a culprit that did arrive is added where dumps have none.
        """
        job = SimulatedJob(2, stack_depth=0)
        a, b = (job.new_group([0, 1], name) for name in "ab")
        job.collective("all_reduce", a, ranks=[0])
        job.collective("all_reduce", b, ranks=[1])

        verdict = diagnose_job(job, sidecar(0, stack=WAITING)).verdict

        assert Cause.GROUP_ORDER_DEADLOCK is verdict.cause
        assert "backward (train.py:50)" == str(verdict.location)
        assert "stack" == verdict.evidence[-1].kind

    @pytest.mark.parametrize(
        ("stacks", "told", "remedy"),
        [
            # A stack that no rule knows tells at least where the rank is.
            (
                {2: [("crunch", "model.py", 7)]},
                ". Rank 2 is in crunch (model.py:7)",
                "",
            ),
            # If it waits in a collective that the dump does not know, both
            # are told, and nothing is certain.
            (
                {2: WAITING},
                "; but rank 2 is waiting in all_reduce at backward (train.py:50)",
                "take both again",
            ),
            # A call to one other rank is named as such, and is in no dump on
            # Gloo.
            (
                {2: in_torch("recv", 8)},
                "; but rank 2 is waiting in recv at main (train.py:8)",
                "no dump shows it",
            ),
            (
                {1: in_torch("send", 17), 2: in_torch("recv", 12)},
                (
                    "; but rank 1 is waiting in send at main (train.py:17), "
                    "rank 2 is waiting in recv at main (train.py:12)"
                ),
                "no dump shows it",
            ),
        ],
        ids=["unknown", "contradiction", "of two", "of several"],
    )
    def test_where(self, diagnose, stacks, told, remedy):
        """
        The line of a rank is reported, also if that call is in no dump.
        """
        sidecars = (sidecar(r, stack=stack) for r, stack in stacks.items())

        verdict = diagnose(*sidecars, absent=tuple(stacks)).verdict

        assert verdict.summary.endswith(told)
        assert verdict.summary.startswith(ABSENT) or 1 < len(stacks)
        assert remedy in verdict.remedy
        assert bool(remedy) == (verdict.confidence == "possible")
        assert verdict.detail_cause is None or remedy


@pytest.fixture(name="verdict_of")
def _verdict_of(diagnose_job):
    """
    The diagnosis of four ranks, of which some wait in a second call that is on
    record, and the others where their stacks show.
    """

    def verdict_of(there, *sidecars, stacks=()):
        job = SimulatedJob(4)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=there)
        return diagnose_job(job, *sidecars, stacks=stacks)

    return verdict_of


class TestCrossed:
    @pytest.mark.parametrize("call", ["monitored_barrier", "new_group"])
    def test_one_left(self, verdict_of, call):
        """
        A rank in another call than all others is at fault; they wait.
        """
        ranks = (0, 2, 3)
        others = [sidecar(r, stack=in_torch(call, 13)) for r in ranks]
        mine = sidecar(1, stack=in_torch("all_reduce", 10))

        got = verdict_of([1], mine, *others)

        assert Cause.TYPE_MISMATCH is got.verdict.cause
        assert "likely" == got.verdict.confidence
        assert (1,) == got.verdict.ranks
        assert ranks == got.victims
        assert (
            "rank 1 is in all_reduce #2 of group 'default_pg' at main "
            "(train.py:10), while ranks 0,2-3 are in "
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
        assert Cause.TYPE_MISMATCH is got.verdict.cause
        assert "main (train.py:13)" == str(got.verdict.location)
        assert (0, 1, 3) == got.victims

    def test_halves(self, verdict_of):
        """
        Two against two: no rank is blamed before the others.
        """
        stack = in_torch("monitored_barrier", 13)

        got = verdict_of([0, 1], *(sidecar(r, stack=stack) for r in (2, 3)))

        assert (0, 1, 2, 3) == got.verdict.ranks
        assert "possible" == got.verdict.confidence
        assert ", while ranks 2-3 are in" in got.verdict.summary

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
        Where not all of them wait in one call of all, no rank is at fault.
        """
        got = verdict_of(
            [1],
            *(sidecar(r, stack=in_torch(c, 13)) for r, c in stacks.items()),
        )

        assert (Cause.RANK_NOT_ARRIVED, "possible") == (
            got.verdict.cause,
            got.verdict.confidence,
        )


class TestUnrecorded:
    @pytest.mark.parametrize("waiting", [(0, 2), (0,)])
    def test_only_who_waits_for_nobody(self, verdict_of, waiting):
        """
        Absent ranks that wait in an unrecorded call are left out.
        """
        stacks = {r: in_torch("recv", 13) for r in waiting}
        others = tuple(r for r in (0, 1, 2) if r not in waiting)

        found = verdict_of(
            [3], *(sidecar(r, stack=stacks.get(r, LOADER)) for r in range(3))
        ).verdict

        assert (others, "likely") == (found.ranks, found.confidence)
        who = "rank 1" if len(others) == 1 else "ranks 1-2"
        wait = "ranks 0,2 wait" if len(others) == 1 else "rank 0 waits"
        assert found.summary.startswith(
            f"{who} never entered all_reduce #2 of group 'default_pg' "
            f"({wait} elsewhere, not on record)"
        )
        assert ("all_reduce", 2) == (found.collective.op, found.collective.seq)

    def test_another_call(self, diagnose_job):
        """
        The reported call is one that waits for the ranks that are left.
        """
        job = SimulatedJob(6)
        job.collective("all_reduce")
        first, second = job.new_group([4, 5]), job.new_group([1, 3])
        job.collective("all_reduce", first, ranks=[4])
        job.collective("all_gather", second, ranks=[3])

        found = diagnose_job(
            job,
            sidecar(5, stack=in_torch("recv", 13), world_size=6),
            sidecar(1, stack=LOADER, world_size=6),
        ).verdict

        assert ((1,), "likely") == (found.ranks, found.confidence)
        assert found.summary.startswith(
            "rank 1 never entered all_gather #1 of group '2' (rank 5 waits "
            "elsewhere, not on record)"
        )
        assert ("2", (1, 3)) == (found.group.name, found.group.ranks)
        assert ("all_gather", 1) == (found.collective.op, found.collective.seq)


def test_too_late(diagnose_job):
    """
    A rank that is in the call by now, and came too late, waits nowhere else.
    """
    job = SimulatedJob(4, timeout_s=20)
    job.collective("all_reduce")
    job.collective("all_reduce", late={2: 25}, state="started")
    for records in job.records.values():
        records[-1].call.members |= {-1}
    stack = in_torch("all_reduce", 13)

    got = diagnose_job(job, sidecar(2, stack=stack)).verdict

    assert (Cause.RANK_NOT_ARRIVED, (2,)) == (got.cause, got.ranks)
    assert got.summary.endswith("25 s after ranks 0-1,3, after the timeout")


class TestHeld:
    def test_circle(self, verdict_of):
        """
        A rank that takes a lock into a call that others cannot reach without
        it is at fault.
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
        A rank that keeps a lock while it does something else also holds up
        those that wait for its victims.
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
        Where the holder of the lock is no known rank, the ranks that wait for
        it do not arrive.
        """
        stacks = [locking(r, held_by=holder, **options) for r in (0, 1, 3)]
        mine = captured(2, in_torch("all_reduce", 12))

        got = verdict_of([2], stacks=[*stacks, mine])

        assert (0, 1, 3) == got.verdict.ranks
        assert Cause.LOCK_DEADLOCK is got.verdict.detail_cause

    def test_own(self, verdict_of):
        """
        A rank that waits for a lock of its own process does not arrive.
        """
        got = verdict_of([0, 2, 3], stacks=[locking(1, held_by=101)])

        assert (1,) == got.verdict.ranks
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
    thread = ThreadStack(
        name="MainThread",
        frames=(StackFrame("refresh", "vocab.py", 6),),
        is_main=True,
        system_call=SystemCall(
            name="flock", target="/data/x.lock", holder=held_by
        ),
    )
    fields = {"pid": 100 + rank, "rank": rank, "host": "node1"}
    fields["source"] = f"pyspy_node1_{100 + rank}.json"
    return ProcessStacks(threads=(thread,), **(fields | options))


CLOSED = "RuntimeError: Connection closed by peer [10.0.0.1]:1"
WORKER = "RuntimeError: DataLoader worker (pid(s) 9) exited unexpectedly"


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
        assert ("sidecar", "nccl_trace_rank_2.sidecar.json", error) == (
            verdict.evidence[0].kind,
            Path(verdict.evidence[0].source).name,
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
        A rank that fails because a peer is gone, or is interrupted, is no
        culprit.
        """
        verdict = diagnose(sidecar(1, error=error)).verdict

        assert (Cause.RANK_NOT_ARRIVED, (2,)) == (verdict.cause, verdict.ranks)

    def test_healthy(self, diagnose):
        """
        A rank that died is a finding also if no rank waits.
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
        A rank that dies after calls have failed elsewhere, or others were
        ended, dies because of that, as far as the clocks of several hosts
        show.
        """
        failed = sidecar(1, written=500.0, **before)
        died = sidecar(
            3, error="KeyError: 'loss'", written=500.0 + after_s, host=host
        )

        verdict = diagnose(failed, died).verdict

        assert expected is verdict.cause

    @pytest.mark.parametrize(
        ("first", "error", "after_s", "is_crash"),
        [
            # An exception may destroy the process groups on its way, so that
            # calls fail elsewhere before it is noted.
            ({"error": CLOSED}, "ValueError: x", 5.0, True),
            ({"error": CLOSED}, "ValueError: x", 15.0, False),
            # The signal that ends a job ends the workers of its data loaders,
            # too; one that died by itself did so some time before.
            ({"reason": "SIGTERM"}, WORKER, -0.01, False),
            ({"reason": "SIGTERM"}, WORKER, -0.5, True),
            # Being interrupted is no failed call.
            ({"error": "KeyboardInterrupt: "}, "KeyError: 'x'", 100.0, True),
        ],
    )
    def test_order(self, diagnose, *, first, error, after_s, is_crash):
        """
        A rank that dies some time after calls have failed elsewhere dies of
        that.
        """
        told = sidecar(1, written=500.0, **first)
        died = sidecar(2, error=error, written=500.0 + after_s)

        verdict = diagnose(told, died).verdict

        assert is_crash == (verdict.cause is Cause.RANK_CRASHED)
        assert (2,) == verdict.ranks

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
        The progress of the groups is still reported.
        """
        (group,) = diagnose(*exits()).groups

        assert (1, 2) == (group.last_completed, group.furthest)

    def test_unreadable(self, diagnose_job):
        """
        A file that could not be read is still reported.
        """
        diagnosis = diagnose_job(
            SimulatedJob(4), *exits(), damaged=["other_rank_0.json"]
        )

        assert ["other_rank_0.json"] == [
            Path(lost.source).name for lost in diagnosis.missing
        ]
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

    def test_lasting(self, diagnose_job):
        """
        A problem that did not stop the job is still reported.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce", ranks=[0, 1, 2])
        job.collective("all_reduce", ranks=[3], sizes=[[7]])

        diagnosis = diagnose_job(job, *exits())

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
    @pytest.mark.process
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
            "rank 2 is stopped, and gave no dump; 3 ranks are waiting for it in "
            "all_reduce #2 of group 'default_pg'" == verdict.summary
        )
        assert "kill -CONT" in verdict.remedy

    @pytest.mark.process
    def test_alive(self, diagnose, start):
        """
        One that is alive did not crash; it does not answer.
        """
        verdict = diagnose(of_process(2, start()), missing=[2]).verdict

        assert (Cause.RANK_NOT_ARRIVED, (2,)) == (verdict.cause, verdict.ranks)
        assert verdict.summary.startswith("rank 2 is alive, and gave no dump;")
        assert "take its stacks" in verdict.remedy

    @pytest.mark.process
    def test_alive_and_seen(self, diagnose, start):
        """
        If its process was looked at, its line and a remedy are reported.
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

    @pytest.mark.process
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

    @pytest.mark.process
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

    @pytest.mark.process
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

    @pytest.mark.process
    def test_with_dump(self, diagnose, start):
        """
        A rank that gave a dump is judged by it.
        """
        verdict = diagnose(of_process(2, start(), stack=LOADER)).verdict

        assert Cause.DATALOADER_WAIT is verdict.detail_cause


def test_straggler(diagnose_job):
    """
    Where a straggler waits with the others is no line of its own.
    """
    job = SimulatedJob(4)
    for _ in range(20):
        job.collective("all_reduce", late={2: 0.5})
        job.wait(1.0)

    verdict = diagnose_job(
        job, *(sidecar(rank, stack=WAITING) for rank in range(4))
    ).verdict

    assert (Cause.STRAGGLER, None) == (verdict.cause, verdict.location)
    assert ["dump"] == [e.kind for e in verdict.evidence]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("RuntimeError: [gloo/x.cc:8] Connection closed by peer [::1]", True),
        ("RuntimeError: gloo: Connection reset by peer", True),
        ("DistNetworkError: failed to recv, got 0 bytes", True),
        ("RuntimeError: NCCL error: Socket closed", True),
        ("RuntimeError: gloo: Application timeout caused pair closure", True),
        ("DistBackendError: remote process exited or network error", True),
        ("RuntimeError: [gloo/x.cc:81] Timed out waiting 1000ms", False),
        ("DistBackendError: NCCL watchdog timeout", False),
        ("BrokenPipeError: Broken pipe", False),
    ],
)
def test_lost_peer(error, expected):
    """
    A collective that lost its peer fails because of an end, a time-out does
    not, and other connections are none of ours.
    """
    assert expected == is_peer_lost_error(error)


class TestSlow:
    """
    A rank that others have waited for as long before is slow, perhaps.
    """

    @pytest.fixture(name="verdict_of_late")
    def _verdict_of_late(self, diagnose_job):
        """
        Diagnoses a job of four in which rank 2 was late before some calls, and
        others have waited for it for 12 s.
        """

        def verdict_of_late(*late_s, stack=LOADER, state="S", fast_calls=60):
            job = SimulatedJob(4)
            for _ in range(fast_calls):
                job.collective("all_reduce")
            for seconds in late_s:
                job.collective("all_reduce", late={2: seconds})
            job.collective("all_reduce", ranks=[0, 1, 3])
            written = 1.75e9 + 0.1 + sum(late_s) + 12
            sidecars = [sidecar(r, written=written) for r in range(4)]
            mine = process(stack, rank=2, state=state, host="node1")
            return diagnose_job(job, *sidecars, stacks=[mine]).verdict

        return verdict_of_late

    @pytest.mark.parametrize(
        ("late_s", "often"), [((15, 20), "2 times"), ((15, 3), "once")]
    )
    def test_usual(self, verdict_of_late, late_s, often):
        """
        It is named with what it does, and that is no alarm.
        """
        got = verdict_of_late(*late_s)

        assert (Cause.PROGRESSING, (2,)) == (got.cause, got.ranks)
        assert got.summary.endswith(
            f"; but the others have been as long without a call {often} before"
        )
        assert ("possible", Cause.DATALOADER_WAIT, "read_shard") == (
            got.confidence,
            got.detail_cause,
            got.location.function,
        )

    @pytest.mark.parametrize(
        ("late_s", "options"),
        [
            ((), {}),
            ((3, 9), {}),
            # The first calls of a job show nothing.
            ((60, 60), {"fast_calls": 1}),
            # What does not end by itself, or is not known.
            ((15, 20), {"state": "T"}),
            ((15, 20), {"state": ""}),
            ((15, 20), {"stack": WAITING[1:]}),
        ],
    )
    def test_unusual(self, verdict_of_late, late_s, options):
        """
        Where it was never so late, or cannot go on, it is at fault.
        """
        got = verdict_of_late(*late_s, **options)

        assert (Cause.RANK_NOT_ARRIVED, (2,)) == (got.cause, got.ranks)
