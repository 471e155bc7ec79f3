"""
A hang, or a job caught in the middle of a step?
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.flight_recorder import Sidecar, analyze_dumps, measure_silence_s
from distdebug.testing import SimulatedJob


def caught(steps=20, pause_s=1):
    """
    A job with a call every second; rank 1 did not enter the last one yet.
    """
    job = SimulatedJob(2)
    for _ in range(steps):
        job.collective("all_reduce")
        job.wait(pause_s)
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
    ("age_s", "job", "options", "is_fresh"),
    [
        # A wait that is no longer than usual is none.
        (0.5, {}, {}, True),
        (5.0, {}, {}, False),
        # A file that is older than its records: nothing can be said.
        (-2.0, {}, {}, False),
        # Each wait is measured by the clock of its own host.
        (0.5, {}, {"clock_offsets_s": {0: 3600.0}}, True),
        # A few calls do not tell what is usual.
        (0.1, {"steps": 3}, {}, False),
        # Not even in a slow job is a wait of minutes taken for a usual one.
        (200.0, {"pause_s": 300}, {}, False),
        # It is not known when the dump was taken.
        (None, {}, {}, False),
    ],
    ids=["usual", "long", "odd", "clocks", "short", "slow", "unknown"],
)
def test_age(dumps_of, age_s, job, options, is_fresh):
    """
    How long a wait is, by the time of the file, and how long waits are usually
    in this job, tell whether it is one.
    """
    job = caught(**job)
    entered = job.records[0][-1].created
    written_s = 0.0 if age_s is None else entered + age_s

    found = cause_of(dumps_of(job, written_s=written_s, **options))

    assert found is (Cause.HEALTHY if is_fresh else Cause.RANK_NOT_ARRIVED)


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [(-1.0, Cause.HEALTHY), (-5.5, Cause.RANK_NOT_ARRIVED)],
)
def test_sidecar_first(dumps_of, age_s, expected):
    """
    A side-car may be written just before the call that its dump shows; but no
    dump takes many seconds: then the times make no sense.
    """
    job = caught()

    assert expected is cause_of(dumps_of(job, sidecars=asked(job, age_s)))


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
    @pytest.mark.parametrize("age_s", [0.0, 0.1, 0.8, 1.5, 20.0, 900.0])
    def test_while_moving(self, ended, shape, late, age_s):
        """
        That the signal found some in a call, and took a while, is no hang;
        but a job that was stuck is reported as such, however it ended.
        """
        late %= shape[0]

        verdict = ended(shape, late, age_s).verdict

        if age_s < 1:
            assert Cause.HEALTHY is verdict.cause
            assert f"SIGTERM ended ranks 0-{shape[0] - 1}" in verdict.summary
        else:
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
        Who waits long for a rank that was asked to end is stuck.
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

    def test_first_call(self, dumps_of):
        """
        A rank that waits in its first call has never paused before.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce", ranks=[0])

        verdict = analyze_dumps(
            dumps_of(job, sidecars=asked(job, 1.5))
        ).verdict

        assert "certain" == verdict.confidence

    def test_unknown(self, dumps_of, slow):
        """
        The time of a file says nothing about when the dump was taken, nor for
        how long was waited.
        """
        verdict = analyze_dumps(
            dumps_of(slow, written_s=slow.clock + 50)
        ).verdict

        assert "certain" == verdict.confidence
        assert verdict.summary.endswith("; 1 rank is waiting")


class TestWaited:
    @pytest.mark.parametrize(
        ("known", "text"), [([0, 1], "10 s"), ([1], "7 s")]
    )
    def test_oldest(self, dumps_of, known, text):
        """
        Who came first has waited longest, by the clock of its own host; a
        rank without a side-car does not count.
        """
        job = SimulatedJob(3)
        job.collective("all_reduce", ranks=[0, 1], late={1: 3.0})
        first, second = (job.records[r][-1].created for r in (0, 1))
        written = {0: first + 10, 1: second + 3607}
        sidecars = {
            r: Sidecar("", r, 3, "n", 1, 0.0, written[r], "request")
            for r in known
        }

        verdict = analyze_dumps(
            dumps_of(job, sidecars=sidecars, clock_offsets_s={1: 3600.0})
        ).verdict

        assert verdict.summary.endswith(
            f"; 2 ranks have been waiting for {text}"
        )


@pytest.mark.parametrize(
    ("age_s", "pause_s", "known", "expected"),
    [
        (6.0, 1, [0, 1], 6.0),
        (4.0, 1, [0, 1], 0.0),
        # Such silences are normal in this job.
        (15.0, 10, [0, 1], 0.0),
        (25.0, 10, [0, 1], 25.0),
        # It is not known when each dump was taken.
        (6.0, 1, [0], 0.0),
    ],
)
def test_silent(dumps_of, age_s, pause_s, known, expected):
    """
    That no rank recorded anything for longer than ever before is a silence.
    """
    job = caught(pause_s=pause_s)
    written = job.records[0][-1].created + age_s
    sidecars = {
        r: Sidecar("", r, 2, "n", 1, 0.0, written, "request") for r in known
    }

    seconds = measure_silence_s(dumps_of(job, sidecars=sidecars))

    assert expected == pytest.approx(seconds, abs=1e-3)


def test_start_is_activity(dumps_of):
    """
    A call that started after the last one was enqueued ends the silence.
    """
    job = caught()
    written = job.records[0][-1].created + 6
    sidecars = {
        r: Sidecar("", r, 2, "n", 1, 0.0, written, "request") for r in (0, 1)
    }
    dumps = dumps_of(job, sidecars=sidecars)
    started = attrs.evolve(
        dumps,
        by_rank={
            dump.rank: attrs.evolve(
                dump,
                entries=attrs.evolve(
                    dump.entries,
                    started_ns=dump.entries.created_ns + 4 * 10**9,
                ),
            )
            for dump in dumps
        },
    )

    assert measure_silence_s(dumps) > 0
    assert measure_silence_s(started) == 0


def test_thread_that_goes_on(dumps_of):
    """
    Of two calls that wait for the same rank, that one is named which waited
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
