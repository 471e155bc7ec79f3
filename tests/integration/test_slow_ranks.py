"""
Real jobs with slow ranks: DDP makes all ranks equally slow, and one is to blame.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

from pathlib import Path

import pytest

import distdebug

from distdebug.causes import Cause


pytest.importorskip("torch")
PROGRAM = Path(__file__).parent / "programs" / "slow_rank.py"


@pytest.mark.parametrize(
    ("mode", "slow"),
    [
        # 200 ms a step within the backward pass of one rank.
        ("backward", [1]),
        # 150 ms a batch in the data loader of one rank.
        ("loader", [2]),
        # Another rank every few steps.
        ("turns", []),
        # One in every step, and one in every fifth.
        ("two", [1, 3]),
    ],
)
def test_slow(mode, slow, tmp_path):
    """
    The slow ranks are named with what they cost, and no others.
    """
    job = subprocess.Popen(
        [sys.executable, PROGRAM, mode, tmp_path / "dumps"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        assert 0 == job.wait(120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()

    found = distdebug.diagnose(tmp_path / "dumps").findings

    assert slow == sorted(
        r for f in found if f.cause is Cause.STRAGGLER for r in f.ranks
    )
    assert all("% of the time (" in f.summary for f in found)
