"""
What if the tools that we run hang, lie, fail, or never stop talking?
"""

from __future__ import annotations

import os
import resource
import shutil
import time

import pytest

import distdebug

from distdebug.nodes import Slurm, slurm

from .checking import goes_on, inventory, left_over, objection, outcome


# What a tool does in place of its work, as a script.
MANNERS = {
    "hangs": "exec sleep 600",
    "ignores whoever ends it": "trap '' TERM INT HUP; sleep 600 & wait; wait",
    "says nothing": "exit 0",
    "fails": "echo no such thing >&2; exit 3",
    "is killed": "kill -KILL $$",
    "lies": 'echo \'[{"pid": 1, "threads": 7}]\'',
    "prints junk": "head -c 1000000 /dev/urandom",
    "never stops talking": "exec yes 0123456789012345678901234567890123456789",
    "complains for ever": "exec yes complaint >&2",
    "leaves a child": "sleep 600 & exit 0",
}
TOOLS = (
    *("py-spy", "gdb", "cuda-gdb", "pystack", "nsys"),
    *("squeue", "scontrol", "srun", "dmesg", "journalctl", "ibstat"),
)
# The sum of all that they may take, in their turn.
MOST_S = 120.0
MOST_BYTES = 400 << 20

ASKS = {
    "capture_process": lambda pid: distdebug.capture_process(
        pid, native=True, cuda=True, timeout_s=3.0
    ),
    "check_node": lambda pid: distdebug.check_node(pids=[pid], timeout_s=2.0),
    "check_nsys": lambda _: distdebug.nsight.check_nsys(),
    "run_on_nodes": lambda _: list(
        distdebug.run_on_nodes(["true"], engine=Slurm(job="7"), timeout_s=3.0)
    ),
}


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """
    A folder with all tools, which have the manners that are written there.
    """
    real = shutil.which
    folder = tmp_path / "bin"
    folder.mkdir()

    def which(name, *args, **kwargs):
        path = folder / os.fspath(name)
        return str(path) if name in TOOLS else real(name, *args, **kwargs)

    def write(script):
        for name in TOOLS:
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o700)

    monkeypatch.setattr(slurm, "_QUERY_S", 3.0)  # in place of 30
    monkeypatch.setattr(shutil, "which", which)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return write


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("name", ASKS)
def test_tools(name, manner, tools, target):
    """
    Whatever a tool does: the time and the memory hold, nothing of it is left,
    and who was looked at goes on.
    """
    tools(MANNERS[manner])
    before, start = inventory(), time.monotonic()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    error = outcome(lambda: ASKS[name](target))

    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most
    assert time.monotonic() - start < MOST_S
    assert "" == objection(error)
    assert len(str(error)) < 10_000
    # What was left behind, because it came too late, ends by itself.
    assert "" == left_over(before, 100.0)
    assert grown << 10 < MOST_BYTES
    assert goes_on(target)


def test_all_tools_are_missing(tmp_path, monkeypatch, target):
    """
    Without any tool there are answers all the same.
    """
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setenv("PATH", str(tmp_path))

    errors = {
        name: objection(outcome(lambda ask=ask: ask(target)))
        for name, ask in ASKS.items()
    }

    assert dict.fromkeys(ASKS, "") == errors
