"""
What does pystack say, of a process or of its core?

It writes the outermost frame first, and mixes frames of Python with those of
machine code if asked to.
"""

from __future__ import annotations

import re

from collections.abc import Iterable

from ..model import StackFrame, ThreadStack, wants_gil
from .gdb import make_frame, shorten, split_brackets, with_code


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
# Other threads than the main one begin here.
_BEGINS_THREAD = re.compile(
    r"thread_run|pythread_wrapper|start_thread|(__)?clone3?"
)


def parse_pystack(text: str) -> tuple[ThreadStack, ...]:
    """
    Which threads are in this output of pystack?

    Args:
        text: What ``pystack remote`` or ``pystack core`` printed.

    Returns:
        Its threads, in the order of the tool, with the innermost frame first;
        *thread_id* is that of the operating system, and the name is the one
        that the kernel knows.
    """
    found: list[tuple[re.Match[str], list[str]]] = []
    for line in text.splitlines():
        if match := header_of(line):
            found.append((match, []))
        elif found:
            found[-1][1].append(line)
    return tuple(read_thread(match, lines) for match, lines in found)


def header_of(line: str) -> re.Match[str] | None:
    """
    Does this line begin the stack of a thread?

    Args:
        line: One line of the output.

    Returns:
        What to give to :func:`read_thread`, or ``None``.
    """
    text = line.strip()
    if len(text) > _MOST_HEADER or not text.startswith("T"):
        return None
    return _HEADER.fullmatch(text)


def read_thread(match: re.Match[str], lines: Iterable[str]) -> ThreadStack:
    """
    What is this thread doing?

    Args:
        match: What *header_of* returned.

        lines: The lines that follow.

    Returns:
        The thread.  Whether it is the main one is guessed: others begin where
        the threading module begins them.
    """
    outermost_first = tuple(with_code((x, _frame(x)) for x in lines))
    frames = outermost_first[::-1]
    status = match["status"]
    is_begun = any(map(_begins_thread, outermost_first[:4]))
    has_native = any(frame.is_native for frame in frames)
    return ThreadStack(
        name=match["name"] or "",
        thread_id=int(match["id"] or match["empty"]),
        frames=frames,
        is_main=bool(frames) and not is_begun,
        owns_gil=None if status is None else "Has the GIL" in status,
        waits_for_gil=wants_gil(frames)
        or ("Waiting for the GIL" in (status or "") if has_native else None),
    )


def _begins_thread(frame: StackFrame) -> bool:
    if frame.is_native:
        return _BEGINS_THREAD.fullmatch(frame.name) is not None
    return frame.name.endswith("_bootstrap") and frame.filename.endswith(
        "threading.py"
    )


def _frame(line: str) -> StackFrame | None:
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
