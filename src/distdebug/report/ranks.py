"""
How are many ranks shown, so that each can be followed?
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ..ranks import fold_ranks


__all__ = ["RankLinks", "rank_links"]

# Every second one of 16,384 ranks would fill a page.
_MOST_FOLDED = 300


@attrs.frozen(kw_only=True)
class RankLinks:
    """
    Some ranks.

    Attributes:
        count: How many there are.

        folded: All of them in few characters.

        first: Those that are shown one by one; empty if there are too many.
    """

    count: int = 0
    folded: str = ""
    first: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.count)


def rank_links(ranks: Iterable[int], *, most: int = 8) -> RankLinks:
    """
    How are many ranks shown?

    Args:
        ranks: Any ranks.

        most: How many are shown one by one.

    Returns:
        What templates show.
    """
    # Damaged files may tell of ranks below none.
    known = sorted({rank for rank in ranks if rank >= 0})
    return RankLinks(
        count=len(known),
        folded=_cut(fold_ranks(known)),
        first=tuple(known) if len(known) <= most else (),
    )


def _cut(folded: str) -> str:
    if len(folded) <= _MOST_FOLDED:
        return folded

    return f"{folded[:_MOST_FOLDED].rpartition(',')[0]},…"
