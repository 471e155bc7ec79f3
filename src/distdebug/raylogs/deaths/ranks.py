"""
Which rank was a worker, as its name or its own words tell?
"""

from __future__ import annotations

import re

from collections.abc import Sequence


__all__ = ["rank_of"]

# In the name of an actor, such as NamedRepr(rank=0) or trainer_rank3.
_NAMED_RANK = re.compile(
    r"(?:(?<![A-Za-z])|(?<=global_)|(?<=world_))rank[=:_ ]{0,2}(?P<rank>\d{1,6})",
    re.IGNORECASE,
)
_OTHER_RANK = re.compile(
    r"(?:local|node|group|dp|tp|pp|cp|ep)_?$", re.IGNORECASE
)
_PRINTED_RANK = re.compile(
    r"(?:^\[rank|(?<![A-Za-z_])RANK[=:] ?|(?<![A-Za-z_])global_rank[=:] ?)"
    r"(?P<rank>\d{1,6})",
    re.MULTILINE,
)


def rank_of(names: Sequence[str | None], text: str) -> int | None:
    """
    Which global rank was a worker?

    Args:
        names: What it is called; the first that holds a rank counts.

        text: What it printed.

    Returns:
        The rank; ``None`` if nothing tells, or lines contradict each other.
    """
    for name in filter(None, names):
        for found in _NAMED_RANK.finditer(name):
            if not _OTHER_RANK.search(name[: found.start()]):
                return int(found["rank"])
    printed = {int(x["rank"]) for x in _PRINTED_RANK.finditer(text)}
    return printed.pop() if len(printed) == 1 else None
