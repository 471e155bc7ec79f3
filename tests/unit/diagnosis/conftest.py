"""
What the tests of diagnoses share.
"""

from __future__ import annotations

import socket

from types import SimpleNamespace

import attrs
import pytest

from distdebug.capture import Capture, CaptureStatus, ProcessCapture
from distdebug.flight_recorder import Sidecar, SidecarFrame, write_sidecar
from distdebug.processes import Worker
from distdebug.snapshots import collect
from distdebug.stacks import (
    ProcessStacks,
    StackFrame,
    ThreadStack,
    stacks_to_json,
)


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

    def facts(pids, path, _):
        log.pids = pids
        path.write_text("{}")
        return [path], []

    log.shows, log.seen = shows, seen
    shows(seen(0), seen(1))
    monkeypatch.setattr(collect, "capture_node", capture)
    monkeypatch.setattr(collect, "keep_facts", facts)
    return log


@pytest.fixture
def write_stack():
    """
    Writes what was seen of the main thread of a rank.
    """

    def write(folder, rank, *lines, host="node1", pid=None, activity=None):
        thread = ThreadStack(
            name="MainThread",
            frames=tuple(StackFrame(*line) for line in lines),
            thread_id=7 + rank,
            is_main=True,
            activity=activity,
        )
        pid = pid or 7 + rank
        process = ProcessStacks(
            pid=pid, source="", threads=(thread,), rank=rank, role="rank"
        )
        path = folder / f"pyspy_{host}_{pid}.json"
        path.write_text(stacks_to_json(attrs.evolve(process, host=host)))
        return path

    return write


@pytest.fixture
def write_side():
    """
    Writes the side-car of a rank, with the stack of its main thread.
    """

    def write(folder, rank, *lines, size=4, **options):
        frames = tuple(SidecarFrame(*line) for line in lines)
        fields = {
            "path": "",
            "host": "node1",
            "pid": 7 + rank,
            "started": 0.0,
            "written": 1_750_000_001.0,
            "reason": "request",
            "threads": (("MainThread", frames),) if lines else (),
        }
        sidecar = Sidecar(rank=rank, world_size=size, **(fields | options))
        write_sidecar(sidecar, folder / f"nccl_trace_rank_{rank}")

    return write
