"""
Which rank makes all others wait, again and again?
"""

from __future__ import annotations

import random

import attrs
import numpy as np
import pytest

from distdebug.causes import Cause
from distdebug.flight_recorder import analyze_dumps, clock_offsets_ns
from distdebug.testing import SimulatedJob


def train(late, *, world=4, steps=40, group=None, job=None):
    """
    A step per second; *late* gives the delays of each step.
    """
    job = job or SimulatedJob(world)
    for i in range(steps):
        job.collective("all_reduce", group, late=late(i))
        job.wait(1.0)
    return job


def by_chance(seed):
    """
    Who is late in which step, by tossing a coin.
    """
    toss = random.Random(seed)
    return lambda i: {toss.randrange(2): 0.5}


def verdict_of(dumps):
    """
    Cause, ranks, and the sentence.
    """
    v = analyze_dumps(dumps).verdict
    return v.cause, v.ranks, v.summary


HEALTHY = (Cause.HEALTHY, ())
RANK_2 = (Cause.STRAGGLER, (2,))


class TestHost:
    def test_always_late(self, dumps_of):
        """
        A rank that is late in every step is named, with what it costs.
        """
        dumps = dumps_of(
            train(lambda i: {2: 0.5}), hosts=dict.fromkeys(range(4), "n")
        )

        cause, ranks, summary = verdict_of(dumps)

        assert RANK_2 == (cause, ranks)
        assert (
            "rank 2 is slow on its host: all others wait 500.0 ms for it "
            "again and again in group 'default_pg', 33% of the time (19.5 s)"
            == summary
        )

    def test_evidence(self, dumps_of):
        """
        The times of the dumps are what it rests on.
        """
        dumps = dumps_of(
            train(lambda i: {2: 0.5} if i % 2 else {}),
            hosts=dict.fromkeys(range(4), "n"),
        )

        (evidence,) = analyze_dumps(dumps).verdict.evidence

        assert "rank 2, times of calls #1 to #40" == evidence.location
        assert "the others wait for rank 2 in 20 of 40 calls" == evidence.quote
        assert dumps[2].path == evidence.source

    def test_often_late(self, dumps_of):
        """
        It need not be late in every step, whatever the clocks are.
        """
        job = train(lambda i: {2: 0.5} if i % 2 else {})
        offsets = {0: -3.0, 1: 40.0, 2: 1.0}

        cause, ranks, _ = verdict_of(dumps_of(job, clock_offsets_s=offsets))

        assert RANK_2 == (cause, ranks)

    @pytest.mark.parametrize(
        ("late", "job", "options"),
        [
            # A clock that is ahead.
            (lambda i: {}, {}, {"clock_offsets_s": {2: 0.5}}),
            # Everybody in turn.
            (lambda i: {i % 4: 0.5}, {}, {}),
            # Some milliseconds on a host are no matter.
            (
                lambda i: {2: 0.003},
                {},
                {"hosts": dict.fromkeys(range(4), "n")},
            ),
            # A few calls prove no habit.
            (lambda i: {2: 0.5}, {"steps": 7}, {}),
            # Chance has it that one is late more often.
            *(
                (by_chance(seed), {"world": 2, "steps": 10}, {})
                for seed in range(5)
            ),
        ],
        ids=["clock", "in turn", "little", "few", *map(str, range(5))],
    )
    def test_nobody(self, dumps_of, late, job, options):
        """
        Where no rank is late by habit, and by much, none is to blame.
        """
        dumps = dumps_of(train(late, **job), **options)

        assert HEALTHY == verdict_of(dumps)[:2]

    def test_victim_elsewhere(self, dumps_of):
        """
        Who waits for a straggler in one group is as late as it in another:
        only the one that is late everywhere is to blame.
        """
        job = SimulatedJob(4)
        tp = [job.new_group([0, 1], "tp"), job.new_group([2, 3], "tp")]
        dp = [job.new_group([0, 2], "dp"), job.new_group([1, 3], "dp")]
        for _ in range(40):
            now = job.clock
            job.collective("all_reduce", tp[0])
            job.clock = now
            job.collective("all_reduce", tp[1], late={2: 0.5})
            for group in (*dp, job.world):
                job.clock = now + 0.01
                job.collective("all_reduce", group, late={2: 0.5, 3: 0.5})
            job.wait(1.0)

        dumps = dumps_of(job, hosts=dict.fromkeys(range(4), "n"))

        assert RANK_2 == verdict_of(dumps)[:2]
        assert 1 == len(analyze_dumps(dumps).findings)

    def test_common_cause(self, dumps_of):
        """
        Of two that are equally late, and two that are not, no one is slow.
        """
        job = SimulatedJob(4)
        tp = [job.new_group([0, 1], "tp"), job.new_group([2, 3], "tp")]
        dp = [job.new_group([0, 2], "dp"), job.new_group([1, 3], "dp")]
        for _ in range(40):
            now = job.clock
            for group in (*tp, *dp):
                job.clock = now
                job.collective("all_reduce", group, late={2: 0.5, 3: 0.5})
            job.wait(1.0)

        dumps = dumps_of(job, hosts=dict.fromkeys(range(4), "n"))

        assert HEALTHY == verdict_of(dumps)[:2]

    def test_different_rings(self, dumps_of):
        """
        Only calls that all ranks have on record are compared.
        """
        job = SimulatedJob(4)
        pair = job.new_group([0, 1], "tp")
        for _ in range(40):
            job.collective("all_reduce", late={2: 0.5})
            job.collective("all_reduce", pair)
            job.wait(1.0)

        cause, ranks, _ = verdict_of(
            dumps_of(job, ring=40, hosts=dict.fromkeys(range(4), "n"))
        )

        assert RANK_2 == (cause, ranks)


