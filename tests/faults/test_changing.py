"""
What if the world changes under our eyes?

Files are cut or rotated while they are read, processes die between two looks,
clocks jump, and disks are slow.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time

from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle, product

import pytest

import distdebug

from .checking import IS_THOROUGH, inventory, left_over, objection, outcome
from .injector import Fault, inject
from .scenes import IN_JOB, LOG, SCENES, start_rank


DAY_S = 86_400.0
ON_DISK = (
    *("open", "read", "write", "stat", "list"),
    *("mkdir", "rename", "unlink", "link", "chmod"),
)
# What is read by a child process is so once that has started.
MOMENTS = (("stat", 1), ("open", 1), ("read", 2), ("start", 1))
READING = (
    *("analyze_dumps", "check_nsys", "collect_nsys_reports", "detect_phase"),
    *("diagnose", "find_actor_logs", "find_deaths", "find_nsys_reports"),
    *("find_ray_sessions", "HangDebugConfig.from_file", "patch_ray_nsight"),
    *("ray_nsight_status", "read_collective_logs", "read_dumps"),
    *("read_stacks", "revert_ray_nsight", "scan_logs"),
    *("watching.hooks.webhook_hook", "write_launch_json", "write_replay"),
    "write_timeline",
)
# Who looks into a process, or asks it, and by which calls.
LOOKING = {
    "capture_node": "open",
    "capture_process": "read",
    "check_environment": "open",
    "check_node": "open",
    "cli.watch.watch": "open",
    "DebugClient.eval": "socket",
    "DebugClient.interrupt": "socket",
    "DebugClient.list": "socket",
    "DebugClient.stack": "open",
    "find_workers": "open",
    "snapshot": "open",
}
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
    other, path = logs / "rank1.out", logs / "rank0.out"
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


@pytest.mark.parametrize(
    ("name", "change"),
    # Some of the pairs, or all.
    list(product(READING, CHANGES))[:: 1 if IS_THOROUGH else 4],
)
def test_every_file_changes(name, change, target, tmp_path):
    """
    If all files become something else while they are looked for, or read, there
    is a result, or an error that tells it.
    """
    failed = 0
    for call, nth in MOMENTS:
        folder = tmp_path / call
        folder.mkdir()
        act = SCENES[name](folder, target)
        fault = Fault(
            call=call,
            nth=nth,
            below="" if call == "start" else str(folder),
            instead=partial(change_all, CHANGES[change], folder),
        )
        before = inventory()

        with inject(fault) as seen:
            error = outcome(act)

        assert "" == objection(error), fault
        assert "" == left_over(before), fault
        failed += seen.failed
    assert failed > 0


def change_all(change, folder):
    """
    Change all that lies in a folder.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            change(path)


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
                pids=[dying.pid, living.pid], samples=2, interval_s=0.01
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


@pytest.mark.parametrize("name", sorted(LOOKING))
@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.9])
def test_the_process_dies(name, part, target, tmp_path):
    """
    Whoever is looked at, or asked, may die at any moment; that is a result.
    """
    call = LOOKING[name]
    with inject(Fault(call=call)) as seen:
        outcome(SCENES[name](tmp_path, target))
    nth = 1 + int(part * seen.calls)
    (tmp_path / "again").mkdir()
    with start_rank() as dying:
        act = SCENES[name](tmp_path / "again", dying.pid)
        before = inventory()

        with inject(Fault(call=call, nth=nth, instead=dying.kill)):
            error = outcome(act)

        dying.kill()  # in case that it was not asked so often
        dying.wait()
    assert "" == objection(error)
    assert "" == left_over(before._replace(children=frozenset({target})))


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


@contextmanager
def all_fail(where, **how):
    """
    Let everything fail, or be slow, that is done to files below a folder.
    """
    with ExitStack() as stack:
        for call in ON_DISK:
            fault = Fault(call=call, nth=1, below=str(where), **how)
            stack.enter_context(inject(fault))
        yield


@pytest.mark.parametrize("name", sorted(SCENES))
def test_slow_disk(name, target, tmp_path):
    """
    On a disk far away that answers late, all is done, only later.
    """
    act, start = SCENES[name](tmp_path, target), time.monotonic()

    with all_fail(tmp_path, wait_s=0.02, instead=lambda: None):
        error = outcome(act)

    assert "" == objection(error, in_job=name in IN_JOB)
    assert time.monotonic() - start < 60.0


@pytest.mark.parametrize("name", sorted(SCENES))
def test_gone_disk(name, target, tmp_path):
    """
    If the server of the files is gone, there is a result, or an error of ours.
    """
    act, before = SCENES[name](tmp_path, target), inventory()

    with all_fail(tmp_path, error=errno.ESTALE, is_lasting=True):
        error = outcome(act)

    assert "" == objection(error, in_job=name in IN_JOB)
    assert "" == left_over(before)


@pytest.mark.parametrize("name", sorted(SCENES))
def test_unreadable_proc(name, target, tmp_path):
    """
    Where the kernel tells nothing of any process, there is a result, or an
    error of ours.
    """
    act, before = SCENES[name](tmp_path, target), inventory()

    with all_fail("/proc", error=errno.EACCES, is_lasting=True):
        error = outcome(act)

    assert "" == objection(error, in_job=name in IN_JOB)
    assert "" == left_over(before)


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
