"""
Who did not come to a call over Gloo?
"""

from __future__ import annotations

from collections.abc import Sequence

from ...findings import Cause, Finding
from ...ranks import ranks_text
from .logs import CollectiveLogs
from .model import GlooError
from .quoting import evidence_of, ranks_of, who_waited, within
from .remedies import REMEDIES


__all__ = ["explain_gloo"]

_ASK_FOR_DETAIL = (
    "collect the logs of all ranks, and run again with "
    "TORCH_DISTRIBUTED_DEBUG=DETAIL, which names who is missing"
)


def explain_gloo(logs: CollectiveLogs) -> list[Finding]:
    """
    Who did not come to a call over Gloo?

    Args:
        logs: What was read.

    Returns:
        A finding, or nothing.
    """
    waited = [x for x in logs.gloo if x.kind == "timeout"]
    lost = [x for x in logs.gloo if x.kind == "connect"]
    if lost and not waited:
        return [_unconnected(lost)]
    if not waited:
        return _left(logs)

    absent, is_silent = _others(logs, set(ranks_of(waited)))
    spent, who = within(waited), who_waited(waited)
    text = f"{who} waited in a call over Gloo{spent}, and these logs do not "
    text += "tell for whom"
    if absent:
        text = f"{ranks_text(absent)} did not come to a call over Gloo{spent}"
        if not is_silent:
            text = f"{ranks_text(absent)} came late to a call over Gloo, or "
            text += "would have waited a little longer: their connections "
            text += f"were closed by those who gave up{spent}"
        text += f"; {who} waited"
    cause = Cause.RANK_NOT_ARRIVED if absent else Cause.COLLECTIVE_TIMEOUT
    late = [x for x in logs.gloo if x.rank in absent]
    return [
        Finding(
            cause=cause,
            ranks=absent,
            summary=text,
            # Who lost a connection may have waited as long as the others.
            confidence="likely"
            if len(absent) < len(waited) and (is_silent or not absent)
            else "possible",
            remedy=REMEDIES[cause] if absent else _ASK_FOR_DETAIL,
            evidence=evidence_of((*waited[:3], *late[:3])),
        )
    ]


def _others(
    logs: CollectiveLogs, waiting: set[int]
) -> tuple[tuple[int, ...], bool]:
    """
    Ranks that did not wait, as long as there are but few of them.

    Who comes late finds the connection closed by those who gave up.  So does
    one that would have waited a little longer; so many of them blame nobody,
    and nor does a single one if others say nothing at all.

    Returns:
        The ranks, and whether none of them says anything.
    """
    if not waiting:
        return (), False
    closed = {
        x.rank
        for x in logs.gloo
        if x.kind == "closed" and x.rank is not None and x.rank not in waiting
    }
    if logs.world_size is not None:
        missing = set(range(logs.world_size)) - waiting
    else:
        missing = closed
    if missing & closed and len(missing) > len(waiting):
        missing = closed
    missing = missing - closed or missing
    few = len(missing) <= max(len(waiting), 1)
    return tuple(sorted(missing)) if few else (), not missing & closed


def _left(logs: CollectiveLogs) -> list[Finding]:
    """
    Who is gone, if all but a few found their connections closed?

    Only its neighbors lose the connection to one that leaves, and those who
    are told to end then do not complain either.
    """
    closed = [x for x in logs.gloo if x.kind == "closed"]
    named = set(ranks_of(closed))
    gone = set(range(logs.world_size or 0)) - named
    if not named or not 0 < len(gone) <= len(named):
        return []

    is_one = len(gone) == 1
    who = ranks_text(gone) if is_one else f"one or more of {ranks_text(gone)}"
    return [
        Finding(
            cause=Cause.RANK_CRASHED,
            ranks=tuple(sorted(gone)),
            summary=f"{who} left: {ranks_text(named)} found a connection of "
            f"Gloo closed, and only {'it does' if is_one else 'these do'} "
            "not complain",
            confidence="likely" if is_one and len(named) > 1 else "possible",
            remedy="look for how the processes of those ended that do not "
            "complain: the end of their logs, exit codes, the kernel log",
            evidence=evidence_of(closed),
        )
    ]


def _unconnected(lost: Sequence[GlooError]) -> Finding:
    who = who_waited(lost)
    peers = ", ".join(dict.fromkeys(x.peer for x in lost if x.peer))
    return Finding(
        cause=Cause.NETWORK_FAILURE,
        ranks=(),
        summary=f"{who} did not reach the others over Gloo"
        + (f" ({peers[:200]})" if peers else ""),
        confidence="likely",
        remedy="check GLOO_SOCKET_IFNAME on every node: each must name an "
        "interface through which the others are reached",
        evidence=evidence_of(lost),
    )
