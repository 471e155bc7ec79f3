"""
Where in the mesh is a process, by the title that its framework gave it?
"""

from __future__ import annotations

import re


__all__ = ["parse_title", "rank_of_title"]

# scheduler_PP2_TP1, scheduler_TP0_PP0_DP0_EP0, Worker_TP3, EngineCore_DP1:
# in any order, and only those of more than one place.
_PLACE = re.compile(
    r"(?<![A-Za-z])(TP|PP|DP|EP|CP|SP|CFG|DCP|PCP|ETP|EDP|MOE_EP|MOE_DP"
    r"|ATTN_TP|ATTN_DP|ATTN_CP)_?(\d{1,6})(?![A-Za-z0-9])"
)
# Nobody has more dimensions; a title may hold anything.
_MOST = 16


def parse_title(title: str) -> tuple[tuple[str, int], ...]:
    """
    Where in the mesh is a process?

    Args:
        title: Its title.

    Returns:
        Names of dimensions in small letters and the place along each, in the
        order of the title; the first if one is there twice.
    """
    places: dict[str, int] = {}
    for name, number in _PLACE.findall(title[:4096])[:_MOST]:
        places.setdefault(name.lower(), int(number))
    return tuple(places.items())


def rank_of_title(places: tuple[tuple[str, int], ...]) -> int | None:
    """
    Which rank is at this place, if that can be told?

    It can be told only where tensor parallelism makes the whole job; experts
    are spread over the same ranks.  How wide the other dimensions are, no
    title says.

    Args:
        places: As :func:`parse_title` gives them.

    Returns:
        The rank, or ``None``.
    """
    known = dict(places)
    return known.get("tp") if known.keys() <= {"tp", "ep"} else None
