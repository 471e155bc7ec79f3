"""
What a terminal gets that a file does not.
"""

from __future__ import annotations

import fcntl
import io
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
from distdebug._render import (
    Entries,
    Entry,
    Lines,
    Table,
    blocks_text,
    print_blocks,
)
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


class Terminal(io.StringIO):
    """
    A terminal that remembers what it shows.
    """

    def isatty(self):
        """
        It is one.
        """
        return True


@pytest.fixture
def shown(monkeypatch):
    """
    Prints blocks in a terminal that is so wide, and returns what that shows.
    """

    def show(*blocks, width=80, is_fine=False, **options):
        monkeypatch.setenv("COLUMNS", str(width))
        terminal = Terminal()
        print_blocks(blocks, terminal, is_fine=is_fine, **options)
        return terminal.getvalue()

    return show


def _entry(head, *facts):
    return Entries([Entry(head, facts)])


class TestStyles:
    def test_wrong(self, shown):
        """
        Of what is wrong, the ranks at fault stand out.
        """
        head = "rank 3 never entered all_reduce #9 (ranks 0-2 wait)"

        text = shown(_entry(head))

        assert text.startswith("\x1b[1;31mrank 3\x1b[0m\x1b[1m never")
        assert f"{head}\n" == COLORS.sub("", text)

    def test_wrong_without_ranks(self, shown):
        """
        If no rank is at fault, the whole sentence stands out.
        """
        text = shown(_entry("the disk is full", ("cause", "disk_full")))

        assert "\x1b[1;31mthe disk is full\x1b[0m\n" in text
        assert "  \x1b[2mcause:\x1b[0m \x1b[33mdisk_full\x1b[0m\n" in text

    def test_fine(self, shown):
        """
        Good news is green, and nothing in it alarms.
        """
        text = shown(_entry("all is well", ("cause", "healthy")), is_fine=True)

        assert "\x1b[1;32mall is well\x1b[0m" in text
        assert "\x1b[2mhealthy\x1b[0m" in text

    def test_markup(self, shown):
        """
        What looks like the markup of a terminal library is only text.
        """
        evil = (
            "[bold red]x[/] :warning: [link=http://x]1.5[/link] \x1b[31m\x07"
        )
        seen = evil.partition("\x1b")[0].strip()

        text = shown(
            _entry(evil, ("log", evil)),
            Lines([evil]),
            Table(["[b]a[/b]"], [[evil]]),
            evil,
        )

        assert 5 == COLORS.sub("", text).count(seen)
        assert "\x1b[31m" not in text
        assert "\x07" not in text
        assert "[b]a[/b]" in text

    @given(
        st.lists(
            st.tuples(st.sampled_from(["cause", "log"]), st.text()), max_size=3
        ),
        st.text(),
        st.booleans(),
    )
    def test_text_stays(self, facts, head, is_fine):
        """
        Colors add nothing to a text and take nothing away.
        """
        block = Entries([Entry(head, facts)])
        terminal = Terminal()

        print_blocks([block], terminal, is_fine=is_fine, full=True)

        shown = COLORS.sub("", terminal.getvalue())
        assert blocks_text([block]).split() == shown.split()


class TestTables:
    def test_cut(self, shown):
        """
        The widest cells are cut, and a table is as wide as the terminal.
        """
        table = Table(("rank", "what"), [(3, "x" * 80), (12, "short")])

        head, _, *rows = shown(table, width=40, colors=False).splitlines()

        assert ["rank", "what"] == head.split()
        assert ["3", f"{'x' * 32}…"] == rows[0].split()
        assert ["12", "short"] == rows[1].split()
        assert 40 == max(map(len, rows))

    def test_wide_terminal(self, shown):
        """
        Where there is room, or all is wanted, nothing is cut.
        """
        table = Table(("a", "b"), [(1, "x" * 60)])

        assert "x" * 60 in shown(table)
        assert "x" * 60 in shown(table, width=20, full=True)

    def test_notes_stay(self, shown):
        """
        What stands below a table is no row of it.
        """
        rows = [("x" * 50, "y" * 50), ("z", "z")]
        table = Table(("a", "b"), rows, most=1, more="that are not shown here")

        text = shown(table, "more", width=30)

        assert "\x1b[2m… and 1 more that are not shown here\x1b[0m" in text
        assert text.endswith("\n\nmore\n")

    @given(
        st.lists(
            st.tuples(*3 * [st.text("abc-", min_size=1, max_size=40)]),
            max_size=6,
        ),
        st.integers(20, 100),
    )
    def test_never_wider(self, rows, width):
        """
        No table is wider than its terminal.
        """
        terminal = Terminal()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", str(width))
            print_blocks(
                [Table(("one", "two", "three"), rows)],
                terminal,
                is_fine=True,
                colors=False,
            )

        lines = terminal.getvalue().splitlines()
        assert len(rows) + 2 == len(lines)
        assert max(map(len, lines)) <= width


class TestFacts:
    def test_set_in(self, shown):
        """
        A long fact goes on below itself, at a blank, and set in.
        """
        path = f"/a/{'long/' * 8}path.py"
        fact = ("stack", f"read → {path} → main")

        text = shown(_entry("x" * 40, fact), width=24, colors=False)

        assert [
            "x" * 40,
            "  stack: read →",
            f"    {path}",
            "    → main",
        ] == text.splitlines()

    @pytest.mark.parametrize(
        ("kind", "expected"),
        [
            ("stack", "  stack: rank 1: … → load"),
            ("dump", "  dump: rank 1: main → r…"),
        ],
    )
    def test_cut(self, shown, kind, expected):
        """
        Evidence has one line; of a stack, that shows its last frames.
        """
        quotes = [(kind, "rank 1", "main → run → step → load")]
        block = Entries([Entry("stuck", quotes=quotes)])

        text = shown(block, width=25, colors=False)

        assert ["stuck", expected] == text.splitlines()

    def test_fits(self, shown):
        """
        What fits, and what is no fact, stays as it is.
        """
        lines = Lines(
            ["  * train (a.py:3): → a b c", "", "  x: y z w u v s t"]
        )

        text = shown(
            _entry("stuck", ("next", "wait")), lines, width=14, colors=False
        )

        assert blocks_text([_entry("stuck", ("next", "wait")), lines]) == (
            text.removesuffix("\n")
        )

    @given(
        st.lists(st.text("ab :", max_size=30), max_size=5), st.integers(5, 60)
    )
    def test_same_words(self, facts, width):
        """
        No word is lost, and no line is too long unless a word is.
        """
        block = _entry("head", *(("next", fact) for fact in facts))
        terminal = Terminal()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", str(width))
            print_blocks([block], terminal, is_fine=True)

        lines = COLORS.sub("", terminal.getvalue()).splitlines()
        assert blocks_text([block]).split() == " ".join(lines).split()
        assert all(len(x) <= width or len(x.split()) == 1 for x in lines)


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

        assert re.search(r"reading dumps: .* 4 of 4", COLORS.sub("", output))
        assert "\x1b[1;31mrank 1\x1b[0m" in output
        assert "\x1b[33mrank_not_arrived (certain)\x1b[0m" in output

    def test_without_colors(self, dumps):
        """
        Who wants none gets none, and no text in bold either.
        """
        output = _in_terminal("analyze", dumps, NO_COLOR="1")

        assert not COLORS.search(output)
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
