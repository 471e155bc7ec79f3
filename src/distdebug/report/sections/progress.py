"""
How far did every process group get?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..._text import clean
from ...findings import Diagnosis, GroupProgress, group_order
from ..ranks import RankLinks, rank_links
from ..section import Section


__all__ = ["progress_section"]

_MOST_SHOWN = 24
_MOST_ROWS = 600


class _Row(NamedTuple):
    """
    Groups that are alike; stuck ones stand alone.
    """

    name: str
    desc: str
    number: int
    size: int
    ranks: str
    completed: int
    furthest: int
    waiting: RankLinks
    absent: RankLinks
    # Shares of the members, of 100.
    shares: tuple[tuple[str, float], ...]


def progress_section(diagnosis: Diagnosis) -> Section | None:
    """
    How far did every process group get?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        The groups, in the order of the text; those that are alike are folded.
    """
    groups = diagnosis.groups
    if not groups:
        return None

    ordered = sorted(groups, key=group_order(diagnosis))
    rows = [_row(alike) for alike in _folded(ordered)]
    stuck = sum(bool(g.waiting or g.absent) for g in groups)
    many = "group" if len(groups) == 1 else "groups"
    return Section(
        name="progress",
        title="Progress of process groups",
        summary=f"{stuck:,} of {len(groups):,} {many} stuck"
        if stuck
        else f"{len(groups):,} {many}, none stuck",
        values={
            "rows": rows[:_MOST_SHOWN],
            "others": rows[_MOST_SHOWN:_MOST_ROWS],
            "more": max(len(rows) - _MOST_ROWS, 0),
            "culprits": frozenset(diagnosis.verdict.ranks),
        },
    )


def _folded(
    groups: Iterable[GroupProgress],
) -> list[list[GroupProgress]]:
    """
    Groups that got equally far; one that is stuck is like no other.
    """
    alike: dict[tuple[object, ...], list[GroupProgress]] = defaultdict(list)
    for g in groups:
        who = (g.name, g.ranks) if g.waiting or g.absent else ()
        key = (g.desc, len(g.ranks), g.last_completed, g.furthest, who)
        alike[key].append(g)
    return list(alike.values())


def _row(alike: Sequence[GroupProgress]) -> _Row:
    first = alike[0]
    folded = rank_links({r for g in alike for r in g.ranks}, most=0).folded
    return _Row(
        name=clean(first.name, limit=60),
        desc=clean(first.desc, limit=60),
        number=len(alike),
        size=len(first.ranks),
        ranks=folded,
        completed=first.last_completed,
        furthest=first.furthest,
        waiting=rank_links(first.waiting, most=4),
        absent=rank_links(first.absent, most=4),
        shares=_shares(first),
    )


def _shares(group: GroupProgress) -> tuple[tuple[str, float], ...]:
    absent = len(set(group.absent))
    waiting = len(set(group.waiting).difference(group.absent))
    fine = max(len(group.ranks) - absent - waiting, 0)
    whole = absent + waiting + fine or 1
    # As of any progress: what is done comes first.
    counts = (("fine", fine), ("waiting", waiting), ("absent", absent))
    return tuple((kind, 100 * n / whole) for kind, n in counts if n)
