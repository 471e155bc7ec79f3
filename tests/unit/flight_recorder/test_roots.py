"""
Where the waiting begins, if there is more than one place.
"""

from __future__ import annotations

import pytest

from distdebug.findings import Cause
from distdebug.flight_recorder import analyze_dumps
from distdebug.testing import SimulatedJob


def found(dumps):
    """
    All causes and ranks.
    """
    return [(f.cause, f.ranks) for f in analyze_dumps(dumps).findings]


def test_two_circles(dumps_of):
    """
    Circles that have nothing in common are told apart.
    """
    job = SimulatedJob(4)
    for pair in ([0, 1], [2, 3]):
        a, b = (job.new_group(pair, name) for name in "ab")
        job.collective("all_reduce", a, ranks=pair[:1])
        job.collective("all_reduce", b, ranks=pair[1:])

    assert [
        (Cause.GROUP_ORDER_DEADLOCK, (0, 1)),
        (Cause.GROUP_ORDER_DEADLOCK, (2, 3)),
    ] == found(dumps_of(job))


def test_circle_of_many(dumps_of):
    """
    A ring of receives names every rank in it, and who waits for the ring is
    a victim.
    """
    job = SimulatedJob(4)
    for rank in range(3):
        job.recv(rank, (rank + 1) % 3)
    job.recv(3, 0)

    report = analyze_dumps(dumps_of(job))

    assert (Cause.P2P_DEADLOCK, (0, 1, 2)) == (
        report.verdict.cause,
        report.verdict.ranks,
    )
    assert (3,) == report.victims
    assert "wait for each other: rank 0 in recv #1" in report.verdict.summary


def test_absent_and_circle(dumps_of):
    """
    Who waits in a circle and who is absent elsewhere are two findings.
    """
    job = SimulatedJob(4)
    job.recv(0, 1)
    job.recv(1, 0)
    job.collective("all_reduce", job.new_group([2, 3], "x"), ranks=[2])

    assert [
        (Cause.P2P_DEADLOCK, (0, 1)),
        (Cause.RANK_NOT_ARRIVED, (3,)),
    ] == found(dumps_of(job))


def test_lost_dump_in_circle(dumps_of):
    """
    A member without a dump breaks the circle: nobody knows what it does.
    """
    job = SimulatedJob(3)
    job.recv(0, 1)
    job.recv(1, 2)
    job.recv(2, 0)

    assert [(Cause.RANK_CRASHED, (2,))] == found(dumps_of(job, missing=[2]))


def test_crash_of_a_node(dumps_of):
    """
    Ranks that are gone together are one finding.
    """
    job = SimulatedJob(8)
    pairs = [job.new_group([r, r + 4], "dp") for r in range(4)]
    for pair in pairs:
        job.collective("all_reduce", pair)
    for pair in pairs:
        job.collective("all_reduce", pair, ranks=pair.ranks[:1])

    assert [(Cause.RANK_CRASHED, (4, 5, 6, 7))] == found(
        dumps_of(job, missing=[4, 5, 6, 7])
    )


def test_unused_group(dumps_of):
    """
    A group that was never used says nothing about who is gone.
    """
    job = SimulatedJob(4)
    job.new_group([1, 2], "unused")
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0, 3])

    assert [(Cause.RANK_CRASHED, (1, 2))] == found(
        dumps_of(job, missing=[1, 2])
    )


def test_elsewhere(dumps_of):
    """
    A rank that is gone, and that no proven root touches, stays a suspect.
    """
    job = SimulatedJob(4)
    left, right = job.new_group([0, 1], "left"), job.new_group([2, 3], "right")
    job.collective("all_reduce", left, ranks=[0])
    job.collective("all_reduce", right, ranks=[2])

    assert [
        (Cause.RANK_NOT_ARRIVED, (1,)),
        (Cause.RANK_CRASHED, (3,)),
    ] == found(dumps_of(job, missing=[3]))


