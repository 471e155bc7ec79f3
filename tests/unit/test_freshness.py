"""
A hang, or a job caught in the middle of a step?
"""

from __future__ import annotations

import pytest

from distdebug.findings import Cause
from distdebug.flight_recorder.analysis.analyze import analyze_dumps
from distdebug.flight_recorder.analysis.freshness import (
    is_unprecedented,
    waited_ns,
)
from distdebug.flight_recorder.analysis.stuck import StuckCall
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


def asked(job, age_s, reason="request"):
    """
    The side-car of rank 0, written when its last call was so old.
    """
    written = job.records[0][-1].created + age_s
    return {0: Sidecar("", 0, 2, "n", 1, 0.0, written, reason)}


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

    dumps = dumps_of(job, sidecars=asked(job, -1.0))

    assert Cause.HEALTHY is cause_of(dumps)


def test_sidecar_much_too_early(dumps_of):
    """
    No dump takes that long: then the times make no sense.
    """
    job = caught()

    dumps = dumps_of(job, sidecars=asked(job, -5.5))

    assert Cause.RANK_NOT_ARRIVED is cause_of(dumps)


@pytest.mark.parametrize("reason", ["request", "call"])
@pytest.mark.parametrize(
    ("age_s", "expected"),
    [(0.9, Cause.HEALTHY), (1.1, Cause.RANK_NOT_ARRIVED)],
)
@pytest.mark.parametrize("steps", [3, 20])
def test_asked(dumps_of, reason, age_s, expected, steps):
    """
    Asking all ranks for their dumps takes a moment, in which some wait, even
    if they did not live long, or are never slow.
    """
    job = SimulatedJob(2)
    for _ in range(steps):
        job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0])

    dumps = dumps_of(job, sidecars=asked(job, age_s, reason))

    assert expected is cause_of(dumps)


@pytest.mark.parametrize("reason", ["SIGTERM", "exception", "exit"])
def test_not_asked(dumps_of, reason):
    """
    A rank that dumps by itself was not kept waiting by us.
    """
    job = caught(steps=3)

    dumps = dumps_of(job, sidecars=asked(job, 0.9, reason))

    assert Cause.RANK_NOT_ARRIVED is cause_of(dumps)


class TestPauses:
    @pytest.fixture
    def slow(self):
        """
        A job that once paused for 100 s; rank 1 is not in the last call.
        """
        job = SimulatedJob(2)
        for seconds in (100, *[1] * 40):
            job.collective("all_reduce")
            job.wait(seconds)
        job.collective("all_reduce", ranks=[0])
        return job

    @pytest.mark.parametrize(
        ("age_s", "confidence"), [(50.0, "possible"), (150.0, "certain")]
    )
    def test_confidence(self, dumps_of, slow, age_s, confidence):
        """
        A wait that is long, but shorter than a pause that ended well, may
        end well, too.
        """
        verdict = analyze_dumps(
            dumps_of(slow, sidecars=asked(slow, age_s))
        ).verdict

        assert Cause.RANK_NOT_ARRIVED is verdict.cause
        assert confidence == verdict.confidence

    @pytest.mark.parametrize(
        ("age_s", "expected"), [(-2.0, False), (50.0, False), (150.0, True)]
    )
    def test_one(self, dumps_of, slow, age_s, expected):
        """
        A wait is measured by the longest pause of the rank that waits.
        """
        dumps = dumps_of(slow, sidecars=asked(slow, age_s))
        call = StuckCall(group=0, seq=42, waiting={0: 41})

        assert expected is is_unprecedented([call], dumps)

    def test_longest(self, dumps_of, slow):
        """
        One call that is older than anything is enough.
        """
        dumps = dumps_of(slow, sidecars=asked(slow, 50.0))
        calls = [
            StuckCall(group=0, seq=seq, waiting={0: seq - 1})
            for seq in (42, 1)
        ]

        assert is_unprecedented(calls, dumps)

    def test_first_call(self, dumps_of):
        """
        Whoever waits in its first call has never paused before.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce", ranks=[0])
        call = StuckCall(group=0, seq=1, waiting={0: 0})

        dumps = dumps_of(job, sidecars=asked(job, 0.1))

        assert is_unprecedented([call], dumps)

    def test_unknown(self, dumps_of, slow):
        """
        The time of a file says nothing about when the dump was taken.
        """
        dumps = dumps_of(slow, written_s=slow.clock + 1)
        call = StuckCall(group=0, seq=42, waiting={0: 41})

        assert is_unprecedented([call], dumps)
        assert waited_ns([call], dumps) is None


class TestWaited:
    def test_oldest(self, dumps_of):
        """
        Whoever came first has waited longest, by the clock of its own host.
        """
        job = SimulatedJob(3)
        job.collective("all_reduce", ranks=[0, 1], late={1: 3.0})
        first, second = (job.records[r][-1].created for r in (0, 1))
        sidecars = {
            0: Sidecar("", 0, 3, "n", 1, 0.0, first + 10, "request"),
            1: Sidecar("", 1, 3, "n", 1, 0.0, second + 3607, "request"),
        }
        call = StuckCall(group=0, seq=1, waiting={0: 0, 1: 0})

        dumps = dumps_of(job, sidecars=sidecars, clock_offsets_s={1: 3600.0})

        assert 10.0 == pytest.approx(waited_ns([call], dumps) / 1e9)

    def test_some_unknown(self, dumps_of):
        """
        A rank without a side-car does not count.
        """
        job = caught()
        row = len(job.records[0]) - 1
        call = StuckCall(group=0, seq=21, waiting={0: row, 1: 0})

        dumps = dumps_of(job, sidecars=asked(job, 7.0))

        assert 7.0 == pytest.approx(waited_ns([call], dumps) / 1e9)

    def test_nobody(self, dumps_of):
        """
        Where nobody waits there is no time.
        """
        assert waited_ns([], dumps_of(caught())) is None
