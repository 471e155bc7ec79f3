"""
Which groups matter most, and which of their calls?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from ....findings import Diagnosis
from ....flight_recorder.analysis.report import FlightReport
from .recorded import Recorded, State
from .views import View


__all__ = ["chosen_groups", "focus_of"]


def chosen_groups(
    views: Sequence[View],
    recorded: Recorded,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> list[tuple[View, int]]:
    """
    Which groups matter most?

    Args:
        views: All pictures.

        recorded: What all ranks recorded.

        diagnosis: What is wrong with the job.

        flight: What the dumps say about it.

    Returns:
        The group (as index) of the verdict, and those that are stuck, with
        their pictures; if there is none, the largest one.
    """
    view_of = {group: view for view in views for group in view.groups}
    found = dict.fromkeys(_named(view_of, recorded, diagnosis, flight))
    if not found and views:
        order = recorded.membership.groups
        largest = max(views[0].groups, key=lambda i: len(order[i].order))
        found[largest] = None
    # One of each kind of group tells more than several of one kind.
    seen: dict[int, int] = defaultdict(int)
    places: list[tuple[bool, int, int]] = []
    for i in found:
        seen[id(view_of[i])] += 1
        places.append((seen[id(view_of[i])] > 1, len(places), i))
    return [(view_of[i], i) for _, _, i in sorted(places)]


def _named(
    groups: Iterable[int],
    recorded: Recorded,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> Iterable[int]:
    order = recorded.membership.groups
    verdict = diagnosis.verdict.group
    stuck = {
        (w.group, rank)
        for w in flight.waits
        if not w.p2p
        for rank in w.waiting
    }
    groups = list(groups)
    for i in groups:
        if verdict is not None and order[i].ref == verdict:
            yield i
    blamed = frozenset(diagnosis.verdict.ranks)
    yield from sorted(
        (
            i
            for i in groups
            if any((order[i].name, rank) in stuck for rank in order[i].order)
        ),
        key=lambda i: blamed.isdisjoint(order[i].order),
    )


def focus_of(
    view: View,
    group: int,
    recorded: Recorded,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> int:
    """
    Which column of a group matters most?

    Args:
        view: The picture that the group is in.

        group: The group, as index.

        recorded: What all ranks recorded.

        diagnosis: What is wrong with the job.

        flight: What the dumps say about it.

    Returns:
        The column (as index) of the call that findings name, that is stuck, or
        in which ranks differ; else the newest.
    """
    known = recorded.membership.groups[group]
    named = [
        f.collective.seq
        for f in (diagnosis.verdict, *diagnosis.findings)
        if f.group == known.ref and f.collective and not f.collective.p2p
    ]
    members = set(known.order)
    named += [
        w.seq
        for w in flight.waits
        if w.group == known.name and not w.p2p and members & set(w.waiting)
    ]
    for seq in named:
        at = int(np.searchsorted(view.columns, seq))
        if at < len(view.columns) and view.columns[at] == seq:
            return at

    kinds = np.unique(view.kind[view.group == group])
    odd = (view.states[kinds] & State.DIFFERS).any(axis=0)
    return int(odd.argmax()) if odd.any() else len(view.columns) - 1
