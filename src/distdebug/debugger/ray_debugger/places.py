"""
At which line of the user's code does a process wait for a debugger?
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...findings import Location
from .asking import plain_text


__all__ = ["NO_FRAMES", "waiting_places"]

NO_FRAMES = (
    "an error ended what ran: its frames are seen once one has attached"
)
# Nobody looks at more threads of one process.
_MOST_PLACES = 100


def waiting_places(
    look: Mapping[str, Any],
) -> tuple[tuple[Location, ...], str]:
    """
    Where do the threads of a process wait?

    Args:
        look: What `see_processes` tells of it.

    Returns:
        The line of each thread, and why there is none, or ``""``.
    """
    rows = look.get("places")
    if not isinstance(rows, list):
        return (), plain_text(look.get("reason")) or "py-spy saw nothing"
    found = [_place(row) for row in rows[:_MOST_PLACES]]
    places = tuple(place for place in found if place is not None)
    if places:
        return places, ""
    return (), NO_FRAMES if found else "no thread of it waits any more"


def _place(row: object) -> Location | None:
    match row:
        case [str(function), str(file), int(line)]:
            return Location(
                function=plain_text(function), file=plain_text(file), line=line
            )
    return None
