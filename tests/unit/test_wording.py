"""
The sentences that a verdict is told in.
"""

from __future__ import annotations

import pytest

from distdebug.findings import Cause
from distdebug.flight_recorder.analysis.analyze import analyze_dumps
from distdebug.flight_recorder.analysis.evidence import (
    collective_of,
)
from distdebug.flight_recorder.analysis.job import survey
from distdebug.flight_recorder.analysis.stuck import StuckCall
from distdebug.ranks import ranks_text
from distdebug.testing import SimulatedJob


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([3], "rank 3"), ([0, 1, 2, 7], "ranks 0-2,7"), ([], "ranks ")],
)
def test_ranks(ranks, text):
    """
    Ranks are counted, and folded.
    """
    assert text == ranks_text(ranks)


def test_one_waits(dumps_of):
    """
    One rank waits, more ranks wait.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce", ranks=[0])

    summary = analyze_dumps(dumps_of(job)).verdict.summary

    assert (
        "rank 1 never entered all_reduce #1 of group 'default_pg' "
        "(1 rank waits)" == summary
    )


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
        "nccl:all_reduce #2 of group 'default_pg' (scheduled) at "
        "sync_default_pg (train.py:100)" == waits.quote
    )
    assert last.quote.startswith("last on record: nccl:all_reduce #1 of group")


@pytest.mark.parametrize("rank", [0, 1])
def test_quote_gloo(dumps_of, rank):
    """
    On Gloo a call is in flight, or returned; "scheduled" means nothing.
    """
    job = SimulatedJob(2, backend="gloo")
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0])

    evidence = analyze_dumps(dumps_of(job)).verdict.evidence

    assert ["(in flight)", "(returned)"][rank] in evidence[rank].quote


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
        "ranks 1-2 are stuck inside the launch of all_reduce #2"
    )


def test_operation_of_who_is_there(dumps_of):
    """
    A call is named after a rank that is in it, not in a later one.
    """
    job = SimulatedJob(2)
    job.collective("broadcast", ranks=[1])
    job.collective("all_reduce", ranks=[0])
    job.collective("barrier", ranks=[0])
    known = survey(dumps_of(job))

    call = StuckCall(group=0, seq=1, waiting={0: 1, 1: 0})

    assert "broadcast #1" == str(collective_of(known, call))
