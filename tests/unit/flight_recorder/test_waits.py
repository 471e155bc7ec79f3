"""
Which calls are stuck, who is inside, who is awaited, and how far all got.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.flight_recorder import (
    GroupStatus,
    Sidecar,
    SidecarFrame,
    analyze_dumps,
)
from distdebug.testing import SimulatedJob


def waits(report):
    """
    Number of each stuck call, who is inside, and who is awaited.
    """
    return [(w.seq, w.waiting, w.awaited) for w in report.waits]


def reached(report, desc="default_pg"):
    """
    The newest call of a group that completed, and that was entered.
    """
    (group,) = (g for g in report.groups if g.desc == desc)
    return group.last_completed, group.furthest


def never_completes(job, *places):
    """
    Records, by rank and position, whose calls wait for more than ranks.
    """
    for rank, position in places:
        job.records[rank][position].call.members |= {-1}


class TestCollective:
    def test_absent(self, dumps_of):
        """
        A rank that did not enter is absent; one without a dump is awaited,
        too.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0, 3])
        dumps = dumps_of(job, missing=[1])

        report = analyze_dumps(dumps)

        assert [(2, (0, 3), (1, 2))] == waits(report)
        assert (Cause.RANK_NOT_ARRIVED, (2,)) == (
            report.verdict.cause,
            report.verdict.ranks,
        )
        (wait,) = report.waits
        assert not wait.p2p
        assert dumps[0].entries.created_ns[1] == wait.since_ns

    def test_since(self, dumps_of):
        """
        A call is stuck since the first rank entered it.
        """
        job = SimulatedJob(3)
        job.collective("all_reduce", ranks=[1, 2], late={1: 3.0})
        dumps = dumps_of(job)

        (wait,) = analyze_dumps(dumps).waits

        assert dumps[2].entries.created_ns[0] == wait.since_ns

    def test_runs_ahead(self, dumps_of):
        """
        A rank may run ahead; the oldest call is what is stuck.
        """
        job = SimulatedJob(2)
        for _ in range(3):
            job.collective("all_reduce", ranks=[0])

        report = analyze_dumps(dumps_of(job))

        assert [(1, (0,), (1,))] == waits(report)
        assert (0, 3) == reached(report)

    def test_different_calls(self, dumps_of):
        """
        If ranks wait in different calls of a group, the oldest one counts.
        """
        job = SimulatedJob(3)
        job.collective("broadcast", ranks=[0, 1, 2])
        job.collective("broadcast", ranks=[0, 1])
        never_completes(job, (1, 0))
        for rank in (0, 2):
            first = job.records[rank][0]
            job.records[rank][0] = first._replace(state="completed")

        assert [(1, (1,), ())] == waits(analyze_dumps(dumps_of(job)))

    def test_name(self, dumps_of):
        """
        A call is named after a rank whose record is of it, not after one that
        others saw go on from an earlier call.
        """
        job = SimulatedJob(3)
        job.collective("all_reduce")
        job.collective("broadcast", ranks=[0, 1])
        never_completes(job, (0, 0))
        for rank in (1, 2):
            first = job.records[rank][0]
            job.records[rank][0] = first._replace(state="completed")

        report = analyze_dumps(dumps_of(job))

        assert [(2, (0, 1), (2,))] == waits(report)
        assert "broadcast" == report.waits[0].op

    def test_moving(self, dumps_of):
        """
        Where as many were seen to move as wait, the group runs.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        job.dump(1)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0])

        assert [] == waits(analyze_dumps(dumps_of(job)))

    def test_others_went_on(self, dumps_of):
        """
        A dump taken inside a call that others completed is outdated; its rank
        waits in nothing.
        """
        job = SimulatedJob(3)
        job.collective("all_reduce", late={1: 0.5})
        job.dumped[0] = job.records[0][0].created

        report = analyze_dumps(dumps_of(job))

        assert ((0,), []) == (report.outdated, waits(report))

    @pytest.mark.parametrize(
        ("op", "outdated"), [("broadcast", ()), ("all_reduce", (1,))]
    )
    def test_not_synchronizing(self, dumps_of, op, outdated):
        """
        That a broadcast is done, unlike an all-reduce, proves nothing about
        others.
        """
        job = SimulatedJob(2)
        job.collective(op, ranks=[0], state="completed")

        report = analyze_dumps(dumps_of(job))

        assert ((1, 1), outdated) == (reached(report), report.outdated)

    def test_truncated(self, dumps_of):
        """
        A file that breaks off says nothing about the newest calls.
        """
        job = SimulatedJob(3)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0, 1])
        dumps = dumps_of(job)
        broken = attrs.evolve(dumps[2], truncated=True)
        dumps = attrs.evolve(dumps, by_rank={**dumps.by_rank, 2: broken})

        report = analyze_dumps(dumps)

        assert [(2, (0, 1), (2,))] == waits(report)
        assert Cause.UNKNOWN is report.verdict.cause

    def test_order_of_device(self, dumps_of):
        """
        A device runs calls in order: the later one waits for the earlier one,
        which is what is wrong.
        """
        job = SimulatedJob(2)
        a, b = (job.new_group([0, 1], name) for name in "ab")
        job.collective("all_reduce", a)
        job.collective("all_reduce", b)
        never_completes(job, (0, 0), (0, 1))

        report = analyze_dumps(dumps_of(job))

        (finding,) = report.findings
        assert Cause.COLLECTIVE_STUCK_IN_FLIGHT is finding.cause
        assert "a" == finding.group.desc
        assert 2 == len(report.waits)

    def test_batch(self, dumps_of):
        """
        A batch of collectives is one call, done when its end is.
        """
        job = SimulatedJob(2)
        job.collective("all_gather")
        for rank in (0, 1):
            part = job.records[rank][0]
            job.records[rank] = [
                part._replace(call=None),
                part._replace(call=None),
                part._replace(op="ALLGATHER_coalesced"),
            ]

        report = analyze_dumps(dumps_of(job))

        assert ((1, 1), []) == (reached(report), waits(report))


class TestLostInRing:
    def test_some(self, dumps_of):
        """
        Where the ring lost the older calls the numbers go on.
        """
        job = SimulatedJob(2)
        for _ in range(4):
            job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0])

        report = analyze_dumps(dumps_of(job, ring=3))

        assert (4, 5) == reached(report)
        assert [(5, (0,), (1,))] == waits(report)

    def test_counters(self, dumps_of):
        """
        Where the ring lost the group, the counters of torch tell.
        """
        job = SimulatedJob(2)
        other = job.new_group([0, 1], "other")
        for _ in range(3):
            job.collective("all_reduce", other)
        for _ in range(9):
            job.collective("all_reduce")

        report = analyze_dumps(dumps_of(job, ring=5))

        assert (3, 3) == reached(report, "other")

    @pytest.mark.parametrize(
        ("version", "cause"),
        [("2.10", Cause.RANK_NOT_ARRIVED), ("2.1", Cause.UNKNOWN)],
    )
    def test_never_used(self, dumps_of, version, cause):
        """
        A group without counters was never used, however small the ring is;
        versions without any counters tell nothing.
        """
        job = SimulatedJob(3)
        pair = job.new_group([0, 1], "pair")
        for _ in range(9):
            job.collective("all_reduce")
        job.collective("all_reduce", pair, ranks=[0])

        verdict = analyze_dumps(dumps_of(job, ring=5, version=version)).verdict

        assert (cause, (1,)) == (verdict.cause, verdict.ranks)

    def test_fresh_counters(self, dumps_of):
        """
        Counters at -1 say that there was no call.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0])
        dumps = dumps_of(job, only_active=True)
        idle = attrs.evolve(dumps[1], status={0: GroupStatus(-1, -1, -1)})
        dumps = attrs.evolve(dumps, by_rank={**dumps.by_rank, 1: idle})

        verdict = analyze_dumps(dumps).verdict

        assert (Cause.RANK_NOT_ARRIVED, (1,)) == (verdict.cause, verdict.ranks)

    def test_mixed(self, dumps_of):
        """
        If torch's counters mix transfers and collectives, and the ring lost
        the group, nothing is known about these ranks.
        """
        job = SimulatedJob(3)
        other = job.new_group([0, 1, 2], "other")
        job.collective("all_reduce", other)
        for _ in range(8):
            job.send(1, 2, other)
            job.recv(2, 1, other)
        for _ in range(8):
            job.collective("all_reduce", ranks=[1])
        job.collective("all_reduce", other, ranks=[0])

        report = analyze_dumps(dumps_of(job, ring=6))

        assert (2, (0,), (1, 2)) in waits(report)
        assert "other" not in {f.group.desc for f in report.findings}


