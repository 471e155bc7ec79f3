"""
Who called something else, who skipped a call, and who made one too many.
"""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from distdebug.findings import Cause
from distdebug.flight_recorder import Frame, Stream, analyze_dumps
from distdebug.flight_recorder.analysis.call import describe_call
from distdebug.flight_recorder.analysis.operations import parse_operation
from distdebug.flight_recorder.analysis.shift import (
    find_shift,
    order_in_program,
    order_in_round,
    skipped_by_habit,
    times_called_before,
)
from distdebug.flight_recorder.columns import Shape
from distdebug.testing import SimulatedJob


SYNC = [("sync", "train.py", 100), ("main", "train.py", 9)]
LATER = [("sync", "train.py", 120), ("main", "train.py", 9)]
EVAL = [("evaluate", "eval.py", 3), ("main", "train.py", 12)]


def stream(calls):
    """
    A stream that makes these calls, each named by a letter, from #1 on.
    """
    n = len(calls)
    return Stream(
        seq=np.arange(1, n + 1),
        signature=np.array([ord(c) for c in calls], np.int64),
        done=np.zeros(n, bool),
        synchronizes=np.ones(n, bool),
        row=np.arange(n),
    )


def test_stacks_at_once(dumps_of):
    """
    However many groups differ, the stacks that show it are read at once.
    """
    job = SimulatedJob(8, stack_depth=3)
    rows = [job.new_group((i, i + 1), "tp") for i in range(0, 8, 2)]
    for row in rows:
        job.collective("all_reduce", row, ranks=row.ranks[:1])
        job.collective("broadcast", row, ranks=row.ranks[1:])
    dumps = dumps_of(job)
    read, asked = dumps._read_frames, []

    def noted(wanted):
        asked.append(wanted)
        return read(wanted)

    findings = analyze_dumps(attrs.evolve(dumps, read_frames=noted)).findings

    assert 4 == len(findings)
    assert all("train.py" in e.quote for f in findings for e in f.evidence)
    assert [8, 0] == [len(wanted) for wanted in asked[:2]]
    assert not any(asked[1:])


class TestShift:
    @pytest.mark.parametrize(
        ("bad", "good", "seq", "expected"),
        [
            ("abcbcabc", "abcabcab", 4, Cause.SKIPPED_COLLECTIVE),
            ("abccab", "abcabc", 4, Cause.EXTRA_COLLECTIVE),
            ("abcxabca", "abcabcab", 4, Cause.EXTRA_COLLECTIVE),
            ("abcxyabc", "abcabcab", 4, Cause.EXTRA_COLLECTIVE),
            # One wrong call, and in step again.
            ("abcxbcab", "abcabcab", 4, None),
            # Nothing fits.
            ("abcxyzuv", "abcabcab", 4, None),
            ("abcx", "abca", 4, None),
        ],
    )
    def test_find(self, bad, good, seq, expected):
        """
        A stream that goes on as the others do, some calls earlier or later,
        is shifted; one wrong call is just wrong.
        """
        assert expected == find_shift(stream(bad), stream(good), seq)

    def test_surplus(self):
        """
        Where both would fit, the number of calls decides.
        """
        same = "abababab"

        extra = find_shift(stream(same[1:] + "ab"), stream(same), 1)
        skipped = find_shift(stream(same[1:]), stream(same), 1)

        assert (Cause.EXTRA_COLLECTIVE, Cause.SKIPPED_COLLECTIVE) == (
            extra,
            skipped,
        )

    @pytest.mark.parametrize(
        ("bad", "good", "expected"),
        [
            ("abcabcac", "abcabcab", 1),
            ("abcabcax", "abcabcab", 0),
            ("xbc", "abc", 0),
            ("abcadb", "abcabc", 0),
            # Several calls are left out, and as many each time.
            ("abbbcabbbcac", "abbbcabbbcab", 3),
            ("abbbcabcac", "abbbcabcab", 0),
            # Of two branches, one is taken now and then.
            ("abababacabac", "abababacabab", 0),
            ("ababacababab", "ababacababac", 0),
        ],
    )
    def test_habit(self, bad, good, expected):
        """
        Who makes the call that always comes next left out the one that is due.
        """
        seq = next(
            i
            for i, (x, y) in enumerate(zip(bad, good, strict=True), 1)
            if x != y
        )

        assert expected == skipped_by_habit(stream(bad), stream(good), seq)

    def test_before(self):
        """
        Only calls before the given one count.
        """
        assert 2 == times_called_before(stream("abaaba"), 4)


