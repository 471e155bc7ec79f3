"""
At which line of Python is this process?

py-spy reads the memory of the process from outside, so the process need not
cooperate, and is not stopped.
"""

from __future__ import annotations

import itertools
import time

import attrs

from ..processes.model import ProcessState
from ..stacks.model import ThreadStack
from ..stacks.parse import parse_stacks
from .model import Attempt, CaptureStatus
from .permission.status import explain_failure
from .tool import ToolOutput, find_tool, run_tool


__all__ = ["dump_python"]

_TRIES = 3
# Whoever changes under the eyes of py-spy may be read the next time.
_WORTH_ANOTHER_TRY = {CaptureStatus.TOOL_FAILED, CaptureStatus.EXITED}


def dump_python(
    pid: int, state: ProcessState | None, *, timeout_s: float
) -> tuple[tuple[ThreadStack, ...], Attempt]:
    """
    Where is every Python thread of a process right now?

    Args:
        pid: A process of this node.

        state: What the kernel told about it.

        timeout_s: How long it may take, in seconds.

    Returns:
        Its threads, none if it could not be read; and how it went.
    """
    start = time.monotonic()
    for number in itertools.count(1):
        left_s = max(start + timeout_s - time.monotonic(), 0.1)
        threads, attempt = _dump_once(pid, state, left_s)
        if threads or number == _TRIES or _is_final(attempt):
            break

    return threads, attrs.evolve(attempt, seconds=time.monotonic() - start)


def _is_final(attempt: Attempt) -> bool:
    return attempt.status not in _WORTH_ANOTHER_TRY


def _dump_once(
    pid: int, state: ProcessState | None, timeout_s: float
) -> tuple[tuple[ThreadStack, ...], Attempt]:
    tool = find_tool("py-spy")
    if tool is None:
        missing = CaptureStatus.TOOL_MISSING
        remedy = "pip install py-spy"
        return (), Attempt(tool="py-spy", status=missing, remedy=remedy)

    argv = [tool, "dump", "--json", "--nonblocking", "--full-filenames"]
    try:
        got = run_tool([*argv, "--pid", str(pid)], timeout_s=timeout_s)
    except OSError as exc:
        failed = CaptureStatus.TOOL_FAILED
        detail = f"py-spy cannot be run: {exc}"
        return (), Attempt(tool="py-spy", status=failed, detail=detail)

    return _read(pid, state, got)


def _read(
    pid: int, state: ProcessState | None, got: ToolOutput
) -> tuple[tuple[ThreadStack, ...], Attempt]:
    problem = got.complaint
    if got.status == 0:
        try:
            (process,) = parse_stacks(got.output, "py-spy")
        except ValueError as exc:
            problem = f"py-spy wrote something unexpected: {exc}"
        else:
            ok = CaptureStatus.OK
            return process.threads, Attempt(tool="py-spy", status=ok)

    status, detail, remedy = explain_failure(
        "py-spy", pid, got.status, problem, state
    )
    return (), Attempt(
        tool="py-spy", status=status, detail=detail, remedy=remedy
    )
