"""
The recorded schedule, played forward without the root cause.
"""

from __future__ import annotations

import pytest

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.testing import SimulatedJob, make_dumps


@pytest.fixture(name="checked")
def _checked(tmp_path):
    """
    Diagnoses a job, and returns its verdict and what was checked.
    """

    def checked(job, **options):
        make_dumps(tmp_path, job, **options)
        diagnosis = diagnose(tmp_path)
        return diagnosis.verdict, diagnosis.checked, str(diagnosis)

    return checked


def training():
    """
    Two pairs in tensor parallelism, and two in data parallelism.
    """
    job = SimulatedJob(4)
    tp = [job.new_group([0, 1]), job.new_group([2, 3])]
    dp = [job.new_group([0, 2]), job.new_group([1, 3])]
    for _ in range(9):
        for group in (*tp, *dp):
            job.collective("all_reduce", group)
    return job, tp, dp


def test_chain(checked):
    """
    All that wait for a rank, or for one that does, go on with it.
    """
    job, tp, dp = training()
    job.collective("all_reduce", tp[0], ranks=[0])
    job.collective("all_reduce", tp[1])
    job.collective("all_reduce", dp[0], ranks=[2])
    job.collective("all_reduce", dp[1], ranks=[3])

    verdict, got, text = checked(job)

    assert (Cause.RANK_NOT_ARRIVED, (1,)) == (verdict.cause, verdict.ranks)
    assert (3, 3, ()) == (got.calls, got.completed, got.awaited)
    assert "checked: if rank 1 goes on, all 3 stuck calls complete" in text


def test_second_fault(checked):
    """
    What still stands has a cause of its own, whose ranks are named.
    """
    job, tp, _ = training()
    job.collective("all_reduce", tp[0], ranks=[0])
    job.collective("all_reduce", tp[1], ranks=[2], sizes=((8,),))

    verdict, got, text = checked(job, missing=[3])

    assert (1,) == verdict.ranks
    assert (2, 1, (3,)) == (got.calls, got.completed, got.awaited)
    assert (
        "checked: if rank 1 goes on, 1 of 2 stuck calls complete; the others "
        "wait for rank 3"
    ) in text


def test_circle(checked):
    """
    Of calls in a circle, all complete if one is made in order.
    """
    job, tp, dp = training()
    job.collective("all_reduce", tp[0], ranks=[1])
    job.collective("all_reduce", dp[0], ranks=[0])
    job.collective("all_reduce", tp[1], ranks=[2])
    job.collective("all_reduce", dp[1], ranks=[3])

    verdict, got, _ = checked(job)

    assert Cause.GROUP_ORDER_DEADLOCK is verdict.cause
    assert got.calls == got.completed


def test_in_flight(checked):
    """
    A call that all have entered is what has to end.
    """
    job, tp, dp = training()
    job.collective("all_reduce", tp[0], state="started")
    job.collective("all_reduce", dp[0], state="scheduled")
    for record in job.records[0][-2:]:
        record.call.members |= {-1}  # never completes

    verdict, got, text = checked(job)

    assert Cause.COLLECTIVE_STUCK_IN_FLIGHT is verdict.cause
    assert (2, ()) == (got.completed, got.ranks)
    assert "if this call ends, all 2 stuck calls complete" in text


def test_healthy(checked):
    """
    Where nothing is stuck, there is nothing to check.
    """
    job, *_ = training()

    assert checked(job)[1] is None


def test_absent_from_different_calls(checked):
    """
    Ranks that are absent from calls of different groups are told apart.
    """
    job, tp, _ = training()
    job.collective("all_reduce", tp[0], ranks=[0])
    job.collective("all_gather", tp[1], ranks=[3])

    verdict, got, _ = checked(job)

    assert (1, 2) == verdict.ranks
    assert verdict.summary.startswith(
        "rank 1 never entered all_reduce #10 of group '1', and rank 2 never "
        "entered all_gather #10 of group '2'; 2 ranks are waiting"
    )
    assert (2, 2) == (got.calls, got.completed)
