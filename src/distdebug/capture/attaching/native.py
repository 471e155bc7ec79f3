"""
In which machine code is every thread of this process?

Tools that tell it stop the process for a moment.  The best of those that are
there is taken, and the next one if it fails.
"""

from __future__ import annotations

import time

from collections.abc import Sequence

from ...stacks.formats.gdb import parse_gdb
from ...stacks.formats.pystack import parse_pystack
from ...stacks.parse import parse_stacks
from ..model import Attempt, CaptureStatus
from .attach import Threads, Tool, attach


__all__ = ["GDB", "capture_native", "gdb_arguments"]

# Given before the process is loaded.  What a version does not know, it says so
# of, and goes on.
_GDB_OPTIONS = (
    "set auto-load off",
    "set debuginfod enabled off",
    "set confirm off",
    "set pagination off",
    "set width 0",
    "set height 0",
    "set style enabled off",
    "set print frame-arguments none",
    "set print thread-events off",
    # The innermost frames tell; endless recursion must not fill a disk.
    "set backtrace limit 500",
)

# What is said of the process, and not of the tool.
_NO_TOOL_CAN = {
    CaptureStatus.EXITED,
    CaptureStatus.ZOMBIE,
    CaptureStatus.STOPPED,
    CaptureStatus.TRACED_BY_OTHER,
    CaptureStatus.UNINTERRUPTIBLE,
    CaptureStatus.OTHER_USER,
    CaptureStatus.YAMA,
    CaptureStatus.NO_CAPABILITY,
    CaptureStatus.SECCOMP,
    CaptureStatus.NOT_DUMPABLE,
    CaptureStatus.NOT_PERMITTED,
    CaptureStatus.SKIPPED,
}


def capture_native(
    pid: int,
    *,
    timeout_s: float = 60.0,
    tools: Sequence[str] = ("pystack", "py-spy", "gdb"),
    start_ticks: int | None = None,
) -> tuple[Threads, tuple[Attempt, ...]]:
    """
    In which machine code is every thread of this process?

    Args:
        pid: A process of this node.

        timeout_s: How long it may take in all, in seconds.

        tools: What to try, in this order.

        start_ticks: When the process started, in clock ticks since boot, if
            it must be that very process.

    Returns:
        Its threads, none if no tool could tell; and how it went with each
        tool that was tried.
    """
    deadline = time.monotonic() + timeout_s
    attempts: list[Attempt] = []
    for number, name in enumerate(tools, 1):
        left_s = max(deadline - time.monotonic(), 0.1)
        # A tool that hangs must leave time for the next one.
        share_s = left_s if number == len(tools) else left_s / 2
        told = attach(
            _TOOLS[name], pid, timeout_s=share_s, start_ticks=start_ticks
        )
        attempts.append(told.attempt)
        if told.threads or told.attempt.status in _NO_TOOL_CAN:
            return told.threads, tuple(attempts)
    return (), tuple(attempts)


def gdb_arguments(*commands: str, more: Sequence[str] = ()) -> list[str]:
    """
    With which arguments does gdb, or cuda-gdb, print and end?

    Args:
        commands: What to do, in order.

        more: What else to set before anything is loaded.
    """
    before = (p for option in (*_GDB_OPTIONS, *more) for p in ("-iex", option))
    after = (part for command in commands for part in ("-ex", command))
    return ["-nx", "-batch", *before, *after]


def _pystack(pid: int) -> list[str]:
    return ["remote", "--native-all", "--no-color", str(pid)]


def _py_spy(pid: int) -> list[str]:
    options = ("--json", "--native", "--full-filenames")
    return ["dump", *options, "--pid", str(pid)]


def _first_process(text: str) -> Threads:
    return next((p.threads for p in parse_stacks(text, "py-spy")), ())


def _gdb(pid: int) -> list[str]:
    return [*gdb_arguments("thread apply all bt"), "-p", str(pid)]


GDB = Tool("gdb", "gdb", _gdb, parse_gdb)

_TOOLS = {
    "pystack": Tool("pystack", "pystack", _pystack, parse_pystack),
    "py-spy": Tool("py-spy --native", "py-spy", _py_spy, _first_process),
    "gdb": GDB,
}
