"""
The sentences that a verdict is told in.
"""

from __future__ import annotations

import pytest

from distdebug.findings import Cause
from distdebug.flight_recorder import Sidecar, analyze_dumps
from distdebug.flight_recorder.analysis.evidence import (
    collective_of,
)
from distdebug.flight_recorder.analysis.job import survey
from distdebug.flight_recorder.analysis.stuck import StuckCall
from distdebug.testing import SimulatedJob


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


@pytest.mark.parametrize(
    ("age_s", "text"),
    [
        (0.9, ""),
        (1.2, " for 1 s"),
        (119.0, " for 119 s"),
        (150.0, " for 2 min"),
        (36000.0, " for 600 min"),
    ],
)
def test_age(dumps_of, age_s, text):
    """
    A long wait is told in seconds, a very long one in minutes; a short one is
    not worth a word.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce", ranks=[0])
    written = job.records[0][-1].created + age_s
    sidecar = Sidecar("", 0, 2, "n", 1, 0.0, written, "SIGTERM")

    summary = analyze_dumps(
        dumps_of(job, sidecars={0: sidecar}, missing=[1])
    ).verdict.summary

    assert (
        f"rank 1 left no dump; 1 rank waits{text} for it in all_reduce #1 of "
        "group 'default_pg'" == summary
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
