"""
What do Python programs print that dump their own threads?

pytest-timeout and its imitators write a heading per thread, and below it what
the :mod:`traceback` module makes of it: outermost frame first.
"""

from __future__ import annotations

import re

from collections.abc import Iterable

from ..model import StackFrame, ThreadStack
from .gdb import make_frame, shorten, with_code


_HEADER = re.compile(
    r"~{2,200} Stack of (?P<name>.{1,200}) \((?P<id>\d{1,20})\) ~{2,200}"
)
_FRAME = re.compile(
    r'File "(?P<file>.{0,4096}?)", line (?P<line>\d{1,9}), in (?P<name>.+)'
)
_MOST_HEADER = 700


def header_of(line: str) -> re.Match[str] | None:
    """
    Does this line begin the stack of a thread?

    Args:
        line: One line of the output.

    Returns:
        What to give to :func:`read_thread`, or ``None``.
    """
    text = line.strip()
    if len(text) > _MOST_HEADER or not text.startswith("~~"):
        return None
    return _HEADER.fullmatch(text)


def read_thread(match: re.Match[str], lines: Iterable[str]) -> ThreadStack:
    """
    What is this thread doing?

    Args:
        match: What *header_of* returned.

        lines: The lines that follow.

    Returns:
        The thread.
    """
    frames = list(with_code((line, frame_of(line)) for line in lines))
    return ThreadStack(
        name=match["name"],
        thread_id=int(match["id"]),
        frames=tuple(reversed(frames)),
        is_main=match["name"] == "MainThread",
    )


def frame_of(line: str) -> StackFrame | None:
    """
    Is this line of a traceback a frame?

    Args:
        line: One line of the output.

    Returns:
        The frame, or ``None``.
    """
    match = _FRAME.fullmatch(shorten(line).strip())
    if match is None:
        return None
    return make_frame(
        match["name"], match["file"], int(match["line"]), is_native=False
    )
