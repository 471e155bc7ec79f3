"""
At which line of Python is this process?

py-spy reads the memory of the process from outside, so the process need not
cooperate, and is not stopped.
"""

from __future__ import annotations

import itertools
import time

from collections.abc import Sequence
from typing import NamedTuple

import attrs

from ..processes.model import ProcessState
from ..stacks.model import ThreadStack
from ..stacks.parse import parse_stacks
from .model import Attempt, CaptureStatus
from .permission.status import explain_failure
from .tool import ToolOutput, find_tool, run_tool
from .values import Digest, digests_of


__all__ = ["PythonDump", "dump_python"]

_TRIES = 3
# Two of five tries at a deep recursion come to a function that has returned
# meanwhile: what it holds lies at no address (EFAULT).
_TRIES_IF_MOVING = 10
_MOVES = "(os error 14)"
# Whoever changes under the eyes of py-spy may be read the next time, and even
# found to be Python.
_WORTH_ANOTHER_TRY = {
    CaptureStatus.TOOL_FAILED,
    CaptureStatus.EXITED,
    CaptureStatus.UNSUPPORTED_PYTHON,
}


class PythonDump(NamedTuple):
    """
    What py-spy saw of a process.

    Attributes:
        threads: Its threads, none if it could not be read.

        attempt: How that went.

        values: What stands for the variables of each of the threads; nothing
            if that was not asked for, or not seen.
    """

    threads: tuple[ThreadStack, ...]
    attempt: Attempt
    values: tuple[Digest, ...] = ()


def dump_python(
    pid: int,
    state: ProcessState | None,
    *,
    timeout_s: float,
    values: bool = False,
) -> PythonDump:
    """
    Where is every Python thread of a process right now?

    Args:
        pid: A process of this node.

        state: What the kernel told about it.

        timeout_s: How long it may take, in seconds.

        values: Whether to see, too, if variables get new values; of the
            values themselves nothing is kept.

    Returns:
        What was seen.
    """
    start = time.monotonic()
    seen = _read(pid, state, timeout_s, values=values)
    for _ in range(_TRIES - 1):
        left_s = start + timeout_s - time.monotonic()
        if left_s <= 0 or not _is_cut_off(seen.threads):
            break
        again = _read(pid, state, left_s, values=values)
        seen = again if again.threads else seen

    attempt = attrs.evolve(seen.attempt, seconds=time.monotonic() - start)
    return seen._replace(attempt=attempt)


def _is_cut_off(threads: Sequence[ThreadStack]) -> bool:
    """
    Whether a generator gave way while py-spy followed its callers.

    From then on it has none.  Who waits does not change meanwhile.  What
    calls the module (``python -m``) does not matter.
    """
    mains = [t for t in threads if t.is_main and t.active and t.frames]
    return any("<module>" not in {f.name for f in t.frames} for t in mains)


def _read(
    pid: int, state: ProcessState | None, timeout_s: float, *, values: bool
) -> PythonDump:
    """
    Try until py-spy gets hold of the process.
    """
    start = time.monotonic()
    for number in itertools.count(1):
        left_s = max(start + timeout_s - time.monotonic(), 0.1)
        # Nothing is lost if that part does not work.
        with_values = values and number == 1
        dump = _dump_once(
            pid,
            state,
            left_s / 2 if with_values else left_s,
            values=with_values,
        )
        if dump.threads or number >= _most_tries(dump.attempt):
            break
        if _is_final(dump.attempt) and not with_values:
            break
    return dump


def _most_tries(attempt: Attempt) -> int:
    return _TRIES_IF_MOVING if _MOVES in attempt.detail else _TRIES


def _is_final(attempt: Attempt) -> bool:
    return attempt.status not in _WORTH_ANOTHER_TRY


def _dump_once(
    pid: int, state: ProcessState | None, timeout_s: float, *, values: bool
) -> PythonDump:
    tool = find_tool("py-spy")
    if tool is None:
        missing = CaptureStatus.TOOL_MISSING
        remedy = "pip install py-spy"
        return PythonDump(
            (), Attempt(tool="py-spy", status=missing, remedy=remedy)
        )

    argv = [tool, "dump", "--json", "--nonblocking", "--full-filenames"]
    if values:
        argv.append("--locals")
    try:
        got = run_tool(
            [*argv, "--pid", str(pid)], timeout_s=timeout_s, is_secret=values
        )
    except OSError as exc:
        failed = CaptureStatus.TOOL_FAILED
        detail = f"py-spy cannot be run: {exc}"
        return PythonDump(
            (), Attempt(tool="py-spy", status=failed, detail=detail)
        )

    dump = _parsed(pid, state, got)
    digests = digests_of(got.output) if values and dump.threads else ()
    is_whole = len(digests) == len(dump.threads)
    return dump._replace(values=digests) if is_whole else dump


def _parsed(
    pid: int, state: ProcessState | None, got: ToolOutput
) -> PythonDump:
    problem = got.complaint
    if got.status == 0:
        try:
            (process,) = parse_stacks(got.output, "py-spy")
        except ValueError as exc:
            problem = f"py-spy wrote something unexpected: {exc}"
        else:
            ok = CaptureStatus.OK
            return PythonDump(
                process.threads, Attempt(tool="py-spy", status=ok)
            )

    status, detail, remedy = explain_failure(
        "py-spy", pid, got.status, problem, state
    )
    return PythonDump(
        (),
        Attempt(tool="py-spy", status=status, detail=detail, remedy=remedy),
    )
