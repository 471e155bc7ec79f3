"""
Who left, as those tell who lost the connection to it?
"""

from __future__ import annotations

from collections.abc import Sequence

from ...findings import Cause, Finding
from ...ranks import ranks_text
from .logs import CollectiveLogs
from .model import NcclNote
from .quoting import nccl_finding


__all__ = ["explain_lost"]


def explain_lost(logs: CollectiveLogs) -> list[Finding]:
    """
    Who was gone when others lost a connection of NCCL?

    Args:
        logs: What was read.

    Returns:
        A finding, or nothing.  Whoever is gone does not complain itself, so
        those who do not are suspects if they are few.
    """
    lost = [x for x in logs.notes if x.kind == "lost"]
    if not lost:
        return []

    named = {x.rank for x in lost if x.rank is not None}
    gone = set(range(logs.world_size or 0)) - named
    if 0 < 2 * len(gone) <= len(named):
        return [_left(lost, gone, len(named))]
    return [
        nccl_finding(
            Cause.NETWORK_FAILURE,
            "ranks lost a connection of NCCL: another rank left, or the "
            "network failed",
            lost,
            "look for the first error in the logs of all ranks; without "
            "one, check the network between their nodes",
            confidence="possible",
        )
    ]


def _left(lost: Sequence[NcclNote], gone: set[int], others: int) -> Finding:
    is_one = len(gone) == 1
    who = ranks_text(gone) if is_one else f"some of {ranks_text(gone)}"
    return nccl_finding(
        Cause.RANK_CRASHED,
        f"{who} left: {others} ranks lost a connection of NCCL, and only "
        f"{'it does' if is_one else 'these do'} not complain",
        lost,
        "look for the first error in the logs of those that do not complain",
        ranks=gone,
        confidence="likely" if 3 * len(gone) <= others else "possible",
    )
