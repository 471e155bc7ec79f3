"""
Where each rank stands in each group, and what its calls look like.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.flight_recorder import Sidecar
from distdebug.flight_recorder.analysis.job import survey
from distdebug.flight_recorder.columns import GroupStatus
from distdebug.flight_recorder.sidecar import SidecarFrame
from distdebug.testing import SimulatedJob


def position(dumps, rank, desc="default_pg"):
    """
    Where a rank stands.
    """
    (state,) = (s for s in survey(dumps).states if s.group.desc == desc)
    return state.positions.get(rank)


class TestPosition:
    def test_records(self, dumps_of):
        """
        The records say what was first, last, done, and pending.
        """
        job = SimulatedJob(2)
        for _ in range(4):
            job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0])

        p = position(dumps_of(job, ring=3), 0)

        assert (5, 4, 4, 5) == (p.last, p.done, p.sync_done, p.pending)
        assert 2 == p.row
        assert 5 == p.status.enqueued

    def test_nothing_pending(self, dumps_of):
        """
        Where all is done, nothing is pending.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")

        p = position(dumps_of(job), 1)

        assert (0, -1) == (p.pending, p.row)

    def test_not_synchronizing(self, dumps_of):
        """
        That a broadcast is done proves nothing about others.
        """
        job = SimulatedJob(2)
        job.collective("broadcast")

        p = position(dumps_of(job), 0)

        assert (1, 0) == (p.done, p.sync_done)

    def test_idle(self, dumps_of):
        """
        A rank that made no call stands at the beginning.
        """
        job = SimulatedJob(3)
        job.collective("all_reduce", ranks=[0, 1])

        p = position(dumps_of(job), 2)

        assert (0, 0) == (p.last, p.pending)

    def test_counters(self, dumps_of):
        """
        Where the ring lost the group, the counters tell.
        """
        job = SimulatedJob(2)
        other = job.new_group([0, 1], "other")
        for _ in range(3):
            job.collective("all_reduce", other)
        for _ in range(9):
            job.collective("all_reduce")
        dumps = dumps_of(job, ring=5)

        p = position(dumps, 1, "other")

        assert (3, 3) == (p.last, p.done)

    def test_never_used(self, dumps_of):
        """
        A group without counters was never used, however small the ring is.
        """
        job = SimulatedJob(3)
        pair = job.new_group([0, 1], "pair")
        job.collective("all_reduce", pair, ranks=[0])
        for _ in range(9):
            job.collective("all_reduce")

        p = position(dumps_of(job, ring=5), 1, "pair")

        assert (0, 0) == (p.last, p.done)

    def test_no_counters(self, dumps_of):
        """
        Old versions have no counters: then a full ring tells nothing.
        """
        job = SimulatedJob(3)
        pair = job.new_group([0, 1], "pair")
        for _ in range(9):
            job.collective("all_reduce")
        job.collective("all_reduce", pair, ranks=[0])
        dumps = dumps_of(job, ring=5, version="2.1")

        assert position(dumps, 1, "pair") is None

    def test_fresh_counters(self, dumps_of):
        """
        Counters at -1 say that there was no call.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        dumps = dumps_of(job, only_active=True)
        idle = attrs.evolve(dumps[1], status={0: GroupStatus(-1, -1, -1)})
        dumps = attrs.evolve(dumps, by_rank={**dumps.by_rank, 1: idle})

        assert 0 == position(dumps, 1).last


class TestSuspects:
    def suspects(self, dumps):
        """
        The numbers at which members differ.
        """
        (state,) = survey(dumps).states
        return state.suspects.tolist()

    def test_same(self, dumps_of):
        """
        Who does the same is not suspected.
        """
        job = SimulatedJob(3)
        job.collective("all_reduce")
        job.collective("barrier", ranks=[0, 2])

        assert [] == self.suspects(dumps_of(job))

    @pytest.mark.parametrize("ring", [2000, 3])
    def test_different(self, dumps_of, ring):
        """
        Every number at which anybody differs is found.
        """
        job = SimulatedJob(3)
        for op in ("a", "b", "c", "d"):
            job.collective(op, ranks=[0, 1])
        for op in ("a", "x", "c"):
            job.collective(op, ranks=[2])

        assert [2] == self.suspects(dumps_of(job, ring=ring))


class TestBatches:
    def test_one_call(self, dumps_of):
        """
        A batch of collectives is one call, done when its end is.
        """
        job = SimulatedJob(2)
        job.collective("all_gather")
        for rank in (0, 1):
            part = job.records[rank][0]
            end = part._replace(op="ALLGATHER_coalesced")
            job.records[rank] = [
                part._replace(call=None),
                part._replace(call=None),
                end,
            ]

        p = position(dumps_of(job), 0)

        assert (1, 1, 0) == (p.last, p.done, p.pending)


class TestFailedCall:
    @pytest.mark.parametrize(
        ("error", "done"),
        [
            ("", 2),
            ("ValueError: x", 2),
            ("RuntimeError: [gloo] Timed out waiting", 1),
        ],
    )
    def test_gloo(self, dumps_of, error, done):
        """
        On Gloo a call that failed looks completed; the exception tells.
        """
        job = SimulatedJob(2, backend="gloo")
        job.collective("all_reduce")
        job.collective("all_reduce")
        sidecar = Sidecar("", 0, 2, "n", 1, 0.0, 0.0, "exception", error=error)

        p = position(dumps_of(job, sidecars={0: sidecar}), 0)

        assert done == p.done

    @pytest.mark.parametrize(
        ("backend", "written", "expected"),
        [
            ("gloo", 12.0, [1, 1, 1]),
            # By then it may have entered them.
            ("gloo", 9.0, [3, 3, 1]),
            ("nccl", 12.0, [4, 4, 1]),
        ],
    )
    def test_several(self, dumps_of, backend, written, expected):
        """
        Calls that were in flight at once fail at once: none that another
        rank, which tells it later, never entered has completed.
        """
        job = SimulatedJob(3, backend=backend)
        job.collective("all_reduce")
        for _ in range(3):
            job.collective("all_reduce", ranks=[0, 1], state="completed")
        error = "RuntimeError: [gloo] Timed out waiting"
        failed = Sidecar("", 0, 3, "n", 1, 0.0, 10.0, "exception", error=error)
        told = failed._replace(
            rank=2, reason="SIGTERM", error="", written=written
        )
        dumps = dumps_of(
            job, sidecars={0: failed, 1: failed._replace(rank=1), 2: told}
        )

        (state,) = survey(dumps).states

        assert expected == [state.positions[r].done for r in range(3)]

    def test_several_groups(self, dumps_of):
        """
        What one group tells is not taken for another one, and a rank that
        failed elsewhere keeps what it did.
        """
        job = SimulatedJob(4, backend="gloo")
        pair = job.new_group([0, 1], "dp")
        job.collective("all_reduce")
        for _ in range(4):
            job.collective("all_reduce", pair)
        for _ in range(2):
            job.collective("all_reduce", ranks=[0, 1, 3], state="completed")
        error = "RuntimeError: [gloo] Timed out waiting"
        failed = Sidecar("", 0, 4, "n", 1, 0.0, 10.0, "exception", error=error)
        frame = SidecarFrame(
            "recv", "torch/distributed/distributed_c10d.py", 9
        )
        elsewhere = failed._replace(
            rank=3, threads=(("MainThread", (frame,)),)
        )
        told = failed._replace(rank=2, error="", written=12.0)
        sidecars = {0: failed, 1: failed._replace(rank=1), 2: told}
        dumps = dumps_of(job, sidecars={**sidecars, 3: elsewhere})

        states = {s.group.desc: s for s in survey(dumps).states}

        everyone = states[job.world.desc].positions
        assert [1, 1, 1, 3] == [everyone[r].done for r in range(4)]
        assert [4, 4] == [states["dp"].positions[r].done for r in (0, 1)]

    @pytest.mark.parametrize(("backend", "done"), [("gloo", 1), ("nccl", 2)])
    def test_peer_died(self, dumps_of, backend, done):
        """
        On Gloo the last call of all may have failed because a peer died; on
        NCCL, completed means completed.
        """
        job = SimulatedJob(3, backend=backend)
        job.collective("all_reduce")
        job.collective("all_reduce")
        job.dumped[1] = job.records[1][-1].created
        dumps = dumps_of(job, missing=[2])

        (state,) = survey(attrs.evolve(dumps, world_size=3)).states

        assert done == state.sync_done
