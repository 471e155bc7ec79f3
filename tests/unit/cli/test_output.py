"""
What commands show while they work.
"""

from __future__ import annotations

import io
import re
import sys
import threading
import time

import pytest

from distdebug.cli.output import rest_text, waiting


@pytest.fixture
def slow_by(monkeypatch):
    """
    Makes a clock that goes on by so many seconds whenever it is read.
    """

    def start(seconds):
        times = iter(range(1 << 30))
        monkeypatch.setattr(
            time, "monotonic", lambda: 100.0 + seconds * next(times)
        )

    return start


def shown_in(text):
    """
    What stood in a line that changes in place, one after the other.
    """
    return [part.strip() for part in text.split("\r") if part.strip()]


class TestCount:
    def test_shown(self, stuck, run_in_terminal, capsys, slow_by):
        """
        A count is shown in place while a command works, and taken away; after
        a while with its speed, and how long the rest takes.
        """
        slow_by(2)

        run_in_terminal("analyze", stuck)

        err = capsys.readouterr().err
        shown = shown_in(err)
        assert "\n" not in err
        assert err.endswith(f"\r{' ' * len(shown[-1])}\r")
        assert "reading dumps: 4 of 4" == shown[-1]
        assert any(
            re.fullmatch(r"reading dumps: 2 of 4, [0-9.]+/s, [0-9]+ s left", x)
            for x in shown
        )

    def test_not_too_often(self, stuck, run_in_terminal, capsys, slow_by):
        """
        Not a thousand lines a second are shown, but the last one is.
        """
        slow_by(0.001)

        run_in_terminal("analyze", stuck)

        shown = shown_in(capsys.readouterr().err)
        assert 2 >= len(shown)
        assert "reading dumps: 4 of 4" == shown[-1]

    def test_narrow(self, stuck, run_in_terminal, capsys):
        """
        No line is wider than the terminal: it could not be taken away.
        """
        run_in_terminal("analyze", stuck, columns=10)

        assert {"reading d"} == set(shown_in(capsys.readouterr().err))


@pytest.mark.parametrize(
    ("done", "total", "seconds", "expected"),
    [
        (5, 10, 0.5, ""),
        (0, 10, 9.0, ""),
        (10, 10, 9.0, ""),
        (5, 10, 10.0, ", 0.5/s, 10 s left"),
        (5000, 10000, 5.0, ", 1,000/s, 5 s left"),
    ],
)
def test_rest(done, total, seconds, expected):
    """
    The remaining time is shown when there is a rest and a speed.
    """
    assert expected == rest_text(done, total, seconds, "")


class Terminal(io.StringIO):
    """
    A terminal that signals when something is shown.
    """

    def __init__(self):
        super().__init__()
        self.shown = threading.Event()

    def isatty(self):
        """
        It is one.
        """
        return True

    def write(self, text):
        """
        Remember it, and signal.
        """
        self.shown.set()
        return super().write(text)


class TestWaiting:
    def test_terminal(self, monkeypatch):
        """
        While nothing is known, the seconds are shown; afterwards nothing is.
        """
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)

        with waiting("looking"):
            assert terminal.shown.wait(30)

        printed = terminal.getvalue()
        assert re.match(r"\rlooking: [0-9]+ s", printed)
        assert printed.endswith("            \r")

    def test_file(self, capsys):
        """
        Elsewhere nothing is shown, and no thread runs.
        """
        before = threading.active_count()

        with waiting("looking"):
            during = threading.active_count()

        assert before == during
        assert "" == capsys.readouterr().err