class TestTransfer:
    @pytest.mark.parametrize(
        ("calls", "expected"),
        [
            # A receive waits for who did not send.
            ([("recv", 1, 0)], [(1, (1,), (0,))]),
            # A send waits for who does not receive.
            (
                [("send", 0, 1), ("recv", 1, 0), ("send", 0, 1)],
                [(2, (0,), (1,))],
            ),
        ],
        ids=["receiver", "sender"],
    )
    def test_waits(self, dumps_of, calls, expected):
        """
        Of a transfer, either end may be missing.
        """
        job = SimulatedJob(2)
        for kind, rank, peer in calls:
            getattr(job, kind)(rank, peer)

        assert expected == waits(analyze_dumps(dumps_of(job)))

    def test_no_dump(self, dumps_of):
        """
        The peer may have left no dump.
        """
        job = SimulatedJob(2)
        job.recv(1, 0)

        report = analyze_dumps(dumps_of(job, missing=[0]))

        assert [(1, (1,), (0,))] == waits(report)
        assert Cause.RANK_CRASHED is report.verdict.cause

    @pytest.mark.parametrize("ring", [2000, 3])
    def test_both_inside(self, dumps_of, ring):
        """
        If both entered and nothing moves, it is listed once, and the link
        between them is suspected.
        """
        job = SimulatedJob(2)
        for _ in range(4):
            job.send(0, 1)
            job.recv(1, 0)
        never_completes(job, (0, -1))

        report = analyze_dumps(dumps_of(job, ring=ring))

        assert [(4, (0, 1), ())] == waits(report)
        assert Cause.COLLECTIVE_STUCK_IN_FLIGHT is report.verdict.cause
        assert "from rank 0 to rank 1 of group" in report.verdict.summary

    @pytest.mark.parametrize("before", [0, 1])
    def test_older_sender(self, dumps_of, before):
        """
        Who sent more than its own dump knows has an outdated dump, also if it
        knows of no send at all.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        for _ in range(before):
            job.send(0, 1)
            job.recv(1, 0)
        job.dump(0)
        job.wait(1)
        job.send(0, 1)
        job.recv(1, 0)

        assert (0,) == analyze_dumps(dumps_of(job)).outdated

    def test_foreign_numbers(self, dumps_of):
        """
        Transfers between ranks that a group does not have are left out.
        """
        job = SimulatedJob(2)
        job.recv(1, 0)
        odd = job.records[1][0]
        job.records[1] = [
            odd._replace(op="recv 1<-7"),
            odd._replace(op="recv 0<-1"),
        ]

        assert [] == waits(analyze_dumps(dumps_of(job)))


GLOO = "RuntimeError: [gloo] Timed out waiting"


def failed(rank, size, error=GLOO, written=10.0, **options):
    """
    The side-car of a rank that died of an exception.
    """
    return Sidecar(
        *("", rank, size, "n", 1, 0.0, written, "exception"),
        error=error,
        **options,
    )


class TestFailedCall:
    @pytest.mark.parametrize(
        ("error", "done"), [("", 2), ("ValueError: x", 2), (GLOO, 1)]
    )
    def test_gloo(self, dumps_of, error, done):
        """
        On Gloo a call that failed looks completed; the exception shows it.
        """
        job = SimulatedJob(2, backend="gloo")
        job.collective("all_reduce")
        job.collective("all_reduce")
        sidecars = {rank: failed(rank, 2, error) for rank in range(2)}

        report = analyze_dumps(dumps_of(job, sidecars=sidecars))

        assert (done, 2) == reached(report)

    @pytest.mark.parametrize(
        ("backend", "written", "expected"),
        [
            ("gloo", 12.0, 1),
            # By then it may have entered them.
            ("gloo", 9.0, 3),
            ("nccl", 12.0, 4),
        ],
    )
    def test_several(self, dumps_of, backend, written, expected):
        """
        Calls that were in flight at once fail at once: none that another
        rank, which says so later, never entered has completed.
        """
        job = SimulatedJob(3, backend=backend)
        job.collective("all_reduce")
        for _ in range(3):
            job.collective("all_reduce", ranks=[0, 1], state="completed")
        told = failed(2, 3, "", written)._replace(reason="SIGTERM")
        sidecars = {0: failed(0, 3), 1: failed(1, 3), 2: told}

        report = analyze_dumps(dumps_of(job, sidecars=sidecars))

        assert (expected, 4) == reached(report)

    def test_several_groups(self, dumps_of):
        """
        What one group shows is not taken for another one, and a rank that
        failed elsewhere keeps what it did.
        """
        job = SimulatedJob(4, backend="gloo")
        pair = job.new_group([0, 1], "dp")
        job.collective("all_reduce")
        for _ in range(4):
            job.collective("all_reduce", pair)
        for _ in range(2):
            job.collective("all_reduce", ranks=[0, 1, 3], state="completed")
        path = "torch/distributed/distributed_c10d.py"
        recv = (("MainThread", (SidecarFrame("recv", path, 9),)),)
        sidecars = {
            0: failed(0, 4),
            1: failed(1, 4),
            2: failed(2, 4, "", 12.0)._replace(reason="SIGTERM"),
            3: failed(3, 4, threads=recv),
        }

        report = analyze_dumps(dumps_of(job, sidecars=sidecars))

        assert ((3, 3), (4, 4)) == (reached(report), reached(report, "dp"))
        # What ranks 0 and 1 did in the last two calls was taken back.
        assert (0, 1, 2) == report.outdated

    @pytest.mark.parametrize(
        ("backend", "reason", "expected"),
        [
            ("gloo", "exception", 1),
            # It may have entered more before the signal ended it.
            ("gloo", "SIGTERM", 3),
            ("nccl", "exception", 3),
        ],
    )
    def test_ended_before(self, dumps_of, backend, reason, expected):
        """
        No call has completed that a rank which ended before did not enter,
        even if the others were ended before they could say that it failed.
        """
        job = SimulatedJob(3, backend=backend)
        job.collective("all_reduce")
        for _ in range(2):
            job.collective("all_reduce", ranks=[0, 1], state="completed")
        raised = failed(2, 3, "ValueError: x", 9.0)._replace(reason=reason)
        told = [failed(r, 3, "")._replace(reason="SIGTERM") for r in (0, 1)]
        sidecars = dict(enumerate([*told, raised]))

        report = analyze_dumps(dumps_of(job, sidecars=sidecars))

        assert (expected, 3) == reached(report)

    @pytest.mark.parametrize(
        ("backend", "expected"),
        [("gloo", [(2, (1,), (2,))]), ("nccl", [])],
    )
    def test_peer_died(self, dumps_of, backend, expected):
        """
        On Gloo the last call of all may have failed because a peer died; on
        NCCL, completed means completed.
        """
        job = SimulatedJob(3, backend=backend)
        job.collective("all_reduce")
        job.collective("all_reduce")
        job.dumped[1] = job.records[1][-1].created
        dumps = attrs.evolve(dumps_of(job, missing=[2]), world_size=3)

        assert expected == waits(analyze_dumps(dumps))
