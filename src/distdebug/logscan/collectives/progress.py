"""
Who did not come as far as the others?
"""

from __future__ import annotations

from ...findings import Cause
from .case import Case
from .verdict import Verdict, collectives_of, verdict_of


__all__ = ["judge_enqueued", "judge_lag", "judge_start"]

_UNTIMED = -1


def judge_enqueued(case: Case) -> Verdict | None:
    """
    Ranks that say themselves that they did not come that far.

    Args:
        case: What is known of the group.

    Returns:
        The verdict; ``None`` if that is not what happened.
    """
    waited = [
        x.seq for x in collectives_of(case).values() if x.seq is not None
    ]
    if not waited:
        return None
    first = min(waited)
    behind = {
        member: status
        for member, status in case.statuses.items()
        if member not in case.timeouts
        and status.enqueued is not None
        and status.enqueued < first
    }
    if not behind:
        return None
    last = max(x.enqueued or 0 for x in behind.values())
    call = next(x for x in collectives_of(case).values() if x.seq == first)
    return verdict_of(
        case,
        Cause.RANK_NOT_ARRIVED,
        behind,
        # If hardly anybody came, those who did may be the ones at fault.
        "likely" if len(behind) <= len(case.timeouts) else "possible",
        f"#{last} was the last it enqueued"
        if len(behind) == 1
        else f"none of them enqueued more than #{last}",
        call=call,
        evidence=behind.values(),
    )


def judge_lag(case: Case) -> Verdict | None:
    """
    Ranks that wait in an earlier call than the others.

    Args:
        case: What is known of the group.

    Returns:
        The verdict; ``None`` if that is not what happened.
    """
    calls = collectives_of(case)
    seqs = sorted({x.seq or 0 for x in calls.values()})
    if len(seqs) < 2:
        return None
    behind = {m: x for m, x in calls.items() if x.seq == seqs[0]}
    ahead = {m: x for m, x in calls.items() if x.seq == seqs[-1]}
    call = next(iter(ahead.values()))
    is_queued = all(
        _reached(case, member, "enqueued") >= (call.seq or 0)
        for member in behind
    )
    return verdict_of(
        case,
        Cause.RANK_NOT_STARTED if is_queued else Cause.RANK_NOT_ARRIVED,
        behind,
        "likely" if len(behind) <= len(calls) / 2 else "possible",
        f"{'they are' if len(behind) > 1 else 'it is'} still in "
        f"{next(iter(behind.values())).op} #{seqs[0]}",
        call=call,
        evidence=(next(iter(behind.values())),),
    )


def _reached(case: Case, member: int, what: str) -> int:
    status = case.statuses.get(member)
    number = getattr(status, what, None)
    return _UNTIMED if number is None else number


def judge_start(case: Case) -> Verdict | None:
    """
    Ranks whose GPU never came to the call that others began.

    Args:
        case: What is known of the group.

    Returns:
        The verdict; ``None`` if that is not what happened.
    """
    calls = collectives_of(case)
    begun = {
        member: _reached(case, member, "started")
        for member in calls
        if _reached(case, member, "started") >= 0
    }
    late = {m for m, n in begun.items() if n < (calls[m].seq or 0)}
    if not late or len(late) == len(begun):
        return None
    return verdict_of(
        case,
        Cause.RANK_NOT_STARTED,
        late,
        "likely",
        "the others' GPUs began it",
        evidence=[case.statuses[m] for m in sorted(late)],
    )
