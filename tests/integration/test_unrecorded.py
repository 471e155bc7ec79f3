"""
Jobs that hang in calls which no dump shows, because Gloo records none of them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

from pathlib import Path

import pytest

import distdebug

from distdebug import Cause, diagnose, snapshot


pytest.importorskip("torch.distributed")

SOURCE = Path(distdebug.__file__).parents[1]
PROGRAM = Path(__file__).parent / "programs" / "unrecorded_rank.py"
ENVIRON = {
    **os.environ,
    "PYTHONPATH": str(SOURCE),
    "OMP_NUM_THREADS": "1",
    "WORLD_SIZE": "4",
}
# A shorter silence would not be told from a slow step.
SILENT_S = 7


@pytest.fixture
def hang(tmp_path):
    """
    Starts such a job, and gives what one look and its snapshot tell of it.
    """

    def hang(call):
        dumps = tmp_path / "dumps"
        argv = [sys.executable, PROGRAM, call, dumps, tmp_path / "store"]
        with contextlib.ExitStack() as stack:
            ranks = []
            for rank in range(4):
                environ = {**ENVIRON, "RANK": str(rank)}
                process = subprocess.Popen(
                    argv, stdout=subprocess.PIPE, text=True, env=environ
                )
                ranks.append(stack.enter_context(process))
                stack.callback(process.kill)
            for process in ranks:
                assert "ready\n" == process.stdout.readline()
            time.sleep(SILENT_S)
            taken = snapshot(
                tmp_path / "hang",
                dump_dir=dumps,
                pids=[p.pid for p in ranks],
            )
        return taken.diagnosis, diagnose(taken.folder)

    return hang


@pytest.mark.parametrize("call", ["monitored_barrier", "recv", "irecv"])
def test_unrecorded(hang, call):
    """
    The rank that does not come is named, and its line, by one snapshot.
    """
    for found in hang(call):
        assert (Cause.QUEUE_WAIT, (3,)) == (
            found.verdict.cause,
            found.verdict.ranks,
        )
        assert "fetch" == found.verdict.location.function
        assert (0, 1, 2) == found.victims


def test_own_lock(hang):
    """
    If all ranks hang on their own, their line is told, though nobody waits
    for anybody.
    """
    for found in hang("lock"):
        assert (Cause.LOCK_DEADLOCK, (0, 1, 2, 3)) == (
            found.verdict.cause,
            found.verdict.ranks,
        )
        assert "count" == found.verdict.location.function


@pytest.mark.smoke
def test_lock(hang):
    """
    Who waits for others that want the lock which it holds is at fault.
    """
    for found in hang("flock"):
        assert (Cause.LOCK_DEADLOCK, (3,)) == (
            found.verdict.cause,
            found.verdict.ranks,
        )
        assert "refresh" == found.verdict.location.function
        assert (0, 1, 2) == found.victims
