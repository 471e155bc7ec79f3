"""
The command line as a whole.
"""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys

from pathlib import Path

import pytest

import distdebug

from distdebug import __main__ as program
from distdebug.cli import analyze, demo, diagnose, dump, env
from distdebug.errors import NoDumpsError


SOURCE = Path(distdebug.__file__).parents[1]
COMMANDS = ["analyze", "demo", "diagnose", "dump", "env"]


def run_python(code):
    """
    Run a small program that finds the package.
    """
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    ).stdout


class FullDisk(io.StringIO):
    """
    A stream that takes nothing more.
    """

    def write(self, text):
        """
        Fail as the system does.
        """
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestHelp:
    def test_overview(self, capsys):
        """
        The overview names every command and shows where to begin.
        """
        with pytest.raises(SystemExit, match="0"):
            program.main(["--help"])

        text = capsys.readouterr().out
        assert [] == [c for c in COMMANDS if f"\n    {c} " not in text]
        assert "distdebug demo" in text

    @pytest.mark.parametrize("command", COMMANDS)
    def test_commands(self, command, capsys):
        """
        Every command shows an example.
        """
        with pytest.raises(SystemExit, match="0"):
            program.main([command, "--help"])

        text = capsys.readouterr().out
        assert f"distdebug {command}" in text.partition("Example:")[2]
        assert "{prog}" not in text

    def test_no_command(self, capsys):
        """
        Without a command there is help, and nothing was looked at.
        """
        assert 2 == program.main([])
        assert "usage:" in capsys.readouterr().err

    def test_version(self, capsys, monkeypatch):
        """
        The version is that of the package.
        """
        monkeypatch.setattr(distdebug, "__version__", "1.2.3", raising=False)

        with pytest.raises(SystemExit, match="0"):
            program.main(["--version"])

        assert "distdebug 1.2.3\n" == capsys.readouterr().out

    def test_imports(self):
        """
        Help loads nothing that a command needs: no package but ours.
        """
        got = run_python(
            "import sys; from distdebug.__main__ import main\n"
            "try: main(['analyze', '--help'])\n"
            "except SystemExit: pass\n"
            "tops = {m.partition('.')[0] for m in sys.modules}\n"
            "print(*sorted(tops - set(sys.stdlib_module_names)))"
        )

        loaded = set(got.splitlines()[-1].split())
        assert not loaded & {"attrs", "numpy", "psutil", "tabulate", "torch"}

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("/x/distdebug/__main__.py", "python -m distdebug"),
            ("/x/bin/distdebug", "distdebug"),
        ],
    )
    def test_program_name(self, name, expected, monkeypatch):
        """
        Examples begin as the program was called.
        """
        monkeypatch.setattr(sys, "argv", [name])

        assert expected == program._program_name()


class TestStatus:
    @pytest.fixture
    def fails_with(self, monkeypatch):
        """
        Makes a command fail.
        """

        def prepare(error):
            def run(args):
                raise error

            monkeypatch.setattr(diagnose, "run", run)

        return prepare

    def test_known_error(self, fails_with, capsys):
        """
        What went wrong is said with its remedy, and without control codes.
        """
        fails_with(
            NoDumpsError("nothing in \x1b[2Ja", remedy="look elsewhere")
        )

        assert 2 == program.main(["diagnose", "x"])
        assert (
            "distdebug: nothing in a\nTry: look elsewhere\n"
            == capsys.readouterr().err
        )

    def test_system_error(self, fails_with, capsys):
        """
        An error of the system is no accident of ours.
        """
        fails_with(PermissionError(13, "Permission denied", "/x"))

        assert 2 == program.main(["diagnose", "x"])
        assert "Permission denied" in capsys.readouterr().err

    def test_our_error(self, fails_with, capsys):
        """
        An error of ours is not taken for a finding.
        """
        fails_with(ZeroDivisionError("oops"))

        assert 2 == program.main(["diagnose", "x"])
        assert "ZeroDivisionError: oops" in capsys.readouterr().err

    def test_interrupted(self, fails_with, capsys):
        """
        Ctrl-C ends it without a traceback.
        """
        fails_with(KeyboardInterrupt)

        assert 130 == program.main(["diagnose", "x"])
        assert "distdebug: interrupted\n" == capsys.readouterr().err

    def test_interrupted_again(self, fails_with, monkeypatch):
        """
        Who presses Ctrl-C once more gets no traceback.
        """

        def interrupt(*_lines):
            raise KeyboardInterrupt

        fails_with(KeyboardInterrupt())
        monkeypatch.setattr(program, "_complain", interrupt)

        assert 130 == program.main(["diagnose", "x"])

    def test_no_memory(self, fails_with, capsys):
        """
        Too little memory is said, and what helps.
        """
        fails_with(MemoryError())

        assert 2 == program.main(["diagnose", "x"])
        first, remedy = capsys.readouterr().err.splitlines()
        assert "distdebug: there is not enough memory" == first
        assert remedy.startswith("Try: allow more")

    def test_no_room(self, monkeypatch, capsys):
        """
        If the output has no room, it is named, and what helps.
        """
        monkeypatch.setattr(sys, "stdout", FullDisk())

        assert 2 == program.main(["--version"])
        first, remedy = capsys.readouterr().err.splitlines()
        assert first.startswith("distdebug: the output cannot be written: ")
        assert "Try: send it to a disk that has room" == remedy

    @pytest.mark.parametrize("argv", [["--version"], ["diagnose", "x"]])
    def test_full_disk(self, argv, monkeypatch):
        """
        Where nothing can be written, the status tells that we could not look.
        """
        monkeypatch.setattr(sys, "stdout", FullDisk())
        monkeypatch.setattr(sys, "stderr", FullDisk())

        assert 2 == program.main(argv)

    def test_closed_streams(self):
        """
        It works with all its streams closed, and takes no file for one.
        """
        code = (
            "import os, sys\n"
            "os.closerange(0, 3)\n"
            "sys.stdin = sys.stdout = sys.stderr = None\n"
            "from distdebug.__main__ import main\n"
            "status = main(['demo', '--list'])\n"
            "fds = [f.fileno() for f in (sys.stdin, sys.stdout, sys.stderr)]\n"
            "os._exit(status or fds != [0, 1, 2])"
        )

        assert "" == run_python(code)

    def test_nobody_reads(self):
        """
        If the reader goes away, so do we, without a word.
        """
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "wb") as closed:
            got = subprocess.run(
                [sys.executable, "-m", "distdebug", "demo", "--list"],
                stdout=closed,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                env={**os.environ, "PYTHONPATH": str(SOURCE)},
            )

        assert (141, "") == (got.returncode, got.stderr)

    def test_plain_streams(self, monkeypatch):
        """
        Streams that somebody put in place need not be files.
        """
        monkeypatch.setattr(sys, "stdout", io.StringIO())

        assert 0 == program.main(["demo", "--list"])


def test_modules():
    """
    Every command has the two functions that make it one.
    """
    for module in (analyze, demo, diagnose, dump, env):
        assert ["add_parser", "run"] == module.__all__


def test_json(capsys):
    """
    All JSON begins alike.
    """
    from distdebug.cli.output import print_json

    print_json("x", {"a": 1})

    got = json.loads(capsys.readouterr().out)
    assert ["schema", "tool", "version", "command", "a"] == list(got)
    assert (1, "distdebug", "x") == (
        got["schema"],
        got["tool"],
        got["command"],
    )
