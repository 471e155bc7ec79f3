"""
Which lines of logs tell of something that went wrong?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...._text import clean
from ....logscan.model import LogGroup, ScanReport, TraceGroup
from ....logscan.tracebacks import PyError, PyFrame
from ...paths import short_path
from ...ranks import RankLinks, rank_links
from ...times import moment_text
from ...words import cause_words


__all__ = ["Excerpt", "excerpts_of"]

_MOST = 120
_MOST_LINE = 600
_MOST_FRAMES = 12
_MOST_ERRORS = 4


class Excerpt(NamedTuple):
    """
    Lines that tell of the same.

    Attributes:
        words: What is wrong.

        priority: From 1, what brings a job down, to 5.

        number: How many lines there are, such as ``"12"`` or ``"1,000+"``.

        where: The place of the first of them.

        when: Its time, or ``""``.

        who: Who printed it, or ``""``.

        ranks: Who it is about.

        text: What it says.

        trace: The traceback that ends in it, if there is one.

        is_survived: Whether the job went on afterwards.
    """

    words: str
    priority: int
    number: str
    where: str
    when: str
    who: str
    ranks: RankLinks
    text: str
    trace: tuple[str, ...]
    is_survived: bool


def excerpts_of(
    scan: ScanReport, given: Sequence[str]
) -> tuple[list[Excerpt], int]:
    """
    Which lines tell of something that went wrong?

    Args:
        scan: What was found in logs.

        given: The files and folders that were looked at.

    Returns:
        The most important ones, what brings a job down first; and how many
        others there are.
    """
    found: list[tuple[LogGroup, TraceGroup | None]] = [
        *((trace.group, trace) for trace in scan.tracebacks),
        *((group, None) for group in scan.groups),
    ]
    found.sort(key=lambda pair: (pair[0].priority, pair[0].first.time or 0.0))
    shown = [_excerpt(*pair, given) for pair in found[:_MOST]]
    return shown, len(found) - len(shown)


def _excerpt(
    group: LogGroup, trace: TraceGroup | None, given: Sequence[str]
) -> Excerpt:
    first = group.first
    source = short_path(first.source, given) if first.source else ""
    return Excerpt(
        words=cause_words(group.cause),
        priority=group.priority,
        number=f"{group.count:,}{'+' if group.is_more else ''}",
        where=f"{source}, {first.location}" if source else "",
        when=moment_text(first.time),
        who=clean(first.origin.name, limit=60) if first.origin else "",
        ranks=rank_links(group.ranks),
        text=clean(first.text, limit=_MOST_LINE),
        trace=tuple(_trace(trace.errors)) if trace else (),
        is_survived=group.is_survived,
    )


def _trace(errors: Iterable[PyError]) -> Iterable[str]:
    for error in list(errors)[:_MOST_ERRORS]:
        left = len(error.frames) - _MOST_FRAMES
        if left > 0:
            yield f"  … {left} more"
        yield from map(_frame, error.frames[-_MOST_FRAMES:])
        yield clean(str(error), limit=_MOST_LINE)


def _frame(frame: PyFrame) -> str:
    text = f"{frame.function} ({frame.file}:{frame.line})"
    return f"  {clean(text, limit=300)}"
