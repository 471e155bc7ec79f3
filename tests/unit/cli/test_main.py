"""
The command line as a whole.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys

from pathlib import Path

import pytest

import distdebug

from distdebug.__main__ import main
from distdebug.errors import NoDumpsError
from distdebug.testing import SimulatedJob, make_dumps


SOURCE = Path(distdebug.__file__).parents[1]


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
    def test_commands(self, capsys):
        """
        The overview names every command, and each shows an example.
        """
        with pytest.raises(SystemExit, match="0"):
            main(["--help"])
        overview = capsys.readouterr().out
        commands = re.findall(r"^    ([a-z-]+)  ", overview, re.MULTILINE)

        for command in commands:
            with pytest.raises(SystemExit, match="0"):
                main([command, "--help"])
            text = capsys.readouterr().out
            assert f"distdebug {command}" in text.partition("Example:")[2]
            assert "{prog}" not in text

        assert {"analyze", "demo", "diagnose", "dump", "env"} < set(commands)
        assert len(commands) > 12
        assert "distdebug demo" in overview

    def test_no_command(self, capsys):
        """
        Without a command there is help, and nothing was looked at.
        """
        assert 2 == main([])
        assert "usage:" in capsys.readouterr().err

    @pytest.mark.parametrize("option", ["-V", "--version"])
    def test_version(self, capsys, option):
        """
        The version is that of the package.
        """
        with pytest.raises(SystemExit, match="0"):
            main([option])

        told = f"distdebug {distdebug.__version__}\n"
        assert told == capsys.readouterr().out

    @pytest.mark.process
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
        assert not loaded & {
            *(
                "attrs",
                "numpy",
                "psutil",
                "rich",
                "shtab",
                "tabulate",
                "torch",
            ),
        }

    @pytest.mark.process
    def test_imports_of_few_dumps(self, tmp_path):
        """
        A few dumps load nothing that only other evidence or output needs.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0, 1, 3])
        make_dumps(tmp_path, job)

        got = run_python(
            "import sys; from distdebug.__main__ import main\n"
            f"status = main(['diagnose', {str(tmp_path)!r}])\n"
            "print(status, *sorted(sys.modules))"
        )

        status, *loaded = got.splitlines()[-1].split()
        assert "1" == status
        packages = {m.partition(".")[0] for m in loaded}
        assert not packages & {
            *("asyncio", "jinja2", "multiprocessing", "psutil", "rich"),
            "torch",
        }
        rooms = {
            m.split(".")[1]
            for m in loaded
            if m.count(".") > 1 and m.startswith("distdebug.")
        }
        assert not rooms & {
            *("capture", "debugger", "health", "nsight", "report"),
            *("snapshots", "watching"),
        }
        assert not {*loaded} & {
            "distdebug._anonymize",
            "distdebug.ray.deaths",
        }

    @pytest.mark.process
    def test_imports_of_stacks(self):
        """
        What captures stacks and explains them needs no numpy.
        """
        got = run_python(
            "import sys; from distdebug import capture_node, explain_stacks\n"
            "print(*sys.modules)"
        )

        loaded = set(got.split())
        assert {"distdebug.capture.node", "distdebug.stacks.parse"} < loaded
        assert not loaded & {"numpy", "psutil", "rich", "torch"}

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("/x/distdebug/__main__.py", "python -m distdebug"),
            ("/x/bin/distdebug", "distdebug"),
        ],
    )
    def test_program_name(self, name, expected, monkeypatch, capsys):
        """
        Examples begin as the program was called.
        """
        monkeypatch.setattr(sys, "argv", [name])

        with pytest.raises(SystemExit, match="0"):
            main(["env", "--help"])

        text = capsys.readouterr().out
        assert f'eval "$({expected} env ' in text


class TestBadInput:
    @pytest.mark.parametrize(
        ("argv", "told"),
        [
            (
                ["diagnos", "x"],
                "no such choice: diagnos; did you mean diagnose?",
            ),
            (["nsight", "ptch"], "did you mean patch?"),
            (["completion", "nu"], "choose from bash, zsh, fish, tcsh"),
            (["diagnose", "x", "--jsno"], "--jsno; did you mean --json?"),
            (["diagnose", "x", "--jsno=1"], "did you mean --json?"),
            (["diagnose", "x", "--\x1b[1mqqqq"], "unrecognized arguments: --"),
            (["env", "--torch", "banana"], "invalid version of torch"),
            (
                ["health", "--folder", "/nowhere"],
                "there is no folder /nowhere",
            ),
            (
                ["health", "--ray", "/nowhere"],
                "there is no folder /nowhere",
            ),
        ],
    )
    def test_arguments(self, capsys, argv, told):
        """
        The last line says what is wrong, and what was probably meant.
        """
        with pytest.raises(SystemExit, match="2"):
            main(argv)

        *usage, error = capsys.readouterr().err.splitlines()
        assert told in error
        assert error.isprintable()
        assert usage[0].startswith("usage: ")

    @pytest.mark.parametrize("text", ["", "hello\n" * 9])
    def test_no_phase(self, capsys, tmp_path, text):
        """
        A log with nothing in it is no evidence that all is well.
        """
        log = tmp_path / "a.log"
        log.write_text(text)

        assert 2 == main(["phase", str(log)])

        assert f"no phase of a known framework in {log}" in (
            capsys.readouterr().err
        )


