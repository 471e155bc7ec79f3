"""
Make frames of the lines that tools print, with bounds for hostile input.
"""

from __future__ import annotations

import re

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

import attrs

from ..._lazy import late_pattern
from ..model import StackFrame


_MOST_CODE = 500
MOST_NAME = 4096
# Limit for one thread.
MOST_FRAMES = 4096
MOST_LINE = 1 << 14

_CODE_OF_C = late_pattern(
    r"\.(?:[cC]|cc|cpp|cxx|cu|cuh|[hH]|hh|hpp|inl|rs|[sS])$"
)


_BRACKETS_FROM_END = late_pattern(r"[()]")


def shorten(line: str) -> str:
    """
    Cut a long line to a length that patterns can search.

    The middle is left out: names begin a line, and files end it.

    Returns:
        At most :data:`MOST_LINE` characters.
    """
    if len(line) <= MOST_LINE:
        return line
    return line[: MOST_LINE // 2] + line[-MOST_LINE // 2 :]


def split_brackets(text: str) -> tuple[str, str] | None:
    """
    Split a text at the round brackets that end it.

    Args:
        text: Such as ``"f(int) (lib.so)"``.

    Returns:
        Such as ``("f(int)", "lib.so")``; ``None`` if the text does not end
        with a pair of brackets.
    """
    if not text.endswith(")"):
        return None

    depth = 0
    for bracket in _BRACKETS_FROM_END.finditer(text[::-1]):
        depth += 1 if bracket[0] == ")" else -1
        if not depth:
            start = len(text) - bracket.end()
            return text[:start].rstrip(), text[start + 1 : -1]

    return None


# Most ranks are at the same lines, so that most frames are made once.
@lru_cache(maxsize=1 << 14)
def make_frame(
    name: str, filename: str, line: int = 0, *, is_native: bool | None = None
) -> StackFrame:
    """
    Make a frame, with long names cut for the patterns that search them.

    Args:
        line: 0 if unknown.

        is_native: ``None`` if the tool does not report it; then the file name
            decides.
    """
    if is_native is None:
        is_native = is_native_location(filename, line)
    return StackFrame(
        name[:MOST_NAME], filename[:MOST_NAME], line, is_native=is_native
    )


def is_native_location(filename: str, line: int) -> bool:
    """
    Return whether a location looks like native code.

    Args:
        filename: The file or library.

        line: 0 if unknown.
    """
    if line:
        return bool(_CODE_OF_C.search(filename[-8:]))
    return bool(filename) and not filename.endswith((".py", ".pyc", ">"))


def indent_of(line: str) -> int:
    """
    Return how far a line is indented.
    """
    return len(line) - len(line.lstrip())


def with_code(frame: StackFrame, code: str) -> StackFrame:
    """
    Return a frame with the source code of its line, if there is any.
    """
    code = code.strip()[:_MOST_CODE]
    return attrs.evolve(frame, code=code) if code else frame


def attach_code(
    lines: Iterable[tuple[str, StackFrame | None]],
) -> Iterator[StackFrame]:
    """
    Attach to each frame the source code below it.

    Args:
        lines: The lines of a stack, each with its frame, or ``None`` if it is
            no frame.

    Returns:
        The frames.  The line right below a Python frame is its source code if
        it is no frame and has a deeper indent.
    """
    for (line, frame), (below, parsed) in pairwise((*lines, ("", None))):
        if frame is not None:
            is_deeper = indent_of(below) > indent_of(line)
            is_code = parsed is None and is_deeper and not frame.is_native
            yield with_code(frame, below if is_code else "")


# The header of a thread, and the lines below.
Block = tuple[re.Match[str] | None, list[str]]
MatchHeader = Callable[[str], re.Match[str] | None]


def header_matcher(pattern: str, most: int = 400) -> MatchHeader:
    """
    Return a function that matches the header line of a thread.

    Args:
        pattern: A regular expression for the whole line.

        most: Longer lines do not match.
    """
    header = late_pattern(pattern)

    def match(line: str) -> re.Match[str] | None:
        text = line.strip()
        return header.fullmatch(text) if len(text) <= most else None

    return match