class TestOrder:
    @pytest.mark.parametrize(
        ("mine", "others", "expected"),
        [
            (SYNC, LATER, -1),
            (LATER, SYNC, 1),
            (SYNC, SYNC, 0),
            # They part in main(); what is further in does not count.
            (SYNC, EVAL, -1),
            # They part by function, or by file: nothing stands earlier.
            ([("f", "a.py", 1)], [("g", "a.py", 2)], 0),
            ([("f", "a.py", 1)], [("f", "b.py", 2)], 0),
            (SYNC, SYNC[1:], 0),
            ([], SYNC, 0),
        ],
    )
    def test_lines(self, mine, others, expected):
        """
        Where two stacks part, in one function, the line tells the order.
        """
        mine, others = ([Frame(*line) for line in s] for s in (mine, others))

        assert expected == order_in_program(mine, others)

    @pytest.mark.parametrize(
        ("before", "mine", "others", "expected"),
        [
            # Nobody came round, or both did.
            (5, 20, 10, 1),
            (5, 10, 20, -1),
            (30, 20, 10, 1),
            (30, 10, 20, -1),
            # The others came round, or this one left the loop.
            (15, 20, 10, 0),
            (15, 10, 20, 0),
            # Several calls of one line.
            (10, 20, 10, 1),
            (10, 10, 20, -1),
        ],
    )
    def test_round(self, before, mine, others, expected):
        """
        Who is at an earlier line than the call before may have come round.
        """
        stacks = [
            [Frame("main", "train.py", line)]
            for line in (before, mine, others)
        ]

        assert expected == order_in_round(*stacks)

    def test_before_elsewhere(self):
        """
        A call before in another function says nothing about the loop.
        """
        before = [Frame("setup", "train.py", 15)]
        mine, others = ([Frame("main", "train.py", line)] for line in (20, 10))

        assert 1 == order_in_round(before, mine, others)
        assert 1 == order_in_round([], mine, others)


class TestCall:
    def test_text(self):
        """
        A call is told by operation, number of elements, and types.
        """
        shape = Shape(((2, 600),), ("Float",), ((1200,),), ("Float",))

        call = describe_call(parse_operation("nccl:all_reduce"), shape)

        assert "all_reduce of 1,200 elements (Float)" == str(call)

    @pytest.mark.parametrize(
        ("op", "text"),
        [("barrier", "barrier"), ("all_to_all", "all_to_all")],
    )
    def test_bare(self, op, text):
        """
        Without sizes, or where they may differ, the operation is all.
        """
        sizes = ((4,),) if op == "all_to_all" else ()
        shape = Shape(sizes, ("Float",), sizes, ("Float",))

        assert text == str(describe_call(parse_operation(f"x:{op}"), shape))

    def test_root(self):
        """
        Only the root passes something: that agrees with anything.
        """
        op = parse_operation("nccl:broadcast")
        root = describe_call(
            op, Shape(((4,),), ("Float",), ((4,),), ("Float",))
        )
        other = describe_call(op, Shape((), (), ((4,),), ("Float",)))
        wrong = describe_call(op, Shape((), (), ((5,),), ("Float",)))

        assert root.agrees(other)
        assert not root.agrees(wrong)
        assert "broadcast of 4 elements (Float)" == str(other)


def verdict_of(dumps_of, job, **options):
    """
    What is found first.
    """
    return analyze_dumps(dumps_of(job, **options)).verdict


