"""
Where does the name of a function end, in a line that a tool wrote?

Names of C++ functions hold blanks, brackets, and whole lists of arguments; so
do names of files.  Brackets are matched from the end of a line, where the
tools put what we look for.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator
from functools import lru_cache

import attrs

from ..model import StackFrame


__all__ = [
    "MOST_CODE",
    "MOST_FRAMES",
    "MOST_LINE",
    "MOST_NAME",
    "looks_native",
    "make_frame",
    "shorten",
    "split_brackets",
    "with_code",
]

MOST_CODE = 500
MOST_NAME = 4096
# Of one thread.
MOST_FRAMES = 4096
MOST_LINE = 1 << 14

_CODE_OF_C = re.compile(
    r"\.(?:[cC]|cc|cpp|cxx|cu|cuh|[hH]|hh|hpp|inl|rs|[sS])$"
)


def shorten(line: str) -> str:
    """
    How does an endless line look, cut to what can be searched in?

    The middle is left out: names begin a line, and files end it.

    Args:
        line: Any line.

    Returns:
        At most :data:`MOST_LINE` characters of it.
    """
    if len(line) <= MOST_LINE:
        return line
    return line[: MOST_LINE // 2] + line[-MOST_LINE // 2 :]


def split_brackets(text: str) -> tuple[str, str] | None:
    """
    What is in the round brackets that end a text, and what is before them?

    Args:
        text: Such as ``"f(int) (lib.so)"``.

    Returns:
        Such as ``("f(int)", "lib.so")``; ``None`` if the text does not end in
        a pair of brackets.
    """
    if not text.endswith(")"):
        return None

    start = text.rfind("(")
    if ")" in text[start:-1]:
        start = _partner(text)
    return (
        (text[:start].rstrip(), text[start + 1 : -1]) if start >= 0 else None
    )


def _partner(text: str) -> int:
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        if text[index] == ")":
            depth += 1
        elif text[index] == "(":
            depth -= 1
            if not depth:
                return index

    return -1


# Most ranks are at the same lines, so that most frames are told once.
@lru_cache(maxsize=1 << 14)
def make_frame(
    name: str, filename: str, line: int = 0, *, is_native: bool | None = None
) -> StackFrame:
    """
    Which frame do these words mean?

    Args:
        name: The function; endless names are cut, because patterns are
            searched for in them.

        filename: The file or library.

        line: The line; 0 if unknown.

        is_native: Whether it is machine code; ``None`` if the tool does not
            say, so that the kind of file has to tell.

    Returns:
        The frame.
    """
    if is_native is None:
        is_native = looks_native(filename, line)
    return StackFrame(
        name[:MOST_NAME], filename[:MOST_NAME], line, is_native=is_native
    )


def looks_native(filename: str, line: int) -> bool:
    """
    Is this a place in machine code, if the tool does not say?

    Args:
        filename: The file or library.

        line: The line; 0 if unknown.

    Returns:
        Whether it looks like that.
    """
    if line:
        return bool(_CODE_OF_C.search(filename[-8:]))
    return bool(filename) and not filename.endswith((".py", ".pyc", ">"))


def with_code(
    lines: Iterable[tuple[str, StackFrame | None]],
) -> Iterator[StackFrame]:
    """
    Which frames are these, each with the code that stands below it?

    Args:
        lines: The lines of a stack, each with the frame that it means, if it
            means one.

    Returns:
        The frames.  Of the lines that mean none, the one right below a frame
        of Python, and deeper than that, is its code.
    """
    frame: StackFrame | None = None
    depth = 0
    for line, meant in lines:
        own = len(line) - len(line.lstrip())
        if frame is not None:
            is_code = meant is None and own > depth and not frame.is_native
            code = line.strip()[:MOST_CODE] if is_code else ""
            yield attrs.evolve(frame, code=code) if code else frame
        frame, depth = meant, own
    if frame is not None:
        yield frame
