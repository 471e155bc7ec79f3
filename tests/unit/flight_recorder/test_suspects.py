"""
Telling who of several ranks is at fault.
"""

from __future__ import annotations

from distdebug.flight_recorder.analysis.suspects import _with_their_nodes


class Asked(set):
    """
    A set that counts how often it is asked.
    """

    times = 0

    def __contains__(self, item):
        self.times += 1
        return super().__contains__(item)


def test_neighbours():
    """
    Three ranks in a row are a node; two are not.
    """
    assert {4, 5, 6} == _with_their_nodes({5}, {4, 5, 6, 8})
    assert {5} == _with_their_nodes({5}, {5, 6, 8})


def test_whole_cluster():
    """
    Each rank is looked at once, however many are without a dump.
    """
    missing = Asked(range(10_000))

    got = _with_their_nodes(set(missing), missing)

    assert set(range(10_000)) == got
    assert missing.times <= 2 * 10_000
