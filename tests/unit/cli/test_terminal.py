"""
What a terminal gets that a file does not.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

from pathlib import Path

import pytest

from hypothesis import given
from hypothesis import strategies as st

from distdebug import analyze_dumps
from distdebug.__main__ import main
from distdebug._text import text_table
from distdebug.cli.output import fit_facts, fit_tables, paint_fine, paint_wrong
from distdebug.testing import SimulatedJob, make_dumps


SOURCES = Path(__file__).parents[3] / "src"
COLORS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def is_painted(stuck, capsys, monkeypatch):
    """
    Whether a verdict is printed in colors.
    """

    def run(environ, *, on_terminal):
        for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: on_terminal)
        main(["analyze", stuck])
        return "\x1b[1;31mrank 2" in capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("environ", "on_terminal", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
    ids=[
        *("tty", "file", "xterm", "dumb", "no color", "empty", "forced"),
        *("forced on dumb", "both"),
    ],
)
def test_colors(is_painted, environ, on_terminal, expected):
    """
    Colors are for terminals, unless the environment says otherwise.
    """
    assert expected == is_painted(environ, on_terminal=on_terminal)


def test_blocks_are_painted_as_results_are(tmp_path, monkeypatch, capsys):
    """
    What has no result of its own is printed like one that has.
    """
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stack = 'File "/w/data.py", line 41 in read_shard'
    (tmp_path / "a.txt").write_text(
        f"Thread 0x0001 (most recent call first):\n  {stack}\n"
        '  File "/v/torch/utils/data/dataloader.py", line 700 in __next__\n'
    )

    main(["stacks", str(tmp_path / "a.txt")])

    assert "\x1b[33mdataloader_wait" in capsys.readouterr().out


class TestPaint:
    def test_wrong(self):
        """
        Of what is wrong, the ranks at fault stand out.
        """
        head = "rank 3 never entered all_reduce #9 (ranks 0-2 wait)"

        painted = paint_wrong("head", head)

        assert painted.startswith("\x1b[1;31mrank 3\x1b[0m\x1b[1m never")
        assert head == COLORS.sub("", painted)

    def test_wrong_without_ranks(self):
        """
        If no rank is at fault, the whole sentence stands out.
        """
        painted = paint_wrong("head", "the disk is full")

        assert "\x1b[1;31mthe disk is full\x1b[0m" == painted

    def test_fine(self):
        """
        Good news is green, and nothing in it alarms.
        """
        assert "\x1b[1;32mall is well\x1b[0m" == paint_fine(
            "head", "all is well"
        )
        assert "\x1b[2mhealthy\x1b[0m" == paint_fine("cause", "healthy")

    @given(
        st.sampled_from(["head", "label", "note", "cause", "log"]), st.text()
    )
    def test_text_stays(self, kind, text):
        """
        Colors add nothing to a text and take nothing away.
        """
        text = COLORS.sub("", text)

        for paint in (paint_wrong, paint_fine):
            assert text == COLORS.sub("", paint(kind, text))


class TestTables:
    def test_cut(self):
        """
        The widest cells are cut, and a table is as wide as the terminal.
        """
        table = text_table(
            ("rank", "what it does"), [(3, "x" * 80), (12, "short")]
        )

        lines = fit_tables(f"head {'-' * 90}\n\n{table}\n", 40).split("\n")

        assert [
            f"head {'-' * 90}",
            "",
            "rank    what it does",
            "------  --------------------------------",
            f"3       {'x' * 31}…",
            "12      short",
            "",
        ] == [line.replace("rank  ", "rank  ") for line in lines]

    def test_wide_terminal(self):
        """
        Where there is room, nothing changes.
        """
        table = text_table(("a", "b"), [(1, "x" * 60)])

        assert table == fit_tables(table, 80)

    def test_very_narrow(self):
        """
        Cells are not cut below a few characters, which are too few to read.
        """
        table = text_table(("first", "second"), [("x" * 30, "y" * 30)])

        assert "------  ------" == fit_tables(table, 5).split("\n")[1]

    def test_titles_first(self):
        """
        Titles that are wider than their cells are cut before any cell.
        """
        table = text_table(
            ("group", "completed", "furthest"), [("default_pg of all", 25, 26)]
        )

        lines = fit_tables(table, 37).split("\n")

        assert [
            "group              complet…  furthest",
            "-----------------  --------  --------",
            "default_pg of all  25        26",
        ] == lines

    def test_notes_stay(self):
        """
        What stands below a table is no row of it.
        """
        table = text_table(("a", "b"), [("x" * 50, "y" * 50)])
        note = "\x1b[2m… and 1,234 more rows that are not shown here\x1b[0m"

        lines = fit_tables(f"{table}\n{note}\nmore", 30).split("\n")

        assert [note, "more"] == lines[-2:]

    def test_other_widths(self):
        """
        A table whose columns are not where they seem to be is left alone.
        """
        text = "a     b\n----  ------\nabcdefghijklm\n"

        assert text == fit_tables(text, 8)

    @given(
        st.lists(
            st.tuples(*3 * [st.text("abc-", min_size=1, max_size=40)]),
            max_size=6,
        ),
        st.integers(1, 100),
    )
    def test_never_wider(self, rows, width):
        """
        No table is wider than its terminal, if its cells can be cut so far.
        """
        table = text_table(("one", "two", "three"), rows)

        lines = fit_tables(table, width).split("\n")

        assert len(table.split("\n")) == len(lines)
        assert max(map(len, lines)) <= max(width, 3 * 6 + 4)


class TestFacts:
    def test_set_in(self):
        """
        A long fact goes on below itself, at a blank, and set in.
        """
        path = f"/a/{'long/' * 8}path.py"
        text = f"rank 3 is late: a b c d e f g\n  stack: read ← {path} ← main"

        lines = fit_facts(text, 24).split("\n")

        assert [
            "rank 3 is late: a b c d e f g",
            "  stack: read ←",
            f"    {path}",
            "    ← main",
        ] == lines

    def test_fits(self):
        """
        What fits, and what is no fact, stays as it is.
        """
        text = "  next: wait\n\n  * train (a.py:3): → a b c\n  a\n\nx: y z w"

        assert text == fit_facts(text, 14)

    @given(
        st.lists(st.text("ab :", max_size=30), max_size=5), st.integers(1, 60)
    )
    def test_same_words(self, facts, width):
        """
        No word is lost, and colors take no room.
        """
        text = "\n".join(f"  next: {fact}" for fact in facts)

        fitted = fit_facts(text, width)
        painted = fit_facts(
            text.replace("next:", "\x1b[2mnext:\x1b[0m"), width
        )

        assert text.split() == fitted.split()
        assert fitted == COLORS.sub("", painted)


def _in_terminal(*args, columns=80, **environ):
    """
    Run a command in a terminal, and return what that got.
    """
    ours, theirs = pty.openpty()
    size = struct.pack("HHHH", 24, columns, 0, 0)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    clean = {
        key: value
        for key, value in os.environ.items()
        if key not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"}
    }
    with subprocess.Popen(
        [sys.executable, "-m", "distdebug", *map(str, args)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={
            **clean,
            "TERM": "xterm",
            "PYTHONPATH": str(SOURCES),
            **environ,
        },
    ) as process:
        os.close(theirs)
        chunks = []
        while chunk := _read(ours):
            chunks.append(chunk)
    os.close(ours)
    assert process.returncode in {0, 1}
    return b"".join(chunks).decode()


def _read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end was closed
        return b""


@pytest.fixture(name="dumps")
def _dumps(tmp_path):
    """
    A job with many groups of which rank 1 is missing.
    """
    job = SimulatedJob(4)
    for i in range(30):
        job.collective(
            "all_reduce", job.new_group([0, 2, 3], f"a group of data {i}")
        )
    job.collective("all_reduce", ranks=[0, 2, 3])
    make_dumps(tmp_path / "dumps", job)
    return tmp_path / "dumps"


@pytest.mark.process
class TestInTerminal:
    def test_colors_and_progress(self, dumps):
        """
        A person sees how far it is, then the verdict in color.
        """
        output = _in_terminal("analyze", dumps)

        assert "reading dumps: 4 of 4" in output
        assert "\x1b[1;31mrank 1\x1b[0m" in output
        assert "\x1b[33mrank_not_arrived (certain)\x1b[0m" in output

    def test_without_colors(self, dumps):
        """
        Who wants none gets none.
        """
        output = _in_terminal("analyze", dumps, NO_COLOR="1")

        assert "\x1b" not in output
        assert "rank 1 never entered" in output

    def test_narrow_and_full(self, dumps):
        """
        Tables fit a narrow terminal and are folded, unless all is wanted.
        """
        narrow = _in_terminal("analyze", dumps, columns=50, NO_COLOR="1")
        full = _in_terminal("analyze", dumps, "--full", columns=50)

        rows = [
            x for x in narrow.split("\r\n") if "of data" in x or "…  " in x
        ]
        assert rows
        assert max(map(len, rows)) <= 50
        assert "… and 7 more groups" in narrow
        assert "… and" not in full
        assert "a group of data 29" in full

    def test_pipe_gets_plain_text(self, dumps):
        """
        What is not a terminal gets the text of the result, and nothing else.
        """
        done = subprocess.run(
            [sys.executable, "-m", "distdebug", "analyze", str(dumps)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
        )

        expected = str(analyze_dumps(dumps).to_diagnosis())
        assert (f"{expected}\n", "") == (done.stdout, done.stderr)
