"""
A healthy job under everything of ours, for a short while.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from pathlib import Path

import pytest


PROGRAM = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_soak():
    """
    A job stays as it is while it is recorded, watched, debugged, and looked
    at, and leaves nothing behind.
    """
    pytest.importorskip("torch.distributed.run")
    if shutil.which("py-spy") is None:
        pytest.skip("py-spy is not installed")

    short = ("--minutes", "0.1", "--ranks", "2", "--steps", "20")
    ended = subprocess.run(
        [sys.executable, PROGRAM, *short],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
    )

    assert 0 == ended.returncode, ended.stdout
