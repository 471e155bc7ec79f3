"""
What did ``py-spy dump`` write as text?
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator

from ..model import StackFrame, ThreadStack
from .calls import make_frame, shorten, split_brackets
from .gil import wants_gil


__all__ = ["PROCESS", "header_of", "read_thread"]

PROCESS = re.compile(r"Process (?P<pid>\d{1,10}): (?P<command>.*)")

# People leave out numbers, and write beside a line what they make of it.
_REMARK = r"\s{1,400}(?:<-|\u2190|\u27f5|#|//|--)(?:\s.*|-.*)?"
_HEADER = re.compile(
    r"Thread (?:(?P<id>0x[0-9A-Fa-f]{1,16}|\d{1,19}) )?"
    r"\((?P<state>active|idle)(?P<gil>\+gil)?\)"
    rf'(?:: "(?P<name>.*?)")?(?:{_REMARK})?'
)
_REMARKED = re.compile(rf"(?<=\)){_REMARK}$")
_PLACE = re.compile(r"(?P<file>.*?)(?::(?P<line>\d{1,9}))?")
# As the documentation of others abbreviates it.
_SHORT_FRAME = re.compile(
    r"(?P<file>\S+\.py):(?P<line>\d{1,9}) (?P<name>\S.*)"
)
_MOST_HEADER = 4096


def header_of(line: str) -> re.Match[str] | None:
    """
    Does this line begin the stack of a thread?

    Args:
        line: One line of the output.

    Returns:
        What to give to :func:`read_thread`, or ``None``.
    """
    text = line.strip()
    if len(text) > _MOST_HEADER or not text.startswith("Thread "):
        return None
    return _HEADER.fullmatch(text)


def read_thread(
    match: re.Match[str], lines: Iterable[str], pid: int | None = None
) -> ThreadStack:
    """
    What is this thread doing?

    Args:
        match: What *header_of* returned.

        lines: The lines that follow.

        pid: Its process, if known.

    Returns:
        The thread.
    """
    name = match["name"] or ""
    number = int(match["id"], 0) if match["id"] else None
    frames = tuple(_text_frames(lines))
    active = match["state"] == "active"
    return ThreadStack(
        name=name,
        thread_id=number,
        frames=frames,
        is_main=name == "MainThread" or (number is not None and number == pid),
        active=active,
        # It is not shown for a thread that is idle.
        owns_gil=bool(match["gil"]) or (False if active else None),
        waits_for_gil=wants_gil(frames),
    )


def _text_frames(lines: Iterable[str]) -> Iterator[StackFrame]:
    indent = None
    for line in lines:
        text = shorten(line).strip()
        depth = len(line) - len(line.lstrip())
        # Variables stand deeper than the frame that they belong to, and what
        # others wrote in between stands at the left.
        if not text or (indent is not None and depth != indent):
            continue
        if frame := _text_frame(text):
            indent = depth
            yield frame


def _text_frame(text: str) -> StackFrame | None:
    text = _REMARKED.sub("", text, count=1)
    found = split_brackets(text)
    if found is None:
        if match := _SHORT_FRAME.fullmatch(text):
            return make_frame(match["name"], match["file"], int(match["line"]))
        return None

    name, place = found
    match = _PLACE.fullmatch(place)
    if not name or not place or match is None:
        return None
    return make_frame(name, match["file"], int(match["line"] or 0))
