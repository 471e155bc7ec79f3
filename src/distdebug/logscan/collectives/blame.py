"""
Who holds up this group?

Time-outs say in which call a rank waits; what was enqueued, started, and
completed says how far the others came.  The first difference names the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...findings import Cause
from .calling import judge_calls
from .case import Case
from .model import DesyncReport, DumpSignal
from .presence import judge_complete, judge_gap, judge_silence
from .progress import judge_enqueued, judge_lag, judge_start
from .verdict import Verdict, verdict_of


__all__ = ["judge"]


def judge(case: Case) -> Verdict | None:
    """
    Find who holds up a group.

    Args:
        case: What is known of it.

    Returns:
        The verdict; ``None`` if nobody waits in it.
    """
    if not case.timeouts and not case.desyncs:
        return _by_signals(case)
    if case.is_mixed:
        return _unknown(case, "its lines are of several groups")

    found = (judge_one(case) for judge_one in _JUDGES)
    return next(filter(None, found), None) or _unknown(case, "")


def _by_desync(case: Case) -> Verdict | None:
    """
    Torch itself compared them.
    """
    absent = [x for x in case.desyncs if x.kind == "absent"]
    ahead = [x for x in case.desyncs if x.kind == "finished"]
    found = (absent or ahead)[:1]
    if found:
        report = found[0]
        told = (
            "never joined any call"
            if absent
            else f"finished #{report.seq} and did not join the next"
        )
        return verdict_of(
            case,
            Cause.RANK_NOT_ARRIVED,
            report.members,
            "certain",
            told,
            evidence=found,
        )
    joined = [x for x in case.desyncs if x.kind == "joined"]
    return _joined(case, joined) if joined else None


def _joined(case: Case, joined: Sequence[DesyncReport]) -> Verdict:
    """
    They came, and it did not end; or they came no further.
    """
    everyone = set(joined[0].members) >= set(case.timeouts) and (
        case.size is None or len(joined[0].members) >= case.size
    )
    return verdict_of(
        case,
        Cause.COLLECTIVE_STUCK_IN_FLIGHT
        if everyone
        else Cause.RANK_NOT_ARRIVED,
        () if everyone else joined[0].members,
        "certain" if everyone else "likely",
        "all of them joined it"
        if everyone
        else f"joined #{joined[0].seq} last and did not finish it",
        evidence=joined[:1],
    )


def _by_signals(case: Case) -> Verdict | None:
    """
    Nobody's time-out is there, but some say how far they came.
    """
    known = {m: x for m, x in case.statuses.items() if x.enqueued is not None}
    pending = {
        m: x
        for m, x in known.items()
        if x.completed is not None and (x.enqueued or 0) > x.completed
    }
    # Without the word of a time-out, a call may have failed for any reason.
    is_late = any(isinstance(x, DumpSignal) for x in known.values())
    if not pending or not is_late or case.is_mixed:
        return None
    first = min(x.completed or 0 for x in pending.values()) + 1
    behind = {m: x for m, x in known.items() if (x.enqueued or 0) < first}
    return Verdict(
        case=case,
        cause=Cause.RANK_NOT_ARRIVED if behind else Cause.COLLECTIVE_TIMEOUT,
        members=tuple(sorted(behind)),
        waiting=tuple(sorted(pending)),
        seq=first,
        confidence="possible",
        told="others enqueued it" if behind else "",
        evidence=(*list(behind.values())[:3], *list(pending.values())[:3]),
    )


def _unknown(case: Case, told: str) -> Verdict:
    return verdict_of(
        case,
        Cause.COLLECTIVE_TIMEOUT,
        (),
        "likely",
        told,
        evidence=(*case.timeouts.values(), *case.statuses.values()),
    )


_JUDGES: tuple[Callable[[Case], Verdict | None], ...] = (
    _by_desync,
    judge_calls,
    judge_enqueued,
    judge_lag,
    judge_start,
    judge_silence,
    judge_gap,
    judge_complete,
)
