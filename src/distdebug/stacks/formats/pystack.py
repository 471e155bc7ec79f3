"""
Parse the output of pystack, of a process or a core dump.

pystack prints the outermost frame first, and mixes Python and native frames on
request.
"""

from __future__ import annotations

import re

from collections.abc import Iterable

from ..model import StackFrame, ThreadStack, is_gil_wait
from .gdb import attach_code, make_frame, shorten, split_brackets


_HEADER = re.compile(
    r"Traceback for thread (?P<id>\d{1,10})(?: \((?P<name>.{0,99})\))?"
    r"(?: \[(?P<status>[^\]]{0,99})\])? \(most recent call last\):"
    r"|The frame stack for thread (?P<empty>\d{1,10}) is empty"
)
_FRAME = re.compile(
    r'\((?P<kind>Python|C)\) File "(?P<file>.{0,4096}?)", line (?P<line>\d{1,9}),'
    r" in (?P<name>.*)"
)
_MOST_HEADER = 400
# Threads other than the main one begin here.
_THREAD_START = re.compile(
    r"thread_run|pythread_wrapper|start_thread|(__)?clone3?"
)


def parse_pystack(text: str) -> tuple[ThreadStack, ...]:
    """
    Parse the threads in the output of ``pystack remote`` or ``pystack core``.

    Returns:
        The threads, in the order of the tool, with the innermost frame first;
        *thread_id* is that of the operating system, and the name is that of
        the kernel.
    """
    found: list[tuple[re.Match[str], list[str]]] = []
    for line in text.splitlines():
        if match := match_header(line):
            found.append((match, []))
        elif found:
            found[-1][1].append(line)
    return tuple(parse_thread(match, lines) for match, lines in found)


def match_header(line: str) -> re.Match[str] | None:
    """
    Match the header line of a thread.

    Returns:
        The argument for :func:`parse_thread`, or ``None``.
    """
    text = line.strip()
    if len(text) > _MOST_HEADER or not text.startswith("T"):
        return None
    return _HEADER.fullmatch(text)


def parse_thread(match: re.Match[str], lines: Iterable[str]) -> ThreadStack:
    """
    Parse the stack of one thread.

    Args:
        match: From :func:`match_header`.

        lines: The lines after the header.

    Returns:
        The thread.  It is taken for the main one unless it begins where the
        threading module starts threads.
    """
    outermost_first = tuple(attach_code((x, _parse_frame(x)) for x in lines))
    frames = outermost_first[::-1]
    status = match["status"]
    is_threading_thread = any(map(_is_thread_start, outermost_first[:4]))
    has_native = any(frame.is_native for frame in frames)
    return ThreadStack(
        name=match["name"] or "",
        thread_id=int(match["id"] or match["empty"]),
        frames=frames,
        is_main=bool(frames) and not is_threading_thread,
        owns_gil=None if status is None else "Has the GIL" in status,
        waits_for_gil=is_gil_wait(frames)
        or ("Waiting for the GIL" in (status or "") if has_native else None),
    )


def _is_thread_start(frame: StackFrame) -> bool:
    if frame.is_native:
        return _THREAD_START.fullmatch(frame.name) is not None
    return frame.name.endswith("_bootstrap") and frame.filename.endswith(
        "threading.py"
    )


def _parse_frame(line: str) -> StackFrame | None:
    match = _FRAME.fullmatch(shorten(line).strip())
    if match is None:
        return None

    filename, number = match["file"], int(match["line"])
    if match["kind"] == "Python":
        return make_frame(match["name"], filename, number, is_native=False)

    call = match["name"]
    name, library = split_brackets(call) or (call, "")
    name = name.removesuffix(" (inlined)")
    known = number and filename != "???"
    return make_frame(
        "??" if name == "???" else name,
        filename if known else library,
        number if known else 0,
        is_native=True,
    )
