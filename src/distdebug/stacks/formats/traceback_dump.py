"""
Parse thread dumps that Python programs print with ``traceback``.

pytest-timeout and similar tools write a header per thread, and below it the
output of the :mod:`traceback` module: outermost frame first.
"""

from __future__ import annotations

import re

from collections.abc import Iterable

from ..model import StackFrame, ThreadStack
from .gdb import attach_code, make_frame, shorten


_HEADER = re.compile(
    r"~{2,200} Stack of (?P<name>.{1,200}) \((?P<id>\d{1,20})\) ~{2,200}"
)
_FRAME = re.compile(
    r'File "(?P<file>.{0,4096}?)", line (?P<line>\d{1,9}), in (?P<name>.+)'
)
_MOST_HEADER = 700


def match_header(line: str) -> re.Match[str] | None:
    """
    Match the header line of a thread.

    Returns:
        The argument for :func:`parse_thread`, or ``None``.
    """
    text = line.strip()
    if len(text) > _MOST_HEADER or not text.startswith("~~"):
        return None
    return _HEADER.fullmatch(text)


def parse_thread(match: re.Match[str], lines: Iterable[str]) -> ThreadStack:
    """
    Parse the stack of one thread.

    Args:
        match: From :func:`match_header`.

        lines: The lines after the header.
    """
    frames = list(attach_code((line, parse_frame(line)) for line in lines))
    return ThreadStack(
        name=match["name"],
        thread_id=int(match["id"]),
        frames=tuple(reversed(frames)),
        is_main=match["name"] == "MainThread",
    )


def parse_frame(line: str) -> StackFrame | None:
    """
    Parse one line of a traceback; ``None`` if it is no frame.
    """
    match = _FRAME.fullmatch(shorten(line).strip())
    if match is None:
        return None
    return make_frame(
        match["name"], match["file"], int(match["line"]), is_native=False
    )
