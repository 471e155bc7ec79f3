"""
Jobs that fail in truth, and what their logs tell.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

from pathlib import Path

import pytest

from distdebug.causes import Cause
from distdebug.logs import scan_logs


PROGRAM = Path(__file__).with_name("programs") / "fail_rank.py"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def run_job(how, folder, *options):
    """
    Run a job of two ranks with torchrun; its exit status.
    """
    with (folder / "torchrun.log").open("wb") as log:
        return subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run"),
                *("--standalone", "--nproc-per-node=2", *options),
                *(PROGRAM, how, folder),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=200,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ).returncode


# What rank 1 does, the cause, and what the first finding says of it.
FAILURES = {
    "raise": (Cause.RANK_CRASHED, "ValueError: batch 17 is empty"),
    "chain": (Cause.RANK_CRASHED, "RuntimeError: no data"),
    "segfault": (Cause.NATIVE_CRASH, "segmentation fault"),
    "abort": (Cause.NATIVE_CRASH, "aborted"),
    "kill": (Cause.KILLED, "SIGKILL"),
    "memory": (Cause.HOST_OUT_OF_MEMORY, "ran out of memory"),
    "disk": (Cause.DISK_FULL, "No space left on device"),
    "files": (Cause.NODE_MISCONFIGURED, "Too many open files"),
    "module": (Cause.NODE_MISCONFIGURED, "no_such_module_anywhere"),
    "loader": (Cause.RANK_CRASHED, "ValueError: bad row"),
    "loader-kill": (Cause.KILLED, "DataLoader worker"),
    "checkpoint": (Cause.RANK_CRASHED, "PytorchStreamReader failed"),
    "state": (Cause.RANK_CRASHED, "Error(s) in loading state_dict"),
}


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(how, marks=pytest.mark.smoke if how == "kill" else ())
        for how in FAILURES
    ],
)
def test_first_cause(tmp_path, how):
    """
    The first finding tells what rank 1 died of.
    """
    cause, words = FAILURES[how]

    assert 0 != run_job(how, tmp_path)
    report = scan_logs(tmp_path)
    first = report.findings[0]

    assert cause == first.cause, report
    assert words in first.summary
    assert (1,) == first.ranks, report


@pytest.mark.parametrize("how", ["raise", "kill", "segfault"])
def test_folders(tmp_path, how):
    """
    So do the folders in which torchrun keeps what each rank printed.
    """
    cause, _words = FAILURES[how]
    logs = tmp_path / "logs"

    assert 0 != run_job(how, tmp_path, "--log-dir", logs, "--redirects=3")
    report = scan_logs([logs, tmp_path / "torchrun.log"])

    assert cause == report.findings[0].cause, report
    assert (1,) == report.findings[0].ranks


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_tee(tmp_path, how):
    """
    So does what torchrun prints with a prefix for each rank.
    """
    cause, _ = FAILURES[how]

    assert 0 != run_job(how, tmp_path, "--tee=3", "--log-dir", tmp_path / "x")
    report = scan_logs(tmp_path / "torchrun.log")

    assert cause == report.findings[0].cause, report
    assert (1,) == report.findings[0].ranks


def test_late(tmp_path):
    """
    Ranks that wait for a late one until time is up do not bear the blame.
    """
    assert 0 != run_job("late", tmp_path)
    report = scan_logs(tmp_path)

    assert Cause.COLLECTIVE_TIMEOUT == report.findings[0].cause, report


def test_nan(tmp_path):
    """
    A loss that is not a number is found, also in a job that ends well.
    """
    assert 0 == run_job("nan", tmp_path)
    (finding,) = scan_logs(tmp_path).findings

    assert Cause.LOSS_NOT_FINITE == finding.cause
    assert "step: 3 loss: nan" in finding.evidence[0].quote


def test_healthy(tmp_path):
    """
    Nothing is found in the log of a job that ends well.
    """
    assert 0 == run_job("nothing", tmp_path)
    report = scan_logs(tmp_path)

    assert () == report.findings, report
