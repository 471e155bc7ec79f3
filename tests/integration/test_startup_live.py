"""
A job whose log grows: the phase is told at each moment.

The job says by a pipe that it has written, and waits until it may go on.
"""

from __future__ import annotations

import subprocess
import sys
import time

from pathlib import Path

import pytest

from distdebug.logs import detect_phase


PROGRAM = Path(__file__).with_name("programs") / "starting_job.py"
EXPECTED = {
    "configured": "config_dataset",
    "placed": "placement",
    "mooncake": "mooncake",
    "loading": "engine_init",
    "loaded": "engine_init",
    "wired": "queues",
    "training": "training",
    "completed": "training",
}


@pytest.fixture
def job(tmp_path):
    """
    A job that writes a log, one moment after the other.
    """
    process = subprocess.Popen(
        [sys.executable, "-u", str(PROGRAM), str(tmp_path / "job.log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_growing_log(job, tmp_path):
    """
    The phase, its progress, and the verdict follow the log as it grows.
    """
    log = tmp_path / "job.log"
    reports = {}

    for moment in job.stdout:
        reports[moment.strip()] = detect_phase(log, now=time.time())
        job.stdin.write("go on\n")
        job.stdin.flush()

    assert EXPECTED == {
        moment: report.current.name for moment, report in reports.items()
    }
    assert {"torchspec"} == {report.framework for report in reports.values()}
    assert 40 == int(reports["loading"].percent)
    assert 100 == int(reports["loaded"].percent)
    assert "now KV cache and graph capture" in reports["loaded"].verdict
    assert 30 == reports["training"].progress.done
    assert reports["training"].left_s is not None
    assert "completed" == reports["completed"].ended
    assert all(report.is_normal for report in reports.values())
    assert all(() == report.findings for report in reports.values())


def test_silent_job(job, tmp_path):
    """
    A job that stops writing is normal at first, and later is not.
    """
    log = tmp_path / "job.log"
    for moment in job.stdout:
        if moment.strip() == "loaded":
            break
        job.stdin.write("go on\n")
        job.stdin.flush()

    soon = detect_phase(log, now=time.time() + 180)
    late = detect_phase(log, now=time.time() + 900)

    assert soon.is_normal
    assert 180 == pytest.approx(soon.silent_s, abs=60)
    assert late.is_normal is False
    assert "CUDA graphs" in late.findings[0].summary
