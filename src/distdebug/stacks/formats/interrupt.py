"""
Where was a program of Python when its wait was broken off?

Somebody pressed Ctrl-C, or torch gave a collective up: the traceback shows the
line at which the main thread had waited.  Tracebacks of all other errors tell
of a crash, and not of a hang.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator

from ..model import ThreadStack
from .calls import with_code
from .trace import frame_of


__all__ = ["interrupted_threads"]

_BEGINS = "Traceback (most recent call last):"
_ENDS = re.compile(
    r"KeyboardInterrupt\b|[\w.]{1,200}: .{0,400}?"
    r"(?:Timed out waiting \d{1,12}ms|[Ww]ait timeout after \d{1,12}ms"
    r"|Timeout waiting for key|Watchdog caught collective operation timeout)"
)
# What follows these came of the interruption.
_LATER = ("During handling of the above", "Exception ignored")
_MOST_LINES = 10_000


def interrupted_threads(lines: Iterable[str]) -> Iterator[ThreadStack]:
    """
    Which main threads were broken off while they waited?

    Args:
        lines: A log.

    Returns:
        One thread for each traceback that says so.
    """
    found: list[str] | None = None
    is_later = False
    for line in lines:
        text = line.strip()
        if text == _BEGINS:
            found, is_later = (None if is_later else []), False
        elif text.startswith(_LATER):
            found, is_later = None, True
        elif found is not None and line[:1].isspace():
            if len(found) < _MOST_LINES:
                found.append(line)
        elif found is not None and text:
            if _ENDS.match(text):
                yield from _thread(found)
            found = None


def _thread(lines: Iterable[str]) -> Iterator[ThreadStack]:
    frames = list(with_code((line, frame_of(line)) for line in lines))
    if frames:
        yield ThreadStack(
            name="MainThread", frames=tuple(frames[::-1]), is_main=True
        )
