"""
At which function is each thread, as ``info threads`` of gdb says?

A row is a stack of one frame.  Whoever typed that often asked next for the
whole stack of one thread: the one with the star.
"""

from __future__ import annotations

import re

from collections.abc import Iterable

import attrs

from ..model import StackFrame, ThreadStack


__all__ = ["is_current", "is_row", "row_of", "unite"]

_ROW = re.compile(
    r"(?P<current>\*)?\s{0,20}(?P<row>\d{1,9})(?:\.\d{1,9})?\s{1,20}"
    r"(?:Thread 0x[0-9a-f]{1,16} )?\(?(?:LWP|process) (?P<row_lwp>\d{1,10})(?!\d)\)?"
    r'\s{0,40}(?:"(?P<name>[^"]{0,99})")?\s{0,40}(?P<frame>[^\s()"].*)'
)
_MOST_ROW = 4096


def row_of(line: str) -> re.Match[str] | None:
    """
    Is this line a row of the table of threads?

    Args:
        line: One line of the output.

    Returns:
        Its number (*row*), its number in the system (*row_lwp*), its *name*,
        its *frame*, and whether it is the *current* one; or ``None``.
    """
    text = line.strip()
    return _ROW.fullmatch(text) if len(text) <= _MOST_ROW else None


def is_row(match: re.Match[str] | None) -> bool:
    """
    Whether a header of a thread is a row of the table.

    Args:
        match: What tells whose stack follows.
    """
    return match is not None and "row" in match.re.groupindex


def is_current(match: re.Match[str] | None) -> bool:
    """
    Whether a row is of the thread that gdb looks at.

    Args:
        match: What tells whose stack follows.
    """
    return is_row(match) and match is not None and bool(match["current"])


def unite(threads: Iterable[ThreadStack]) -> tuple[ThreadStack, ...]:
    """
    Which threads are these, each once?

    Args:
        threads: Threads, of which some were told more than once.

    Returns:
        Each with the most that was told of it, in the order in which they
        came first.
    """
    found: dict[object, ThreadStack] = {}
    for number, thread in enumerate(threads):
        key = number if thread.thread_id is None else (thread.thread_id,)
        known = found.get(key)
        found[key] = thread if known is None else _both(known, thread)
    return tuple(found.values())


def _both(one: ThreadStack, other: ThreadStack) -> ThreadStack:
    base, more = sorted((one, other), key=lambda t: -_told(t))
    return attrs.evolve(
        base,
        name=base.name or more.name,
        is_main=base.is_main or more.is_main,
        native=base.native or _natives(base, more),
    )


def _told(thread: ThreadStack) -> int:
    return len(thread.frames) + len(thread.native)


def _natives(base: ThreadStack, more: ThreadStack) -> tuple[StackFrame, ...]:
    """
    What only the other one tells of machine code.
    """
    is_python = not any(frame.is_native for frame in base.frames)
    return more.frames if is_python and more.frames != base.frames else ()
