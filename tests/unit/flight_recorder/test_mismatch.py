"""
Who called something else, who skipped a call, and who made one too many.
"""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from distdebug.causes import Cause
from distdebug.flight_recorder import Dumps, Signatures, analyze_dumps
from distdebug.testing import SimulatedJob


SYNC = [("sync", "train.py", 100), ("main", "train.py", 9)]
LATER = [("sync", "train.py", 120), ("main", "train.py", 9)]
NO_SHAPES = Dumps(by_rank={}, groups=(), ops=()).shapes
EVAL = [("evaluate", "eval.py", 3), ("main", "train.py", 12)]


def main(line):
    """
    A stack of one line.
    """
    return [("main", "train.py", line)]


def verdict_of(dumps_of, job, **options):
    """
    What is found first.
    """
    return analyze_dumps(dumps_of(job, **options)).verdict


def blame(verdict):
    """
    What went wrong, by whom, and how sure that is.
    """
    return verdict.cause, verdict.ranks, verdict.confidence


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
        ("bad", "good", "cause", "seq"),
        [
            ("abcbcabc", "abcabcab", Cause.SKIPPED_COLLECTIVE, 4),
            ("abccab", "abcabc", Cause.EXTRA_COLLECTIVE, 4),
            ("abcxabca", "abcabcab", Cause.EXTRA_COLLECTIVE, 4),
            ("abcxyabc", "abcabcab", Cause.EXTRA_COLLECTIVE, 4),
            # One wrong call, and in step again.
            ("abcxbcab", "abcabcab", Cause.TYPE_MISMATCH, 4),
            # Nothing fits.
            ("abcxyzuv", "abcabcab", Cause.TYPE_MISMATCH, 4),
            ("abcx", "abca", Cause.TYPE_MISMATCH, 4),
            # Where both would fit, the number of calls decides.
            ("babababab", "abababab", Cause.EXTRA_COLLECTIVE, 1),
            ("bababab", "abababab", Cause.SKIPPED_COLLECTIVE, 1),
            # What always comes next follows at once: the one that is due was
            # left out.
            ("abcabcac", "abcabcab", Cause.SKIPPED_COLLECTIVE, 8),
            ("abcabcax", "abcabcab", Cause.TYPE_MISMATCH, 8),
            ("xbc", "abc", Cause.TYPE_MISMATCH, 1),
        ],
    )
    def test_operations(self, dumps_of, bad, good, cause, seq):
        """
        A rank that goes on as the others do, some calls earlier or later, is
        out of step; one wrong call is just wrong.
        """
        job = SimulatedJob(3)
        for op in good:
            job.collective(op, ranks=[0, 1])
        for op in bad:
            job.collective(op, ranks=[2])

        verdict = verdict_of(dumps_of, job)

        assert (cause, (2,), seq) == (
            verdict.cause,
            verdict.ranks,
            verdict.collective.seq,
        )

    @pytest.mark.parametrize(
        ("bad", "good", "slip"),
        [
            ("abcabcac", "abcabcab", "skipped a call"),
            # Several calls are left out, and as many each time.
            ("abbbcabbbcac", "abbbcabbbcab", "skipped 3 calls"),
            ("abbbcabcac", "abbbcabcab", "called c"),
            # Of two branches, one is taken now and then.
            ("abababacabac", "abababacabab", "called c"),
            ("ababacababab", "ababacababac", "called b"),
        ],
    )
    def test_habit(self, dumps_of, bad, good, slip):
        """
        Who makes the call that always comes next left out those that are due.
        """
        job = SimulatedJob(3)
        for ops, ranks in ((good, [0, 1]), (bad, [2])):
            for op in ops:
                job.collective(op, ranks=ranks, stack=main(ord(op)))

        summary = verdict_of(dumps_of, job).summary

        assert summary.startswith(f"rank 2 {slip}")


def call(stack=None, op="all_reduce", **options):
    """
    A call of one operation at some place.
    """
    return {"op": op, "stack": stack, **options}


def differ(mine, others, before=()):
    """
    Of four ranks that did the same before, the last one makes another call.
    """
    job = SimulatedJob(4)
    for common in before:
        job.collective(**common)
    job.collective(ranks=range(3), **others)
    job.collective(ranks=[3], **mine)
    return job


