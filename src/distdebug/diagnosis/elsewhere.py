"""
Do ranks that did not arrive wait elsewhere, in a call that is not recorded?

All ranks of a group make a monitored barrier, or a new group, together, and no
dump shows that.  Who is not there, but in a call that is on record, left the
order of the others.  Of other calls it is open whom they wait for.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Mapping, Sequence

import attrs

from ..findings import Cause, Finding
from ..ranks import ranks_text
from ..waits import Wait
from .from_stacks import WAITS
from .hosts import HostView
from .unrecorded import call_for


__all__ = ["cross_waits", "wait_elsewhere"]

# The outermost one is what the user called.
_CALL = re.compile(
    r"(\w+) \([^()]*(?:distributed_c10d|torch/distributed/device_mesh)\.py:\d+\)"
)
# Calls to one other rank, which Gloo does not record.
_P2P = re.compile(r"i?(send|recv)\w*|batch_isend_irecv")
# What all ranks of a group have to call, and no backend records.
_TOGETHER = {
    "init_device_mesh",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "split_group",
}
_NOT_RECORDED = (
    "see why the other side of this call does not answer; no dump shows it on "
    "Gloo"
)
_OTHER_MOMENTS = (
    "either dump and stack are of different moments (then take both again), or "
    "the rank waits in a call that is not recorded: send and recv on Gloo, or "
    "a key of the store that another rank should set"
)
# So many calls in which ranks wait are told.
_MOST_PARTIES = 3


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
    call = _common_call(finding, views)
    wait = call_for(finding.ranks, finding, waits)
    if wait is None or wait.p2p or call not in _TOGETHER:
        return None

    inside = [r for r in wait.waiting if r not in finding.ranks]
    parties = sorted(
        [
            (inside, f"{finding.collective} of group {str(finding.group)!r}"),
            (list(finding.ranks), call),
        ],
        key=lambda party: len(party[0]),
    )
    (few, _), (many, _) = parties
    is_open = len(few) == len(many)
    ranks = tuple(sorted([*few, *many] if is_open else few))
    said = "wait for each other" if is_open else "left the order of the others"
    seen = [views[r] for r in (few[0], many[0]) if r in views]
    return attrs.evolve(
        finding,
        cause=Cause.GROUP_ORDER_DEADLOCK,
        ranks=ranks,
        confidence="possible" if is_open else "likely",
        summary=f"{ranks_text(ranks)} {said}: "
        + ", ".join(
            f"{ranks_text(who)} in {what}"
            + _place(views[r] for r in who if r in views)
            for who, what in parties
        ),
        location=seen[0].location,
        evidence=(*(e for v in seen for e in v.evidence), *finding.evidence),
        remedy=f"look for a branch that leaves out {call} or {wait.op}, or "
        "makes them in another order, on some ranks only",
    )


def _common_call(finding: Finding, views: Mapping[int, HostView]) -> str:
    """
    The call in which all who are missing wait; ``""`` if there is none.
    """
    seen = [views.get(rank) for rank in finding.ranks]
    calls = {
        _torch_call(v) if v is not None and v.cause in WAITS else ""
        for v in seen
    }
    return calls.pop() if len(calls) == 1 else ""


def wait_elsewhere(
    finding: Finding, seen: Sequence[HostView]
) -> Finding | None:
    """
    Tell of ranks that did not arrive that they wait themselves.

    Args:
        finding: About ranks that never entered a call.

        seen: What they were doing on their hosts, as far as it is known.

    Returns:
        The finding, which is open now; ``None`` if the first of them that was
        seen anywhere waits for nobody.
    """
    first = next((v for v in seen if v.location), None)
    causes = _waits_of(finding)
    if first is None or first.cause not in causes:
        return None

    views = [v for v in seen if v.cause in causes]
    by_call: dict[tuple[str, str], list[HostView]] = {}
    for view in views:
        call = _torch_call(view)
        key = call, "" if call else view.doing
        by_call.setdefault(key, []).append(view)
    parties = list(by_call.items())[:_MOST_PARTIES]
    said = ", ".join(_waiting(*key, alike) for key, alike in parties)
    is_p2p = all(_P2P.fullmatch(call) for call, _ in by_call)
    return attrs.evolve(
        finding,
        confidence="possible",
        summary=f"{finding.summary}; but {said}",
        location=views[0].location,
        evidence=(
            *(e for _, alike in parties for e in alike[0].evidence),
            *finding.evidence,
        ),
        remedy=_NOT_RECORDED if is_p2p else _OTHER_MOMENTS,
    )


def _waits_of(finding: Finding) -> frozenset[Cause]:
    # One that waits for the store is missing; several wait for another one.
    is_alone = len(finding.ranks) == 1
    return frozenset({Cause.COLLECTIVE_WAIT}) if is_alone else WAITS


def _waiting(call: str, doing: str, views: Sequence[HostView]) -> str:
    verb = "is" if len(views) == 1 else "are"
    what = f"waiting in {call}" if call else doing.removeprefix("is ")
    return (
        f"{ranks_text([v.rank for v in views])} {verb} {what}{_place(views)}"
    )


def _torch_call(view: HostView) -> str:
    """
    The function of torch that the user called, and in which a rank waits.
    """
    found = [c for e in view.evidence for c in _CALL.findall(e.quote)]
    return str(found[-1]) if found else ""


def _place(views: Iterable[HostView]) -> str:
    location = next((v.location for v in views if v.location), None)
    return f" at {location.brief}" if location else ""
