"""
What did watchdogs and NCCL print about collectives?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ...._text import clean
from ....logscan.collectives import CollectiveLogs
from ....logscan.collectives.model import LogRecord
from ...paths import short_path
from ...ranks import RankLinks, rank_links


__all__ = ["Statement", "statements_of"]

_MOST = 200
_MOST_QUOTED = 500
# In the order of what they tell, in words.
_KINDS = (
    ("timeouts", "calls that did not end in time"),
    ("desyncs", "who lags behind, as torch says"),
    ("mismatches", "calls that differ"),
    ("heartbeats", "watchdogs that did not move"),
    ("barriers", "barriers that failed"),
    ("gloo", "calls over Gloo that failed"),
    ("stores", "processes that did not find each other"),
    ("statuses", "how far ranks had come"),
    ("dump_signals", "who was told to leave a dump"),
    ("notes", "notes of NCCL"),
)


class Statement(NamedTuple):
    """
    What several ranks say of one group.

    Attributes:
        kind: What they speak of.

        group: The group.

        ranks: Who says so.

        number: How many lines there are.

        where: The place of the first of them.

        text: That line.
    """

    kind: str
    group: str
    ranks: RankLinks
    number: int
    where: str
    text: str


def statements_of(
    logs: CollectiveLogs, given: Sequence[str]
) -> tuple[list[Statement], int]:
    """
    What did watchdogs and NCCL print about collectives?

    Args:
        logs: What was read.

        given: The files and folders that were looked at.

    Returns:
        The first line of each kind and group, with all ranks that say so; and
        how many others there are.
    """
    alike: dict[tuple[str, str, str], list[LogRecord]] = defaultdict(list)
    for name, words in _KINDS:
        for record in getattr(logs, name):
            alike[words, str(record.group or ""), _call(record)].append(record)
    shown = [
        _statement(words, group, records, given)
        for (words, group, _), records in list(alike.items())[:_MOST]
    ]
    return shown, len(alike) - len(shown)


def _call(record: LogRecord) -> str:
    """
    The call that a line names, if it does; or its beginning.
    """
    op, seq = getattr(record, "op", ""), getattr(record, "seq", None)
    return f"{op} {seq}" if op else type(record).__name__


def _statement(
    words: str,
    group: str,
    records: Sequence[LogRecord],
    given: Sequence[str],
) -> Statement:
    first = records[0]
    source = short_path(first.source, given) if first.source else ""
    return Statement(
        kind=words,
        group=clean(group, limit=60),
        ranks=rank_links(r.rank for r in records if r.rank is not None),
        number=sum(record.count for record in records),
        where=f"{source}, line {first.line}" if source else "",
        text=clean(first.quote, limit=_MOST_QUOTED),
    )
