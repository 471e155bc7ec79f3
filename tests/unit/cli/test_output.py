"""
What commands show while they work.
"""

from __future__ import annotations

import io
import re
import sys
import threading

import pytest

from distdebug.cli import output
from distdebug.cli.output import telling, waiting


CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
# The cursor is shown again, and the line is erased.
GONE = "\x1b[?25h\r\x1b[1A\x1b[2K"


class TestCount:
    def test_shown(self, stuck, run_in_terminal, capsys):
        """
        A count is shown in place while a command works, and taken away.
        """
        run_in_terminal("analyze", stuck)

        got = capsys.readouterr()
        assert "reading dumps: " in got.err
        assert "4 of 4" in got.err
        assert got.err.endswith(GONE)
        assert "reading dumps" not in got.out

    @pytest.mark.parametrize("argv", [("-q", "analyze"), ("analyze", "-q")])
    def test_quiet(self, stuck, run_in_terminal, capsys, monkeypatch, argv):
        """
        None is shown to those who want the result alone.
        """
        monkeypatch.setattr(output, "_verbosity", 0)

        run_in_terminal(*argv, stuck)

        got = capsys.readouterr()
        assert "" == got.err
        assert "never entered" in got.out

    def test_dumb(self, stuck, run_in_terminal, capsys, monkeypatch):
        """
        A terminal that cannot take a line away shows none.
        """
        monkeypatch.setenv("TERM", "dumb")

        run_in_terminal("analyze", stuck)

        assert "" == capsys.readouterr().err.strip()

    def test_narrow(self, stuck, run_in_terminal, capsys):
        """
        No line is wider than the terminal: it could not be taken away.
        """
        run_in_terminal("analyze", stuck, columns=20)

        lines = CONTROLS.sub("\n", capsys.readouterr().err).split("\n")
        assert 20 >= max(map(len, lines))

    def test_stages(self, monkeypatch):
        """
        Of several stages, the last one is shown.
        """
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)

        with telling(is_bytes=True) as tell:
            tell("reading", 5, 10)
            tell("sorting [red]", 10_000_000, 20_000_000)

        shown = CONTROLS.sub("", terminal.getvalue())
        assert re.search(r"sorting \[red\]:[^\n]* 10.0/20.0 MB", shown)


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
        assert re.search(r"looking .*[0-9]:[0-9]{2}", printed)
        assert printed.endswith(GONE)

    def test_file(self, capsys):
        """
        Elsewhere nothing is shown, and no thread runs.
        """
        before = threading.active_count()

        with waiting("looking"):
            during = threading.active_count()

        assert before == during
        assert "" == capsys.readouterr().err
