"""
What could not be looked at, and why?
"""

from __future__ import annotations

from typing import NamedTuple

from ..._text import clean
from ...diagnosis.seen import seen_by
from ...findings import Diagnosis, Missing
from ..paths import short_path
from ..ranks import RankLinks, rank_links
from ..section import Section
from ..words import as_sentence


__all__ = ["missing_section"]

_MOST_REASONS = 200
_MOST_SOURCES = 20


class _Row(NamedTuple):
    """
    What is missing for the same reason.
    """

    what: str
    reason: str
    number: int
    ranks: RankLinks
    sources: tuple[str, ...]
    more: int


def missing_section(diagnosis: Diagnosis) -> Section | None:
    """
    What could not be looked at, and why?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        The reasons, each once.
    """
    if not diagnosis.missing:
        return None

    by_reason: dict[tuple[str, str], list[Missing]] = {}
    for m in diagnosis.missing:
        by_reason.setdefault((m.what, m.reason), []).append(m)
    given = seen_by(diagnosis).paths
    rows = [
        _row(alike, given)
        for alike in list(by_reason.values())[:_MOST_REASONS]
    ]
    count = len(diagnosis.missing)
    return Section(
        name="missing",
        title="What is missing",
        summary=f"{count:,} {'thing' if count == 1 else 'things'} could not "
        "be looked at",
        values={"rows": rows, "more": len(by_reason) - len(rows)},
        is_open=False,
    )


def _row(alike: list[Missing], given: tuple[str, ...]) -> _Row:
    sources = dict.fromkeys(m.source for m in alike if m.source)
    shown = list(sources)[:_MOST_SOURCES]
    return _Row(
        what=clean(alike[0].what, limit=60),
        reason=as_sentence(alike[0].reason),
        number=len(alike),
        ranks=rank_links(m.rank for m in alike if m.rank is not None),
        sources=tuple(short_path(source, given) for source in shown),
        more=len(sources) - len(shown),
    )
