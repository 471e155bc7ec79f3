"""
Who says this: which rank, in which group?

``[rank3]:`` before a line is the global rank.  ``[Rank 1]`` and ``[PG … Rank
1]`` inside of it count within the group.  Both are the same only in the
default group.
"""

from __future__ import annotations

import re

from collections.abc import Iterator
from typing import Any

import attrs

from ..._lines import LogLine, Origin, parse_time
from ..._text import clean
from .model import LogGroup
from .words import spaced


__all__ = ["Speaker", "speakers"]

_PREFIX = re.compile(r"\[rank(\d{1,7})\]:?")
_GROUP = re.compile(
    spaced(
        r"\[PG ID (?P<id>\d{1,9}) PG GUID (?P<uid>[^\s(\]]{1,80}?)"
        r"(?: \((?P<desc>[^)\]]{0,200})\))? Rank (?P<rank>\d{1,7})\]"
        r"|\[PG (?P<old>[^\s(\]]{1,80}?)(?: \((?P<old_desc>[^)\]]{0,200})\))?"
        r" Rank (?P<old_rank>\d{1,7})\]"
    )
)
_RANK = re.compile(spaced(r"\[Rank (\d{1,7})\]"))
_QUOTE = 400
# So near before what they say, ranks are named.
_NEAR = 2000


@attrs.frozen
class Speaker:
    """
    Who prints a line, as far as it is the same for all of it.

    Attributes:
        line: The line.

        rank: The global rank, if it is told.

        text: The part of the line that is this rank's.

        attempt: How often the job had been restarted.
    """

    line: LogLine
    rank: int | None
    text: str
    attempt: int = 0

    def at(self, text: str, position: int) -> dict[str, Any]:
        """
        What a record has to know that is told at this position of the text.
        """
        group, member = _named(text[max(0, position - _NEAR) : position])
        rank = self.rank
        if rank is None and group is not None and group.is_default:
            rank = member
        return {
            "rank": rank,
            "group_rank": member,
            "group": group,
            "origin": self.line.origin,
            "source": self.line.source,
            "line": self.line.number,
            "time": parse_time(text),
            "quote": clean(text[: 2 * _QUOTE], limit=_QUOTE),
            "count": self.line.count,
            "attempt": self.attempt,
        }


def speakers(
    line: LogLine, *, rank: int | None, attempt: int
) -> Iterator[Speaker]:
    """
    Who speaks in this line?

    Several ranks do where lines were written at once, or behind a progress
    bar.

    Args:
        line: The line.

        rank: Whose file it is, if its name tells.

        attempt: How often the job had been restarted.

    Yields:
        Each of them, with what it says.
    """
    origin: Origin | None = line.origin
    first = rank if origin is None or origin.rank is None else origin.rank
    head, *others = _PREFIX.split(line.text)
    if head.strip():
        yield Speaker(line, first, head, attempt)
    for number, text in zip(others[::2], others[1::2], strict=True):
        yield Speaker(line, int(number), text, attempt)


def _named(before: str) -> tuple[LogGroup | None, int | None]:
    """
    The group and the rank in it that were named last.
    """
    group = member = None
    for found in _GROUP.finditer(before):
        uid = found["uid"] or found["old"]
        group = LogGroup(uid, found["desc"] or found["old_desc"] or "")
        member = int(found["rank"] or found["old_rank"])
    for found in _RANK.finditer(before):
        member = int(found[1])
    return group, member
