"""
Logs of real jobs that die, with their dumps and without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from pathlib import Path

import pytest

from distdebug import diagnose
from distdebug.causes import Cause


PROGRAM = Path(__file__).parent / "programs" / "dying_rank.py"
CAUSES = {
    "raise": Cause.RANK_CRASHED,
    "segfault": Cause.NATIVE_CRASH,
    "kill": Cause.KILLED,
}


@pytest.fixture(scope="module", params=CAUSES, name="job")
def _job(request, tmp_path_factory):
    """
    The folder of a job whose rank 1 died: dumps, and the log of the launcher.
    """
    pytest.importorskip("torch.distributed")
    folder = tmp_path_factory.mktemp(request.param)
    argv = [
        *(sys.executable, "-X", "faulthandler", "-m"),
        *("torch.distributed.run", "--standalone", "--nproc-per-node", "3"),
        *(str(PROGRAM), request.param, str(folder / "dumps")),
    ]
    environ = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    with (folder / "train.log").open("wb") as log:
        done = subprocess.run(
            argv, stdout=log, stderr=log, timeout=120, env=environ
        )
    assert done.returncode, "it was to fail"
    return request.param, folder


def test_log_alone(job):
    """
    The log tells which rank died first, and of what.
    """
    how, folder = job

    verdict = diagnose(folder / "train.log").verdict

    assert (CAUSES[how], (1,)) == (verdict.cause, verdict.ranks)


def test_with_dumps(job):
    """
    The dumps tell who is waited for, the log what became of it.
    """
    how, folder = job

    verdict = diagnose(folder).verdict

    assert (1,) == verdict.ranks
    assert Cause.RANK_CRASHED is verdict.cause
    assert how == "raise" or verdict.detail_cause is CAUSES[how]
    assert verdict.collective.seq == 3


def test_copied_apart(job, tmp_path):
    """
    It does not matter where the log lies.
    """
    how, folder = job
    pipes = shutil.ignore_patterns("*.pipe")
    shutil.copytree(folder / "dumps", tmp_path / "dumps", ignore=pipes)
    shutil.copy(folder / "train.log", tmp_path / "out")

    verdict = diagnose(tmp_path / "dumps", tmp_path / "out").verdict

    assert (1,) == verdict.ranks
    assert how == "raise" or verdict.detail_cause is CAUSES[how]
