"""
Transfers whose two ends disagree.
"""

from __future__ import annotations

import pytest

from distdebug.findings import Cause
from distdebug.flight_recorder import analyze_dumps
from distdebug.flight_recorder.analysis.job import survey
from distdebug.flight_recorder.analysis.pairs import find_pair_mismatches
from distdebug.flight_recorder.analysis.stuck import find_stuck_calls
from distdebug.testing import SimulatedJob


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


def test_looks_at_few(dumps_of):
    """
    Where a call is stuck that is no all-to-all, one rank is asked, not all.
    """
    job = SimulatedJob(8)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=range(7))
    known = survey(dumps_of(job))
    calls = find_stuck_calls(
        known.states, known.channels, known.dumps, frozenset()
    )

    assert [] == find_pair_mismatches(known, calls)
    assert 1 == len(known._streams)


class TestTransfer:
    @pytest.mark.parametrize(
        ("sent", "expected", "odd"), [(512, 1024, 0), (1024, 512, 1)]
    )
    def test_habit(self, dumps_of, sent, expected, odd):
        """
        Whoever departs from the habit of the pair is to blame.
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

    def test_agreed(self, dumps_of):
        """
        Different sizes that fit are no mismatch.
        """
        job = SimulatedJob(2)
        all_to_all(job, [([1, 2], [1, 3]), ([3, 4], [2, 4])])

        assert [] == size_mismatches(dumps_of(job))

    def test_not_recorded(self, dumps_of):
        """
        Versions that record one tensor for all peers tell nothing.
        """
        job = SimulatedJob(3)
        all_to_all(job, [([12], [12]), ([13], [12]), ([12], [12])])

        assert [] == size_mismatches(dumps_of(job))
