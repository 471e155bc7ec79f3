"""
What does one tool tell about one process, if it may attach to it at all?
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..._text import without_controls
from ...errors import CaptureError
from ...processes.model import ProcessState
from ...processes.threads import read_state
from ...stacks.model import ThreadStack
from ..model import Attempt, CaptureStatus
from ..permission.hindrance import attach_hindrance
from ..permission.namespace import argv_inside, outer_numbers
from ..permission.status import HAS_ENDED, explain_failure, remedy_for_missing
from .guard import AttachedOutput, run_attached


__all__ = ["Threads", "Told", "Tool", "attach"]

Threads = tuple[ThreadStack, ...]

_ELSEWHERE = CaptureStatus.OTHER_NAMESPACE


class Tool(NamedTuple):
    """
    How a tool is used.

    Attributes:
        name: What attempts with it are called.

        program: The program to run.

        arguments: Called with the number of the process.

        parse: What reads its output.
    """

    name: str
    program: str
    arguments: Callable[[int], list[str]]
    parse: Callable[[str], Threads]


class Told(NamedTuple):
    """
    What a tool told.

    Attributes:
        threads: The threads of the process; none if it did not tell.

        text: What it printed, fit for a terminal.

        attempt: How it went.
    """

    threads: Threads
    text: str
    attempt: Attempt


def attach(
    tool: Tool, pid: int, *, timeout_s: float, start_ticks: int | None = None
) -> Told:
    """
    What does a tool tell about a process?

    The process is asked for its state first.  If that, or a missing right,
    speaks against it, then nothing is attached.

    Args:
        tool: How the tool is used.

        pid: The process.

        timeout_s: How long it may take, in seconds.

        start_ticks: When the process started, in clock ticks since boot, if
            it must be that very process.
    """
    state, hindrance = read_state(pid), attach_hindrance(pid)
    if hindrance is not None and hindrance[0] is not _ELSEWHERE:
        return _refused(tool, *hindrance)
    if state is None or start_ticks not in {None, state.start_ticks}:
        return _refused(tool, CaptureStatus.EXITED, HAS_ENDED)

    command = argv_inside(tool.program, pid, state)
    if command is None:
        remedy = remedy_for_missing(tool.program)
        missing = CaptureStatus.TOOL_MISSING, remedy
        return _refused(tool, *(hindrance or missing))
    return _run(tool, command, pid, state, timeout_s)


def _run(
    tool: Tool,
    command: tuple[list[str], int],
    pid: int,
    state: ProcessState,
    timeout_s: float,
) -> Told:
    prefix, number = command
    try:
        got = run_attached(
            [*prefix, *tool.arguments(number)],
            pid,
            timeout_s=timeout_s,
            start_ticks=state.start_ticks,
        )
    except (CaptureError, OSError) as exc:
        why = explain_failure(tool.program, pid, 1, str(exc), state)
        return Told((), "", Attempt(tool=tool.name, **why._asdict()))

    threads = outer_numbers(_parsed(tool, got.output), pid, number)
    attempt = _attempt(tool, pid, got, threads, state)
    # Names of threads and functions may hold anything.
    return Told(threads, without_controls(got.output), attempt)


def _refused(tool: Tool, status: CaptureStatus, remedy: str) -> Told:
    attempt = Attempt(tool=tool.name, status=status, remedy=remedy)
    return Told((), "", attempt)


def _parsed(tool: Tool, text: str) -> Threads:
    try:
        threads = tool.parse(text)
    except ValueError:
        return ()
    return threads if any(t.frames for t in threads) else ()


def _attempt(
    tool: Tool,
    pid: int,
    got: AttachedOutput,
    threads: Threads,
    state: ProcessState,
) -> Attempt:
    status, detail, remedy = CaptureStatus.OK, "", ""
    # Many a tool ends badly after it has told what it was asked.
    if got.killed or not threads:
        text = got.complaint if got.complaint.strip() else got.output
        ended = None if got.killed else got.status
        status, detail, remedy = explain_failure(
            tool.program, pid, ended, text, state
        )
    return Attempt(
        tool=tool.name,
        status=status,
        detail="; ".join(part for part in (detail, got.trouble) if part),
        remedy=remedy,
        seconds=got.seconds,
        paused_s=got.paused_s,
        resumed=got.resumed,
    )
