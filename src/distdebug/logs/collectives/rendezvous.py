"""
Who did not come to a call over Gloo?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...findings import Cause, CollectiveRef, Confidence, Finding
from ...ranks import fold_ranks, ranks_text
from .model import (
    BarrierFailure,
    CollectiveLogs,
    FingerPrint,
    FingerPrintMismatch,
    GlooError,
    Heartbeat,
    LogRecord,
    NcclNote,
    StoreTimeout,
    evidence_of,
    nccl_finding,
    ranks_of,
    who_waited,
    within,
)
from .verdict import REMEDIES


_ASK_FOR_DETAIL = (
    "collect the logs of all ranks, and run again with "
    "TORCH_DISTRIBUTED_DEBUG=DETAIL, which names who is missing"
)


def explain_gloo(logs: CollectiveLogs) -> list[Finding]:
    """
    Who did not come to a call over Gloo?

    Args:
        logs: What was read.

    Returns:
        A finding, or nothing.
    """
    waited = [x for x in logs.gloo if x.kind == "timeout"]
    lost = [x for x in logs.gloo if x.kind == "connect"]
    if lost and not waited:
        return [_unconnected(lost)]
    if not waited:
        return _left(logs)

    absent, is_silent = _others(logs, set(ranks_of(waited)))
    spent, who = within(waited), who_waited(waited)
    text = f"{who} waited in a call over Gloo{spent}, and these logs do not "
    text += "tell for whom"
    if absent:
        text = f"{ranks_text(absent)} did not come to a call over Gloo{spent}"
        if not is_silent:
            text = f"{ranks_text(absent)} came late to a call over Gloo, or "
            text += "would have waited a little longer: their connections "
            text += f"were closed by those who gave up{spent}"
        text += f"; {who} waited"
    cause = Cause.RANK_NOT_ARRIVED if absent else Cause.COLLECTIVE_TIMEOUT
    late = [x for x in logs.gloo if x.rank in absent]
    return [
        Finding(
            cause=cause,
            ranks=absent,
            summary=text,
            # Who lost a connection may have waited as long as the others.
            confidence="likely"
            if len(absent) < len(waited) and (is_silent or not absent)
            else "possible",
            remedy=REMEDIES[cause] if absent else _ASK_FOR_DETAIL,
            evidence=evidence_of((*waited[:3], *late[:3])),
        )
    ]


def _others(
    logs: CollectiveLogs, waiting: set[int]
) -> tuple[tuple[int, ...], bool]:
    """
    Ranks that did not wait, as long as there are but few of them.

    Who comes late finds the connection closed by those who gave up.  So does
    one that would have waited a little longer; so many of them blame nobody,
    and nor does a single one if others say nothing at all.

    Returns:
        The ranks, and whether none of them says anything.
    """
    if not waiting:
        return (), False
    closed = {
        x.rank
        for x in logs.gloo
        if x.kind == "closed" and x.rank is not None and x.rank not in waiting
    }
    if logs.world_size is not None:
        missing = set(range(logs.world_size)) - waiting
    else:
        missing = closed
    if missing & closed and len(missing) > len(waiting):
        missing = closed
    missing = missing - closed or missing
    few = len(missing) <= max(len(waiting), 1)
    return tuple(sorted(missing)) if few else (), not missing & closed


def _left(logs: CollectiveLogs) -> list[Finding]:
    """
    Who is gone, if all but a few found their connections closed?

    Only its neighbors lose the connection to one that leaves, and those who
    are told to end then do not complain either.
    """
    closed = [x for x in logs.gloo if x.kind == "closed"]
    named = set(ranks_of(closed))
    gone = set(range(logs.world_size or 0)) - named
    if not named or not 0 < len(gone) <= len(named):
        return []

    is_one = len(gone) == 1
    who = ranks_text(gone) if is_one else f"one or more of {ranks_text(gone)}"
    return [
        Finding(
            cause=Cause.RANK_CRASHED,
            ranks=tuple(sorted(gone)),
            summary=f"{who} left: {ranks_text(named)} found a connection of "
            f"Gloo closed, and only {'it does' if is_one else 'these do'} "
            "not complain",
            confidence="likely" if is_one and len(named) > 1 else "possible",
            remedy="look for how the processes of those ended that do not "
            "complain: the end of their logs, exit codes, the kernel log",
            evidence=evidence_of(closed),
        )
    ]


def _unconnected(lost: Sequence[GlooError]) -> Finding:
    who = who_waited(lost)
    peers = ", ".join(dict.fromkeys(x.peer for x in lost if x.peer))
    return Finding(
        cause=Cause.NETWORK_FAILURE,
        ranks=(),
        summary=f"{who} did not reach the others over Gloo"
        + (f" ({peers[:200]})" if peers else ""),
        confidence="likely",
        remedy="check GLOO_SOCKET_IFNAME on every node: each must name an "
        "interface through which the others are reached",
        evidence=evidence_of(lost),
    )


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
        return [_lost_left(lost, gone, len(named))]
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


def _lost_left(
    lost: Sequence[NcclNote], gone: set[int], others: int
) -> Finding:
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


_GONE = ("reset", "closed", "got 0 bytes", "broken pipe", "likely dead")
_MOST_RANKS = 1 << 20
_LOOK = (
    "look at the logs of those that are missing: they did not start, died, or "
    "cannot reach the address of the first rank"
)


def explain_stores(logs: CollectiveLogs) -> list[Finding]:
    """
    Who did not come to the rendezvous?

    Args:
        logs: What was read.

    Returns:
        One finding per kind of failure, the most telling first.
    """
    findings: list[Finding] = []
    for kind, explain in _EXPLAIN.items():
        found = [x for x in logs.stores if x.kind == kind]
        # That nobody set a key may follow from anything.
        if found and not (kind == "keys" and findings):
            findings.append(explain(found))
    return findings


def _missed(
    found: Sequence[StoreTimeout],
    summary: str,
    remedy: str,
    *,
    ranks: tuple[int, ...] = (),
    cause: Cause = Cause.RENDEZVOUS_TIMEOUT,
) -> Finding:
    return Finding(
        cause=cause,
        ranks=ranks,
        summary=summary,
        confidence="likely",
        remedy=remedy,
        evidence=evidence_of(found),
    )


def _clients(found: Sequence[StoreTimeout]) -> Finding:
    most = max(found, key=lambda x: x.joined or 0)
    return _missed(
        found,
        f"{most.joined} of {most.expected} processes came to the store"
        f"{within(found)}",
        _LOOK,
    )


def _members(found: Sequence[StoreTimeout]) -> Finding:
    """
    A group that was made; if all who came complain, the others are missing.
    """
    most = max(found, key=lambda x: x.joined or 0)
    ranks = {x.group_rank for x in found if x.group_rank is not None}
    joined, expected = most.joined or 0, most.expected or 0
    absent: set[int] = set()
    if 0 < joined <= len(ranks):
        absent = set(range(min(expected, _MOST_RANKS))) - ranks
    return _missed(
        found,
        f"{joined} of {expected} ranks came while a group was made; "
        f"{who_waited(found)} waited",
        _LOOK,
        ranks=tuple(sorted(absent)),
    )


def _unique_id(found: Sequence[StoreTimeout]) -> Finding:
    """
    A communicator that its first rank should have opened.
    """
    reasons = {x.reason.lower() for x in found}
    is_gone = any(word in reason for word in _GONE for reason in reasons)
    how = "was gone" if is_gone else "did not come"
    first = "rank 0" if _is_default(found) else "the first rank of the group"
    return _missed(
        found,
        f"{first} {how} when {who_waited(found)} set up the communicator with it",
        f"look at the log of {first}: it never made this call",
        ranks=(0,) if _is_default(found) else (),
        cause=Cause.RANK_CRASHED if is_gone else Cause.RENDEZVOUS_TIMEOUT,
    )


def _connect(found: Sequence[StoreTimeout]) -> Finding:
    return _missed(
        found,
        f"{who_waited(found)} did not reach the store at {found[0].address}"
        f"{within(found)}",
        "check that the first rank runs, that MASTER_ADDR and MASTER_PORT are "
        "its, and that no firewall is between",
    )


def _listen(found: Sequence[StoreTimeout]) -> Finding:
    return _missed(
        found,
        f"the port of the store was taken when {who_waited(found)} opened it",
        "end what is left of an earlier job there, or choose another "
        "MASTER_PORT; each job of a node needs its own",
        cause=Cause.NODE_MISCONFIGURED,
    )


def _rendezvous(found: Sequence[StoreTimeout]) -> Finding:
    return _missed(
        found,
        "torchrun waited in vain for other nodes in its rendezvous",
        _LOOK,
    )


def _keys(found: Sequence[StoreTimeout]) -> Finding:
    key = f" for {found[0].keys}" if found[0].keys else ""
    return _missed(
        found,
        f"{who_waited(found)} waited{key} in the store{within(found)}, and nobody "
        "set it",
        _LOOK,
    )


_EXPLAIN: dict[str, Callable[[Sequence[StoreTimeout]], Finding]] = {
    "clients": _clients,
    "barrier": _members,
    "unique_id": _unique_id,
    "listen": _listen,
    "connect": _connect,
    "rendezvous": _rendezvous,
    "keys": _keys,
}


def _is_default(found: Sequence[StoreTimeout]) -> bool:
    """
    Whether ranks within the group are global ranks, as far as lines tell.
    """
    told = [x for x in found if x.rank is not None]
    return bool(told) and all(x.rank == x.group_rank for x in told)


# What may differ, the most telling first.
_ASPECTS: tuple[tuple[Cause, Callable[[FingerPrint], str]], ...] = (
    (Cause.TYPE_MISMATCH, lambda x: x.op),
    (Cause.SKIPPED_COLLECTIVE, lambda x: f"{x.op} #{x.seq}"),
    (Cause.SIZE_MISMATCH, lambda x: f"{x.op} of {x.shape}"),
    (Cause.DTYPE_MISMATCH, lambda x: f"{x.op} of {x.dtype}"),
)


def explain_checks(logs: CollectiveLogs) -> list[Finding]:
    """
    Who called something else, and who did not come, as torch found itself?

    Args:
        logs: What was read.

    Returns:
        One finding per call that differs, and per barrier that failed.
    """
    mismatches: dict[tuple[int, int], list[FingerPrintMismatch]] = defaultdict(
        list
    )
    for record in logs.mismatches:
        mismatches[record.attempt, record.own.seq].append(record)
    findings = [_mismatch(found) for found in mismatches.values()][:1]
    barriers: dict[int, list[BarrierFailure]] = defaultdict(list)
    for barrier in logs.barriers:
        barriers[barrier.attempt].append(barrier)
    findings += [
        _barrier(failures)
        for failures in barriers.values()
        if any(x.absent for x in failures)
    ]
    return findings


def _mismatch(found: Sequence[FingerPrintMismatch]) -> Finding:
    prints = _prints(found)
    cause, kinds = _kinds(prints)
    right, wrong = kinds[0][1], [r for _, ranks in kinds[1:] for r in ranks]
    # With one complaint, only two of perhaps many ranks are known.
    is_tie = len(kinds) > 1 and len(right) == len(kinds[1][1])
    confidence: Confidence = "possible" if is_tie else "certain"
    ranks = tuple(sorted(prints if is_tie else wrong))
    own = prints[right[0]]
    theirs = " and ".join(dict.fromkeys(kind for kind, _ in kinds[1:]))
    who = ranks_text(ranks) + _inside(found)
    return Finding(
        cause=cause,
        ranks=ranks if _is_world(found) else (),
        summary=f"{who} called {theirs} where the others called "
        f"{kinds[0][0]} (call #{own.seq})"
        if not is_tie
        else f"ranks do not agree on call #{own.seq}: "
        f"{_parties(kinds)}; it cannot be told who is wrong",
        confidence=confidence,
        remedy=REMEDIES[cause],
        collective=CollectiveRef(op=own.op, seq=own.seq),
        evidence=evidence_of(found),
    )


def _parties(kinds: Iterable[tuple[str, Sequence[int]]]) -> str:
    return ", ".join(f"{ranks_text(ranks)} {kind}" for kind, ranks in kinds)


def _prints(
    found: Iterable[FingerPrintMismatch],
) -> dict[int, FingerPrint]:
    """
    What each rank called; its own word goes before that of another.
    """
    prints: dict[int, FingerPrint] = {}
    for record in found:
        prints[record.own.rank] = record.own
    for record in found:
        prints.setdefault(record.other.rank, record.other)
    return prints


def _kinds(
    prints: Mapping[int, FingerPrint],
) -> tuple[Cause, list[tuple[str, list[int]]]]:
    """
    The first thing in which they differ, and the ranks by it, most first.
    """
    # What another rank tells is wrong if the lengths of the calls differ.
    is_sure = all(x.is_own or x.seq or x.shape for x in prints.values())
    own = {x.op for x in prints.values() if x.is_own}
    if not is_sure and len(own) < 2:
        shapes = {
            r: f"{x.op} of {x.shape}" if x.is_own else "something else"
            for r, x in prints.items()
        }
        return Cause.TYPE_MISMATCH, _by_value(shapes)

    for cause, show in _ASPECTS:
        kinds = _by_value({r: show(x) for r, x in prints.items()})
        if len(kinds) > 1:
            return cause, kinds
    same = _by_value({r: x.op for r, x in prints.items()})
    return Cause.TYPE_MISMATCH, [*same, ("something else", [])]


def _by_value(values: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items()):
        found[value].append(rank)
    return sorted(found.items(), key=lambda kind: -len(kind[1]))


def _barrier(failures: Sequence[BarrierFailure]) -> Finding:
    absent = {rank for x in failures for rank in x.absent}
    came = {
        x.group_rank
        for x in failures
        if not x.absent and x.group_rank is not None
    }
    absent -= came
    timeout = next((x.timeout for x in failures if x.timeout), None)
    spent = f" within {timeout:.0f} s" if timeout else ""
    ranks = tuple(sorted(absent))
    who = ranks_text(ranks) + _inside(failures) if ranks else "a rank"
    return Finding(
        cause=Cause.RANK_NOT_ARRIVED,
        ranks=ranks if _is_world(failures) else (),
        summary=f"{who} did not come to a monitored barrier{spent}",
        confidence="certain" if ranks else "possible",
        remedy=REMEDIES[Cause.RANK_NOT_ARRIVED],
        evidence=evidence_of(
            [x for x in failures if x.absent]
            + [x for x in failures if not x.absent]
        ),
    )


def _is_world(records: Sequence[LogRecord]) -> bool:
    """
    Whether ranks within the group are the global ones, as far as lines tell.
    """
    return all(
        x.rank == x.group_rank
        for x in records
        if x.rank is not None and x.group_rank is not None
    )


def _inside(records: Sequence[LogRecord]) -> str:
    return "" if _is_world(records) else " of the group"


def explain_heartbeats(logs: CollectiveLogs) -> list[Finding]:
    """
    Whose watchdog hangs, other than after a time-out?

    Args:
        logs: What was read.

    Returns:
        A finding, or nothing.
    """
    findings = []
    by_attempt: dict[int, dict[object, Heartbeat]] = defaultdict(dict)
    for beat in logs.heartbeats:
        by_attempt[beat.attempt].setdefault(_who(beat), beat)
    for attempt, beats in by_attempt.items():
        # After its own time-out, a watchdog hangs while it cleans up.
        late = {_who(x) for x in logs.timeouts if x.attempt == attempt} | {
            x.rank for x in logs.timeouts if x.attempt == attempt
        }
        stuck = {
            who: beat
            for who, beat in beats.items()
            if who not in late and (beat.rank is None or beat.rank not in late)
        }
        if stuck:
            findings.append(_heartbeat(stuck, is_all=not late))
    return findings


def _who(record: LogRecord) -> object:
    if record.rank is not None:
        return record.rank
    return (record.source, record.origin, record.group_rank)


def _heartbeat(stuck: Mapping[object, Heartbeat], *, is_all: bool) -> Finding:
    ranks = tuple(sorted(x.rank for x in stuck.values() if x.rank is not None))
    members = [
        x.group_rank for x in stuck.values() if x.group_rank is not None
    ]
    seconds = next((x.seconds for x in stuck.values() if x.seconds), None)
    who = (
        ranks_text(ranks)
        if ranks
        else f"rank {fold_ranks(members)} of its group"
        if members
        else "a rank"
    )
    spent = f" for {seconds:.0f} s" if seconds else ""
    return Finding(
        cause=Cause.RANK_BLOCKED_IN_LAUNCH,
        ranks=ranks,
        summary=f"the watchdog of {who} did not move{spent}: a call of CUDA "
        "or NCCL does not return there, or a thread keeps the GIL",
        confidence="possible" if is_all and len(stuck) > 1 else "likely",
        remedy=REMEDIES[Cause.RANK_BLOCKED_IN_LAUNCH],
        evidence=evidence_of(stuck.values()),
    )