SKIPPED, EXTRA = Cause.SKIPPED_COLLECTIVE, Cause.EXTRA_COLLECTIVE
SIZE, DTYPE, TYPE = (
    *(Cause.SIZE_MISMATCH, Cause.DTYPE_MISMATCH),
    Cause.TYPE_MISMATCH,
)
THREAD = [("run", "metrics.py", 8), ("_bootstrap", "threading.py", 9)]
IN_THREAD = call(THREAD, sizes=[[3]])
TORCH = [[("all_reduce", "torch/distributed/x.py", n)] for n in (3, 9)]


class TestOrder:
    @pytest.mark.parametrize(
        ("mine", "others", "cause"),
        [
            # Who is at a line that the others have passed without that call
            # made one call too many; who is ahead of them skipped one.
            (SYNC, LATER, EXTRA),
            (LATER, SYNC, SKIPPED),
            # At one line, what is passed is wrong, not the order.
            (SYNC, SYNC, SIZE),
            # Where torch goes on from one line of the user does not matter.
            (TORCH[0] + SYNC, TORCH[1] + SYNC, SIZE),
            # They part in main(); what is further in does not count.
            (SYNC, EVAL, EXTRA),
            # They part by function, or by file: nothing stands earlier.
            ([("f", "a.py", 1)], [("g", "a.py", 2)], SIZE),
            ([("f", "a.py", 1)], [("f", "b.py", 2)], SIZE),
            (SYNC, SYNC[1:], SIZE),
            ([], SYNC, SIZE),
        ],
        ids=range(9),
    )
    def test_lines(self, dumps_of, mine, others, cause):
        """
        The lines of two calls tell what led to them; that is likely, and the
        difference itself is certain.
        """
        job = differ(call(mine, sizes=[[5]]), call(others))

        verdict = verdict_of(dumps_of, job)

        confidence = "certain" if cause is SIZE else "likely"
        assert (cause, (3,), confidence) == blame(verdict)

    @pytest.mark.parametrize(
        ("before", "mine", "others", "cause"),
        [
            # Neither came round, or both did.
            (main(5), 20, 10, SKIPPED),
            (main(5), 10, 20, EXTRA),
            (main(30), 20, 10, SKIPPED),
            (main(30), 10, 20, EXTRA),
            # The others came round, or this one left the loop.
            (main(15), 20, 10, SIZE),
            (main(15), 10, 20, SIZE),
            # Several calls of one line.
            (main(10), 20, 10, SKIPPED),
            (main(10), 10, 20, EXTRA),
            # A call in another function says nothing about the loop.
            ([("eval", "train.py", 15)], 20, 10, SKIPPED),
            ([], 20, 10, SKIPPED),
        ],
        ids=range(10),
    )
    def test_round(self, dumps_of, before, mine, others, cause):
        """
        Who is at an earlier line than the call before may have come round.
        """
        job = differ(
            call(main(mine), sizes=[[5]]),
            call(main(others)),
            [call(before, sizes=[[7]])],
        )

        assert (cause, (3,)) == blame(verdict_of(dumps_of, job))[:2]

    @pytest.mark.parametrize("swap", [False, True])
    def test_new_branch(self, dumps_of, swap):
        """
        A rank that repeats the call of each step, where others make a call that
        none has made before, may be in the next step: nothing is inferred.
        """
        step = call(main(10), sizes=[[7]])
        new = call(main(20), sizes=[[1]])
        mine, others = (new, step) if swap else (step, new)

        job = differ(mine, others, [step] * 5)

        assert (SIZE, (3,)) == blame(verdict_of(dumps_of, job))[:2]

    @pytest.mark.parametrize(
        ("mine", "others", "before", "cause"),
        [
            (call(SYNC, dtype="Half"), call(SYNC), [], DTYPE),
            (call(SYNC, sizes=[[5]], dtype="Half"), call(SYNC), [], SIZE),
            # Another operation is reported as such, wherever it is called.
            (call(SYNC, "broadcast"), call(LATER), [], TYPE),
            (call(LATER, "broadcast"), call(SYNC), [], TYPE),
            # One line may make several calls, of which some are left out.
            (
                call(LATER, sizes=[[5]]),
                call(SYNC, sizes=[[7]]),
                [call(SYNC)],
                SKIPPED,
            ),
            # Where the others repeat a call, who makes a new one at a later
            # line may have left the loop or made one too many; a known one is
            # skipped to.
            (call(LATER, sizes=[[5]]), call(SYNC), [call(SYNC)] * 3, SIZE),
            (
                call(LATER, sizes=[[5]]),
                call(SYNC),
                [call(SYNC), call(LATER, sizes=[[5]]), call(SYNC)] * 3,
                SKIPPED,
            ),
            # It is open whether one more call was made, or a loop was left,
            # if the others are in the next round.
            (
                call(main(24), "all_gather", sizes=[[5]]),
                call(main(20), "all_gather"),
                [
                    call(main(20), "all_gather"),
                    call(main(21), "reduce_scatter"),
                ]
                * 3,
                SIZE,
            ),
            # Calls of two threads are in no order: nothing was skipped.
            (call(SYNC), IN_THREAD, [IN_THREAD, call(SYNC)] * 3, SIZE),
        ],
        ids=[
            *("type", "both", "operation", "later operation", "buckets"),
            *("new call", "known call", "next round", "threads"),
        ],
    )
    def test_calls(self, dumps_of, mine, others, before, cause):
        """
        What was called, and before, shows the cause as well.
        """
        verdict = verdict_of(dumps_of, differ(mine, others, before))

        confidence = "likely" if cause is SKIPPED else "certain"
        assert (cause, (3,), confidence) == blame(verdict)
        in_threads = others is IN_THREAD
        assert in_threads == ("two threads made these" in verdict.remedy)


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

    @pytest.mark.parametrize(
        ("mine", "others", "slip"),
        [
            (SYNC, LATER, "made one call too many"),
            (LATER, SYNC, "skipped a call"),
        ],
        ids=["extra", "skipped"],
    )
    def test_slip(self, dumps_of, mine, others, slip):
        """
        What led there is said with both lines.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce", ranks=[0, 1, 2], stack=others)
        job.collective("all_reduce", ranks=[3], sizes=[[5]], stack=mine)

        assert (
            f"rank 3 {slip}, and from call #1 of group 'default_pg' on is out "
            f"of step: all_reduce of 5 elements (Float) at sync "
            f"(train.py:{mine[0][2]}) meets all_reduce of 1,024 elements "
            f"(Float) at sync (train.py:{others[0][2]}) of the others"
            == verdict_of(dumps_of, job).summary
        )

    def test_undecided(self, dumps_of):
        """
        One against one: both are named, and that it cannot be told.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce", ranks=[0])
        job.collective("broadcast", ranks=[1])

        verdict = verdict_of(dumps_of, job)

        assert (Cause.TYPE_MISMATCH, (0, 1)) == blame(verdict)[:2]
        assert "possible" == verdict.confidence
        assert "is unclear which side is wrong" in verdict.summary

    @pytest.mark.parametrize("odd", [0, 1])
    def test_habit_decides(self, dumps_of, odd):
        """
        One against one: the one that never called that before is the odd one.
        """
        job = SimulatedJob(2)
        for _ in range(3):
            job.collective("all_reduce")
        job.collective("all_reduce", ranks=[1 - odd])
        job.collective("broadcast", ranks=[odd])

        verdict = verdict_of(dumps_of, job)

        assert (Cause.TYPE_MISMATCH, (odd,)) == blame(verdict)[:2]

    @pytest.mark.parametrize(
        ("op", "sizes", "text"),
        [
            ("all_reduce", [[1]], "all_reduce of 1 element (Float)"),
            ("barrier", [], "barrier"),
            ("all_to_all", [[4]], "all_to_all"),
            ("all_reduce", [[2, 600]], "all_reduce of 1,200 elements (Float)"),
        ],
    )
    def test_call(self, dumps_of, op, sizes, text):
        """
        A call goes by its operation, number of elements, and types; without
        sizes where there are none, or they may rightly differ.
        """
        job = SimulatedJob(3)
        job.collective("all_gather", ranks=[0, 1])
        job.collective(op, ranks=[2], sizes=sizes)

        summary = verdict_of(dumps_of, job).summary

        assert f"rank 2 called {text} as call #1" in summary

    @pytest.mark.parametrize(
        ("size", "cause"), [(4, Cause.HEALTHY), (5, Cause.SIZE_MISMATCH)]
    )
    def test_root_passes_more(self, dumps_of, size, cause):
        """
        Only the root of a broadcast passes something, which is no mismatch
        with what the others expect, if they expect as much.
        """
        job = SimulatedJob(3)
        job.collective("broadcast", ranks=[0, 1], sizes=[[4]])
        job.collective("broadcast", ranks=[2], sizes=[], output_sizes=[[size]])

        assert cause is verdict_of(dumps_of, job).cause

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

        assert (Cause.TYPE_MISMATCH, (3,)) == blame(verdict)[:2]
        assert 7 == verdict.collective.seq


