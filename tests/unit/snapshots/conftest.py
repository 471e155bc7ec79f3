"""
What the tests of snapshots share.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time

from types import SimpleNamespace

import psutil
import pytest

from distdebug.capture import Capture, CaptureStatus, ProcessCapture
from distdebug.processes import Worker
from distdebug.snapshots import collect
from distdebug.stacks import ProcessStacks, StackFrame, ThreadStack


HOST = socket.gethostname()


def seen(rank, pid=None):
    """
    A rank that reads a file; there is no process of its number.
    """
    pid = pid or 5_000_000 + rank
    worker = Worker(
        pid=pid,
        start_ticks=5,
        parent_pid=1,
        uid=0,
        title="python train.py",
        framework="torchrun",
        rank=rank,
        job="run 7" if rank else "",
    )
    frame = StackFrame("readinto", "/usr/lib/python3.11/socket.py", 706)
    thread = ThreadStack(name="MainThread", frames=(frame,), is_main=True)
    stacks = ProcessStacks(
        pid=pid, source="py-spy", threads=(thread,), rank=rank, role="rank"
    )
    return ProcessCapture(
        worker=worker, status=CaptureStatus.OK, stacks=stacks
    )


@pytest.fixture
def node(monkeypatch):
    """
    A node with two ranks, what it was asked, and what it shows.

    No test can have ranks that hang, nor a node whose facts are known: what
    looks at both is made up.
    """
    log = SimpleNamespace(calls=[], pids=None)

    def shows(*processes, **options):
        log.capture = Capture(host=HOST, processes=processes, **options)

    def capture(**kwargs):
        log.calls.append(kwargs)
        return log.capture

    def workers(_patterns):
        return [process.worker for process in log.capture.processes]

    def facts(pids, path, _):
        log.pids = pids
        path.write_text("{}")
        return [path], []

    log.shows, log.seen = shows, seen
    shows(seen(0), seen(1))
    monkeypatch.setattr(collect, "capture_node", capture)
    monkeypatch.setattr(collect, "find_workers", workers)
    monkeypatch.setattr(collect, "save_node_facts", facts)
    return log


@pytest.fixture
def process():
    """
    Starts processes that sleep, with nothing but this environment, and returns
    their numbers.
    """
    with contextlib.ExitStack() as stack:

        def start(environ=None, **options):
            sleeps = stack.enter_context(
                subprocess.Popen(
                    ["/bin/sleep", "60"], env=environ or {}, **options
                )
            )
            stack.callback(sleeps.kill)
            # It has an environment of its own when its program has begun.
            while psutil.Process(sleeps.pid).status() != "sleeping":
                time.sleep(0.001)
            return sleeps.pid

        yield start
