"""
Graphs of waits.
"""

from __future__ import annotations

import pytest

from distdebug.waits import (
    find_reachable,
    find_sinks,
    strongly_connected_components,
)


class TestComponents:
    @pytest.mark.parametrize(
        ("edges", "expected"),
        [
            ([[1], [2], []], [[2], [1], [0]]),
            ([[2], [0], [1], [0]], [[0, 1, 2], [3]]),
            ([[1, 2], [3], [3], []], [[3], [1], [2], [0]]),
            ([[1, 2], [0], [3], [2]], [[2, 3], [0, 1]]),
            ([], []),
        ],
        ids=["chain", "circle", "branches", "two circles", "nothing"],
    )
    def test_small(self, edges, expected):
        """
        Nodes that reach each other are one component, sorted, which comes
        after those that it points to.
        """
        assert expected == strongly_connected_components(edges)

    def test_long_chain(self):
        """
        A chain of any length needs no recursion.
        """
        size = 50_000

        found = strongly_connected_components(
            [[i + 1] for i in range(size)] + [[]]
        )

        assert size + 1 == len(found)
        assert [size] == found[0]


@pytest.mark.parametrize(
    ("edges", "expected"),
    [([[1], [0, 2], [], []], [[2], [3]]), ([[1], [2], [1]], [[1, 2]])],
    ids=["ends", "circle"],
)
def test_sinks(edges, expected):
    """
    Waiting begins where no edge leads out, be it of a circle.
    """
    assert expected == find_sinks(strongly_connected_components(edges), edges)


@pytest.mark.parametrize(
    ("start", "expected"), [(0, {0, 1, 2}), (3, {0, 1, 2, 3}), (7, {7})]
)
def test_reachable(start, expected):
    """
    A node reaches itself and what others reach; circles end.
    """
    edges = {0: [1], 1: [2], 2: [0], 3: [0]}

    assert expected == find_reachable([start], edges)
