"""
So who was missing, and what is wrong?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import attrs

from ...findings import Cause, Finding
from ...ranks import ranks_text
from .cases import Case, find_cases
from .model import CollectiveLogs, DesyncReport, DumpSignal, evidence_of
from .nccl_errors import explain_communicators, explain_network
from .rendezvous import (
    explain_checks,
    explain_gloo,
    explain_heartbeats,
    explain_lost,
    explain_stores,
)
from .verdict import (
    REMEDIES,
    Verdict,
    explain_verdict,
    global_ranks,
    judge_calls,
    judge_complete,
    judge_enqueued,
    judge_gap,
    judge_lag,
    judge_silence,
    judge_start,
    name_silent,
    verdict_of,
)


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


_Run = tuple[int, int]
_MOST_ROOTS = 16


def explain_cascade(logs: CollectiveLogs) -> list[Finding]:
    """
    Who holds up whom, as watchdogs tell?

    Args:
        logs: What was read.

    Returns:
        Where it began, for each run of the job, the last run first.
    """
    runs: dict[_Run, list[Verdict]] = defaultdict(list)
    for case in find_cases(logs):
        verdict = judge(case)
        if verdict is not None:
            runs[case.run].append(verdict)
    findings: list[Finding] = []
    for number, run in sorted(enumerate(sorted(runs), 1), reverse=True):
        which = f" (run {number} of {len(runs)})" if len(runs) > 1 else ""
        findings += _of_run(runs[run], which, logs.world_size)
    return findings


def _of_run(
    verdicts: Sequence[Verdict], which: str, world_size: int | None
) -> list[Finding]:
    timed = [v for v in verdicts if v.case.timeouts or v.case.desyncs]
    # Unless nobody timed out, who is a little behind elsewhere is no news.
    verdicts = name_silent(sorted(timed or verdicts, key=_begin), world_size)
    waits: dict[int, set[int]] = defaultdict(set)
    for i, verdict in enumerate(verdicts):
        for rank in global_ranks(verdict.case, verdict.waiting):
            waits[rank].add(i)
    caused = []
    for i, verdict in enumerate(verdicts):
        verdicts[i], causes = _narrowed(verdict, waits)
        caused.append(causes)
    roots = [i for i, by in enumerate(caused) if not by]
    if not roots:
        return [_circle(verdicts, which)]
    return _told(verdicts, roots, caused, which)


def _told(
    verdicts: Sequence[Verdict],
    roots: Sequence[int],
    caused: Sequence[set[int]],
    which: str,
) -> list[Finding]:
    blaming = [i for i in roots if verdicts[i].members or verdicts[i].ranks]
    # Where nobody can be blamed, the first group that waited stands for all.
    shown = blaming[:_MOST_ROOTS] or roots[:1]
    # Who says nothing at all holds up all who do not know for whom they wait.
    is_silent = not any(verdicts[i].members for i in blaming)
    alike = len(roots) - len(shown) if is_silent else 0
    return [
        explain_verdict(
            verdicts[i],
            following=alike + sum(i in by for by in caused),
            run=which,
        )
        for i in shown
    ]


def _begin(verdict: Verdict) -> tuple[bool, bool, float]:
    begin = verdict.case.begin
    return not verdict.members, begin is None, begin or 0.0


def _narrowed(
    verdict: Verdict, waits: Mapping[int, set[int]]
) -> tuple[Verdict, set[int]]:
    """
    Who of those to blame does not wait elsewhere; and if nobody is left, the
    groups in which they wait.
    """
    case = verdict.case
    free, causes = [], set()
    for member in verdict.members:
        ranks = global_ranks(case, [member])
        elsewhere = set().union(*(waits.get(r, set()) for r in ranks))
        causes |= elsewhere
        if not elsewhere:
            free.append(member)
    if verdict.cause != Cause.RANK_NOT_ARRIVED or not causes:
        return verdict, set()
    if free:
        return attrs.evolve(verdict, members=tuple(free)), set()
    return verdict, causes


def _circle(verdicts: Sequence[Verdict], which: str) -> Finding:
    """
    Everyone who is missing in a group waits in another one.
    """
    blamed = [global_ranks(v.case, v.members) for v in verdicts]
    parts = ", ".join(
        f"{ranks_text(ranks)} did not come to {v.op or 'call'} #{v.seq} of "
        f"group {str(v.case.group)!r}"
        for v, ranks in list(zip(verdicts, blamed, strict=True))[:4]
    )
    return Finding(
        cause=Cause.GROUP_ORDER_DEADLOCK,
        ranks=tuple(sorted({rank for ranks in blamed for rank in ranks})),
        summary=f"ranks wait for each other in several groups: {parts}{which}",
        confidence="likely",
        remedy=REMEDIES[Cause.GROUP_ORDER_DEADLOCK],
        evidence=evidence_of(
            record for verdict in verdicts for record in verdict.evidence[:2]
        ),
    )


# What closes a connection after something else went wrong is no news.
_GENERAL = frozenset({Cause.COLLECTIVE_TIMEOUT})


def collective_findings(logs: CollectiveLogs) -> tuple[Finding, ...]:
    """
    Who was missing in a collective, as the lines of watchdogs and NCCL tell?

    Args:
        logs: What
            :func:`~distdebug.logs.collectives.collect.read_collective_logs`
            found.

    Returns:
        The findings, those that name somebody first; none if nothing is
        wrong.
    """
    checks = explain_checks(logs)
    watchdogs = explain_cascade(logs)
    beats = explain_heartbeats(logs)
    stores = explain_stores(logs)
    # A barrier that fails, fails over Gloo; its own words tell more.
    gloo = [] if checks else explain_gloo(logs)
    has_failed = bool(checks or watchdogs or beats or stores or gloo)
    network = explain_network(logs, has_failed=has_failed)
    nccl = [
        *network,
        *explain_communicators(logs, has_failed=has_failed),
        # What was wrong before, is why it was lost.
        *([] if has_failed or network else explain_lost(logs)),
    ]
    if any(x.kind != "keys" for x in logs.stores) or not watchdogs:
        watchdogs = [*watchdogs, *stores]
    found = [*checks, *watchdogs, *beats, *gloo, *nccl]
    naming = [x for x in found if x.cause not in _GENERAL]
    return (*naming, *(x for x in found if x.cause in _GENERAL))
