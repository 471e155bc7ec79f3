"""
Looking at many processes side by side: what no process can be made to do.
"""

from __future__ import annotations

import threading

import pytest

from distdebug.capture.node import parallel_map


def test_order():
    """
    Results have the order of the items, whatever is ready first.
    """
    late = threading.Event()

    def double(number):
        if number == 1:
            late.wait(60)
        else:
            late.set()
        return 2 * number

    assert [2, 4] == parallel_map(double, [1, 2], timeout_s=60, max_threads=2)
    assert [] == parallel_map(abs, [], timeout_s=1)


def test_rest_is_given_up():
    """
    What was not begun in time is not begun afterwards.
    """
    go_on, begun = threading.Event(), []

    def wait(number):
        begun.append(number)
        go_on.wait()

    got = parallel_map(wait, [1, 2], timeout_s=0.2, max_threads=1)
    go_on.set()

    assert [None, None] == got
    assert [1] == begun


def test_problem():
    """
    An exception comes out of it.
    """

    def fail(number):
        raise LookupError(number)

    with pytest.raises(LookupError, match="7"):
        parallel_map(fail, [7], timeout_s=60)
