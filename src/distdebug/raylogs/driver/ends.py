"""
Which failure ended a driver, and what do several lines tell of the same end?
"""

from __future__ import annotations

import re

from collections.abc import Iterable

import attrs

from ..._lines import LogLine
from .blocks import Block
from .failures import failures_of
from .model import Failure


__all__ = ["Counts", "completed", "count_own", "failures_in"]

# So begins what Python prints of an exception of Ray that nobody caught.
_OUTERMOST = re.compile(r"in (?:<module>|_run_module_as_main)\s*$")
_UNCAUGHT = re.compile(r"(?:ray\.exceptions\.\w{1,60}|ray::)")
# What may still come then: of the driver itself, and of all that still runs.
_LAST_OWN = 50
_LAST = 2000


@attrs.define(kw_only=True)
class Counts:
    """
    How many lines were read until now.

    Attributes:
        lines: All of them.

        own: Those without a prefix, which are the driver's.

        is_head: Whether the last own one begins a traceback.

        is_outermost: Whether the latest traceback comes from outside of all
            functions; that of an exception that was caught begins where it
            was caught.
    """

    lines: int = 0
    own: int = 0
    is_head: bool = False
    is_outermost: bool = False


def count_own(counts: Counts, line: LogLine) -> None:
    """
    Count a line, and watch the tracebacks of the driver itself.

    Args:
        counts: What was counted before; it is changed.

        line: The next line.
    """
    counts.lines += 1
    if line.origin is not None:
        return

    counts.own += 1
    if counts.is_head:
        counts.is_outermost = _OUTERMOST.search(line.text[:2000]) is not None
    counts.is_head = line.text.startswith("Traceback (most recent call last)")


def failures_in(blocks: Iterable[Block], counts: Counts) -> list[Failure]:
    """
    Read all failures, and tell which one the driver did not outlive.

    Args:
        blocks: The lines of each failure, read one after the other.

        counts: How far the lines were read when a block comes.

    Returns:
        The failures, as often as they are told.
    """
    failures: list[Failure] = []
    last = range(0)
    then = Counts()
    for block in blocks:
        begin = len(failures)
        failures += failures_of(block)
        if block.is_own:
            is_uncaught = _UNCAUGHT.match(block.lines[0]) is not None
            is_last = is_uncaught and counts.is_outermost
            last = range(begin, len(failures) if is_last else begin)
            then = attrs.evolve(counts)
    own, lines = counts.own - then.own, counts.lines - then.lines
    if own <= _LAST_OWN and lines <= _LAST:
        for i in last:
            failures[i] = attrs.evolve(failures[i], ended_driver=True)
    return failures


def completed(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """
    Tell all of why somebody died, where a line of it breaks off.

    Args:
        failures: What failed.

    Returns:
        The same; a driver may print only the begin of what Ray tells it.
    """
    failures = tuple(failures)
    longest: dict[tuple[int | None, str | None], str] = {}
    for x in failures:
        key = x.pid, x.ip
        longest[key] = max(longest.get(key, ""), x.detail, key=len)
    return tuple(
        attrs.evolve(x, detail=longest[x.pid, x.ip])
        if x.pid is not None
        and x.detail
        and longest[x.pid, x.ip].startswith(x.detail)
        else x
        for x in failures
    )
