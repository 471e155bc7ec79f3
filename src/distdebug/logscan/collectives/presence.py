"""
Who does not say anything in this group?
"""

from __future__ import annotations

from ...findings import Cause
from .case import Case
from .verdict import Verdict, collectives_of, verdict_of


__all__ = ["judge_complete", "judge_gap", "judge_silence"]


def _silent(case: Case) -> set[int] | None:
    """
    Members that say nothing; ``None`` if it is unknown how many there are.
    """
    if case.size is None:
        return None
    return set(range(case.size)) - set(case.timeouts) - set(case.statuses)


def judge_silence(case: Case) -> Verdict | None:
    """
    Ranks that must exist and say nothing.

    Args:
        case: What is known of the group.

    Returns:
        The verdict; ``None`` if that is not what happened.
    """
    silent = _silent(case)
    calls = collectives_of(case)
    if case.size == 2:
        # Whoever waits for the other one, waits for it in every kind of call.
        calls = case.timeouts
    if not silent or not calls or case.folded:
        return None
    # One rank that speaks among many that do not is one log among many.
    few = len(silent) <= len(calls)
    if not few:
        return None
    return verdict_of(
        case,
        Cause.RANK_NOT_ARRIVED,
        silent,
        "likely" if len(silent) * 2 <= len(calls) else "possible",
        "nothing is heard of " + ("it" if len(silent) == 1 else "them"),
    )


def judge_gap(case: Case) -> Verdict | None:
    """
    Ranks that must exist, since there are higher ones, and say nothing.

    Args:
        case: What is known of the group.

    Returns:
        The verdict; ``None`` if that is not what happened.
    """
    calls = collectives_of(case)
    if case.size is not None or case.group is None or not calls or case.folded:
        return None

    silent = set(range(max(calls))) - set(case.timeouts) - set(case.statuses)
    if not 0 < 2 * len(silent) <= len(calls):
        return None
    return verdict_of(
        case,
        Cause.RANK_NOT_ARRIVED,
        silent,
        "possible",
        "nothing is heard of " + ("it" if len(silent) == 1 else "them"),
    )


def judge_complete(case: Case) -> Verdict | None:
    """
    Everyone is there.

    Args:
        case: What is known of the group.

    Returns:
        The verdict; ``None`` if that is not what happened.
    """
    silent = _silent(case)
    calls = collectives_of(case)
    if silent is None or silent or not calls:
        return None
    return verdict_of(
        case,
        Cause.COLLECTIVE_STUCK_IN_FLIGHT,
        (),
        "likely",
        "all of its members report it",
        evidence=case.statuses.values(),
    )
