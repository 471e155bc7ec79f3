"""
Real jobs with slow ranks: DDP makes all ranks equally slow, and one is to blame.
"""

from __future__ import annotations

import os
import subprocess
import sys

from pathlib import Path

import pytest

from tests.integration.living import free_ports

import distdebug

from distdebug.causes import Cause


pytest.importorskip("torch")
PROGRAM = Path(__file__).parent / "programs" / "slow_rank.py"
RANKS = 4


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
    (port,) = free_ports(1)
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, mode, tmp_path / "dumps"],
            env={
                **os.environ,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
            },
        )
        for rank in range(RANKS)
    ]
    try:
        assert [0] * RANKS == [rank.wait(120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()

    found = distdebug.diagnose(tmp_path / "dumps").findings

    assert slow == sorted(
        r for f in found if f.cause is Cause.STRAGGLER for r in f.ranks
    )
    assert all("% of the time (" in f.summary for f in found)
