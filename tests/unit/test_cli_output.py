"""
What commands show while they work.
"""

from __future__ import annotations

import sys

from distdebug.cli.output import LiveLine, counting


class TestLiveLine:
    def test_terminal(self, capsys, monkeypatch):
        """
        On a terminal the line changes in place, and leaves nothing behind.
        """
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
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


def test_counting(capsys, monkeypatch):
    """
    A count is shown while a block runs, and taken away afterwards.
    """
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    with counting("reading") as tick:
        tick(1, 2)

    assert "\rreading: 1 of 2\r               \r" == capsys.readouterr().err
