"""
Diagnose hung collectives from log lines: which ranks did not arrive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import attrs

from ...findings import Cause, Finding
from ...ranks import ranks_text
from .detectors import (
    REMEDIES,
    Verdict,
    detect_lagging_ranks,
    detect_mismatched_calls,
    detect_missing_members,
    detect_not_enqueued,
    detect_not_started,
    detect_silent_ranks,
    detect_stuck_in_flight,
    explain_verdict,
    make_verdict,
    name_silent_ranks,
    to_global_ranks,
)
from .group_states import GroupState, find_group_states
from .model import CollectiveLogs, DesyncReport, DumpSignal, make_evidence
from .nccl_errors import explain_communicators, explain_network
from .rendezvous import (
    explain_debug_checks,
    explain_gloo,
    explain_heartbeats,
    explain_lost_connections,
    explain_store_timeouts,
)


def diagnose_group(state: GroupState) -> Verdict | None:
    """
    Find which ranks hold up a process group.

    Returns:
        The verdict; ``None`` if no rank waits in the group.
    """
    if not state.timeouts and not state.desyncs:
        return _verdict_from_dump_signals(state)
    if state.is_mixed:
        return _unknown_verdict(state, "its lines are of several groups")

    verdicts = (detect(state) for detect in _DETECTORS)
    return next(filter(None, verdicts), None) or _unknown_verdict(state, "")


def _verdict_from_desync(state: GroupState) -> Verdict | None:
    """
    Derive the verdict from the desync report of torch.
    """
    absent = [x for x in state.desyncs if x.kind == "absent"]
    finished = [x for x in state.desyncs if x.kind == "finished"]
    reports = (absent or finished)[:1]
    if reports:
        report = reports[0]
        reason = (
            "never joined any call"
            if absent
            else f"finished #{report.seq} and did not join the next"
        )
        return make_verdict(
            state,
            Cause.RANK_NOT_ARRIVED,
            report.members,
            "certain",
            reason,
            evidence=reports,
        )
    joined = [x for x in state.desyncs if x.kind == "joined"]
    return _verdict_from_joined(state, joined) if joined else None


def _verdict_from_joined(
    state: GroupState, joined: Sequence[DesyncReport]
) -> Verdict:
    """
    Blame the ranks that joined last, or none if all members joined.
    """
    is_everyone = set(joined[0].members) >= set(state.timeouts) and (
        state.size is None or len(joined[0].members) >= state.size
    )
    return make_verdict(
        state,
        Cause.COLLECTIVE_STUCK_IN_FLIGHT
        if is_everyone
        else Cause.RANK_NOT_ARRIVED,
        () if is_everyone else joined[0].members,
        "certain" if is_everyone else "likely",
        "all of them joined it"
        if is_everyone
        else f"joined #{joined[0].seq} last and did not finish it",
        evidence=joined[:1],
    )


def _verdict_from_dump_signals(state: GroupState) -> Verdict | None:
    """
    Compare statuses of ranks where no timeout was printed.
    """
    enqueued = {
        m: x for m, x in state.statuses.items() if x.enqueued is not None
    }
    pending = {
        m: x
        for m, x in enqueued.items()
        if x.completed is not None and (x.enqueued or 0) > x.completed
    }
    # Without a timeout, a call may have failed for any reason.
    has_dump_signal = any(isinstance(x, DumpSignal) for x in enqueued.values())
    if not pending or not has_dump_signal or state.is_mixed:
        return None
    first = min(x.completed or 0 for x in pending.values()) + 1
    behind = {m: x for m, x in enqueued.items() if (x.enqueued or 0) < first}
    return Verdict(
        state=state,
        cause=Cause.RANK_NOT_ARRIVED if behind else Cause.COLLECTIVE_TIMEOUT,
        members=tuple(sorted(behind)),
        waiting=tuple(sorted(pending)),
        seq=first,
        confidence="possible",
        reason="others enqueued it" if behind else "",
        evidence=(*list(behind.values())[:3], *list(pending.values())[:3]),
    )


def _unknown_verdict(state: GroupState, reason: str) -> Verdict:
    return make_verdict(
        state,
        Cause.COLLECTIVE_TIMEOUT,
        (),
        "likely",
        reason,
        evidence=(*state.timeouts.values(), *state.statuses.values()),
    )


_DETECTORS: tuple[Callable[[GroupState], Verdict | None], ...] = (
    _verdict_from_desync,
    detect_mismatched_calls,
    detect_not_enqueued,
    detect_lagging_ranks,
    detect_not_started,
    detect_silent_ranks,
    detect_missing_members,
    detect_stuck_in_flight,
)


_RunKey = tuple[int, int]
_MAX_ROOTS = 16


def explain_cascade(logs: CollectiveLogs) -> list[Finding]:
    """
    Find the root cause of a cascade of timeouts in several process groups.

    Returns:
        Where it began, for each run of the job, the last run first.
    """
    runs: dict[_RunKey, list[Verdict]] = defaultdict(list)
    for state in find_group_states(logs):
        verdict = diagnose_group(state)
        if verdict is not None:
            runs[state.run].append(verdict)
    findings: list[Finding] = []
    for run_number, run in sorted(enumerate(sorted(runs), 1), reverse=True):
        run_text = (
            f" (run {run_number} of {len(runs)})" if len(runs) > 1 else ""
        )
        findings += _run_findings(runs[run], run_text, logs.world_size)
    return findings


def _run_findings(
    verdicts: Sequence[Verdict], run_text: str, world_size: int | None
) -> list[Finding]:
    with_timeout = [v for v in verdicts if v.state.timeouts or v.state.desyncs]
    # Where groups timed out, the small lag of other groups is no cause.
    verdicts = name_silent_ranks(
        sorted(with_timeout or verdicts, key=_blame_order), world_size
    )
    waiting_in: dict[int, set[int]] = defaultdict(set)
    for i, verdict in enumerate(verdicts):
        for rank in to_global_ranks(verdict.state, verdict.waiting):
            waiting_in[rank].add(i)
    caused = []
    for i, verdict in enumerate(verdicts):
        verdicts[i], causes = _narrow_blame(verdict, waiting_in)
        caused.append(causes)
    roots = [i for i, causing in enumerate(caused) if not causing]
    if not roots:
        return [_deadlock_finding(verdicts, run_text)]
    return _root_findings(verdicts, roots, caused, run_text)


def _root_findings(
    verdicts: Sequence[Verdict],
    roots: Sequence[int],
    caused: Sequence[set[int]],
    run_text: str,
) -> list[Finding]:
    blaming = [i for i in roots if verdicts[i].members or verdicts[i].ranks]
    # Without a rank at fault, report only the first group that waited.
    reported = blaming[:_MAX_ROOTS] or roots[:1]
    # Ranks without any line hold up every group with no rank at fault.
    is_silent = not any(verdicts[i].members for i in blaming)
    also_waiting = len(roots) - len(reported) if is_silent else 0
    return [
        explain_verdict(
            verdicts[i],
            following=also_waiting + sum(i in causing for causing in caused),
            run=run_text,
        )
        for i in reported
    ]


def _blame_order(verdict: Verdict) -> tuple[bool, bool, float]:
    begin = verdict.state.begin
    return not verdict.members, begin is None, begin or 0.0


def _narrow_blame(
    verdict: Verdict, waiting_in: Mapping[int, set[int]]
) -> tuple[Verdict, set[int]]:
    """
    Drop ranks at fault that wait in other groups.

    Returns:
        The verdict, and the groups in which they wait if no rank is left.
    """
    state = verdict.state
    not_waiting, causes = [], set()
    for member in verdict.members:
        ranks = to_global_ranks(state, [member])
        elsewhere = set().union(*(waiting_in.get(r, set()) for r in ranks))
        causes |= elsewhere
        if not elsewhere:
            not_waiting.append(member)
    if verdict.cause != Cause.RANK_NOT_ARRIVED or not causes:
        return verdict, set()
    if not_waiting:
        return attrs.evolve(verdict, members=tuple(not_waiting)), set()
    return verdict, causes


def _deadlock_finding(verdicts: Sequence[Verdict], run_text: str) -> Finding:
    """
    Report a deadlock: the ranks missing in each group wait in another one.
    """
    blamed = [to_global_ranks(v.state, v.members) for v in verdicts]
    parts = ", ".join(
        f"{ranks_text(ranks)} did not come to {v.op or 'call'} #{v.seq} of "
        f"group {str(v.state.group)!r}"
        for v, ranks in list(zip(verdicts, blamed, strict=True))[:4]
    )
    return Finding(
        cause=Cause.GROUP_ORDER_DEADLOCK,
        ranks=tuple(sorted({rank for ranks in blamed for rank in ranks})),
        summary=f"ranks wait for each other in several groups: {parts}{run_text}",
        confidence="likely",
        remedy=REMEDIES[Cause.GROUP_ORDER_DEADLOCK],
        evidence=make_evidence(
            record for verdict in verdicts for record in verdict.evidence[:2]
        ),
    )


# Findings with these causes come last.
_UNSPECIFIC_CAUSES = frozenset({Cause.COLLECTIVE_TIMEOUT})


def collective_findings(logs: CollectiveLogs) -> tuple[Finding, ...]:
    """
    Diagnose hung collectives from lines of watchdogs, Gloo, NCCL, and the
    store.

    Returns:
        The findings, those with a specific cause first; none if nothing is
        wrong.
    """
    checks = explain_debug_checks(logs)
    watchdogs = explain_cascade(logs)
    heartbeats = explain_heartbeats(logs)
    stores = explain_store_timeouts(logs)
    # A monitored barrier fails over Gloo; its own message has more detail.
    gloo = [] if checks else explain_gloo(logs)
    has_failed = bool(checks or watchdogs or heartbeats or stores or gloo)
    network = explain_network(logs, has_failed=has_failed)
    nccl = [
        *network,
        *explain_communicators(logs, has_failed=has_failed),
        # An earlier failure explains a lost connection.
        *([] if has_failed or network else explain_lost_connections(logs)),
    ]
    if any(x.kind != "keys" for x in logs.stores) or not watchdogs:
        watchdogs = [*watchdogs, *stores]
    findings = [*checks, *watchdogs, *heartbeats, *gloo, *nccl]
    specific = [x for x in findings if x.cause not in _UNSPECIFIC_CAUSES]
    return (*specific, *(x for x in findings if x.cause in _UNSPECIFIC_CAUSES))
