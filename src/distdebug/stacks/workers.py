"""
What do those do that work for a waiting rank?
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..findings import Cause
from .family import Family
from .look import Looker
from .state import state_view
from .view import ProcessView, evidence_of


__all__ = ["with_workers"]

_MOST_WORKERS = 64
_WAITS_FOR_CHILDREN = frozenset(
    {
        Cause.DATALOADER_WAIT,
        Cause.SUBPROCESS_WAIT,
        Cause.QUEUE_WAIT,
        Cause.FUTURE_WAIT,
    }
)
_IDLE = frozenset({Cause.IDLE, Cause.EVENT_LOOP_IDLE, Cause.UNKNOWN})


def with_workers(
    view: ProcessView, family: Family, looker: Looker
) -> ProcessView:
    """
    Join what a rank waits for with what its children do.

    Args:
        view: What the rank does.

        family: Who is whose child.

        looker: Explains single processes.

    Returns:
        The same view; of a rank that waits for a child that is busy or dead,
        with what that child does.
    """
    if view.cause not in _WAITS_FOR_CHILDREN:
        return view

    is_loader = view.cause is Cause.DATALOADER_WAIT
    children = [
        child
        for child in family.children_of(view.process)[:_MOST_WORKERS]
        if child.role != "compile"
        and (child.role != "child" or not is_loader or child.threads)
    ]
    seen = [
        found
        for child in children
        if (found := state_view(child, looker.book) or looker.explain(child))
    ]
    busy = [v for v in seen if v.cause not in _IDLE]
    if busy:
        return _joined(view, busy)
    if is_loader and seen:
        many = "worker is" if len(seen) == 1 else f"{len(seen)} workers are"
        return attrs.evolve(view, note=f"although its {many} idle")

    return view


def _joined(view: ProcessView, busy: Sequence[ProcessView]) -> ProcessView:
    worst = min(busy, key=_urgency)
    evidence = evidence_of(worst.process, worst.thread, worst.frame)
    view = attrs.evolve(view, evidence=(*view.evidence, evidence))
    place = f" in {worst.location.brief}" if worst.location else ""
    number = worst.process.pid
    if view.cause is not Cause.DATALOADER_WAIT or worst.location is None:
        kind = "worker" if view.cause is Cause.DATALOADER_WAIT else "child"
        said = f"{kind}, process {number}, {worst.doing}{place}"
        return attrs.evolve(view, note=f"{view.note} (its {said})".strip())

    # The line that a person can do something about is that of the worker.
    at = f" in {view.location.brief}" if view.location else ""
    waits = f"{view.doing}{at}"
    return attrs.evolve(
        view,
        doing=f"{waits}: its worker, process {number}, {worst.doing}",
        doing_of_many=f"{waits}: a worker of each {worst.doing}",
        location=worst.location,
        note=worst.note,
    )


def _urgency(view: ProcessView) -> tuple[bool, bool, int]:
    is_gone = view.cause in {Cause.DEAD, Cause.STOPPED, Cause.UNINTERRUPTIBLE}
    is_vague = view.cause in {Cause.PYTHON_LOOP, Cause.NATIVE_SPIN}
    return not is_gone, is_vague, view.process.pid
