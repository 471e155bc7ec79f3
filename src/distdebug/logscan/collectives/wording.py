"""
How is what these lines show put into words?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...findings import (
    Cause,
    CollectiveRef,
    Finding,
    GroupRef,
)
from ...ranks import fold_ranks, ranks_text
from .case import Case
from .quoting import evidence_of
from .remedies import COLLECT, REMEDIES
from .verdict import Verdict


__all__ = ["explain_verdict", "global_ranks"]


def explain_verdict(
    verdict: Verdict, *, following: int = 0, run: str = ""
) -> Finding:
    """
    Put into words who holds up a group.

    Args:
        verdict: Who does.

        following: How many other groups wait because of it.

        run: Which run of the job it was, if there were several.

    Returns:
        The finding, with the lines that show it.
    """
    case = verdict.case
    ranks = verdict.ranks or global_ranks(case, verdict.members)
    summary = _summary(verdict, ranks)
    if following:
        others = "s" if following > 1 else ""
        because = " because of it" if verdict.members or ranks else ", too"
        summary += f"; {following} other group{others} waited{because}"
    remedy = REMEDIES.get(verdict.cause)
    if case.folded and not ranks:
        remedy = f"{COLLECT}; with RAY_DEDUP_LOGS=0, Ray shows every line"
    return Finding(
        cause=verdict.cause,
        ranks=ranks,
        summary=summary + run,
        confidence=verdict.confidence,
        remedy=remedy,
        group=_group(case, verdict),
        collective=None
        if verdict.seq is None
        else CollectiveRef(
            op=verdict.op or "unknown", seq=verdict.seq, p2p=verdict.is_p2p
        ),
        evidence=evidence_of(verdict.evidence),
    )


def global_ranks(case: Case, members: Iterable[int]) -> tuple[int, ...]:
    """
    Which global ranks are these?

    Args:
        case: The group.

        members: Ranks within it.

    Returns:
        As many as are known, ascending.
    """
    is_default = case.group is None or case.group.is_default
    found = (
        case.ranks.get(m, m if is_default else None) for m in set(members)
    )
    return tuple(sorted(rank for rank in found if rank is not None))


def _summary(verdict: Verdict, ranks: Sequence[int]) -> str:
    case = verdict.case
    who = _who(verdict, ranks)
    what = _call(verdict)
    waiting = len(verdict.waiting)
    wait = f"{waiting} rank{'s wait' if waiting != 1 else ' waits'} in it"
    told = f" ({verdict.told})" if verdict.told else ""
    seen = f"{wait}; {verdict.told}" if verdict.told else wait
    spent = _spent(verdict)
    within = f" within{spent}" if spent else ""
    texts = {
        Cause.RANK_NOT_ARRIVED: f"{who} did not come to {what} ({seen})",
        Cause.RANK_NOT_STARTED: f"the GPU of {who} did not begin {what} "
        f"({seen})",
        Cause.COLLECTIVE_STUCK_IN_FLIGHT: f"{what} did not complete{within}, "
        f"although {verdict.told}",
        Cause.TYPE_MISMATCH: f"{who} called another operation as {what}: "
        f"{verdict.told}",
        Cause.SIZE_MISMATCH: f"{who} passed another size to {what}: "
        f"{verdict.told}",
        Cause.COLLECTIVE_TIMEOUT: f"{_speakers(case)} waited{spent} in "
        f"{what}, and these logs do not tell for whom{told}",
    }
    text = texts[verdict.cause]
    silent = _unheard(verdict)
    return text + (f"; nothing is heard of {silent}" if silent else "")


def _who(verdict: Verdict, ranks: Sequence[int]) -> str:
    if verdict.members and len(ranks) < len(verdict.members):
        inside = "s" if len(verdict.members) > 1 else ""
        return f"rank{inside} {fold_ranks(verdict.members)} of the group"
    if verdict.confidence == "possible" and verdict.cause in {
        Cause.TYPE_MISMATCH,
        Cause.SIZE_MISMATCH,
    }:
        return f"one side of {ranks_text(ranks)}"
    return ranks_text(ranks)


def _call(verdict: Verdict) -> str:
    what = verdict.op or "call"
    if verdict.seq is not None:
        what += f" #{verdict.seq}"
    group = verdict.case.group
    return what + (f" of group {str(group)!r}" if group is not None else "")


def _spent(verdict: Verdict) -> str:
    """
    How long they waited, such as ``" 10 min"``, if it is told.
    """
    calls = verdict.case.timeouts.values()
    ran = next((x.ran for x in calls if x.ran is not None), None)
    if ran is None:
        return ""
    return f" {ran:.0f} s" if ran < 120 else f" {ran / 60:.0f} min"


def _speakers(case: Case) -> str:
    members = case.timeouts or case.statuses
    ranks = global_ranks(case, members)
    if not members:
        return "ranks"
    if len(ranks) < len(members):
        return f"rank {fold_ranks(members)} of the group"
    return ranks_text(ranks)


def _unheard(verdict: Verdict) -> str:
    """
    Members that say nothing, where others are to blame for sure.
    """
    case = verdict.case
    if (
        case.size is None
        or case.folded
        or verdict.cause
        not in {
            Cause.RANK_NOT_ARRIVED,
            Cause.RANK_NOT_STARTED,
        }
    ):
        return ""
    silent = (
        set(range(case.size))
        - set(case.timeouts)
        - set(case.statuses)
        - set(verdict.members)
    )
    return ranks_text(silent) if silent else ""


def _group(case: Case, verdict: Verdict) -> GroupRef | None:
    """
    The group with its members, as far as these are known as global ranks.
    """
    if case.group is None:
        return None

    members = {*case.timeouts, *case.statuses, *verdict.members}
    if case.group.is_default and case.size is not None:
        members |= set(range(case.size))
    return GroupRef(
        name=case.group.name,
        desc=case.group.desc,
        ranks=global_ranks(case, members),
    )
