"""
Who holds the lock of a file that the ranks wait for that did not arrive?

They come as soon as it is let go of; so whoever holds it is to be looked at,
also if it waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from ..findings import Cause, Finding
from ..ranks import ranks_text
from ..waits import Wait
from .hosts import HostView
from .unrecorded import call_for


__all__ = ["blame_holder"]

_LET_GO = (
    "let go of the lock before a call that waits for other ranks, which want "
    "to take it, too"
)
_SEE_WHY = "see why it does not let go of the lock"


def blame_holder(
    finding: Finding, views: Mapping[int, HostView], waits: Sequence[Wait]
) -> Finding | None:
    """
    Name the rank that holds the lock of a file that the others wait for.

    Args:
        finding: About ranks that never entered a call.

        views: What each rank was doing on its host.

        waits: The stuck calls.

    Returns:
        The finding; ``None`` unless one rank holds what all the others wait
        for.
    """
    seen = [views[r] for r in finding.ranks if r in views]
    holders = {v.holder for v in seen if v.holder is not None}
    holder = holders.pop() if len(holders) == 1 else None
    stuck = [v for v in seen if v.holder is not None and v.rank != holder]
    if holder is None or {*finding.ranks} - {holder} != {
        v.rank for v in stuck
    }:
        return None

    verb = "waits" if len(stuck) == 1 else "wait"
    view = views.get(holder, HostView(rank=holder))
    wait = call_for([v.rank for v in stuck], finding, waits)
    is_circle = wait is not None and holder in wait.waiting
    if is_circle:
        doing = f"waits for them in {finding.collective}"
        doing += f" of group {str(finding.group)!r}"
    else:
        doing = view.doing or "does not let go of it"
    return attrs.evolve(
        finding,
        cause=Cause.LOCK_DEADLOCK if is_circle else finding.cause,
        ranks=(holder,),
        summary=f"rank {holder} holds the lock of a file that "
        f"{ranks_text([v.rank for v in stuck])} {verb} for"
        f"{_place(stuck[0])}, and {doing}{_place(view)}",
        detail_cause=None if is_circle else view.cause,
        location=view.location,
        evidence=(*stuck[0].evidence, *view.evidence, *finding.evidence),
        remedy=_LET_GO if is_circle else view.remedy or _SEE_WHY,
    )


def _place(view: HostView) -> str:
    return f" in {view.location.brief}" if view.location else ""
