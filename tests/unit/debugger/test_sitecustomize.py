"""
What happens when Python starts in an environment made for the debugger.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys

from pathlib import Path

import pytest

import distdebug

from distdebug import identity
from distdebug.debugger import disarm, job_environment


pytestmark = pytest.mark.process


SOURCE = Path(distdebug.__file__).parents[1]
ON_PATH = Path(job_environment({})["PYTHONPATH"])
SHOW = (
    "import sys, threading; print(len(threading.enumerate()), sys.gettrace())"
)


@pytest.fixture
def python(tmp_path, monkeypatch):
    """
    Runs a program where only variables are set; gives what it printed.
    """

    def run(program, *options, interpreter=sys.executable, **environ):
        base = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(
                ("DISTDEBUG", "RANK", "WORLD_SIZE", "SLURM_", "PYTHON")
            )
        }
        got = subprocess.run(
            [interpreter, *options, "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            env={
                **base,
                "PYTHONPATH": f"{ON_PATH}{os.pathsep}{SOURCE}",
                "DISTDEBUG_DIR": str(tmp_path / "s"),
                **environ,
            },
        )
        assert 0 == got.returncode, got.stderr
        return got.stdout.strip(), got.stderr

    return run


def test_rank(python, tmp_path):
    """
    A rank is armed before its first line, and its breakpoints are taken.
    """
    program = (
        "import os, sys; print(os.listdir(os.environ['DISTDEBUG_DIR'])[0][:2],"
        " sys.breakpointhook.__module__, 'on_path' in str(sys.path))"
    )

    printed, errors = python(
        program,
        DISTDEBUG="1",
        RANK="3",
        PYTHONBREAKPOINT="distdebug.debugger.set_trace",
    )

    assert "3. distdebug.debugger.inside.arming False" == printed
    assert "" == errors


@pytest.mark.parametrize(
    "environ",
    [
        {"DISTDEBUG": "1"},
        {"DISTDEBUG": "0", "RANK": "3"},
        {"DISTDEBUG": "", "RANK": "3"},
        {"RANK": "3"},
        {"DISTDEBUG": "1", "RANK": ""},
    ],
    ids=["no rank", "switched off", "empty", "not wanted", "empty rank"],
)
def test_nothing(python, tmp_path, environ):
    """
    Where it is not wanted, nothing is loaded, and the process does not listen.
    """
    program = "import sys; print(sorted(set(sys.modules) - {'sitecustomize'}))"

    with_us = python(program, **environ)
    without = python(program, PYTHONPATH=str(SOURCE), **environ)

    assert without == with_us
    assert ("1 None", "") == python(SHOW, **environ)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("option", ["-S", "-I", "-E"])
def test_isolated(python, option):
    """
    A Python that shall not look at its environment does not.
    """
    assert ("1 None", "") == python(SHOW, option, DISTDEBUG="1", RANK="3")


@pytest.mark.parametrize("rank", ["", "3"], ids=["no rank", "a rank"])
def test_another_one(python, tmp_path, rank):
    """
    Another module of that name runs as it would have run without us.
    """
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import sys\nsys.mine = 42\n")
    program = (
        "import sys, sitecustomize; print(sys.mine, sitecustomize.__file__)"
    )

    printed, errors = python(
        program,
        DISTDEBUG="1",
        RANK=rank,
        PYTHONPATH=os.pathsep.join(map(str, (ON_PATH, other, SOURCE))),
    )

    assert f"42 {other / 'sitecustomize.py'}" == printed
    assert "" == errors


@pytest.mark.parametrize(
    "text",
    ["import no_such_module", "raise ImportError", "1 / 0"],
    ids=["import", "bare", "other"],
)
def test_another_one_that_fails(python, tmp_path, text):
    """
    If the other one fails, Python says so, and the rank is armed.
    """
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(text)

    printed, _ = python(
        SHOW,
        DISTDEBUG="1",
        RANK="3",
        PYTHONPATH=os.pathsep.join(map(str, (ON_PATH, other, SOURCE))),
    )

    assert "2 None" == printed


@pytest.mark.parametrize(
    ("name", "error"),
    [("s", "others may enter it"), ("file/s", "Not a directory")],
    ids=["open", "no folder"],
)
def test_unsafe_folder(python, tmp_path, name, error):
    """
    Where the folder is not safe, the process starts, and says why not.
    """
    (tmp_path / "s").mkdir(mode=0o755)
    (tmp_path / "file").touch()

    printed, errors = python(
        SHOW, DISTDEBUG="1", RANK="3", DISTDEBUG_DIR=str(tmp_path / name)
    )

    assert "1 None" == printed
    assert "cannot be debugged" in errors
    assert error in errors


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("raise ImportError('broken')", "ImportError('broken')"),
        ("import sys; sys.exit(5)", "SystemExit(5)"),
        ("this is no Python", "SyntaxError("),
    ],
    ids=["import", "exit", "syntax"],
)
def test_broken_installation(python, tmp_path, text, error):
    """
    So does it where our package cannot be loaded, also at a breakpoint.
    """
    broken = tmp_path / "broken" / "distdebug"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text(text)

    printed, errors = python(
        f"breakpoint(); {SHOW}",
        DISTDEBUG="1",
        PYTHONBREAKPOINT="distdebug.debugger.set_trace",
        RANK="3",
        PYTHONPATH=f"{ON_PATH}{os.pathsep}{broken.parent}",
    )

    assert "1 None" == printed
    assert f"distdebug: cannot be debugged: {error}" in errors


@pytest.mark.skipif(
    sys.prefix == sys.base_prefix, reason="there is one Python only"
)
def test_not_installed(python):
    """
    A Python for which we are not installed finds us beside the module.
    """
    interpreter = Path(sys.base_prefix) / "bin" / "python3"
    if not interpreter.exists():
        pytest.skip("the other Python is elsewhere")

    printed, errors = python(
        f"{SHOW}; print({str(SOURCE)!r} in sys.path)",
        interpreter=interpreter,
        DISTDEBUG="1",
        RANK="3",
        PYTHONPATH=str(ON_PATH),
    )

    assert ("2 None\nFalse", "") == (printed, errors)


def test_children(python):
    """
    A process that a rank starts is not the rank, unless its number is another.
    """
    program = (
        "import os, subprocess, sys\n"
        f"show = [sys.executable, '-c', {SHOW!r}]\n"
        "subprocess.run(show)\n"
        "subprocess.run(show, env={**os.environ, 'RANK': '4'})\n"
        "sys.stdout.flush()\n"
        "os.execv(sys.executable, show)\n"
    )

    printed, _ = python(program, DISTDEBUG="1", RANK="3")

    assert ["1 None", "2 None", "2 None"] == printed.split("\n")


@pytest.mark.parametrize(
    ("line", "is_rank"),
    [
        ("python train.py", True),
        ("python -u -X dev -m train", True),
        ("python -c torchrun", True),
        ("python -W error /usr/bin/torchrun a.py", False),
        ("python -m torch.distributed.run a.py", False),
        ("python -m torch.distributed.runner", True),
        ("python -m distdebug dbg", False),
        ("python", True),
    ],
)
def test_launchers(folder, monkeypatch, line, is_rank):
    """
    A launcher under Slurm has the number of a rank, and is none; torchrun
    itself starts its ranks in whatever way it likes.
    """
    for rule in identity.LAUNCHER_RULES:
        monkeypatch.delenv(rule.rank, raising=False)
    monkeypatch.setenv("DISTDEBUG", "1")
    monkeypatch.setenv("DISTDEBUG_ARMED", "")
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setattr(sys, "orig_argv", line.split())
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)

    def is_armed():
        disarm()
        runpy.run_path(str(ON_PATH / "sitecustomize.py"))
        return any(folder.glob("0.*.sock"))

    assert is_rank == is_armed()
    monkeypatch.setenv("RANK", "0")
    assert is_armed()


def test_worker_of_ray(python, tmp_path):
    """
    A worker of Ray is armed, though it does not know its rank yet.
    """
    script = tmp_path / "default_worker.py"
    script.write_text(f"{SHOW}\nimport os; print(os.listdir(sys.argv[1])[0])")
    program = (
        "import os, sys; os.execv(sys.executable, "
        f"[sys.executable, {str(script)!r}, os.environ['DISTDEBUG_DIR']])"
    )

    printed, _ = python(program, DISTDEBUG="1")

    assert printed.startswith("2 None\nx.")


def test_same_variables():
    """
    The variables that make a rank are the same here and in the package.
    """
    text = (ON_PATH / "sitecustomize.py").read_text()

    for rule in identity.LAUNCHER_RULES:
        assert f'"{rule.rank}",' in text


def test_variables(monkeypatch):
    """
    What else is in the environment stays there.
    """
    monkeypatch.setenv("PYTHONPATH", "/mine")

    once = job_environment()
    twice = job_environment(once)

    assert f"{ON_PATH}{os.pathsep}/mine" == once["PYTHONPATH"]
    assert once == twice