def pipeline(stages=4, of_stage=4, steps=30):
    """
    Each stage waits for the one before, and so is late by the same always.
    """
    job = SimulatedJob(stages * of_stage)
    last = (stages - 1) * of_stage
    ends = [job.new_group([i, last + i], "embd") for i in range(of_stage)]
    for _ in range(steps):
        begin = job.clock
        for stage in range(1, stages):
            for i in range(of_stage):
                job.clock = begin + 0.1 * stage
                rank = stage * of_stage + i
                job.send(rank - of_stage, rank)
                job.recv(rank, rank - of_stage)
        late = {r: 0.1 * (r // of_stage) for r in range(stages * of_stage)}
        for group in (*ends, job.world):
            job.clock = begin
            there = {r: late[r] for r in group.ranks}
            job.collective("all_reduce", group, late=there)
        job.wait(0.2)
    return job


class TestSeveral:
    def stragglers(self, dumps_of, late, **options):
        """
        The ranks and the beginning of the summary of each finding.
        """
        job = train(late, world=16, steps=options.pop("steps", 40))
        hosts = {r: f"n{r // 4}" for r in range(16)}
        found = analyze_dumps(dumps_of(job, hosts=hosts, **options)).findings
        return [(f.ranks, f.summary.partition(":")[0]) for f in found]

    def test_two(self, dumps_of):
        """
        Ranks that are late together are all named, the worst first.
        """
        assert [
            ((9,), "rank 9 is slow on its host"),
            ((2,), "rank 2 is slow on its host"),
        ] == self.stragglers(dumps_of, lambda i: {2: 0.3, 9: 0.5}, timed=True)

    def test_half(self, dumps_of):
        """
        Two of four, late in the same calls by different times, are both named.
        """
        job = train(lambda i: {1: 0.06, 3: 0.12})
        hosts = dict.fromkeys(range(4), "n")

        found = analyze_dumps(dumps_of(job, hosts=hosts)).findings

        assert [(3,), (1,)] == [x.ranks for x in found]
        assert "wait 120.0 ms" in found[0].summary
        assert "wait 60.0 ms" in found[1].summary

    def test_node(self, dumps_of):
        """
        A node of which all ranks are late is one finding.
        """
        late = dict(zip(range(8, 12), (0.5, 0.52, 0.48, 0.51), strict=True))

        found = self.stragglers(dumps_of, lambda i: late)

        assert [
            ((8, 9, 10, 11), "ranks 8-11 are slow on their hosts, all on n2")
        ] == found

    def test_now_and_then(self, dumps_of):
        """
        One that is late in every fifth step only is found.
        """
        got = self.stragglers(
            dumps_of, lambda i: {2: 2.0} if i % 5 == 3 else {}
        )

        assert [((2,), "rank 2 is slow on its host")] == got

    def test_changing(self, dumps_of):
        """
        Where the slow rank is another one every few steps, none is to blame.
        """
        order = random.Random(1).sample(range(16), 14)

        assert [] == [
            x
            for x in self.stragglers(dumps_of, lambda i: {order[i // 3]: 0.5})
            if x[0]
        ]

    def test_pipeline(self, dumps_of):
        """
        What a later stage waits for is no delay of its own.
        """
        hosts = {r: f"n{r // 4}" for r in range(16)}

        got = verdict_of(dumps_of(pipeline(), hosts=hosts))[:2]

        assert HEALTHY == got


class TestCallSite:
    def test_line(self, dumps_of):
        """
        The line is named before which a rank is late, and not another.
        """
        job = SimulatedJob(4, stack_depth=6)
        for _ in range(30):
            at = ("save", "train.py", 9), ("main", "train.py", 2)
            job.collective("all_reduce", stack=at)
            at = ("sync", "train.py", 7), ("main", "train.py", 1)
            job.collective("all_reduce", late={2: 0.5}, stack=at)
            job.wait(1.0)

        verdict = analyze_dumps(
            dumps_of(job, hosts=dict.fromkeys(range(4), "n"))
        ).verdict

        assert (
            "rank 2 is slow on its host before its call at sync (train.py:7):"
            in (verdict.summary)
        )
        assert ("sync", 7) == (
            verdict.location.function,
            verdict.location.line,
        )


class TestDevice:
    def test_measured(self, dumps_of):
        """
        With timing, the shortest collectives are those of who comes last.
        """
        cause, ranks, summary = verdict_of(
            dumps_of(train(lambda i: {2: 0.2}), timed=True)
        )

        assert RANK_2 == (cause, ranks)
        assert "on its host" in summary

    def test_slow_device(self, dumps_of):
        """
        If it enqueued in time, its device is slow.
        """
        job = train(lambda i: {2: 0.2})
        for rank, records in job.records.items():
            if rank == 2:
                job.records[rank] = [
                    r._replace(created=other.created)
                    for r, other in zip(records, job.records[0], strict=True)
                ]
        dumps = dumps_of(job, timed=True)
        entries = dumps[2].entries
        slow = attrs.evolve(entries, duration_ms=np.full(len(entries), 0.5))
        dumps.by_rank[2] = attrs.evolve(dumps[2], entries=slow)

        cause, ranks, summary = verdict_of(dumps)

        assert RANK_2 == (cause, ranks)
        assert "on its device" in summary


class TestClocks:
    def test_ends_agree(self):
        """
        Everyone notices the end of a collective at the same time, so ends
        tell by how much clocks differ.
        """
        ends = np.arange(1, 21) * 1e9
        completed = np.stack([ends, ends + 5e8, ends - 1e8])

        offsets, doubt = clock_offsets_ns(completed, ["a", "b", "c"])

        assert [0, 5e8, -1e8] == offsets.tolist()
        # One watchdog each, which polls.
        assert 33.9e6 == pytest.approx(doubt, rel=0.01)

    @pytest.mark.parametrize(
        ("hosts", "expected", "doubt"),
        [
            # Ranks of a host share its clock.
            (["a", "b", "b"], [0, 6e8, 6e8], pytest.approx(33.9e6, rel=0.01)),
            # On one host there is nothing to correct, and no doubt.
            (["a", "a", "a"], [0, 0, 0], 0.0),
        ],
    )
    def test_shared(self, hosts, expected, doubt):
        """
        Hosts have clocks, not ranks.
        """
        ends = np.arange(1, 21) * 1e9
        completed = np.stack([ends, ends + 5e8, ends + 7e8])

        offsets, found = clock_offsets_ns(completed, hosts)

        assert (expected, doubt) == ((offsets - offsets[0]).tolist(), found)

    def test_no_ends(self):
        """
        Without ends, anything may be.
        """
        offsets, doubt = clock_offsets_ns(np.zeros((2, 3)), ["a", "b"])

        assert ([0, 0], np.inf) == (offsets.tolist(), doubt)


class TestGroups:
    def test_one_group_only(self, dumps_of):
        """
        Who costs much in its own group is found, although another one that
        comes after it has no more to wait for.
        """
        job = SimulatedJob(4)
        tp = [job.new_group([0, 1], "tp"), job.new_group([2, 3], "tp")]
        metrics = job.new_group(range(4), "metrics")
        for _ in range(30):
            now, ends = job.clock, []
            for group in tp:
                job.clock = now
                late = {2: 0.7} if 2 in group.ranks else {}
                job.collective("all_reduce", group, late=late)
                ends.append(job.clock)
            job.clock = max(ends)
            job.collective("all_reduce", metrics)
            job.wait(0.3)

        cause, ranks, summary = verdict_of(dumps_of(job))

        assert RANK_2 == (cause, ranks)
        assert "in group 'tp', 70% of the time (20.3 s)" in summary

    @pytest.mark.parametrize("ends", [True, False])
    def test_short_steps(self, ends, dumps_of):
        """
        Where everyone notices ends at once, clocks are not in doubt; where no
        end is on record, a rank that is late by always the same may have a
        clock that is ahead.
        """
        job = SimulatedJob(4, backend="nccl" if ends else "gloo")
        for _ in range(40):
            job.collective("all_reduce", late={2: 0.03})
            job.wait(0.005)
        options = {} if ends else {"version": "2.7"}

        got = verdict_of(dumps_of(job, **options))[:2]

        assert (RANK_2 if ends else HEALTHY) == got

    def test_nearly_all_of_the_time(self, dumps_of):
        """
        On one host, one that takes nearly all of the time is no clock.
        """
        job = SimulatedJob(4)
        for _ in range(30):
            job.collective("all_reduce", late={2: 5.0})
            job.wait(0.01)
        dumps = dumps_of(job, hosts=dict.fromkeys(range(4), "n"))

        assert RANK_2 == verdict_of(dumps)[:2]

    def test_in_step_with_a_watchdog(self, dumps_of):
        """
        If calls end in step with a watchdog, ends may be noticed late.
        """
        job = SimulatedJob(4)
        for _ in range(40):
            now = job.clock
            job.collective("all_reduce", late={2: 0.03})
            job.clock = now + 0.1

        assert HEALTHY == verdict_of(dumps_of(job))[:2]

    @pytest.mark.parametrize("seed", range(6))
    def test_clocks_of_a_mesh(self, seed, dumps_of):
        """
        Clocks that differ are no delay, in whatever groups ranks are.
        """
        chance = random.Random(seed)
        job = SimulatedJob(8, backend="gloo")
        groups = [
            *(job.new_group([i, i + 1], "tp") for i in range(0, 8, 2)),
            *(job.new_group(range(i, 8, 2), "dp") for i in range(2)),
        ]
        for _ in range(40):
            now = job.clock
            for group in (*groups, job.world):
                job.clock = now
                late = {r: abs(chance.gauss(0, 0.01)) for r in group.ranks}
                job.collective("all_reduce", group, late=late)
            job.wait(0.7)
        offsets = {rank: chance.uniform(-0.2, 0.2) for rank in range(8)}

        got = verdict_of(dumps_of(job, clock_offsets_s=offsets))[:2]

        assert HEALTHY == got
