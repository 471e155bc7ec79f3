"""
What is the source of a function whose file is not here?

A function that is pickled by value, as cloudpickle does with those of
``__main__``, names the file it was written in, which is on another machine.  A
client that has the file can send it.  It is shown only, and never run.
"""

from __future__ import annotations

import linecache
import os
import re
import sys

from collections.abc import Iterator
from types import CodeType, FrameType

from .stops import open_stops


__all__ = ["is_source_missing", "missing_files", "take_source"]

_MOST_FRAMES = 200
# A comprehension may begin on any line.
_ANYWHERE = frozenset(
    {"<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
)
_START = re.compile(r"\s*(?:@|async\s|def\s|class\s)|.*\blambda\b")


def is_source_missing(filename: str) -> bool:
    """
    Is the source of a file unknown here?

    Args:
        filename: The file, as code names it.

    Returns:
        Whether it can be neither read nor remembered.
    """
    if filename.startswith("<") or linecache.cache.get(filename):
        return False

    return not (os.path.exists(filename) or linecache.getlines(filename))  # noqa: PTH110 it may be any text


def missing_files() -> list[str]:
    """
    Which files are named by the code that runs here, and are not here?

    Returns:
        Their names, each once.
    """
    names = {code.co_filename for code in _running_code()}
    return sorted(name for name in names if is_source_missing(name))


def take_source(filename: str, text: str) -> str:
    """
    Remember the source of a file that is not here.

    Args:
        filename: The file, as code that runs here names it.

        text: Its content, as a client has it.

    Returns:
        ``""``, or why it was not taken.
    """
    if filename not in missing_files():
        return "no code that runs here misses this file"

    lines = text.splitlines(keepends=True)
    for code in _running_code():
        first = code.co_firstlineno
        if code.co_filename != filename or code.co_name in _ANYWHERE:
            continue
        # Another version of the file would show lines that never ran.
        if not (first <= len(lines) and _START.match(lines[first - 1])):
            return f"line {first} is not where {code.co_name} begins"

    # Without a time, linecache does not look whether the file has changed.
    linecache.cache[filename] = (len(text), None, lines, filename)
    return ""


def _running_code() -> Iterator[CodeType]:
    """
    Look at what runs, and at what ran before it failed.
    """
    for stop in open_stops():
        yield from (frame.f_code for frame, _ in stop.failed)
    for innermost in sys._current_frames().values():  # noqa: SLF001 there is no other way
        frame: FrameType | None = innermost
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            yield frame.f_code
            frame = frame.f_back
