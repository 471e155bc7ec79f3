"""
Does the job move, and if it does, who do the others wait for?
"""

from __future__ import annotations

from collections.abc import Sequence

from ..findings import Cause, Finding
from .motion import Motion
from .view import ProcessView
from .wording import agree, finding, names_of


__all__ = ["judge_progress"]

_FOR_OTHERS = frozenset(
    {Cause.COLLECTIVE_WAIT, Cause.RENDEZVOUS_WAIT, Cause.GPU_SYNC_WAIT}
)

Views = Sequence[ProcessView]


def judge_progress(views: Views) -> tuple[Finding, ...]:
    """
    Say that a job moves, if it does, and who the others wait for.
    """
    busy = [v for v in views if v.cause is not Cause.IDLE]
    waiting = [v for v in busy if v.cause in _FOR_OTHERS]
    moves = [v for v in waiting or busy if v.motion is Motion.MOVING]
    if not moves or 2 * len(moves) < len(waiting or busy):
        return ()
    if not waiting and len(moves) < len(busy):
        return ()

    slow = [v for v in busy if v not in waiting and _stays(v)]
    slow = slow if waiting else []
    slow = slow if 2 * len(slow) < len(busy) else []
    processes = [v.process for v in views]
    text = f"{names_of(processes)} {agree(processes, 'is moving')}: slow at "
    text += "most, not stuck"
    if slow:
        text += f"; the others wait for {names_of([v.process for v in slow])}"
        place = slow[0].location
        text += f" in {place.brief}" if place else ""
    ranks = tuple(v.process.rank for v in slow if v.process.rank is not None)
    changes = {
        "cause": Cause.PROGRESSING,
        "ranks": ranks,
        "summary": text,
        "confidence": "likely",
        "remedy": "if it is too slow, look at who the others wait for",
    }
    return (finding(slow or moves, changes=changes),)


def _stays(view: ProcessView) -> bool:
    """
    Whether a rank was in the same function at every look.
    """
    activity = view.thread.activity if view.thread else None
    return activity is not None and activity.has_left is False
