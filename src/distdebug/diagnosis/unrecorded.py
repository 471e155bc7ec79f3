"""
Is a job healthy if nothing on record is stuck?

Gloo records no send, no receive, and no monitored barrier.  Who waits there
shows on the host alone, and who fails there tells it by an exception.
"""

from __future__ import annotations

import re

from collections.abc import Mapping, Sequence

import attrs

from ..findings import (
    Cause,
    CollectiveRef,
    Finding,
    GroupRef,
)
from ..flight_recorder.analysis.endings import (
    ended_s,
    failed_in_call,
    lost_peer,
)
from ..flight_recorder.columns import Dumps
from ..ranks import ranks_text
from ..waits import Wait
from .deaths import quote_error
from .hosts import HostView


__all__ = ["find_failed", "without_waiting"]

_TIMED_OUT = re.compile(r"tim(ed|e)[ -]?out", re.IGNORECASE)


def find_failed(views: Mapping[int, HostView], dumps: Dumps) -> Finding | None:
    """
    Find the calls that failed although no dump shows them.

    Args:
        views: What each rank was doing on its host.

        dumps: Its side-cars tell of exceptions.

    Returns:
        The finding, whose ranks are those that did not fail, if they are the
        fewer; ``None`` if no call failed.
    """
    known = dumps.sidecars.values()
    is_ended = ended_s(dumps) is not None
    failed = [
        s
        for s in known
        if failed_in_call(s.error) and not (is_ended and lost_peer(s.error))
    ]
    if not failed:
        return None

    others = tuple(sorted(s.rank for s in known if not s.error))
    suspects = others if 2 * len(others) < len(known) else ()
    text = (
        f"{ranks_text(sorted(s.rank for s in failed))} failed in calls that "
        f"no dump shows ({failed[0].error})"
    )
    if suspects:
        text += f"; {ranks_text(suspects)} did not"
    view = next((views[r] for r in suspects if r in views), None)
    if view is not None and view.location is not None:
        doing = view.doing or "was"
        text += f": rank {view.rank} {doing} in {view.location.brief}"
    is_timeout = any(_TIMED_OUT.search(s.error) for s in failed)
    return Finding(
        cause=Cause.COLLECTIVE_TIMEOUT if is_timeout else Cause.UNKNOWN,
        ranks=suspects,
        summary=text,
        confidence="possible",
        remedy="see what the ranks that did not fail were doing meanwhile",
        location=view.location if view else None,
        evidence=(
            *(view.evidence if view else ()),
            *map(quote_error, failed[:4]),
        ),
    )


def without_waiting(
    finding: Finding, views: Mapping[int, HostView], waits: Sequence[Wait]
) -> Finding:
    """
    Of ranks that did not arrive, leave out those that only wait elsewhere.

    Args:
        finding: Any finding; only of ranks that did not arrive one is changed.

        views: What each rank was doing on its host.

        waits: The stuck calls.

    Returns:
        The finding about those that wait for nobody, and a call that waits
        for them; unchanged if all or none of them wait.
    """
    if finding.cause is not Cause.RANK_NOT_ARRIVED:
        return finding

    waiting = [
        r
        for r in finding.ranks
        if r in views and views[r].cause is Cause.COLLECTIVE_WAIT
    ]
    left = tuple(r for r in finding.ranks if r not in waiting)
    if not waiting or not left:
        return finding

    verb = "waits" if len(waiting) == 1 else "wait"
    tail = f"({ranks_text(waiting)} {verb} elsewhere, not on record)"
    call = _call_for(left, finding, waits)
    if call is None:
        return attrs.evolve(
            finding,
            ranks=left,
            confidence="likely",
            summary=f"{ranks_text(left)} entered no call {tail}",
        )

    group = GroupRef(
        name=call.group,
        desc=call.desc,
        ranks=tuple(sorted({*call.waiting, *call.awaited})),
    )
    ref = CollectiveRef(op=call.op, seq=call.seq, p2p=call.p2p)
    return attrs.evolve(
        finding,
        ranks=left,
        confidence="likely",
        group=group,
        collective=ref,
        summary=f"{ranks_text(left)} never entered {ref} of group "
        f"{str(group)!r} {tail}",
    )


def _call_for(
    ranks: Sequence[int], finding: Finding, waits: Sequence[Wait]
) -> Wait | None:
    """
    A stuck call that waits for some of these ranks; that of *finding* first.
    """
    told = (
        finding.group.name if finding.group else "",
        finding.collective.seq if finding.collective else 0,
    )
    theirs = [w for w in waits if not set(ranks).isdisjoint(w.awaited)]
    return min(theirs, key=lambda w: (w.group, w.seq) != told, default=None)