def parse_operation(text):
    """
    What the name of a record says.
    """
    (operation,) = Signatures([text], NO_SHAPES).operations
    return operation


class TestOperation:
    @pytest.mark.parametrize(
        ("text", "backend", "name"),
        [
            ("nccl:all_reduce", "nccl", "all_reduce"),
            ("nccl2:all_reduce", "nccl2", "all_reduce"),
            ("xccl:all_reduce", "xccl", "all_reduce"),
            ("gloo:all_reduce", "gloo", "all_reduce"),
            # A name without a colon is all operation.
            ("barrier", "", "barrier"),
        ],
    )
    def test_any_backend(self, text, backend, name):
        """
        Backends are recognized by the colon, whatever their name.
        """
        op = parse_operation(text)

        assert (backend, name) == (op.backend, op.name)
        assert (backend != "gloo") == op.has_events

    @pytest.mark.parametrize(
        ("text", "is_send"),
        [("nccl:send 2->5", True), ("nccl:recv 5<-2", False)],
    )
    def test_transfer(self, text, is_send):
        """
        Source and target are the same, seen from either end.
        """
        op = parse_operation(text)

        assert op.is_p2p
        assert is_send == op.is_send
        assert (2, 5) == (op.source, op.target)
        assert not op.is_even

    @pytest.mark.parametrize(
        ("attribute", "yes", "no"),
        [
            # A send that names no ranks is not taken for a transfer.
            ("is_p2p", ["send 0->1"], ["send", "send a->b"]),
            # The end of a batch is distinct from one call over many tensors.
            (
                "ends_batch",
                [
                    *("coalesced", "ALLGATHER_coalesced"),
                    "REDUCE_SCATTER_coalesced",
                ],
                ["allreduce_coalesced", "all_reduce"],
            ),
            # A root may leave a broadcast before the others enter it.
            (
                "synchronizes",
                [
                    *("all_reduce", "_all_gather_base", "ALLTOALL_BASE"),
                    *("_reduce_scatter_base", "all_reduce_barrier"),
                ],
                ["broadcast", "reduce", "gather"],
            ),
            # Where roots differ from others, or pairs from pairs, so may
            # sizes.
            (
                "is_even",
                ["all_reduce", "_all_gather_base", "broadcast"],
                ["all_to_all", "gather", "scatter", "_broadcast_oop"],
            ),
        ],
    )
    def test_kind(self, attribute, yes, no):
        """
        The name of an operation shows of what kind it is.
        """
        names = [f"nccl:{x}" for x in yes + no]

        found = [
            getattr(op, attribute)
            for op in Signatures(names, NO_SHAPES).operations
        ]

        assert [True] * len(yes) + [False] * len(no) == found