class TestCompletion:
    @pytest.mark.process
    def test_bash(self, capsys, tmp_path):
        """
        A shell completes commands, options, choices, and folders.
        """
        main(["completion", "bash"])
        script = capsys.readouterr().out + (
            "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
            "$(complete -p distdebug | sed 's/.*-F \\([^ ]*\\).*/\\1/') "
            "distdebug \"${COMP_WORDS[$COMP_CWORD]}\" ''\n"
            'echo "${COMPREPLY[@]}"\n'
        )

        def completed(*words):
            argv = " ".join(f"'{word}'" for word in ("distdebug", *words))
            done = subprocess.run(
                ["bash", "-c", f"COMP_WORDS=({argv})\n{script}"],
                capture_output=True,
                text=True,
                timeout=60,
                cwd=tmp_path,
            )
            assert not done.stderr
            return done.stdout.split()

        (tmp_path / "dumps").mkdir()
        assert {"dump", "dbg", "demo", "diagnose"} == set(completed("d"))
        assert ["--full"] == completed("diagnose", "--f")
        assert ["launch-json"] == completed("ray-debugger", "l")
        assert ["dumps"] == completed("diagnose", "du")
        assert {"reports", "revert"} == set(completed("nsight", "re"))

    @pytest.mark.process
    @pytest.mark.skipif(not shutil.which("fish"), reason="fish is missing")
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("d", {"dump", "dbg", "demo", "diagnose"}),
            ("diagnose --ful", {"--full"}),
            ("nsight re", {"reports", "revert"}),
        ],
    )
    def test_fish(self, capsys, tmp_path, line, expected):
        """
        So does fish.
        """
        main(["completion", "fish"])
        script = tmp_path / "distdebug.fish"
        script.write_text(capsys.readouterr().out)
        command = f"source {script}; complete -C 'distdebug {line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", command],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
        )

        assert not done.stderr
        assert expected == {x.split()[0] for x in done.stdout.splitlines()}

    @pytest.mark.parametrize("shell", ["zsh", "tcsh"])
    def test_others(self, shell, capsys):
        """
        Other shells are served, too.
        """
        assert 0 == main(["completion", shell])
        assert "diagnose" in capsys.readouterr().out


class TestStatus:
    @pytest.fixture
    def fails_with(self, monkeypatch):
        """
        Makes a command fail, whatever it is that no one can bring about.
        """

        def prepare(error):
            def fail(*_, **__):
                raise error

            monkeypatch.setattr(distdebug, "diagnose", fail, raising=False)

        return prepare

    @pytest.mark.parametrize(
        ("error", "status", "told"),
        [
            (
                NoDumpsError("nothing in \x1b[2Ja", remedy="look elsewhere"),
                2,
                "distdebug: nothing in a\nTry: look elsewhere\n",
            ),
            (
                PermissionError(13, "Permission denied", "/x"),
                2,
                "distdebug: [Errno 13] Permission denied: '/x'\n",
            ),
            (KeyboardInterrupt(), 130, "distdebug: interrupted\n"),
            (
                MemoryError(),
                2,
                (
                    "distdebug: there is not enough memory\nTry: allow more "
                    "(ulimit -v), or ask for fewer ranks or files\n"
                ),
            ),
        ],
        ids=["known", "system", "interrupted", "memory"],
    )
    def test_errors(self, fails_with, capsys, error, status, told):
        """
        What went wrong is said with its remedy, without a traceback and
        without control codes.
        """
        fails_with(error)

        assert status == main(["diagnose", "x"])
        assert told == capsys.readouterr().err

    def test_our_error(self, fails_with, capsys):
        """
        An error of ours is not taken for a finding.
        """
        fails_with(ZeroDivisionError("oops"))

        assert 2 == main(["diagnose", "x"])
        assert "ZeroDivisionError: oops" in capsys.readouterr().err

    def test_interrupted_again(self, fails_with, monkeypatch):
        """
        Who presses Ctrl-C once more gets no traceback.
        """

        class Impatient(io.StringIO):
            def write(self, text):
                raise KeyboardInterrupt

        fails_with(KeyboardInterrupt())
        monkeypatch.setattr(sys, "stderr", Impatient())

        assert 130 == main(["diagnose", "x"])

    def test_no_room(self, monkeypatch, capsys):
        """
        If the output has no room, it is named, and what helps.
        """
        monkeypatch.setattr(sys, "stdout", FullDisk())

        assert 2 == main(["--version"])
        first, remedy = capsys.readouterr().err.splitlines()
        assert first.startswith("distdebug: the output cannot be written: ")
        assert "Try: send it to a disk that has room" == remedy

    @pytest.mark.parametrize("argv", [["--version"], ["diagnose", "x"]])
    def test_full_disk(self, argv, monkeypatch):
        """
        Where nothing can be written, the status says that we could not look.
        """
        monkeypatch.setattr(sys, "stdout", FullDisk())
        monkeypatch.setattr(sys, "stderr", FullDisk())

        assert 2 == main(argv)

    @pytest.mark.process
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

    @pytest.mark.process
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
        Streams that were put in place need not be files.
        """
        monkeypatch.setattr(sys, "stdout", io.StringIO())

        assert 0 == main(["demo", "--list"])


def test_json(capsys):
    """
    All JSON begins alike.
    """
    main(["nsight", "match", "x", "--json"])

    got = json.loads(capsys.readouterr().out)
    head = ["schema", "tool", "version", "command"]
    assert head == list(got)[:4]
    assert [1, "distdebug", distdebug.__version__, "nsight match"] == [
        got[name] for name in head
    ]
