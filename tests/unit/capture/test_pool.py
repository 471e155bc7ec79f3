"""
Looking at many processes side by side.
"""

from __future__ import annotations

import threading
import time

import pytest

from distdebug.capture import pool
from distdebug.capture.pool import each


class TestEach:
    def test_order(self):
        """
        Results have the order of the items, whoever is ready first.
        """
        late = threading.Event()

        def double(number):
            if number == 1:
                late.wait(60)
            else:
                late.set()
            return 2 * number

        assert [2, 4] == each(double, [1, 2], timeout_s=60, at_once=2)

    def test_nothing(self):
        """
        Of nothing nothing becomes.
        """
        assert [] == each(abs, [], timeout_s=1)

    def test_tell(self):
        """
        It tells how many of how many are done.
        """
        told = []

        each(abs, [1, 2, 3], timeout_s=60, tell=lambda *n: told.append(n))

        assert [(1, 3), (2, 3), (3, 3)] == told

    def test_never_comes_back(self):
        """
        One that never comes back loses only its own result.
        """
        never = threading.Event()

        def wait(number):
            if number == 1:
                never.wait()
            return number

        start = time.monotonic()
        got = each(wait, [1, 2, 3], timeout_s=0.5, at_once=2)

        assert [None, 2, 3] == got
        assert time.monotonic() - start < 30
        never.set()

    def test_rest_is_given_up(self):
        """
        What was not begun in time is not begun afterwards.
        """
        go_on, begun = threading.Event(), []

        def wait(number):
            begun.append(number)
            go_on.wait()

        got = each(wait, [1, 2], timeout_s=0.2, at_once=1)
        go_on.set()

        assert [None, None] == got
        assert [1] == begun

    def test_problem(self):
        """
        An exception comes out of it, and stops the tools that run.
        """

        def fail(number):
            raise LookupError(number)

        with pytest.raises(LookupError, match="7"):
            each(fail, [7], timeout_s=60)

    def test_interrupt(self, monkeypatch):
        """
        Ctrl-C stops the tools instead of waiting for them.
        """
        stopped = threading.Event()
        monkeypatch.setattr(pool, "stop_tools", stopped.set)

        def interrupt(*_):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            each(abs, [1, 2], timeout_s=60, tell=interrupt)

        assert stopped.is_set()

    @pytest.mark.parametrize("left", [0, 1])
    def test_no_threads(self, monkeypatch, left):
        """
        On a node that is full, it goes slower.
        """
        start, started = threading.Thread.start, []

        def full(thread):
            if len(started) == left:
                msg = "can't start new thread"
                raise RuntimeError(msg)
            started.append(thread)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", full)

        assert [1, 2, 3] == each(abs, [-1, -2, -3], timeout_s=60)