class TestSignatures:
    @pytest.fixture
    def codes(self, dumps_of):
        """
        The signatures of some calls: operation, sizes, and types of each.
        """

        def signatures_of(*calls):
            job = SimulatedJob(1)
            for _, options in calls:
                job.collective("all_reduce", **options)
            dumps = dumps_of(job)
            rows = np.arange(len(calls), dtype=np.int32)
            signatures = Signatures([op for op, _ in calls], dumps.shapes)
            return signatures.of(rows, dumps[0].entries.shape).tolist()

        return signatures_of

    @pytest.mark.parametrize(
        ("op", "options", "is_same"),
        [
            # A library sees counts, not shapes.
            ("nccl2:all_reduce", {"sizes": [[24]]}, True),
            ("nccl:broadcast", {"sizes": [[4, 6]]}, False),
            ("nccl:all_reduce", {"sizes": [[5]]}, False),
            (
                "nccl:all_reduce",
                {"sizes": [[4, 6]], "output_sizes": [[8]]},
                False,
            ),
            (
                "nccl:all_reduce",
                {"sizes": [[4, 6]], "dtype": "Half"},
                False,
            ),
        ],
    )
    def test_agree(self, codes, op, options, is_same):
        """
        Operation, number of elements, and types have to agree.
        """
        a, b = codes(("nccl:all_reduce", {"sizes": [[4, 6]]}), (op, options))

        assert is_same == (a == b)

    def test_uneven(self, codes):
        """
        They do not where ranks may pass different sizes.
        """
        a, b = codes(
            ("nccl:all_to_all", {"sizes": [[4]]}),
            ("nccl:all_to_all", {"sizes": [[5]]}),
        )

        assert a == b

    def test_stays(self, codes):
        """
        A signature is the same whatever it is asked for together with.
        """
        call, other = (("a:y", {"sizes": [[n]]}) for n in (1, 2))

        first, second, again = codes(call, other, call)

        assert first == again != second


