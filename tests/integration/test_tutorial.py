"""
What the tutorial tells people to type does what it says.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from pathlib import Path

import pytest


TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "index.md"


def run(*argv, cwd, timeout_s):
    """
    Run a program to its end; it must have one.
    """
    return subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """
    A folder in which the program of the tutorial has run, and failed.
    """
    pytest.importorskip("torch.distributed")
    folder = tmp_path_factory.mktemp("tutorial")
    (program,) = re.findall(
        r"as `crash\.py`.*?```python\n(.*?)```",
        TUTORIAL.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    (folder / "crash.py").write_text(program, encoding="utf-8")
    torchrun = ("-m", "torch.distributed.run", "--standalone")

    job = run(
        *torchrun,
        "--nproc-per-node",
        "2",
        "crash.py",
        cwd=folder,
        timeout_s=120,
    )

    assert job.returncode, "it was to fail"
    return folder


def test_crash(folder):
    """
    The extra call of rank 0 is found, although rank 1 is the one that dies.
    """
    got = run(
        *("-m", "distdebug", "diagnose", "dumps", "--json"),
        cwd=folder,
        timeout_s=60,
    )

    verdict = json.loads(got.stdout)["verdict"]
    assert 1 == got.returncode
    assert ("extra_collective", [0]) == (verdict["cause"], verdict["ranks"])
    assert {"op": "all_reduce", "seq": 3, "p2p": False} == verdict[
        "collective"
    ]
    assert 21 == verdict["location"]["line"]
    assert "likely" == verdict["confidence"]


def test_text(folder):
    """
    The first lines are those that the tutorial shows.
    """
    got = run("-m", "distdebug", "diagnose", "dumps", cwd=folder, timeout_s=60)

    lines = got.stdout.splitlines()
    shown = TUTORIAL.read_text(encoding="utf-8").splitlines()
    assert set(lines[:2]) <= set(shown)


def test_entries(folder):
    """
    Every call of a rank can be listed, with where it was made.
    """
    got = run(
        *("-m", "distdebug", "analyze", "dumps"),
        *("--entries", "--ranks", "0", "--stack-traces"),
        cwd=folder,
        timeout_s=60,
    )

    assert 0 == got.returncode
    assert "gloo:all_reduce #3" in got.stdout
    assert "crash.py:21" in got.stdout
