"""
Which calls are stuck, who is inside, and who is awaited.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.findings import Cause
from distdebug.flight_recorder import analyze_dumps
from distdebug.flight_recorder.analysis.job import survey
from distdebug.flight_recorder.analysis.stuck import (
    find_outdated,
    find_stuck_calls,
    link,
    since_ns,
)
from distdebug.testing import SimulatedJob


def stuck_calls(dumps):
    """
    The stuck calls of a job.
    """
    job = survey(dumps)
    outdated = find_outdated(job.states, job.channels, dumps)
    return find_stuck_calls(job.states, job.channels, dumps, outdated)


def inside_and_awaited(dumps):
    """
    Who is inside each stuck call, and who is awaited.
    """
    return [(tuple(sorted(c.waiting)), c.awaited) for c in stuck_calls(dumps)]


class TestCollective:
    def test_absent(self, dumps_of):
        """
        A rank that did not enter is absent; one without a dump is missing.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0, 3])

        (call,) = stuck_calls(dumps_of(job, missing=[1]))

        assert ({0, 3}, (2,), (1,)) == (
            call.waiting.keys(),
            call.absent,
            call.missing,
        )
        assert (2, False) == (call.seq, call.p2p)
        assert (1, 2) == call.awaited

    def test_runs_ahead(self, dumps_of):
        """
        A rank may run ahead; the oldest call is what is stuck.
        """
        job = SimulatedJob(2)
        for _ in range(3):
            job.collective("all_reduce", ranks=[0])

        (call,) = stuck_calls(dumps_of(job))

        assert 1 == call.seq

    def test_different_calls(self, dumps_of):
        """
        If ranks wait in different calls of a group, the oldest one counts.
        """
        job = SimulatedJob(3)
        job.collective("broadcast", ranks=[0, 1, 2])
        job.collective("broadcast", ranks=[0, 1])
        job.records[1][0].call.members |= {-1}
        for rank in (0, 2):
            job.records[rank][0] = job.records[rank][0]._replace(
                state="completed"
            )

        (call,) = stuck_calls(dumps_of(job))

        assert (1, {1}, ()) == (call.seq, call.waiting.keys(), call.awaited)

    def test_moving(self, dumps_of):
        """
        Where as many were seen to move as wait, the group runs.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        job.dump(1)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0])

        assert [] == stuck_calls(dumps_of(job))

    def test_others_went_on(self, dumps_of):
        """
        A dump taken inside a call that others completed is outdated; its rank
        waits in nothing.
        """
        job = SimulatedJob(3)
        job.collective("all_reduce", late={1: 0.5})
        job.dumped[0] = job.records[0][0].created
        dumps = dumps_of(job)
        state = survey(dumps)

        outdated = find_outdated(state.states, state.channels, dumps)

        assert ({0}, []) == (outdated, stuck_calls(dumps))

    def test_lost_in_ring(self, dumps_of):
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

        calls = stuck_calls(dumps_of(job, ring=6))

        assert (1, 2) in [c.unknown for c in calls]

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

        (call,) = stuck_calls(dumps)

        assert ((), (2,)) == (call.absent, call.unknown)


class TestTransfer:
    def test_receiver_waits(self, dumps_of):
        """
        A receive waits for who did not send.
        """
        job = SimulatedJob(2)
        job.recv(1, 0)

        assert [((1,), (0,))] == inside_and_awaited(dumps_of(job))

    def test_sender_waits(self, dumps_of):
        """
        A send waits for who does not receive.
        """
        job = SimulatedJob(2)
        job.send(0, 1)
        job.recv(1, 0)
        job.send(0, 1)

        assert [((0,), (1,))] == inside_and_awaited(dumps_of(job))

    def test_no_dump(self, dumps_of):
        """
        The peer may have left no dump.
        """
        job = SimulatedJob(2)
        job.recv(1, 0)

        (call,) = stuck_calls(dumps_of(job, missing=[0]))

        assert ((), (0,)) == (call.absent, call.missing)

    @pytest.mark.parametrize("ring", [2000, 3])
    def test_both_inside(self, dumps_of, ring):
        """
        If both entered and nothing moves, it is told once.
        """
        job = SimulatedJob(2)
        for _ in range(4):
            job.send(0, 1)
            job.recv(1, 0)
        job.records[0][-1].call.members |= {-1}

        assert [((0, 1), ())] == inside_and_awaited(dumps_of(job, ring=ring))

    def test_in_flight(self, dumps_of):
        """
        Then the link between them is suspected.
        """
        job = SimulatedJob(2)
        job.send(0, 1)
        job.recv(1, 0)
        job.records[0][-1].call.members |= {-1}

        verdict = analyze_dumps(dumps_of(job)).verdict

        assert Cause.COLLECTIVE_STUCK_IN_FLIGHT is verdict.cause
        assert "from rank 0 to rank 1 of group" in verdict.summary

    def test_older_sender(self, dumps_of):
        """
        Who sent more than its own dump knows has an outdated dump.
        """
        job = SimulatedJob(2)
        job.send(0, 1)
        job.recv(1, 0)
        job.dump(0)
        job.wait(1)
        job.send(0, 1)
        job.recv(1, 0)
        dumps = dumps_of(job)
        state = survey(dumps)

        outdated = find_outdated(state.states, state.channels, dumps)

        assert {0} == outdated

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

        assert [] == stuck_calls(dumps_of(job))


class TestLinks:
    def test_absent(self, dumps_of):
        """
        A call waits for the call that its absent rank is in.
        """
        job = SimulatedJob(3)
        near, far = job.new_group([0, 1], "near"), job.new_group([1, 2], "far")
        job.collective("all_reduce", near, ranks=[0])
        job.collective("all_reduce", far, ranks=[1])

        assert [{1}, set()] == link(stuck_calls(dumps_of(job)))

    def test_order(self, dumps_of):
        """
        A device runs calls in order: the later one waits for the earlier one.
        """
        job = SimulatedJob(2)
        a, b = (job.new_group([0, 1], name) for name in "ab")
        job.collective("all_reduce", a)
        job.collective("all_reduce", b)
        for record in job.records[0]:
            record.call.members |= {-1}

        assert [set(), {0}] == link(stuck_calls(dumps_of(job)))

    def test_since(self, dumps_of):
        """
        A call is stuck since the first rank entered it.
        """
        job = SimulatedJob(3)
        job.collective("all_reduce", ranks=[1, 2], late={1: 3.0})
        dumps = dumps_of(job)

        (call,) = stuck_calls(dumps)

        assert dumps[2].entries.created_ns[0] == since_ns(call, dumps)
