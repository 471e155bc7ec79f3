"""
The recorded schedule, played forward without the root cause.
"""

from __future__ import annotations

import pytest

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.findings import Checked
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


LOOP = [
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast"),
    *("all_gather", "broadcast", "all_reduce", "reduce", "scatter"),
]


def one_group(calls_of_rank_2, loop=LOOP):
    """
    Four ranks that run ahead of their GPUs; the third one makes other calls.
    """
    job = SimulatedJob(4)
    for op in loop:
        job.collective(op)
    for rank in range(4):
        for op in calls_of_rank_2 if rank == 2 else loop:
            job.collective(op, ranks=[rank])
    return job


@pytest.mark.parametrize(
    ("calls", "cause"),
    [
        ([LOOP[0], *LOOP[2:]], Cause.SKIPPED_COLLECTIVE),
        ([LOOP[0], "reduce", *LOOP[1:]], Cause.EXTRA_COLLECTIVE),
    ],
)
def test_miscount_proven(checked, calls, cause):
    """
    With the odd call added or removed, all later ones agree: that is certain.
    """
    verdict, got, text = checked(one_group(calls))

    assert (cause, (2,), "certain") == (
        *(verdict.cause, verdict.ranks, verdict.confidence),
    )
    assert got.later == got.agreeing >= 7
    assert (
        f"with the call made right, {got.later} of the {got.later} calls after "
        "it agree"
    ) in text


def test_miscount_ambiguous(checked):
    """
    Where two calls alternate, one too few is the same as one too many.
    """
    loop = ["all_reduce", "all_gather"] * 5
    verdict, _, _ = checked(one_group(loop[1:], loop))

    assert verdict.cause.is_miscount
    assert verdict.confidence == "likely"


def test_wrong_call(checked):
    """
    A wrong call in place of the right one leaves the later ones as they are.
    """
    verdict, got, _ = checked(one_group(["barrier", *LOOP[1:]]))

    assert (Cause.TYPE_MISMATCH, (2,)) == (verdict.cause, verdict.ranks)
    assert (8, 8) == (got.later, got.agreeing)


def test_other_path(checked):
    """
    A rank that does something else altogether differs later, too.
    """
    verdict, got, text = checked(one_group(["barrier"] * 3 + ["gather"] * 6))

    assert (Cause.TYPE_MISMATCH, (2,)) == (verdict.cause, verdict.ranks)
    assert (8, 0) == (got.later, got.agreeing)
    assert "0 of the 8 calls after it agree" in text


def test_nothing_to_say():
    """
    Of one stuck call, and one call after it, there is nothing to tell.
    """
    assert str(Checked(ranks=(1,), calls=1, completed=1, later=1)) == ""
    assert str(
        Checked(ranks=(1,), calls=0, completed=0, later=2, agreeing=2)
    ) == ("with the call made right, 2 of the 2 calls after it agree")