class TestVerdict:
    def test_words(self, dumps_of):
        """
        Both calls are told, each with its line.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce", ranks=[0, 1, 2], stack=SYNC)
        job.collective("broadcast", ranks=[3], sizes=[[7]], stack=EVAL)

        verdict = verdict_of(dumps_of, job)

        assert (
            "rank 3 called broadcast of 7 elements (Float) at evaluate "
            "(eval.py:3) as call #1 of group 'default_pg', where the others "
            "called all_reduce of 1,024 elements (Float) at sync "
            "(train.py:100)" == verdict.summary
        )
        assert "evaluate" == verdict.location.function
        assert ["rank 3, record 0", "rank 0, record 0"] == [
            e.location for e in verdict.evidence
        ]

    def test_shift_words(self, dumps_of):
        """
        Who is out of step is said to be.
        """
        job = SimulatedJob(3)
        for op in ("all_gather", "all_reduce", "broadcast") * 2:
            job.collective(op, ranks=[0, 1])
        for op in ("all_gather", "broadcast", "all_gather", "all_reduce"):
            job.collective(op, ranks=[2])

        verdict = verdict_of(dumps_of, job, with_frames=False)

        assert Cause.SKIPPED_COLLECTIVE is verdict.cause
        assert verdict.summary.startswith(
            "rank 2 skipped a call, and from call #2 of group 'default_pg' "
            "on is out of step: broadcast of 1,024 elements"
        )

    def test_undecided(self, dumps_of):
        """
        One against one: both are named, and that it cannot be told.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce", ranks=[0])
        job.collective("broadcast", ranks=[1])

        verdict = verdict_of(dumps_of, job)

        assert (Cause.TYPE_MISMATCH, (0, 1)) == (verdict.cause, verdict.ranks)
        assert "possible" == verdict.confidence
        assert "cannot be told who is wrong" in verdict.summary

    @pytest.mark.parametrize("odd", [0, 1])
    def test_habit_decides(self, dumps_of, odd):
        """
        One against one: whoever never called that before is the odd one.
        """
        job = SimulatedJob(2)
        for _ in range(3):
            job.collective("all_reduce")
        job.collective("all_reduce", ranks=[1 - odd])
        job.collective("broadcast", ranks=[odd])

        verdict = verdict_of(dumps_of, job)

        assert (Cause.TYPE_MISMATCH, (odd,)) == (verdict.cause, verdict.ranks)

    @pytest.mark.parametrize(
        ("mine", "others", "cause", "slip"),
        [
            (SYNC, LATER, Cause.EXTRA_COLLECTIVE, "made one call too many"),
            (LATER, SYNC, Cause.SKIPPED_COLLECTIVE, "skipped a call"),
        ],
    )
    def test_line(self, dumps_of, mine, others, cause, slip):
        """
        Who is at a line that the others have passed without that call made
        one call too many; who is ahead of them skipped one.  That is likely.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce", ranks=[0, 1, 2], stack=others)
        job.collective("all_reduce", ranks=[3], sizes=[[5]], stack=mine)

        verdict = verdict_of(dumps_of, job)

        assert (cause, (3,)) == (verdict.cause, verdict.ranks)
        assert "likely" == verdict.confidence
        assert (
            f"rank 3 {slip}, and from call #1 of group 'default_pg' on is out "
            f"of step: all_reduce of 5 elements (Float) at sync "
            f"(train.py:{mine[0][2]}) meets all_reduce of 1,024 elements "
            f"(Float) at sync (train.py:{others[0][2]}) of the others"
            == verdict.summary
        )

    @pytest.mark.parametrize(
        ("options", "cause"),
        [
            ({"sizes": [[5]]}, Cause.SIZE_MISMATCH),
            ({"dtype": "Half"}, Cause.DTYPE_MISMATCH),
            ({"sizes": [[5]], "dtype": "Half"}, Cause.SIZE_MISMATCH),
        ],
    )
    def test_same_line(self, dumps_of, options, cause):
        """
        At one line, what is passed is wrong, not the order of the calls.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce", ranks=[0, 1, 2], stack=SYNC)
        job.collective("all_reduce", ranks=[3], stack=SYNC, **options)

        verdict = verdict_of(dumps_of, job)

        assert (cause, (3,)) == (verdict.cause, verdict.ranks)
        assert "certain" == verdict.confidence

    def test_same_line_of_user(self, dumps_of):
        """
        Where torch goes on from one line of the user does not matter.
        """
        torch = [("all_reduce", "torch/distributed/x.py", n) for n in (3, 9)]
        job = SimulatedJob(4)
        job.collective("all_reduce", ranks=[0, 1, 2], stack=[torch[0], *SYNC])
        job.collective(
            "all_reduce", ranks=[3], sizes=[[5]], stack=[torch[1], *SYNC]
        )

        assert Cause.SIZE_MISMATCH is verdict_of(dumps_of, job).cause

    @pytest.mark.parametrize("is_known", [False, True])
    def test_round_of_one_call(self, dumps_of, is_known):
        """
        Where the others repeat a call, who makes a new one at a later line may
        have left the loop or made one too many; a known one is skipped to.
        """
        job = SimulatedJob(4)
        for _ in range(3):
            job.collective("all_reduce", stack=SYNC)
            if is_known:
                job.collective("all_reduce", sizes=[[5]], stack=LATER)
                job.collective("all_reduce", stack=SYNC)
        job.collective("all_reduce", ranks=[0, 1, 2], stack=SYNC)
        job.collective("all_reduce", ranks=[3], sizes=[[5]], stack=LATER)

        verdict = verdict_of(dumps_of, job)

        cause = Cause.SKIPPED_COLLECTIVE if is_known else Cause.SIZE_MISMATCH
        assert (cause, (3,)) == (verdict.cause, verdict.ranks)

    def test_buckets(self, dumps_of):
        """
        One line may make several calls, of which one rank leaves some out.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce", stack=SYNC)
        job.collective("all_reduce", ranks=[0, 1, 2], sizes=[[7]], stack=SYNC)
        job.collective("all_reduce", ranks=[3], sizes=[[5]], stack=LATER)

        verdict = verdict_of(dumps_of, job)

        assert (Cause.SKIPPED_COLLECTIVE, (3,)) == (
            verdict.cause,
            verdict.ranks,
        )

    def test_threads(self, dumps_of):
        """
        Calls of two threads are in no order: nothing was skipped.
        """
        thread = [("run", "metrics.py", 8), ("_bootstrap", "threading.py", 9)]
        job = SimulatedJob(4)
        for _ in range(3):
            job.collective("all_reduce", sizes=[[3]], stack=thread)
            job.collective("all_reduce", stack=SYNC)
        job.collective(
            "all_reduce", ranks=[1, 2, 3], sizes=[[3]], stack=thread
        )
        job.collective("all_reduce", ranks=[0], stack=SYNC)

        verdict = verdict_of(dumps_of, job)

        assert (Cause.SIZE_MISMATCH, (0,)) == (verdict.cause, verdict.ranks)
        assert "two threads made these calls" in verdict.remedy

    def test_several_skipped(self, dumps_of):
        """
        Who leaves out some calls of a round is told so, and how many.
        """
        expert, loss = (
            [("main", "train.py", line)] for line in (SYNC[1][2], 30)
        )
        job = SimulatedJob(4)
        for ranks in (range(4), range(4), range(3)):
            for _ in range(3):
                job.collective("all_to_all", ranks=ranks, stack=expert)
            job.collective("all_reduce", ranks=ranks, stack=loss)
        job.collective("all_reduce", ranks=[3], stack=loss)

        verdict = verdict_of(dumps_of, job)

        assert (Cause.SKIPPED_COLLECTIVE, (3,)) == (
            verdict.cause,
            verdict.ranks,
        )
        assert "likely" == verdict.confidence
        assert verdict.summary.startswith(
            "rank 3 skipped 3 calls, and from call #9 of group 'default_pg' on"
        )

    def test_extra_after_a_round(self, dumps_of):
        """
        It is open whether one more call was made, or a loop was left, if the
        others are in the next round: the difference is all that is told.
        """
        forward, backward, save = (
            [("main", "train.py", line)] for line in (20, 21, 24)
        )
        job = SimulatedJob(4)
        for _ in range(3):
            job.collective("all_gather", stack=forward)
            job.collective("reduce_scatter", stack=backward)
        job.collective("all_gather", ranks=[1, 2, 3], stack=forward)
        job.collective("all_gather", ranks=[0], sizes=[[5]], stack=save)

        verdict = verdict_of(dumps_of, job)

        assert (Cause.SIZE_MISMATCH, (0,)) == (verdict.cause, verdict.ranks)
        assert "certain" == verdict.confidence

    @pytest.mark.parametrize("mine", [SYNC, LATER])
    def test_other_operation(self, dumps_of, mine):
        """
        Another operation is told as such, wherever it is called.
        """
        job = SimulatedJob(4)
        others = LATER if mine is SYNC else SYNC
        job.collective("all_reduce", ranks=[0, 1, 2], stack=others)
        job.collective("broadcast", ranks=[3], stack=mine)

        verdict = verdict_of(dumps_of, job)

        assert (Cause.TYPE_MISMATCH, (3,)) == (verdict.cause, verdict.ranks)
        assert "certain" == verdict.confidence

    def test_one_element(self, dumps_of):
        """
        A single element is one element.
        """
        job = SimulatedJob(3)
        job.collective("all_reduce", ranks=[0, 1])
        job.collective("all_reduce", ranks=[2], sizes=[[1]])

        summary = verdict_of(dumps_of, job).summary

        assert "called all_reduce of 1 element (Float) as" in summary

    def test_root_passes_more(self, dumps_of):
        """
        Different records of the same call are no mismatch.
        """
        job = SimulatedJob(3)
        job.collective("broadcast", ranks=[0], sizes=[[4]])
        job.collective("broadcast", ranks=[1, 2], sizes=[], output_sizes=[[4]])

        assert Cause.HEALTHY is verdict_of(dumps_of, job).cause

    def test_many_kinds(self, dumps_of):
        """
        Everybody outside the majority is named.
        """
        job = SimulatedJob(5)
        job.collective("all_reduce", ranks=[0, 1, 2])
        job.collective("broadcast", ranks=[3])
        job.collective("barrier", ranks=[4])

        assert (3, 4) == verdict_of(dumps_of, job).ranks

    def test_wrapped(self, dumps_of):
        """
        Calls that only some rings still hold are compared where they meet.
        """
        job = SimulatedJob(4)
        other = job.new_group([0, 1], "tp")
        for _ in range(6):
            job.collective("all_reduce")
            job.collective("all_reduce", other)
        job.collective("all_reduce", ranks=[0, 1, 2])
        job.collective("broadcast", ranks=[3])

        verdict = verdict_of(dumps_of, job, ring=5)

        assert (Cause.TYPE_MISMATCH, (3,)) == (verdict.cause, verdict.ranks)
        assert 7 == verdict.collective.seq
