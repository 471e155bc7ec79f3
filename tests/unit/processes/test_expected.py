"""
Ranks that should be on this node.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.processes import Worker, absent_peers


def missing_ranks(workers):
    """
    The ranks that any worker misses.
    """
    absent = absent_peers(workers).values()
    return tuple(sorted({rank for ranks in absent for rank in ranks}))


def workers(*ranks, parent=1, start=0, count=None, **fields):
    """
    Workers of one job with these ranks.
    """
    return [
        Worker(
            pid=100 * parent + n,
            start_ticks=1,
            parent_pid=parent,
            uid=0,
            title="",
            framework="torchrun",
            rank=rank,
            local_rank=None if rank is None else rank - start,
            local_world_size=None if rank is None else count,
            **fields,
        )
        for n, rank in enumerate(ranks)
    ]


def titled(*ranks, parent=1, dims=("tp",)):
    """
    Workers that show their place by their title.
    """
    return [
        Worker(
            pid=100 * parent + n,
            start_ticks=1,
            parent_pid=parent,
            uid=0,
            title="",
            framework="sglang",
            rank=n if len(dims) == 1 else None,
            coordinates=tuple((dim, n) for dim in dims),
        )
        for n in ranks
    ]


class TestTorchrun:
    def test_all(self):
        """
        When all are there, none is missing.
        """
        assert () == missing_ranks(workers(0, 1, 2, count=3, world_size=3))

    def test_some(self):
        """
        A node's ranks are in sequence, wherever the sequence begins.
        """
        second_node = workers(6, 4, start=4, count=4, world_size=8)

        assert (5, 7) == missing_ranks(second_node)

    def test_two_jobs(self):
        """
        Each job is counted by itself.
        """
        first = workers(0, 1, count=2, job="a", world_size=2)
        second = workers(1, count=2, job="b", world_size=2, parent=2)

        assert (0,) == missing_ranks(first + second)

    def test_unknown(self):
        """
        A rank of unknown number may be the one that seems to be missing.
        """
        assert () == missing_ranks(
            workers(0, count=2, world_size=2) + workers(None)
        )
        assert (1,) == missing_ranks(
            workers(0, count=2, world_size=2) + workers(None, parent=2)
        )

    def test_contradiction(self):
        """
        Where the ranks do not agree, nothing is said.
        """
        first = workers(0, count=2, world_size=2)
        second = workers(3, count=4, world_size=2)

        assert () == missing_ranks(first + second)

    def test_own(self, monkeypatch):
        """
        The rank that asks, or that started the one that asks, is not missing;
        that of another job may be.
        """
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "mine")
        mine = workers(0, 2, count=3, world_size=3, job="mine")
        other = workers(0, 2, count=3, world_size=3, job="other")

        assert () == missing_ranks(mine)
        assert (1,) == missing_ranks(other)


class TestWorldSize:
    @pytest.mark.parametrize(
        ("job", "expected"),
        [
            ("127.0.0.1:29500", (1, 3)),
            ("run restart1 localhost:29500", (1, 3)),
            ("::1:29500", (1, 3)),
            ("node1:29500", ()),
            ("", ()),
        ],
    )
    def test_meeting_place(self, job, expected):
        """
        All ranks are here if they meet where only this node can come.
        """
        assert expected == missing_ranks(workers(0, 2, world_size=4, job=job))

    def test_absurd(self):
        """
        A size that no node has is not believed.
        """
        huge = workers(0, world_size=2**30, job="localhost:1")

        assert () == missing_ranks(huge)

    def test_nobody(self):
        """
        Where nothing is known, nothing is missing.
        """
        assert () == missing_ranks([])
        assert () == missing_ranks(workers(None, None))
        assert () == missing_ranks(workers(3))

    def test_children(self):
        """
        Other processes of a job do not count.
        """
        ranks = workers(0, count=2, world_size=2)

        others = [attrs.evolve(w, role="child", rank=None) for w in ranks]

        assert () == missing_ranks(others)
        assert (1,) == missing_ranks(ranks + others)


class TestTitles:
    def test_gap(self):
        """
        Between two that were found, none may be missing.
        """
        assert (1, 3) == missing_ranks(titled(0, 2, 4))
        assert () == missing_ranks(titled(4, 5, 6))

    def test_two_servers(self):
        """
        A server has its own ranks.
        """
        assert (1,) == missing_ranks(
            titled(0, 2, parent=1) + titled(0, 1, 2, parent=2)
        )

    def test_dimensions(self):
        """
        With more dimensions, no number can be known.
        """
        assert () == missing_ranks(titled(0, 2, dims=("pp", "tp")))
