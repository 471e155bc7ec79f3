"""
Diagnose hung collectives from log lines: which ranks did not arrive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import attrs

from ...causes import Cause
from ...findings import CollectiveRef, Confidence, Finding, GroupRef
from ...ranks import fold_ranks, ranks_text
from .group_states import GroupState, RunKey, find_group_states
from .model import (
    CollectiveLogs,
    DumpSignal,
    LogRecord,
    WorkTimeout,
    group_members,
    log_finding,
)
from .nccl_errors import explain_communicators, explain_network
from .rendezvous import (
    explain_debug_checks,
    explain_gloo,
    explain_heartbeats,
    explain_lost_connections,
    explain_store_timeouts,
)


_MAX_EVIDENCE = 6


def _ascending(members: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(members))


@attrs.frozen
class Verdict:
    """
    What is wrong in one process group of one run.

    Attributes:
        members: Ranks at fault, as ranks within the group.

        reason: Why the ranks are at fault, as a clause; ``""`` for none.

        ranks: Ranks at fault, as global ranks, where *members* cannot name
            them.

        waiting: Ranks that wait, as ranks within the group; by default all
            others with a call that timed out.

        call: What they wait in, by default what most wait in; ``None`` if
            unknown.

        evidence: The records that show it, besides that of the call.
    """

    state: GroupState
    cause: Cause
    members: tuple[int, ...] = attrs.field(converter=_ascending)
    confidence: Confidence
    reason: str
    ranks: tuple[int, ...] = attrs.field(
        converter=_ascending, default=(), kw_only=True
    )
    waiting: tuple[int, ...] = attrs.field(converter=_ascending, kw_only=True)
    call: WorkTimeout | None = attrs.field(kw_only=True)
    evidence: Collection[LogRecord] = attrs.field(default=(), kw_only=True)

    @waiting.default
    def _others(self) -> Iterable[int]:
        return set(self.state.timeouts) - set(self.members)

    @call.default
    def _most_common_call(self) -> WorkTimeout | None:
        timeouts = self.state.timeouts
        calls = comparable_calls(self.state) or timeouts
        named = {m: (x.seq, x.op) for m, x in calls.items() if x.op}
        kinds = group_members(named)
        return calls[kinds[0][1][0]] if kinds else None

    @property
    def quoted(self) -> list[LogRecord]:
        """
        Return the records to quote.
        """
        # What only statuses show has no line of its own.
        call = [self.call] if self.call and self.call.quote else []
        others = (x for x in self.evidence if x is not self.call)
        return [*call, *others][:_MAX_EVIDENCE]


def comparable_calls(state: GroupState) -> dict[int, WorkTimeout]:
    """
    Return timed-out calls of the whole group, by rank within the group.

    Point-to-point calls and calls without a sequence number are left out, as
    their numbers cannot be compared.
    """
    return {
        member: timeout
        for member, timeout in state.timeouts.items()
        if timeout.seq is not None and not timeout.is_p2p
    }


def explain_verdict(
    verdict: Verdict, *, following: int = 0, run: str = ""
) -> Finding:
    """
    Render a verdict as a finding.

    Args:
        following: How many other groups wait because of it.

        run: Text that names the run of the job; ``""`` if there is only one.
    """
    state = verdict.state
    ranks = verdict.ranks or to_global_ranks(state, verdict.members)
    summary = _summary(verdict, ranks)
    if following:
        plural = "s" if following > 1 else ""
        relation = " because of it" if verdict.members or ranks else ", too"
        summary += f"; {following} other group{plural} waited{relation}"
    remedy = verdict.cause.remedy
    if state.folded_lines and not ranks:
        remedy = f"{Cause.COLLECTIVE_TIMEOUT.remedy}; with RAY_DEDUP_LOGS=0, Ray shows every line"
    call, collective = verdict.call, None
    if call and call.seq is not None:
        op = call.op or "unknown"
        collective = CollectiveRef(op=op, seq=call.seq, p2p=call.is_p2p)
    finding = log_finding(
        verdict.cause,
        summary + run,
        verdict.quoted,
        remedy,
        ranks=ranks,
        confidence=verdict.confidence,
        collective=collective,
    )
    return attrs.evolve(finding, group=_group_ref(state, verdict))


def to_global_ranks(
    state: GroupState, members: Iterable[int]
) -> tuple[int, ...]:
    """
    Return the global ranks of *members*, ascending; unknown ones are left out.
    """
    is_default = state.group is None or state.group.is_default
    found = (
        state.ranks.get(m, m if is_default else None) for m in set(members)
    )
    return tuple(sorted(rank for rank in found if rank is not None))


def _summary(verdict: Verdict, ranks: Sequence[int]) -> str:
    reason, state = verdict.reason, verdict.state
    blamed, call = _blamed_text(verdict, ranks), _call_text(verdict)
    count = len(verdict.waiting)
    waiting = f"{count} rank{'s' if count != 1 else ''} waited in it"
    waiting += f"; {reason}" if reason else ""
    elapsed = _elapsed_text(state)
    within = f" within{elapsed}" if elapsed else ""
    text = {
        Cause.RANK_NOT_ARRIVED: f"{blamed} never entered {call}; {waiting}",
        Cause.RANK_NOT_STARTED: f"the GPU of {blamed} did not start {call}; "
        f"{waiting}",
        Cause.COLLECTIVE_STUCK_IN_FLIGHT: f"{call} did not complete{within}, "
        f"although {reason}",
        Cause.P2P_DEADLOCK: f"{blamed} waited{elapsed} in {call}, and {reason}",
        Cause.TYPE_MISMATCH: f"{blamed} called another operation as {call}: "
        f"{reason}",
        Cause.SIZE_MISMATCH: f"{blamed} passed another size to {call}: {reason}",
        Cause.COLLECTIVE_TIMEOUT: f"{_reporters_text(state)} waited{elapsed} in "
        f"{call}, and these logs do not show for whom"
        + (f" ({reason})" if reason else ""),
    }[verdict.cause]
    if verdict.cause not in _SILENCE_CAUSES or state.folded_lines:
        return text
    silent = _silent_members(state, state.size or 0) - set(verdict.members)
    also = f"; {ranks_text(silent)} logged nothing" if silent else ""
    return text + also


# Causes for which members without any line matter, too.
_SILENCE_CAUSES = (Cause.RANK_NOT_ARRIVED, Cause.RANK_NOT_STARTED)


def _blamed_text(verdict: Verdict, ranks: Sequence[int]) -> str:
    if verdict.members and len(ranks) < len(verdict.members):
        plural = "s" if len(verdict.members) > 1 else ""
        return f"rank{plural} {fold_ranks(verdict.members)} of the group"
    is_unsure = verdict.confidence == "possible"
    is_one_side = is_unsure and verdict.cause.is_mismatch
    return f"{'one side of ' if is_one_side else ''}{ranks_text(ranks)}"


def _call_text(verdict: Verdict) -> str:
    """
    Return the call and its group: ``"all_reduce #9 of group 'dp'"``.
    """
    call, group = verdict.call, verdict.state.group
    text = call.op if call and call.op else "call"
    if call and call.seq is not None:
        text += f" #{call.seq}"
    is_named = group is not None and not group.is_assumed
    return text + (f" of group {str(group)!r}" if is_named else "")


def _elapsed_text(state: GroupState) -> str:
    """
    Return the elapsed time, such as ``" 10 min"``; ``""`` if unknown.
    """
    ran = next((x.ran for x in state.timeouts.values() if x.ran), None)
    if ran is None:
        return ""
    return f" {ran:.0f} s" if ran < 120 else f" {ran / 60:.0f} min"


def _reporters_text(state: GroupState) -> str:
    members = state.timeouts or state.statuses
    ranks = to_global_ranks(state, members)
    if not members:
        return "ranks"
    if len(ranks) < len(members):
        return f"rank {fold_ranks(members)} of the group"
    return ranks_text(ranks)


def _group_ref(state: GroupState, verdict: Verdict) -> GroupRef | None:
    """
    Return the group and its members, as far as their global ranks are known.
    """
    if state.group is None or state.group.is_assumed:
        return None

    members = {*state.timeouts, *state.statuses, *verdict.members}
    if state.group.is_default and state.size is not None:
        members |= set(range(state.size))
    return GroupRef(
        name=state.group.name,
        desc=state.group.desc,
        ranks=to_global_ranks(state, members),
    )


def _silent_members(state: GroupState, size: int) -> set[int]:
    """
    Return members without any line, of a group of a size.
    """
    return set(range(size)) - set(state.timeouts) - set(state.statuses)


def detect_silent_ranks(state: GroupState) -> Verdict | None:
    """
    Blame members without any line, where they are few.

    Returns:
        The verdict; ``None`` if this is not what happened.
    """
    calls = comparable_calls(state)
    if state.size == 2:
        # In a group of two, each waits for the other one in any call.
        calls = state.timeouts
    if not calls or state.folded_lines:
        return None
    # Without a size, only those below the highest rank are surely members.
    is_known = state.size is not None
    size = max(calls) if state.size is None else state.size
    silent = _silent_members(state, size)
    is_few = 2 * len(silent) <= len(calls)
    # If most members are silent, most logs are probably missing.
    if not 0 < len(silent) <= len(calls) or not (
        is_known or (is_few and state.group is not None)
    ):
        return None
    return Verdict(
        state,
        Cause.RANK_NOT_ARRIVED,
        silent,
        "likely" if is_known and is_few else "possible",
        ("it" if len(silent) == 1 else "they") + " logged nothing",
    )


def detect_stuck_in_flight(state: GroupState) -> Verdict | None:
    """
    Detect a collective that is stuck although all members entered it.

    Returns:
        The verdict; ``None`` if this is not what happened.
    """
    size = state.size
    if size is None or not comparable_calls(state):
        return None
    if _silent_members(state, size):
        return None
    return Verdict(
        state,
        Cause.COLLECTIVE_STUCK_IN_FLIGHT,
        (),
        "likely",
        "all of its members report it",
        evidence=state.statuses.values(),
    )


_LEAST_IN_CIRCLE = 2
_OTHER_SIDE = {"send": "receives", "recv": "sends"}


def detect_one_sided_transfers(state: GroupState) -> Verdict | None:
    """
    Detect a circle of transfers: members send, and none of them receives.

    In a pipeline, whose stages transfer to their neighbors, the stages before
    and after the circle receive, which its members would let them do.

    Returns:
        The verdict; ``None`` if this is not what happened.
    """
    by_op = defaultdict(list)
    for member in sorted(state.timeouts):
        by_op[state.timeouts[member].op].append(member)
    size = state.size or max(state.timeouts, default=0) + 1
    if len(state.timeouts) != size or not by_op.keys() <= _OTHER_SIDE.keys():
        return None
    op = "send" if "send" in by_op else "recv"
    circle = by_op[op]
    is_row = circle[-1] - circle[0] == len(circle) - 1
    # Of a group of unknown size, the next stage may be stuck and say nothing.
    is_closed = state.size is not None or size - 1 not in circle
    if len(circle) < _LEAST_IN_CIRCLE or not (is_row and is_closed):
        return None
    return Verdict(
        state,
        Cause.P2P_DEADLOCK,
        circle,
        "likely" if len(by_op) == 1 else "possible",
        f"none of them {_OTHER_SIDE[op]}",
        call=state.timeouts[circle[0]],
    )


_UNKNOWN_SEQ = -1


def detect_not_enqueued(state: GroupState) -> Verdict | None:
    """
    Blame members whose own status shows that they did not enqueue the call.

    Returns:
        The verdict; ``None`` if this is not what happened.
    """
    calls = comparable_calls(state).values()
    call = min(calls, key=lambda x: x.seq or 0, default=None)
    if call is None:
        return None
    behind = {
        member: status
        for member, status in state.statuses.items()
        if member not in state.timeouts
        and status.enqueued is not None
        and status.enqueued < (call.seq or 0)
    }
    if not behind:
        return None
    last = max(x.enqueued or 0 for x in behind.values())
    return Verdict(
        state,
        Cause.RANK_NOT_ARRIVED,
        behind,
        # If few members arrived, those few may be at fault.
        "likely" if len(behind) <= len(state.timeouts) else "possible",
        f"#{last} was the last it enqueued"
        if len(behind) == 1
        else f"none of them enqueued more than #{last}",
        call=call,
        evidence=behind.values(),
    )


def detect_lagging_ranks(state: GroupState) -> Verdict | None:
    """
    Blame members that time out in an earlier call than the others.

    Returns:
        The verdict; ``None`` if this is not what happened.
    """
    calls = comparable_calls(state)
    seqs = {x.seq or 0 for x in calls.values()}
    if len(seqs) < 2:
        return None
    behind = {m: x for m, x in calls.items() if x.seq == min(seqs)}
    call = next(x for x in calls.values() if x.seq == max(seqs))
    is_queued = all(
        _status_seq(state, member, "enqueued") >= max(seqs)
        for member in behind
    )
    first = next(iter(behind.values()))
    return Verdict(
        state,
        Cause.RANK_NOT_STARTED if is_queued else Cause.RANK_NOT_ARRIVED,
        behind,
        "likely" if len(behind) <= len(calls) / 2 else "possible",
        f"{'they are' if len(behind) > 1 else 'it is'} still in "
        f"{first.op} #{min(seqs)}",
        call=call,
        evidence=(first,),
    )


def _status_seq(state: GroupState, member: int, field: str) -> int:
    status = state.statuses.get(member)
    number = getattr(status, field, None)
    return _UNKNOWN_SEQ if number is None else number


def detect_not_started(state: GroupState) -> Verdict | None:
    """
    Blame members whose GPU did not start the call that other GPUs started.

    Returns:
        The verdict; ``None`` if this is not what happened.
    """
    calls = comparable_calls(state)
    numbers = {x: _status_seq(state, x, "started") for x in calls}
    started = {x: number for x, number in numbers.items() if number >= 0}
    not_started = {m for m, n in started.items() if n < (calls[m].seq or 0)}
    if not not_started or len(not_started) == len(started):
        return None
    return Verdict(
        state,
        Cause.RANK_NOT_STARTED,
        not_started,
        "likely",
        "the others' GPUs began it",
        evidence=[state.statuses[m] for m in sorted(not_started)],
    )


def name_silent_ranks(
    verdicts: Sequence[Verdict], world_size: int | None
) -> list[Verdict]:
    """
    Blame ranks without any line where verdicts name no rank.

    Args:
        verdicts: Verdicts of one run, the group that waited first in front.

        world_size: Number of ranks of the job; ``None`` if unknown.

    Returns:
        The same verdicts; some of them with ranks.
    """
    states = [verdict.state for verdict in verdicts]
    reporting = {rank for state in states for rank in state.reporting_ranks}
    is_folded = any(state.folded_lines for state in states)
    silent = set(range(world_size or 0)) - reporting
    is_few = 0 < 2 * len(silent) <= len(reporting)
    if not is_few or None in reporting or is_folded:
        return list(verdicts)

    updated = [_add_silent_ranks(verdict, silent) for verdict in verdicts]
    if any(x.members or x.cause != Cause.COLLECTIVE_TIMEOUT for x in updated):
        return updated
    is_one = len(silent) == 1
    first = attrs.evolve(
        updated[0],
        cause=Cause.RANK_NOT_ARRIVED,
        ranks=silent,
        confidence="likely" if is_one and len(reporting) > 5 else "possible",
        reason="of all ranks only "
        + ("this one says" if is_one else "these say")
        + " nothing",
    )
    return [first, *updated[1:]]


def _add_silent_ranks(verdict: Verdict, silent: set[int]) -> Verdict:
    """
    Add the silent ranks if they are as many as the members with unknown rank.
    """
    state = verdict.state
    is_default = state.group is None or state.group.is_default
    unnamed = [x for x in verdict.members if x not in state.ranks]
    if is_default or not unnamed or len(unnamed) != len(silent):
        return verdict
    named = {state.ranks[x] for x in verdict.members if x in state.ranks}
    return attrs.evolve(verdict, ranks=named | silent)


# All members pass the same number of elements to these.
_EQUAL_SIZE_OPS = frozenset(
    {
        *("all_reduce", "broadcast", "reduce", "_all_gather_base"),
        # Lists of unequal tensors are coalesced, which have no size.
        *("_reduce_scatter_base", "barrier", "all_gather", "reduce_scatter"),
    }
)


def detect_mismatched_calls(state: GroupState) -> Verdict | None:
    """
    Blame members that made a different call with the same sequence number.

    Returns:
        The verdict; ``None`` if this is not what happened.
    """
    by_seq: dict[int, dict[int, WorkTimeout]] = defaultdict(dict)
    for member, timeout in comparable_calls(state).items():
        by_seq[timeout.seq or 0][member] = timeout
    for seq in sorted(by_seq):
        calls = by_seq[seq]
        kinds = _group_by_call(calls)
        if len(kinds) > 1:
            return _mismatch_verdict(state, calls, kinds)
    return None


def _group_by_call(
    calls: Mapping[int, WorkTimeout],
) -> list[tuple[tuple[str, int | None], list[int]]]:
    """
    Return members by operation and number of elements, most first.
    """
    named = {member: call for member, call in calls.items() if call.op}
    has_sizes = all(x.numel_in is not None for x in named.values())
    return group_members(
        {
            member: (
                call.op,
                call.numel_in
                if has_sizes and call.op in _EQUAL_SIZE_OPS
                else None,
            )
            for member, call in named.items()
        }
    )


def _mismatch_verdict(
    state: GroupState,
    calls: Mapping[int, WorkTimeout],
    kinds: list[tuple[tuple[str, int | None], list[int]]],
) -> Verdict:
    (expected, right), (other, wrong) = kinds[:2]
    is_tie = len(right) == len(wrong)
    is_other_op = expected[0] != other[0]
    members = calls if is_tie else {m for _, kind in kinds[1:] for m in kind}
    texts = (
        (other[0], expected[0])
        if is_other_op
        else (f"{other[1]} elements", f"{expected[1]} elements")
    )
    return Verdict(
        state,
        Cause.TYPE_MISMATCH if is_other_op else Cause.SIZE_MISMATCH,
        members,
        "possible" if is_tie else "likely",
        " against ".join(texts),
        call=calls[right[0]],
        evidence=(calls[wrong[0]],),
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
        verdict = _unknown_verdict(state, "its lines are of several groups")
    else:
        verdicts = (detect(state) for detect in _DETECTORS)
        verdict = next(filter(None, verdicts), None) or _unknown_verdict(
            state, ""
        )
    if state.group is not None:
        return verdict
    # Without a group, calls of different groups may be compared.
    return attrs.evolve(verdict, confidence="possible")


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
    return Verdict(
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
        state,
        Cause.RANK_NOT_ARRIVED if behind else Cause.COLLECTIVE_TIMEOUT,
        behind,
        "possible",
        "others enqueued it" if behind else "",
        waiting=pending,
        call=WorkTimeout(op="", seq=first),
        evidence=(*list(behind.values())[:3], *list(pending.values())[:3]),
    )


def _unknown_verdict(state: GroupState, reason: str) -> Verdict:
    return Verdict(
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
        return attrs.evolve(verdict, members=not_waiting), set()
    return verdict, causes


def _deadlock_finding(verdicts: Sequence[Verdict], run_text: str) -> Finding:
    """
    Report a deadlock: the ranks missing in each group wait in another one.
    """
    blamed = [to_global_ranks(v.state, v.members) for v in verdicts]
    parts = ", ".join(
        f"{ranks_text(ranks)} never entered {_call_text(v)}"
        for v, ranks in list(zip(verdicts, blamed, strict=True))[:4]
    )
    return log_finding(
        Cause.GROUP_ORDER_DEADLOCK,
        f"ranks wait for each other in several groups: {parts}{run_text}",
        [record for verdict in verdicts for record in verdict.quoted[:2]],
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
