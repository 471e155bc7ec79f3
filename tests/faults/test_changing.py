"""
What if the world changes under our eyes?

Files are cut or rotated while they are read, processes die between two looks,
clocks jump, and disks are slow.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from itertools import cycle

import pytest

import distdebug

from .checking import inventory, left_over, objection, outcome
from .injector import Fault, inject
from .scenes import IN_JOB, LOG, SCENES


DAY_S = 86_400.0
READERS = {
    "detect_phase": distdebug.detect_phase,
    "diagnose": distdebug.diagnose,
    "read_collective_logs": distdebug.read_collective_logs,
    "read_stacks": distdebug.read_stacks,
    "scan_logs": distdebug.scan_logs,
}


def rotate(path):
    """
    Do as logrotate does: put a log aside, and begin a new one.
    """
    path.rename(path.with_name(f"{path.name}.1"))
    path.write_text("a new log\n")


CHANGES = {
    "cut": lambda path: os.truncate(path, 100),
    "emptied": lambda path: os.truncate(path, 0),
    "rotated": rotate,
    "gone": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "grown": lambda path: path.write_text(LOG * 50),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("call", "nth"), [("open", 1), ("read", 2)])
def test_files_change(tmp_path, name, change, call, nth):
    """
    A log that becomes something else meanwhile loses no other.
    """
    logs = tmp_path / "logs"
    logs.mkdir()
    other, path = logs / "rank1.log", logs / "rank0.log"
    other.write_text(LOG)
    path.write_text(LOG * 20)
    READERS[name](logs)
    before = inventory()
    fault = Fault(call=call, nth=nth, instead=lambda: CHANGES[change](path))

    with inject(fault) as seen:
        error = outcome(lambda: READERS[name](logs))

    assert 1 == seen.failed
    assert "" == objection(error)
    assert "" == left_over(before)
    assert LOG == other.read_text()


@pytest.mark.parametrize("nth", [1, 30, 100, 200, 300])
def test_processes_die(nth):
    """
    A process that dies between two looks is told, and the others are seen.
    """
    line = [sys.executable, "-c", "import time; time.sleep(600)"]
    dying, living = subprocess.Popen(line), subprocess.Popen(line)
    fault = Fault(call="open", nth=nth, instead=dying.kill)
    try:
        with inject(fault) as seen:
            capture = distdebug.capture_node(
                pids=[dying.pid, living.pid], looks=2, interval_s=0.01
            )
        is_dead = seen.failed > 0
        state = os.waitid(os.P_PID, living.pid, os.WEXITED | os.WNOHANG)
    finally:
        for process in (dying, living):
            process.kill()
            process.wait()

    told = {x.worker.pid for x in capture.processes}
    assert {dying.pid, living.pid} == told
    assert is_dead or nth >= 100
    assert state is None


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
@pytest.mark.parametrize("name", sorted(SCENES))
def test_clock_jumps(name, jump_s, target, tmp_path, monkeypatch):
    """
    A clock that is set meanwhile, forth or back, changes no outcome.
    """
    act, real = SCENES[name](tmp_path, target), time.time
    jumps = cycle([0.0, jump_s])

    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    error = outcome(act)

    assert "" == objection(error, in_job=name in IN_JOB)


@pytest.mark.parametrize("name", sorted({*SCENES} - {"snapshot"}))
def test_slow_disk(name, target, tmp_path):
    """
    On a disk that answers late, all is done, only later.
    """
    act, start = SCENES[name](tmp_path, target), time.monotonic()

    with inject(Fault(call="open", wait_s=0.002)):
        error = outcome(act)

    assert "" == objection(error, in_job=name in IN_JOB)
    assert time.monotonic() - start < 60.0


def test_frozen_disk(tmp_path, target):
    """
    Where each file takes a while, a snapshot ends not long after its time.
    """
    start = time.monotonic()

    with inject(Fault(call="write", wait_s=0.5)):
        taken = distdebug.snapshot(
            tmp_path / "hang", pids=[target], timeout_s=2.0
        )

    assert time.monotonic() - start < 60.0
    assert taken.folder.is_dir()
