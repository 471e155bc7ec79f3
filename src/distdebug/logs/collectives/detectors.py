"""
Detect what is wrong in one process group, and render it as a finding.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import attrs

from ...findings import Cause, CollectiveRef, Confidence, Finding, GroupRef
from ...ranks import fold_ranks, ranks_text
from .group_states import GroupState
from .model import LogRecord, WorkTimeout, make_evidence


_MAX_EVIDENCE = 6


@attrs.frozen(kw_only=True)
class Verdict:
    """
    What is wrong in one process group of one run.

    Attributes:
        members: Ranks at fault, as ranks within the group.

        ranks: Ranks at fault, as global ranks, where *members* cannot name
            them.

        waiting: Ranks that wait, as ranks within the group.

        op: The operation that they wait in; ``""`` if unknown.

        seq: Its sequence number; ``None`` if unknown.

        is_p2p: Whether it is a point-to-point call.

        reason: Why the ranks are at fault, as a clause; ``""`` for none.

        evidence: The records that show it.
    """

    state: GroupState
    cause: Cause
    members: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    op: str = ""
    seq: int | None = None
    is_p2p: bool = False
    confidence: Confidence = "likely"
    reason: str = ""
    evidence: tuple[LogRecord, ...] = ()


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


def _most_common_call(state: GroupState) -> WorkTimeout | None:
    """
    Return the call that most members wait in.
    """
    calls = comparable_calls(state) or state.timeouts
    counts = Counter((x.seq, x.op) for x in calls.values() if x.op)
    if not counts:
        return None
    (common, _) = counts.most_common(1)[0]
    return next(x for x in calls.values() if (x.seq, x.op) == common)


def make_verdict(  # noqa: PLR0913 all of a verdict
    state: GroupState,
    cause: Cause,
    members: Iterable[int],
    confidence: Confidence,
    reason: str,
    *,
    call: WorkTimeout | None = None,
    evidence: Iterable[LogRecord] = (),
) -> Verdict:
    """
    Create a verdict, and fill in call and waiting ranks from the group.

    Args:
        members: Ranks at fault, as ranks within the group.

        confidence: The confidence if the group is known; else it is
            ``"possible"``.

        reason: Why the ranks are at fault, as a clause.

        call: What the others wait in; by default what most wait in.

        evidence: Records to quote besides that of the call.
    """
    at_fault = tuple(sorted(members))
    call = call or _most_common_call(state)
    waiting = tuple(sorted(set(state.timeouts) - set(at_fault)))
    quoted: list[LogRecord] = [call] if call else []
    quoted += islice((x for x in evidence if x is not call), _MAX_EVIDENCE)
    return Verdict(
        state=state,
        cause=cause,
        members=at_fault,
        waiting=waiting,
        op=call.op if call else "",
        seq=call.seq if call else None,
        is_p2p=call.is_p2p if call else False,
        # Without a group, calls of different groups may be compared.
        confidence="possible" if state.group is None else confidence,
        reason=reason,
        evidence=tuple(quoted[:_MAX_EVIDENCE]),
    )


COLLECT_LOGS_REMEDY = (
    "collect the logs of all ranks, with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1 so that each leaves a Flight Recorder dump"
)
REMEDIES = {
    Cause.RANK_NOT_ARRIVED: "look at the Python stack there, and at the log "
    "of these ranks: they are busy, stuck, or dead outside of this call",
    Cause.RANK_NOT_STARTED: "look at what runs on the GPUs of these ranks: "
    "an earlier kernel does not finish",
    Cause.RANK_BLOCKED_IN_LAUNCH: "take native stacks of these ranks "
    "(py-spy dump --native): a call of CUDA or NCCL does not return, or a "
    "thread keeps the GIL",
    Cause.COLLECTIVE_STUCK_IN_FLIGHT: "everyone arrived: check the network "
    "between these ranks, and on GPUs their health (Xid) and the NCCL logs",
    Cause.COLLECTIVE_TIMEOUT: COLLECT_LOGS_REMEDY,
    Cause.TYPE_MISMATCH: "make all ranks of the group call the same operation; "
    "or find the call that was left out or made once too often before",
    Cause.SIZE_MISMATCH: "make all ranks of the group pass the same sizes; or "
    "find the call that was left out or made once too often before",
    Cause.DTYPE_MISMATCH: "make all ranks of the group pass the same dtype",
    Cause.SKIPPED_COLLECTIVE: "look for a branch that leaves a call out on "
    "these ranks only",
    Cause.GROUP_ORDER_DEADLOCK: "call the collectives of these groups in the "
    "same order on all ranks",
}
SOCKET_INTERFACE_REMEDY = (
    "set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) on every node to the "
    "interface through which the nodes reach each other"
)


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
    remedy = REMEDIES.get(verdict.cause)
    if state.folded_lines and not ranks:
        remedy = f"{COLLECT_LOGS_REMEDY}; with RAY_DEDUP_LOGS=0, Ray shows every line"
    return Finding(
        cause=verdict.cause,
        ranks=ranks,
        summary=summary + run,
        confidence=verdict.confidence,
        remedy=remedy,
        group=_group_ref(state, verdict),
        collective=None
        if verdict.seq is None
        else CollectiveRef(
            op=verdict.op or "unknown", seq=verdict.seq, p2p=verdict.is_p2p
        ),
        evidence=make_evidence(verdict.evidence),
    )


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
    state = verdict.state
    blamed = _blamed_text(verdict, ranks)
    call = _call_text(verdict)
    waiting = len(verdict.waiting)
    waiters = f"{waiting} rank{'s wait' if waiting != 1 else ' waits'} in it"
    reason_text = f" ({verdict.reason})" if verdict.reason else ""
    waiting_text = (
        f"{waiters}; {verdict.reason}" if verdict.reason else waiters
    )
    elapsed = _elapsed_text(verdict)
    within_text = f" within{elapsed}" if elapsed else ""
    texts = {
        Cause.RANK_NOT_ARRIVED: f"{blamed} did not come to {call} ({waiting_text})",
        Cause.RANK_NOT_STARTED: f"the GPU of {blamed} did not begin {call} "
        f"({waiting_text})",
        Cause.COLLECTIVE_STUCK_IN_FLIGHT: f"{call} did not complete{within_text}, "
        f"although {verdict.reason}",
        Cause.TYPE_MISMATCH: f"{blamed} called another operation as {call}: "
        f"{verdict.reason}",
        Cause.SIZE_MISMATCH: f"{blamed} passed another size to {call}: "
        f"{verdict.reason}",
        Cause.COLLECTIVE_TIMEOUT: f"{_reporters_text(state)} waited{elapsed} in "
        f"{call}, and these logs do not tell for whom{reason_text}",
    }
    text = texts[verdict.cause]
    silent_text = _silent_text(verdict)
    return text + (
        f"; nothing is heard of {silent_text}" if silent_text else ""
    )


def _blamed_text(verdict: Verdict, ranks: Sequence[int]) -> str:
    if verdict.members and len(ranks) < len(verdict.members):
        plural = "s" if len(verdict.members) > 1 else ""
        return f"rank{plural} {fold_ranks(verdict.members)} of the group"
    if verdict.confidence == "possible" and verdict.cause in {
        Cause.TYPE_MISMATCH,
        Cause.SIZE_MISMATCH,
    }:
        return f"one side of {ranks_text(ranks)}"
    return ranks_text(ranks)


def _call_text(verdict: Verdict) -> str:
    text = verdict.op or "call"
    if verdict.seq is not None:
        text += f" #{verdict.seq}"
    group = verdict.state.group
    return text + (f" of group {str(group)!r}" if group is not None else "")


def _elapsed_text(verdict: Verdict) -> str:
    """
    Return the elapsed time, such as ``" 10 min"``; ``""`` if unknown.
    """
    calls = verdict.state.timeouts.values()
    ran = next((x.ran for x in calls if x.ran is not None), None)
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


def _silent_text(verdict: Verdict) -> str:
    """
    Name the members without any line, where other ranks are at fault.
    """
    state = verdict.state
    if (
        state.size is None
        or state.folded_lines
        or verdict.cause
        not in {
            Cause.RANK_NOT_ARRIVED,
            Cause.RANK_NOT_STARTED,
        }
    ):
        return ""
    silent = (
        set(range(state.size))
        - set(state.timeouts)
        - set(state.statuses)
        - set(verdict.members)
    )
    return ranks_text(silent) if silent else ""


def _group_ref(state: GroupState, verdict: Verdict) -> GroupRef | None:
    """
    Return the group and its members, as far as their global ranks are known.
    """
    if state.group is None:
        return None

    members = {*state.timeouts, *state.statuses, *verdict.members}
    if state.group.is_default and state.size is not None:
        members |= set(range(state.size))
    return GroupRef(
        name=state.group.name,
        desc=state.group.desc,
        ranks=to_global_ranks(state, members),
    )


def _silent_members(state: GroupState) -> set[int] | None:
    """
    Return members without any line; ``None`` if the group size is unknown.
    """
    if state.size is None:
        return None
    return set(range(state.size)) - set(state.timeouts) - set(state.statuses)


def detect_silent_ranks(state: GroupState) -> Verdict | None:
    """
    Blame members without any line, where the group size is known.

    Returns:
        The verdict; ``None`` if this is not what happened.
    """
    silent = _silent_members(state)
    calls = comparable_calls(state)
    if state.size == 2:
        # In a group of two, each waits for the other one in any call.
        calls = state.timeouts
    if not silent or not calls or state.folded_lines:
        return None
    # If most members are silent, most logs are probably missing.
    is_few = len(silent) <= len(calls)
    if not is_few:
        return None
    return make_verdict(
        state,
        Cause.RANK_NOT_ARRIVED,
        silent,
        "likely" if len(silent) * 2 <= len(calls) else "possible",
        "nothing is heard of " + ("it" if len(silent) == 1 else "them"),
    )


def detect_missing_members(state: GroupState) -> Verdict | None:
    """
    Blame members without any line below the highest group rank, where the
    group size is unknown.

    Returns:
        The verdict; ``None`` if this is not what happened.
    """
    calls = comparable_calls(state)
    if (
        state.size is not None
        or state.group is None
        or not calls
        or state.folded_lines
    ):
        return None

    silent = set(range(max(calls))) - set(state.timeouts) - set(state.statuses)
    if not 0 < 2 * len(silent) <= len(calls):
        return None
    return make_verdict(
        state,
        Cause.RANK_NOT_ARRIVED,
        silent,
        "possible",
        "nothing is heard of " + ("it" if len(silent) == 1 else "them"),
    )


def detect_stuck_in_flight(state: GroupState) -> Verdict | None:
    """
    Detect a collective that is stuck although all members entered it.

    Returns:
        The verdict; ``None`` if this is not what happened.
    """
    silent = _silent_members(state)
    calls = comparable_calls(state)
    if silent is None or silent or not calls:
        return None
    return make_verdict(
        state,
        Cause.COLLECTIVE_STUCK_IN_FLIGHT,
        (),
        "likely",
        "all of its members report it",
        evidence=state.statuses.values(),
    )


_UNKNOWN_SEQ = -1


def detect_not_enqueued(state: GroupState) -> Verdict | None:
    """
    Blame members whose own status shows that they did not enqueue the call.

    Returns:
        The verdict; ``None`` if this is not what happened.
    """
    waited = [
        x.seq for x in comparable_calls(state).values() if x.seq is not None
    ]
    if not waited:
        return None
    first = min(waited)
    behind = {
        member: status
        for member, status in state.statuses.items()
        if member not in state.timeouts
        and status.enqueued is not None
        and status.enqueued < first
    }
    if not behind:
        return None
    last = max(x.enqueued or 0 for x in behind.values())
    call = next(x for x in comparable_calls(state).values() if x.seq == first)
    return make_verdict(
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
    seqs = sorted({x.seq or 0 for x in calls.values()})
    if len(seqs) < 2:
        return None
    behind = {m: x for m, x in calls.items() if x.seq == seqs[0]}
    ahead = {m: x for m, x in calls.items() if x.seq == seqs[-1]}
    call = next(iter(ahead.values()))
    is_queued = all(
        _status_seq(state, member, "enqueued") >= (call.seq or 0)
        for member in behind
    )
    return make_verdict(
        state,
        Cause.RANK_NOT_STARTED if is_queued else Cause.RANK_NOT_ARRIVED,
        behind,
        "likely" if len(behind) <= len(calls) / 2 else "possible",
        f"{'they are' if len(behind) > 1 else 'it is'} still in "
        f"{next(iter(behind.values())).op} #{seqs[0]}",
        call=call,
        evidence=(next(iter(behind.values())),),
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
    started = {
        member: _status_seq(state, member, "started")
        for member in calls
        if _status_seq(state, member, "started") >= 0
    }
    not_started = {m for m, n in started.items() if n < (calls[m].seq or 0)}
    if not not_started or len(not_started) == len(started):
        return None
    return make_verdict(
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
    silent, reporting = _silent_ranks(verdicts, world_size)
    if not silent:
        return list(verdicts)

    updated = [_add_silent_ranks(verdict, silent) for verdict in verdicts]
    if any(x.members or x.cause != Cause.COLLECTIVE_TIMEOUT for x in updated):
        return updated
    is_sure = len(silent) == 1 < reporting // 3
    first = attrs.evolve(
        updated[0],
        cause=Cause.RANK_NOT_ARRIVED,
        ranks=tuple(sorted(silent)),
        confidence="likely" if is_sure else "possible",
        reason="of all ranks only "
        + ("this one says" if len(silent) == 1 else "these say")
        + " nothing",
    )
    return [first, *updated[1:]]


def _silent_ranks(
    verdicts: Iterable[Verdict], world_size: int | None
) -> tuple[set[int], int]:
    """
    Return global ranks without any line if they are few, and how many ranks
    have lines.
    """
    states = [verdict.state for verdict in verdicts]
    reporting = frozenset[int | None]().union(
        *(x.reporting_ranks for x in states)
    )
    is_folded = any(x.folded_lines for x in states)
    if world_size is None or None in reporting or is_folded:
        return set(), len(reporting)

    silent = set(range(world_size)) - reporting
    is_few = 2 * len(silent) <= len(reporting)
    return silent if is_few else set(), len(reporting)


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
    return attrs.evolve(verdict, ranks=tuple(sorted(named | silent)))


# All members pass the same number of elements to these.
_EQUAL_SIZE_OPS = frozenset(
    {
        *("all_reduce", "broadcast", "reduce", "_all_gather_base"),
        *("_reduce_scatter_base", "barrier"),
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
    members_by_call: dict[tuple[str, int | None], list[int]] = defaultdict(
        list
    )
    has_sizes = all(
        call.numel_in is not None for call in calls.values() if call.op
    )
    for member, call in calls.items():
        is_equal_size = has_sizes and call.op in _EQUAL_SIZE_OPS
        if call.op:
            members_by_call[
                call.op, call.numel_in if is_equal_size else None
            ].append(member)
    return sorted(members_by_call.items(), key=lambda kind: -len(kind[1]))


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
    return make_verdict(
        state,
        Cause.TYPE_MISMATCH if is_other_op else Cause.SIZE_MISMATCH,
        members,
        "possible" if is_tie else "likely",
        " against ".join(texts),
        call=calls[right[0]],
        evidence=(calls[wrong[0]],),
    )
