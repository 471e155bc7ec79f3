"""
Capturing a node with the real tools.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

from pathlib import Path

import psutil
import pytest

import distdebug

from distdebug import capture_node, diagnose, read_stacks
from distdebug.capture.model import CaptureStatus

from .living import wait_for


SOURCE = Path(distdebug.__file__).parents[1]
PROGRAMS = Path(__file__).parent / "programs"
HOST = socket.gethostname()
TITLES = [f"sglang::scheduler_TP{tp}_PP0_DP0_EP0" for tp in range(4)]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("setproctitle") is None,
    reason="setproctitle is not installed",
)
needs_gdb = pytest.mark.skipif(
    shutil.which("gdb") is None, reason="gdb is not installed"
)
needs_cuda_gdb = pytest.mark.skipif(
    shutil.which("cuda-gdb") is None, reason="cuda-gdb is not installed"
)


@pytest.fixture
def servers():
    """
    Four workers that wait, titled as those of SGLang.
    """
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, PROGRAMS / "serve_rank.py", title],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for title in TITLES
        ]
        for process in started:
            stack.callback(process.kill)
            assert "ready\n" == process.stdout.readline()
        yield [process.pid for process in started]


def run(*arguments, timeout_s=120):
    """
    The command line, from outside.
    """
    return subprocess.run(
        [sys.executable, "-m", "distdebug", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def assert_unharmed(pids):
    """
    Nobody is dead, stopped, or held by a debugger.
    """
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        assert "State:\tS" in status
        assert "TracerPid:\t0" in status


@pytest.mark.smoke
def test_found_by_title(servers):
    """
    Workers are known by their title, although it wiped their environment.
    """
    capture = capture_node(patterns=["sglang::scheduler"])

    found = [p for p in capture.processes if p.worker.pid in servers]
    assert 4 == len(found)
    assert {CaptureStatus.OK} == {p.status for p in found}
    assert [
        {"tp": tp, "pp": 0, "dp": 0, "ep": 0} for tp in range(4)
    ] == sorted(
        (dict(p.worker.coordinates) for p in found), key=lambda c: c["tp"]
    )
    assert {"recv_requests"} <= {
        f.name for p in found for f in p.stacks.main_thread.frames
    }
    assert all(0 == p.stacks.main_thread.activity.voluntary for p in found)


@needs_cuda_gdb
def test_source_document(servers, tmp_path):
    """
    The files of the source document are there, for every worker, with frames.
    """
    got = run(
        *("stacks", "--pattern", "sglang::scheduler", "--cuda"),
        *("--output-dir", tmp_path, "--json"),
    )

    assert got.returncode in {0, 1}, got.stderr
    folder = tmp_path / HOST
    for pid in servers:
        native = (folder / f"cudagdb_{HOST}_{pid}.txt").read_text()
        python = (folder / f"pyspy_{HOST}_{pid}.txt").read_text()
        assert "#0 " in native
        assert "#1 " in native
        assert "recv_requests" in python
    assert_unharmed(servers)
    rows = {r["pid"]: r for r in json.loads(got.stdout)["workers"]}
    paused = [
        attempt["paused_s"]
        for pid in servers
        for attempt in rows[pid]["attempts"]
        if attempt["tool"] == "cuda-gdb"
    ]
    assert 4 == len(paused)
    assert all(seconds > 0 for seconds in paused)


def test_native(servers):
    """
    Native frames join those of Python, of one process for each class.
    """
    capture = capture_node(pids=servers, native="classes", samples=1)

    seen = [p for p in capture.processes if p.stacks.main_thread.native]
    assert 1 == len(seen)
    (process,) = seen
    assert any(
        "futex" in f.name or "wait" in f.name or "sem" in f.name
        for f in process.stacks.main_thread.native[:4]
    )
    assert_unharmed(servers)


@needs_gdb
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
)
def test_interrupted(servers, number):
    """
    Whoever ends the command in the midst of it ends it at once, and no worker
    stays stopped.
    """
    argv = [sys.executable, "-m", "distdebug", "stacks", "--cuda"]
    for pid in servers:
        argv += ["--pid", str(pid)]
    with subprocess.Popen(
        argv,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    ) as process:
        wait_for(lambda: any(map(is_traced, servers)))
        process.send_signal(number)
        process.wait(20)

    wait_for(lambda: not any(map(is_traced, servers)))
    # A stop that was asked for before the end may come after it.
    time.sleep(1.5)
    assert_unharmed(servers)


def is_traced(pid):
    """
    Whether a debugger holds a process.
    """
    return "TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text()


def test_dead_and_stopped(servers):
    """
    The state of each process is told, and what to do about it.
    """
    stopped, killed, *alive = servers
    os.kill(stopped, signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    wait_for(
        lambda: (
            psutil.Process(killed).status() == psutil.STATUS_ZOMBIE
            and psutil.Process(stopped).status() == psutil.STATUS_STOPPED
        )
    )

    capture = capture_node(pids=[*servers, 999_999_999], native="all")

    by_pid = {p.worker.pid: p for p in capture.processes}
    assert {
        stopped: CaptureStatus.STOPPED,
        killed: CaptureStatus.ZOMBIE,
        999_999_999: CaptureStatus.EXITED,
        alive[0]: CaptureStatus.OK,
        alive[1]: CaptureStatus.OK,
    } == {pid: p.status for pid, p in by_pid.items()}
    assert f"kill -CONT {stopped}" in by_pid[stopped].remedy
    # It is looked at all the same, and stays as it was.
    assert "recv_requests" in {
        f.name for f in by_pid[stopped].stacks.main_thread.frames
    }
    assert psutil.STATUS_STOPPED == psutil.Process(stopped).status()
    assert_unharmed(alive)


def test_ourselves():
    """
    A process can look at itself, but nothing is attached to it.
    """
    capture = capture_node(pids=[os.getpid()], native="all", samples=1)

    (process,) = capture.processes
    assert "test_ourselves" in {
        f.name for f in process.stacks.main_thread.frames
    }
    assert not process.stacks.main_thread.native
    assert "ourselves" in str(capture)


def test_files_are_enough(servers, tmp_path):
    """
    What was written tells the same as what was seen.
    """
    capture = capture_node(tmp_path, pids=servers, samples=2, interval_s=0.2)

    again = read_stacks(tmp_path)
    assert sorted(servers) == sorted(p.pid for p in again)
    verdict = capture.findings[0]
    assert verdict.cause == diagnose(tmp_path).verdict.cause
