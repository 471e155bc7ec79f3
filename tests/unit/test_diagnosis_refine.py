"""
What a rank was doing on its host, joined with what the dumps say.
"""

from __future__ import annotations

import pytest

from distdebug.diagnosis.hosts import host_views
from distdebug.diagnosis.refine import refine
from distdebug.findings import Cause, Location
from distdebug.flight_recorder.analysis.analyze import analyze_dumps
from distdebug.flight_recorder.sidecar import Sidecar, SidecarFrame
from distdebug.stacks.model import ProcessStacks, StackFrame, ThreadStack
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
            "; but the stack of rank 2 waits in a collective at "
            "backward (train.py:50)"
        )
        assert "take both again" in verdict.remedy


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

    @pytest.mark.parametrize("missing", [(), (2,)])
    def test_exit(self, diagnose, missing):
        """
        That a rank had ended in good order is part of the sentence.
        """
        verdict = diagnose(sidecar(2, reason="exit"), missing=missing).verdict

        assert verdict.summary.endswith("; rank 2 had ended without an error")

    def test_crash_without_reason(self, diagnose):
        """
        An old stack does not explain why a rank left no dump.
        """
        verdict = diagnose(sidecar(2, stack=LOADER), missing=[2]).verdict

        assert Cause.RANK_CRASHED is verdict.cause
        assert verdict.detail_cause is None