def size_mismatches(dumps):
    """
    What is wrong with sizes.
    """
    found = analyze_dumps(dumps).findings
    return [f for f in found if f.cause is Cause.SIZE_MISMATCH]


def exchange(job, sent=1024, expected=1024):
    """
    Rank 0 sends to rank 1.
    """
    job.send(0, 1, sizes=[[sent]])
    job.recv(1, 0, sizes=[[expected]])


class TestTransfer:
    @pytest.mark.parametrize(
        ("sent", "expected", "odd"), [(512, 1024, 0), (1024, 512, 1)]
    )
    def test_habit(self, dumps_of, sent, expected, odd):
        """
        Who departs from the habit of the pair is to blame.
        """
        job = SimulatedJob(2)
        for _ in range(3):
            exchange(job)
        exchange(job, sent, expected)

        (finding,) = size_mismatches(dumps_of(job))

        assert (odd,) == finding.ranks
        assert "certain" == finding.confidence
        assert (
            f"rank 0 sends {sent:,} elements to rank 1, which expects "
            f"{expected:,}" == finding.summary
        )
        assert ("send", 4, True) == (
            finding.collective.op,
            finding.collective.seq,
            finding.collective.p2p,
        )

    def test_no_habit(self, dumps_of):
        """
        Without a habit it may be either.
        """
        job = SimulatedJob(2)
        exchange(job, 5, 7)

        (finding,) = size_mismatches(dumps_of(job))

        assert ((0, 1), "possible") == (finding.ranks, finding.confidence)

    def test_wrapped(self, dumps_of):
        """
        If rings lost the beginning, only what is pending on both sides can be
        aligned.
        """
        job = SimulatedJob(3)
        for i in range(6):
            exchange(job, 10 + i, 10 + i)
        job.send(0, 1, sizes=[[3]])

        assert [] == size_mismatches(dumps_of(job, ring=4))


def all_to_all(job, rows, *, completes=False):
    """
    Each rank passes sizes to send, and sizes that it expects.
    """
    for rank, (sent, expected) in enumerate(rows):
        job.collective(
            "all_to_all",
            ranks=[rank],
            sizes=[[n] for n in sent],
            output_sizes=[[n] for n in expected],
        )
        if not completes:
            job.records[rank][-1].call.members |= {-1}


class TestAllToAll:
    def test_pair(self, dumps_of):
        """
        The pair that disagrees is named.
        """
        job = SimulatedJob(3)
        all_to_all(job, [([4] * 3, [4] * 3)] * 3, completes=True)
        rows = [([4, 9, 4], [4] * 3), ([4] * 3, [4] * 3), ([4] * 3, [4] * 3)]
        all_to_all(job, rows)

        (finding,) = size_mismatches(dumps_of(job))

        assert (0, 1) == finding.ranks
        assert (
            "in all_to_all #2, rank 0 does not send what rank 1 expects"
            == finding.summary
        )

    def test_one_of_all(self, dumps_of):
        """
        Who disagrees with everybody is the one.
        """
        job = SimulatedJob(3)
        good = ([4] * 3, [4] * 3)
        all_to_all(job, [good, good, ([9, 9, 9], [9, 9, 9])])

        (finding,) = size_mismatches(dumps_of(job))

        assert (2,) == finding.ranks
        assert finding.summary.endswith("(4 such pairs, most with rank 2)")
        assert "likely" == finding.confidence

    @pytest.mark.parametrize(
        "rows",
        [
            # Different sizes that fit.
            [([1, 2], [1, 3]), ([3, 4], [2, 4])],
            # Versions that record one tensor for all peers tell nothing.
            [([12], [12]), ([13], [12]), ([12], [12])],
        ],
        ids=["agreed", "not recorded"],
    )
    def test_nothing(self, dumps_of, rows):
        """
        Sizes that may fit are no mismatch.
        """
        job = SimulatedJob(len(rows))
        all_to_all(job, rows)

        assert [] == size_mismatches(dumps_of(job))
