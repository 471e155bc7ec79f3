"""
A hang, or a job caught in the middle of a step?
"""

from __future__ import annotations

import pytest

from distdebug.findings import Cause
from distdebug.flight_recorder.analysis.analyze import analyze_dumps
from distdebug.flight_recorder.sidecar import Sidecar
from distdebug.testing import SimulatedJob


def caught(steps=20):
    """
    A job with a call every second; rank 1 did not enter the last one yet.
    """
    job = SimulatedJob(2)
    for _ in range(steps):
        job.collective("all_reduce")
        job.wait(1)
    job.collective("all_reduce", ranks=[0])
    return job


def cause_of(dumps):
    """
    What is found.
    """
    return analyze_dumps(dumps).verdict.cause


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [
        (0.5, Cause.HEALTHY),
        (5.0, Cause.RANK_NOT_ARRIVED),
        # A file that is older than its records: nothing can be said.
        (-2.0, Cause.RANK_NOT_ARRIVED),
    ],
)
def test_age(dumps_of, age_s, expected):
    """
    A wait that is no longer than usual is none.
    """
    job = caught()
    entered = job.records[0][-1].created

    assert expected == cause_of(dumps_of(job, written_s=entered + age_s))


def test_clocks(dumps_of):
    """
    Each wait is measured by the clock of its own host.
    """
    job = caught()
    now = job.records[0][-1].created + 0.5

    dumps = dumps_of(job, written_s=now, clock_offsets_s={0: 3600.0})

    assert Cause.HEALTHY is cause_of(dumps)


def test_unknown(dumps_of):
    """
    If nobody knows when the dump was taken, a wait is a wait.
    """
    assert Cause.RANK_NOT_ARRIVED is cause_of(dumps_of(caught()))


def test_short_history(dumps_of):
    """
    A few calls do not tell what is usual.
    """
    job = caught(steps=3)
    now = job.records[0][-1].created + 0.1

    assert Cause.RANK_NOT_ARRIVED is cause_of(dumps_of(job, written_s=now))


def test_long_history(dumps_of):
    """
    Not even in a slow job is a wait of minutes taken for a usual one.
    """
    job = SimulatedJob(2)
    for _ in range(20):
        job.collective("all_reduce")
        job.wait(300)
    job.collective("all_reduce", ranks=[0])
    now = job.records[0][-1].created + 200

    assert Cause.RANK_NOT_ARRIVED is cause_of(dumps_of(job, written_s=now))


def test_sidecar_first(dumps_of):
    """
    A side-car may be written just before the call that its dump shows.
    """
    job = caught()
    early = job.records[0][-1].created - 1.0
    sidecar = Sidecar("", 0, 2, "n", 1, 0.0, early, "request")

    assert Cause.HEALTHY is cause_of(dumps_of(job, sidecars={0: sidecar}))