class TestOddOneOut:
    def stray(self, *descs):
        """
        Rank 3 of a mesh of 2 x 2 goes into a barrier of the world, while all
        others step on.
        """
        job = SimulatedJob(4)
        tp, dp = descs
        across = [job.new_group(ranks, tp) for ranks in ([0, 1], [2, 3])]
        along = [job.new_group(ranks, dp) for ranks in ([0, 2], [1, 3])]
        for group in (*across, *along) * 3:
            job.collective("all_reduce", group)
        job.collective("barrier", ranks=[3])
        job.collective("all_reduce", across[0])
        job.collective("all_reduce", across[1], ranks=[2])
        job.collective("all_reduce", along[0], ranks=[0])
        job.collective("all_reduce", along[1], ranks=[1])
        return job

    @pytest.mark.parametrize(
        "descs", [("mesh_tp", "mesh_dp"), ("undefined", "undefined")]
    )
    def test_one(self, dumps_of, descs):
        """
        The rank that contradicts all others left their order.
        """
        report = analyze_dumps(dumps_of(self.stray(*descs)))

        (finding,) = report.findings
        assert (Cause.GROUP_ORDER_DEADLOCK, (3,)) == (
            finding.cause,
            finding.ranks,
        )
        assert finding.summary.startswith(
            "rank 3 left the order of the others: "
        )
        assert "rank 3 in barrier #1 of group 'default_pg'" in finding.summary
        assert (0, 1, 2) == report.victims

    def test_one_against_one(self, dumps_of):
        """
        Of two ranks that contradict each other, neither is the odd one.
        """
        job = SimulatedJob(2)
        tp = job.new_group([0, 1], "mesh_tp")
        job.collective("barrier", ranks=[1])
        job.collective("all_reduce", tp, ranks=[0])

        assert [(Cause.GROUP_ORDER_DEADLOCK, (0, 1))] == found(dumps_of(job))

    def test_nameless_groups(self, dumps_of):
        """
        Groups that nobody described are not of one kind: that rank 2 called
        more in one than rank 0 in another contradicts nothing.
        """
        job = SimulatedJob(4)
        tp = job.new_group([0, 1], "mesh_tp")
        often, seldom = job.new_group([1, 2]), job.new_group([0, 3])
        for _ in range(5):
            job.collective("all_reduce", often)
        job.collective("all_reduce", seldom)
        job.collective("barrier", ranks=[0, 3])
        job.collective("all_reduce", tp, ranks=[1])
        job.collective("all_reduce", often, ranks=[2])

        assert [(Cause.GROUP_ORDER_DEADLOCK, (0, 1, 2))] == found(
            dumps_of(job)
        )

    def test_two_against_two(self, dumps_of):
        """
        Where no single rank explains the circle, all are named.
        """
        job = SimulatedJob(4)
        a, b = (job.new_group(range(4), name) for name in "ab")
        job.collective("all_reduce", a, ranks=[0, 1])
        job.collective("all_reduce", b, ranks=[2, 3])

        dumps = dumps_of(job)

        assert [(Cause.GROUP_ORDER_DEADLOCK, (0, 1, 2, 3))] == found(dumps)
        assert (
            "ranks 0-3 wait for each other: ranks 0-1 in all_reduce #1 of "
            "group 'a', ranks 2-3 in all_reduce #1 of group 'b'"
            == analyze_dumps(dumps).verdict.summary
        )

    def test_large(self, dumps_of):
        """
        In a circle of very many not every two ranks are compared.
        """
        job = SimulatedJob(66)
        a, b = (job.new_group(range(66), name) for name in "ab")
        job.collective("all_reduce", a, ranks=[0])
        job.collective("all_reduce", b, ranks=range(1, 66))

        assert [(Cause.GROUP_ORDER_DEADLOCK, tuple(range(66)))] == found(
            dumps_of(job)
        )
