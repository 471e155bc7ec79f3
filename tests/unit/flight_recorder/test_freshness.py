"""
A hang, or a job caught in the middle of a step?
"""

from __future__ import annotations

import pytest

from distdebug.findings import Cause
from distdebug.flight_recorder import Sidecar, analyze_dumps
from distdebug.flight_recorder.analysis.freshness import (
    is_unprecedented,
    waited_ns,
)
from distdebug.flight_recorder.analysis.stuck import StuckCall
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


# Ranks, groups beside that of all, and backend.
SHAPES = [(2, 1, "gloo"), (6, 2, "gloo"), (8, 4, "nccl"), (9, 3, "nccl")]


class TestEnded:
    """
    Jobs that SIGTERM ended: some shape, some rank that is a little late.
    """

    @pytest.fixture
    def ended(self, dumps_of):
        """
        A job of 20 quick steps; *late* did not enter the last call of *group*
        when SIGTERM came *age_s* after the others had entered it.
        """

        def build(shape, late, age_s, **changes):
            size, split, backend = shape
            job = SimulatedJob(size, backend=backend)
            parts = [
                job.new_group(range(i, size, split), "part")
                for i in range(split)
            ]
            for _ in range(20):
                for part in parts:
                    job.collective("all_reduce", part)
                job.collective("all_reduce")
                job.wait(0.05)
            for part in parts:
                there = [r for r in part.ranks if r != late]
                job.collective("all_reduce", part, ranks=there)
            sidecars = {
                rank: self.last_word(rank, size, job.clock + age_s, changes)
                for rank in range(size)
            }
            return analyze_dumps(dumps_of(job, sidecars=sidecars))

        return build

    @staticmethod
    def last_word(rank, size, told, changes):
        """
        The side-car of a rank; a signal comes a little later to each.
        """
        fields = {"reason": "SIGTERM", "error": "", "later_s": 0.01 * rank}
        fields |= changes.get(f"of_{rank}", {})
        written = told + fields.pop("later_s")
        return Sidecar("", rank, size, "n", 1, 0.0, written, **fields)

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize("late", [0, 1, -1])
    @pytest.mark.parametrize("age_s", [0.0, 0.1, 0.8])
    def test_while_moving(self, ended, shape, late, age_s):
        """
        That the signal found some in a call, and took a while, is no hang.
        """
        late %= shape[0]

        verdict = ended(shape, late, age_s).verdict

        assert Cause.HEALTHY is verdict.cause
        assert f"SIGTERM ended ranks 0-{shape[0] - 1}" in verdict.summary

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize("late", [0, 1, -1])
    @pytest.mark.parametrize("age_s", [1.5, 20.0, 900.0])
    def test_while_stuck(self, ended, shape, late, age_s):
        """
        A job that was stuck is told as such, whoever ended it.
        """
        late %= shape[0]

        verdict = ended(shape, late, age_s).verdict

        assert (Cause.RANK_NOT_ARRIVED, (late,)) == (
            verdict.cause,
            verdict.ranks,
        )

    @pytest.mark.parametrize("after_s", [3.0, 9.0])
    def test_one_after_another(self, ended, after_s):
        """
        Whom the signal reaches later waits meanwhile for those that are gone.
        """
        later = {"later_s": after_s}

        verdict = ended((6, 2, "gloo"), 1, 0.1, of_4=later, of_5=later).verdict

        assert Cause.HEALTHY is verdict.cause

    def test_long_after(self, ended):
        """
        Who waits long for a rank that was told to end is stuck.
        """
        others = {f"of_{r}": {"later_s": 60.0} for r in range(6) if r != 1}

        verdict = ended((6, 2, "gloo"), 1, 0.1, **others).verdict

        assert (Cause.RANK_NOT_ARRIVED, (1,)) == (verdict.cause, verdict.ranks)

    @pytest.mark.parametrize(
        "first",
        [
            {"reason": "exception", "error": "ValueError: x"},
            {"reason": "exit"},
            {"reason": "SIGABRT"},
            {"reason": "start"},
        ],
        ids=lambda word: word["reason"],
    )
    def test_one_died(self, ended, first):
        """
        If one rank died before, the others were ended because of it.
        """
        died = {"later_s": -0.2, **first}

        verdict = ended((6, 2, "gloo"), 1, 0.4, of_1=died).verdict

        assert (Cause.RANK_NOT_ARRIVED, (1,)) == (verdict.cause, verdict.ranks)

    def test_followed(self, ended):
        """
        Who loses its peers to the signal was ended by it, too.
        """
        lost = {
            "reason": "exception",
            "error": "RuntimeError: [gloo/x.cc] Connection closed by peer",
            "later_s": 0.3,
        }

        verdict = ended((6, 2, "gloo"), 1, 0.1, of_4=lost).verdict

        assert Cause.HEALTHY is verdict.cause
        assert "SIGTERM ended ranks 0-3,5" in verdict.summary


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


def test_thread_that_goes_on(dumps_of):
    """
    Of two calls that wait for the same rank, that one is told which has waited
    for too long, and not one of a thread that goes on.
    """
    job = SimulatedJob(3)
    beats = job.new_group(range(3), "heartbeat")
    for _ in range(4):
        job.collective("all_reduce")
        job.collective("all_reduce", beats)
        job.wait(1)
    job.collective("all_reduce", ranks=[0, 1])
    for _ in range(30):
        job.wait(1)
        job.collective("all_reduce", beats)
    job.wait(1)
    job.collective("all_reduce", beats, ranks=[0])

    now = job.clock + 0.1
    told = Sidecar("", 0, 3, "n", 1, 0.0, now, "request")

    verdict = analyze_dumps(
        dumps_of(job, sidecars={r: told._replace(rank=r) for r in range(3)})
    ).verdict

    assert (Cause.RANK_NOT_ARRIVED, (2,)) == (verdict.cause, verdict.ranks)
    assert ("0", 5) == (verdict.group.name, verdict.collective.seq)
