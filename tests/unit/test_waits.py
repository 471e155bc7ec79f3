"""
Graphs of waits.
"""

from __future__ import annotations

from distdebug.waits import components, reachable, sinks


class TestComponents:
    def test_chain(self):
        """
        Without circles, each node is a component, after those it points to.
        """
        assert [[2], [1], [0]] == components([[1], [2], []])

    def test_circle(self):
        """
        Nodes that reach each other are one component, sorted.
        """
        assert [[0, 1, 2], [3]] == components([[2], [0], [1], [0]])

    def test_branches(self):
        """
        Two ways to the same node make no circle.
        """
        found = components([[1, 2], [3], [3], []])

        assert [[3], [1], [2], [0]] == found

    def test_two_circles(self):
        """
        Circles that share no node stay apart.
        """
        assert [[2, 3], [0, 1]] == components([[1, 2], [0], [3], [2]])

    def test_long_chain(self):
        """
        A chain of any length needs no recursion.
        """
        size = 50_000

        found = components([[i + 1] for i in range(size)] + [[]])

        assert size + 1 == len(found)
        assert [size] == found[0]

    def test_nothing(self):
        """
        Nothing has no components.
        """
        assert [] == components([])


class TestSinks:
    def test_ends(self):
        """
        Waiting begins where no edge leads out.
        """
        edges = [[1], [0, 2], [], []]

        assert [[2], [3]] == sinks(components(edges), edges)

    def test_circle(self):
        """
        A circle without a way out is an end, too.
        """
        edges = [[1], [2], [1]]

        assert [[1, 2]] == sinks(components(edges), edges)


class TestReachable:
    def test_transitive(self):
        """
        What is reached through others is reached; circles end.
        """
        edges = {0: [1], 1: [2], 2: [0], 3: [0]}

        assert {0, 1, 2} == reachable([0], edges)

    def test_itself(self):
        """
        A node reaches itself.
        """
        assert {7} == reachable([7], {})
