"""
Do ranks wait for each other, some of them in a call that is not recorded?

All ranks of a group make a monitored barrier, or a new group, together, and no
dump shows that.  Who is not there, but in a call that is on record, left the
order of the others.
"""

from __future__ import annotations

import re

from collections.abc import Mapping, Sequence

import attrs

from ..findings import Cause, Finding
from ..ranks import ranks_text
from ..waits import Wait
from .from_stacks import WAITS
from .hosts import HostView


__all__ = ["cross_waits", "torch_call"]

# The outermost one is what the user called.
_CALL = re.compile(
    r"(\w+) \([^()]*torch/distributed/(?:distributed_c10d|device_mesh)\.py:\d+\)"
)
# What all ranks of a group have to call, and no backend records.
_TOGETHER = {
    "init_device_mesh",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "split_group",
}


def torch_call(view: HostView) -> str:
    """
    Tell in which call of torch a rank waits.

    Args:
        view: What it was doing on its host.

    Returns:
        The name of the function that the user called; ``""`` if the stack
        shows none.
    """
    found = [c for e in view.evidence for c in _CALL.findall(e.quote)]
    return str(found[-1]) if found else ""


def cross_waits(
    finding: Finding, views: Mapping[int, HostView], waits: Sequence[Wait]
) -> Finding | None:
    """
    Find ranks that wait for each other in two calls, one of them recorded.

    Args:
        finding: About ranks that never entered a call.

        views: What each rank was doing on its host.

        waits: The stuck calls.

    Returns:
        The finding, which blames the smaller party; ``None`` unless all who
        are missing wait in the same call, which others have to make, too.
    """
    wait = _wait_of(finding, waits)
    absent = [views[rank] for rank in finding.ranks if rank in views]
    calls = {torch_call(v) if v.cause in WAITS else "" for v in absent}
    if wait is None or len(absent) < len(finding.ranks) or len(calls) != 1:
        return None
    call = calls.pop()
    if call not in _TOGETHER:
        return None

    present = [r for r in wait.waiting if r not in finding.ranks]
    place = _place(views, present)
    sides = [
        (
            present,
            f"{finding.collective} of group {str(finding.group)!r}{place}",
        ),
        (list(finding.ranks), f"{call}{_place(views, finding.ranks)}"),
    ]
    sides.sort(key=lambda side: len(side[0]))
    blamed = sides[0][0]
    is_open = len(blamed) == len(sides[1][0])
    text = ", ".join(f"{ranks_text(ranks)} in {what}" for ranks, what in sides)
    if is_open:
        ranks = tuple(sorted({*sides[0][0], *sides[1][0]}))
        said = f"{ranks_text(ranks)} wait for each other"
    else:
        ranks = tuple(blamed)
        said = f"{ranks_text(ranks)} left the order of the others"
    first = next((views[r] for r in ranks if r in views), absent[0])
    return attrs.evolve(
        finding,
        cause=Cause.GROUP_ORDER_DEADLOCK,
        ranks=ranks,
        confidence="possible" if is_open else "likely",
        summary=f"{said}: {text}",
        location=first.location,
        evidence=(
            *first.evidence,
            *(absent[0].evidence if first is not absent[0] else ()),
            *finding.evidence,
        ),
        remedy=f"look for a branch that leaves out {call} or "
        f"{finding.collective.op if finding.collective else 'the other call'}"
        ", or makes them in another order, on some ranks only",
    )


def _wait_of(finding: Finding, waits: Sequence[Wait]) -> Wait | None:
    """
    The stuck call of a finding, unless it is between two ranks.
    """
    told = finding.group, finding.collective
    return next(
        (
            w
            for w in waits
            if told[0] is not None
            and told[1] is not None
            and not w.p2p
            and (w.group, w.seq) == (told[0].name, told[1].seq)
        ),
        None,
    )


def _place(views: Mapping[int, HostView], ranks: Sequence[int]) -> str:
    found = (views[r].location for r in ranks if r in views)
    location = next((x for x in found if x is not None), None)
    return f" at {location.brief}" if location else ""
