"""
Does a selection of ranks mean this one?

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


__all__ = ["is_selected"]


def is_selected(
    by_rank: Iterable[range],
    by_dimension: Iterable[tuple[str, Iterable[range]]],
    rank: int,
    coords: Mapping[str, int],
) -> bool:
    """
    Is a rank among those that are meant?

    Args:
        by_rank: Ranks, if no dimension is named.

        by_dimension: The wanted indexes in some dimensions, by name.

        rank: The rank.

        coords: Its index in each dimension that it has.

    Returns:
        Whether it is; never, if it lacks one of the dimensions.
    """
    wanted = dict(by_dimension)
    if not wanted:
        rank = int(rank)  # ranges go through all they hold for other kinds
        return any(rank in ranks for ranks in by_rank)

    return all(
        name in coords and any(coords[name] in indexes for indexes in ranges)
        for name, ranges in wanted.items()
    )
