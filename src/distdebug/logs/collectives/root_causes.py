"""
Diagnose hung collectives from log lines: which ranks did not arrive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import attrs

from ...causes import Cause
from ...findings import Confidence, Finding
from ...ranks import ranks_text
from .detectors import (
    Verdict,
    detect_lagging_ranks,
    detect_mismatched_calls,
    detect_not_enqueued,
    detect_not_started,
    detect_one_sided_transfers,
    detect_silent_ranks,
    detect_stuck_in_flight,
    explain_verdict,
    make_verdict,
    name_silent_ranks,
    to_global_ranks,
)
from .group_states import GroupState, RunKey, find_group_states
from .model import CollectiveLogs, DumpSignal, log_finding
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
    by_kind = {report.kind: report for report in state.desyncs[::-1]}
    report = (
        by_kind.get("absent")
        or by_kind.get("finished")
        or by_kind.get("joined")
    )
    if report is None:
        return None

    cause, members = Cause.RANK_NOT_ARRIVED, set(report.members)
    confidence: Confidence = "certain"
    reason = "never joined any call"
    if report.kind == "finished":
        reason = f"finished #{report.seq} and did not join the next"
    elif (
        report.kind == "joined"
        and members >= set(state.timeouts)
        and (state.size is None or len(members) >= state.size)
    ):
        cause, members = Cause.COLLECTIVE_STUCK_IN_FLIGHT, set()
        reason = "all of them joined it"
    elif report.kind == "joined":
        confidence = "likely"
        reason = f"joined #{report.seq} last and did not finish it"
    return make_verdict(
        state, cause, members, confidence, reason, evidence=[report]
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
    detect_one_sided_transfers,
    detect_not_enqueued,
    detect_lagging_ranks,
    detect_not_started,
    detect_silent_ranks,
    detect_stuck_in_flight,
)


_MAX_ROOTS = 16


def explain_cascade(logs: CollectiveLogs) -> list[Finding]:
    """
    Find the root cause of a cascade of timeouts in several process groups.

    Returns:
        Where it began, for each run of the job, the last run first.
    """
    runs: dict[RunKey, list[Verdict]] = defaultdict(list)
    for state in find_group_states(logs):
        verdict = diagnose_group(state)
        if verdict is not None:
            runs[state.run].append(verdict)
    findings: list[Finding] = []
    for number, run in sorted(enumerate(sorted(runs), 1), reverse=True):
        run_text = f" (run {number} of {len(runs)})" if len(runs) > 1 else ""
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
    narrowed = [_narrow_blame(verdict, waiting_in) for verdict in verdicts]
    verdicts = [verdict for verdict, _ in narrowed]
    caused = [causes for _, causes in narrowed]
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
        f"{ranks_text(ranks)} never entered {v.op or 'call'} #{v.seq} of "
        f"group {str(v.state.group)!r}"
        for v, ranks in list(zip(verdicts, blamed, strict=True))[:4]
    )
    return log_finding(
        Cause.GROUP_ORDER_DEADLOCK,
        f"ranks wait for each other in several groups: {parts}{run_text}",
        [record for verdict in verdicts for record in verdict.evidence[:2]],
        ranks=[rank for ranks in blamed for rank in ranks],
    )


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
    # The least specific comes last.
    return tuple(
        sorted(findings, key=lambda x: x.cause is Cause.COLLECTIVE_TIMEOUT)
    )
