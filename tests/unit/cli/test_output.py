"""
What commands show while they work.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading

import pytest

from distdebug.cli import output
from distdebug.cli.output import (
    LiveLine,
    counting,
    rest_text,
    telling,
    waiting,
)


def _look(monkeypatch):
    """
    Let somebody look at standard error.
    """
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


@pytest.fixture(name="clock")
def _clock(monkeypatch):
    """
    A clock that goes when it is told to.
    """
    now = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    return now


class TestLiveLine:
    def test_terminal(self, capsys, monkeypatch):
        """
        On a terminal the line changes in place, and leaves nothing behind.
        """
        _look(monkeypatch)
        line = LiveLine()

        line.show("step 10")
        line.show("step")
        line.write("done")
        line.clear()

        assert "\rstep 10\rstep   \r    \rdone\n" == capsys.readouterr().err

    def test_file(self, capsys):
        """
        Elsewhere only what is worth a line of its own is written.
        """
        line = LiveLine()

        line.show("step 10")
        line.write("done")

        assert "done\n" == capsys.readouterr().err

    def test_narrow(self, capsys, monkeypatch):
        """
        No line is wider than the terminal: it could not be taken away.
        """
        _look(monkeypatch)
        size = os.terminal_size((10, 24))
        monkeypatch.setattr(shutil, "get_terminal_size", lambda: size)

        LiveLine().show("0123456789abc")

        assert "\r012345678" == capsys.readouterr().err


class TestTelling:
    def test_counting(self, capsys, monkeypatch):
        """
        A count is shown while a block runs, and taken away afterwards.
        """
        _look(monkeypatch)

        with counting("reading") as tick:
            tick(1, 2)

        assert (
            "\rreading: 1 of 2\r               \r" == capsys.readouterr().err
        )

    def test_rate(self, capsys, clock, monkeypatch):
        """
        After a while the speed is told, and how long the rest takes.
        """
        _look(monkeypatch)

        with telling(unit="MB", scale=1e6) as tell:
            tell("reading", 0, 300e6)
            clock[0] += 2
            tell("reading", 100e6, 300e6)

        shown = capsys.readouterr().err.split("\r")
        assert "reading: 100 of 300 MB, 50 MB/s, 4 s left" in shown

    def test_not_too_often(self, capsys, clock, monkeypatch):
        """
        Nobody reads a thousand lines a second, but the last one is shown.
        """
        _look(monkeypatch)

        with telling() as tell:
            for done in range(1, 4):
                clock[0] += 0.001
                tell("reading", done, 3)
            tell("drawing", 1, 3)

        shown = capsys.readouterr().err.split("\r")
        assert ["reading: 1 of 3", "reading: 3 of 3", "drawing: 1 of 3"] == [
            text for text in shown if text.strip()
        ]


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
    The rest is told when there is a rest and a speed.
    """
    assert expected == rest_text(done, total, seconds, "")


class TestWaiting:
    def test_terminal(self, capsys, monkeypatch):
        """
        While nothing is known, the seconds are shown; afterwards nothing is.
        """
        _look(monkeypatch)
        shown = threading.Event()
        monkeypatch.setattr(output, "_TICK_S", 0.001)
        monkeypatch.setattr(
            LiveLine, "show", _show_and_tell(LiveLine.show, shown)
        )

        with waiting("looking"):
            assert shown.wait(30)

        printed = capsys.readouterr().err
        assert "\rlooking: 0 s" in printed
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


def _show_and_tell(show, shown):
    def show_and_tell(line, text):
        show(line, text)
        shown.set()

    return show_and_tell
