"""
Explain failures of Gloo, store, rendezvous, monitored barrier, heartbeat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...findings import Cause, CollectiveRef, Confidence, Finding
from ...ranks import fold_ranks, ranks_text
from .detectors import REMEDIES
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
    make_evidence,
    make_nccl_finding,
    ranks_label,
    reporting_ranks,
    timeout_text,
)


_DETAIL_REMEDY = (
    "collect the logs of all ranks, and run again with "
    "TORCH_DISTRIBUTED_DEBUG=DETAIL, which names who is missing"
)


def explain_gloo(logs: CollectiveLogs) -> list[Finding]:
    """
    Explain timeouts, lost connections, and failed connects of Gloo.
    """
    gloo_timeouts = [x for x in logs.gloo if x.kind == "timeout"]
    unreached = [x for x in logs.gloo if x.kind == "connect"]
    if unreached and not gloo_timeouts:
        return [_unreachable_finding(unreached)]
    if not gloo_timeouts:
        return _explain_closed_connections(logs)

    absent, is_silent = _absent_ranks(
        logs, set(reporting_ranks(gloo_timeouts))
    )
    duration, waiting = timeout_text(gloo_timeouts), ranks_label(gloo_timeouts)
    text = f"{waiting} waited in a call over Gloo{duration}, and these logs do not "
    text += "tell for whom"
    if absent:
        text = (
            f"{ranks_text(absent)} did not come to a call over Gloo{duration}"
        )
        if not is_silent:
            text = f"{ranks_text(absent)} came late to a call over Gloo, or "
            text += "would have waited a little longer: their connections "
            text += f"were closed by those who gave up{duration}"
        text += f"; {waiting} waited"
    cause = Cause.RANK_NOT_ARRIVED if absent else Cause.COLLECTIVE_TIMEOUT
    closed = [x for x in logs.gloo if x.rank in absent]
    return [
        Finding(
            cause=cause,
            ranks=absent,
            summary=text,
            # A rank that lost a connection may have waited as long.
            confidence="likely"
            if len(absent) < len(gloo_timeouts) and (is_silent or not absent)
            else "possible",
            remedy=REMEDIES[cause] if absent else _DETAIL_REMEDY,
            evidence=make_evidence((*gloo_timeouts[:3], *closed[:3])),
        )
    ]


def _absent_ranks(
    logs: CollectiveLogs, waiting: set[int]
) -> tuple[tuple[int, ...], bool]:
    """
    Return ranks that did not wait, if they are few.

    A rank that arrives late finds its connection closed by those that gave up.
    So does a rank that would have waited a little longer; if there are many of
    these, none is to blame, and neither is a single one if other ranks have no
    line at all.

    Returns:
        The ranks, and whether none of them has any line.
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
    is_few = len(missing) <= max(len(waiting), 1)
    return tuple(sorted(missing)) if is_few else (), not missing & closed


def _explain_closed_connections(logs: CollectiveLogs) -> list[Finding]:
    """
    Report ranks that left, if all but a few found a connection closed.

    Only neighbors of a rank that leaves lose the connection to it, and ranks
    that are then told to end do not complain either.
    """
    closed = [x for x in logs.gloo if x.kind == "closed"]
    reporting = set(reporting_ranks(closed))
    gone = set(range(logs.world_size or 0)) - reporting
    if not reporting or not 0 < len(gone) <= len(reporting):
        return []

    is_one = len(gone) == 1
    label = (
        ranks_text(gone) if is_one else f"one or more of {ranks_text(gone)}"
    )
    return [
        Finding(
            cause=Cause.RANK_CRASHED,
            ranks=tuple(sorted(gone)),
            summary=f"{label} left: {ranks_text(reporting)} found a connection of "
            f"Gloo closed, and only {'it does' if is_one else 'these do'} "
            "not complain",
            confidence="likely"
            if is_one and len(reporting) > 1
            else "possible",
            remedy="look for how the processes of those ended that do not "
            "complain: the end of their logs, exit codes, the kernel log",
            evidence=make_evidence(closed),
        )
    ]


def _unreachable_finding(unreached: Sequence[GlooError]) -> Finding:
    label = ranks_label(unreached)
    peers = ", ".join(dict.fromkeys(x.peer for x in unreached if x.peer))
    return Finding(
        cause=Cause.NETWORK_FAILURE,
        ranks=(),
        summary=f"{label} did not reach the others over Gloo"
        + (f" ({peers[:200]})" if peers else ""),
        confidence="likely",
        remedy="check GLOO_SOCKET_IFNAME on every node: each must name an "
        "interface through which the others are reached",
        evidence=make_evidence(unreached),
    )


def explain_lost_connections(logs: CollectiveLogs) -> list[Finding]:
    """
    Explain NCCL errors about a remote process that exited.

    A rank that left does not complain itself, so ranks without a complaint are
    suspects if they are few.
    """
    lost = [x for x in logs.notes if x.kind == "lost"]
    if not lost:
        return []

    reporting = {x.rank for x in lost if x.rank is not None}
    gone = set(range(logs.world_size or 0)) - reporting
    if 0 < 2 * len(gone) <= len(reporting):
        return [_departed_finding(lost, gone, len(reporting))]
    return [
        make_nccl_finding(
            Cause.NETWORK_FAILURE,
            "ranks lost a connection of NCCL: another rank left, or the "
            "network failed",
            lost,
            "look for the first error in the logs of all ranks; without "
            "one, check the network between their nodes",
            confidence="possible",
        )
    ]


def _departed_finding(
    lost: Sequence[NcclNote], gone: set[int], others: int
) -> Finding:
    is_one = len(gone) == 1
    label = ranks_text(gone) if is_one else f"some of {ranks_text(gone)}"
    return make_nccl_finding(
        Cause.RANK_CRASHED,
        f"{label} left: {others} ranks lost a connection of NCCL, and only "
        f"{'it does' if is_one else 'these do'} not complain",
        lost,
        "look for the first error in the logs of those that do not complain",
        ranks=gone,
        confidence="likely" if 3 * len(gone) <= others else "possible",
    )


_CONNECTION_LOST_TEXTS = (
    "reset",
    "closed",
    "got 0 bytes",
    "broken pipe",
    "likely dead",
)
_MAX_RANKS = 1 << 20
_MISSING_RANKS_REMEDY = (
    "look at the logs of those that are missing: they did not start, died, or "
    "cannot reach the address of the first rank"
)


def explain_store_timeouts(logs: CollectiveLogs) -> list[Finding]:
    """
    Explain timeouts and errors of the store and of rendezvous.

    Returns:
        One finding per kind of failure, the most specific first.
    """
    findings: list[Finding] = []
    for kind, make_finding in _STORE_FINDINGS.items():
        timeouts = [x for x in logs.stores if x.kind == kind]
        # A missing key may follow from any other failure.
        if timeouts and not (kind == "keys" and findings):
            findings.append(make_finding(timeouts))
    return findings


def _store_finding(
    timeouts: Sequence[StoreTimeout],
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
        evidence=make_evidence(timeouts),
    )


def _clients_finding(timeouts: Sequence[StoreTimeout]) -> Finding:
    latest = max(timeouts, key=lambda x: x.joined or 0)
    return _store_finding(
        timeouts,
        f"{latest.joined} of {latest.expected} processes came to the store"
        f"{timeout_text(timeouts)}",
        _MISSING_RANKS_REMEDY,
    )


def _group_creation_finding(timeouts: Sequence[StoreTimeout]) -> Finding:
    """
    Report members missing while a group was created.

    They are known if all members that arrived complain.
    """
    latest = max(timeouts, key=lambda x: x.joined or 0)
    ranks = {x.group_rank for x in timeouts if x.group_rank is not None}
    joined, expected = latest.joined or 0, latest.expected or 0
    absent: set[int] = set()
    if 0 < joined <= len(ranks):
        absent = set(range(min(expected, _MAX_RANKS))) - ranks
    return _store_finding(
        timeouts,
        f"{joined} of {expected} ranks came while a group was made; "
        f"{ranks_label(timeouts)} waited",
        _MISSING_RANKS_REMEDY,
        ranks=tuple(sorted(absent)),
    )


def _unique_id_finding(timeouts: Sequence[StoreTimeout]) -> Finding:
    """
    Report a communicator whose first rank did not publish its ID.
    """
    reasons = {x.reason.lower() for x in timeouts}
    is_gone = any(
        word in reason for word in _CONNECTION_LOST_TEXTS for reason in reasons
    )
    problem = "was gone" if is_gone else "did not come"
    first = (
        "rank 0"
        if _is_default_group(timeouts)
        else "the first rank of the group"
    )
    return _store_finding(
        timeouts,
        f"{first} {problem} when {ranks_label(timeouts)} set up the communicator with it",
        f"look at the log of {first}: it never made this call",
        ranks=(0,) if _is_default_group(timeouts) else (),
        cause=Cause.RANK_CRASHED if is_gone else Cause.RENDEZVOUS_TIMEOUT,
    )


def _connect_finding(timeouts: Sequence[StoreTimeout]) -> Finding:
    return _store_finding(
        timeouts,
        f"{ranks_label(timeouts)} did not reach the store at {timeouts[0].address}"
        f"{timeout_text(timeouts)}",
        "check that the first rank runs, that MASTER_ADDR and MASTER_PORT are "
        "its, and that no firewall is between",
    )


def _listen_finding(timeouts: Sequence[StoreTimeout]) -> Finding:
    return _store_finding(
        timeouts,
        f"the port of the store was taken when {ranks_label(timeouts)} opened it",
        "end what is left of an earlier job there, or choose another "
        "MASTER_PORT; each job of a node needs its own",
        cause=Cause.NODE_MISCONFIGURED,
    )


def _rendezvous_finding(timeouts: Sequence[StoreTimeout]) -> Finding:
    return _store_finding(
        timeouts,
        "torchrun waited in vain for other nodes in its rendezvous",
        _MISSING_RANKS_REMEDY,
    )


def _keys_finding(timeouts: Sequence[StoreTimeout]) -> Finding:
    key = f" for {timeouts[0].keys}" if timeouts[0].keys else ""
    return _store_finding(
        timeouts,
        f"{ranks_label(timeouts)} waited{key} in the store{timeout_text(timeouts)}, and nobody "
        "set it",
        _MISSING_RANKS_REMEDY,
    )


_STORE_FINDINGS: dict[str, Callable[[Sequence[StoreTimeout]], Finding]] = {
    "clients": _clients_finding,
    "barrier": _group_creation_finding,
    "unique_id": _unique_id_finding,
    "listen": _listen_finding,
    "connect": _connect_finding,
    "rendezvous": _rendezvous_finding,
    "keys": _keys_finding,
}


def _is_default_group(timeouts: Sequence[StoreTimeout]) -> bool:
    """
    Return whether group ranks are known to be global ranks.
    """
    with_rank = [x for x in timeouts if x.rank is not None]
    return bool(with_rank) and all(x.rank == x.group_rank for x in with_rank)


# Aspects in which calls may differ, the most specific first.
_CALL_ASPECTS: tuple[tuple[Cause, Callable[[FingerPrint], str]], ...] = (
    (Cause.TYPE_MISMATCH, lambda x: x.op),
    (Cause.SKIPPED_COLLECTIVE, lambda x: f"{x.op} #{x.seq}"),
    (Cause.SIZE_MISMATCH, lambda x: f"{x.op} of {x.shape}"),
    (Cause.DTYPE_MISMATCH, lambda x: f"{x.op} of {x.dtype}"),
)


def explain_debug_checks(logs: CollectiveLogs) -> list[Finding]:
    """
    Explain calls that differ and monitored barriers that failed.

    Returns:
        One finding for the first call that differs, and one per run with a
        failed barrier.
    """
    mismatches: dict[tuple[int, int], list[FingerPrintMismatch]] = defaultdict(
        list
    )
    for record in logs.mismatches:
        mismatches[record.attempt, record.own.seq].append(record)
    findings = [_mismatch_finding(records) for records in mismatches.values()][
        :1
    ]
    barriers: dict[int, list[BarrierFailure]] = defaultdict(list)
    for barrier in logs.barriers:
        barriers[barrier.attempt].append(barrier)
    findings += [
        _barrier_finding(failures)
        for failures in barriers.values()
        if any(x.absent for x in failures)
    ]
    return findings


def _mismatch_finding(records: Sequence[FingerPrintMismatch]) -> Finding:
    fingerprints = _fingerprints_by_rank(records)
    cause, kinds = _first_difference(fingerprints)
    expected, differing = (
        kinds[0][1],
        [r for _, ranks in kinds[1:] for r in ranks],
    )
    # One report names only two of possibly many ranks.
    is_tie = len(kinds) > 1 and len(expected) == len(kinds[1][1])
    confidence: Confidence = "possible" if is_tie else "certain"
    ranks = tuple(sorted(fingerprints if is_tie else differing))
    own = fingerprints[expected[0]]
    other_calls = " and ".join(dict.fromkeys(kind for kind, _ in kinds[1:]))
    label = ranks_text(ranks) + _group_suffix(records)
    return Finding(
        cause=cause,
        ranks=ranks if _has_global_ranks(records) else (),
        summary=f"{label} called {other_calls} where the others called "
        f"{kinds[0][0]} (call #{own.seq})"
        if not is_tie
        else f"ranks do not agree on call #{own.seq}: "
        f"{_calls_text(kinds)}; it cannot be told who is wrong",
        confidence=confidence,
        remedy=REMEDIES[cause],
        collective=CollectiveRef(op=own.op, seq=own.seq),
        evidence=make_evidence(records),
    )


def _calls_text(kinds: Iterable[tuple[str, Sequence[int]]]) -> str:
    return ", ".join(f"{ranks_text(ranks)} {kind}" for kind, ranks in kinds)


def _fingerprints_by_rank(
    records: Iterable[FingerPrintMismatch],
) -> dict[int, FingerPrint]:
    """
    Return the call of each rank; its own report goes before that of another.
    """
    fingerprints: dict[int, FingerPrint] = {}
    for record in records:
        fingerprints[record.own.rank] = record.own
    for record in records:
        fingerprints.setdefault(record.other.rank, record.other)
    return fingerprints


def _first_difference(
    fingerprints: Mapping[int, FingerPrint],
) -> tuple[Cause, list[tuple[str, list[int]]]]:
    """
    Return the first aspect in which calls differ, and ranks by it, most first.
    """
    # A report about another rank is wrong if shapes differ in length.
    is_reliable = all(
        x.is_own or x.seq or x.shape for x in fingerprints.values()
    )
    own = {x.op for x in fingerprints.values() if x.is_own}
    if not is_reliable and len(own) < 2:
        shapes = {
            r: f"{x.op} of {x.shape}" if x.is_own else "something else"
            for r, x in fingerprints.items()
        }
        return Cause.TYPE_MISMATCH, _group_by_value(shapes)

    for cause, show in _CALL_ASPECTS:
        kinds = _group_by_value({r: show(x) for r, x in fingerprints.items()})
        if len(kinds) > 1:
            return cause, kinds
    same = _group_by_value({r: x.op for r, x in fingerprints.items()})
    return Cause.TYPE_MISMATCH, [*same, ("something else", [])]


def _group_by_value(values: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    ranks_by_value: dict[str, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items()):
        ranks_by_value[value].append(rank)
    return sorted(ranks_by_value.items(), key=lambda kind: -len(kind[1]))


def _barrier_finding(failures: Sequence[BarrierFailure]) -> Finding:
    absent = {rank for x in failures for rank in x.absent}
    arrived = {
        x.group_rank
        for x in failures
        if not x.absent and x.group_rank is not None
    }
    absent -= arrived
    timeout = next((x.timeout for x in failures if x.timeout), None)
    duration = f" within {timeout:.0f} s" if timeout else ""
    ranks = tuple(sorted(absent))
    label = ranks_text(ranks) + _group_suffix(failures) if ranks else "a rank"
    return Finding(
        cause=Cause.RANK_NOT_ARRIVED,
        ranks=ranks if _has_global_ranks(failures) else (),
        summary=f"{label} did not come to a monitored barrier{duration}",
        confidence="certain" if ranks else "possible",
        remedy=REMEDIES[Cause.RANK_NOT_ARRIVED],
        evidence=make_evidence(
            [x for x in failures if x.absent]
            + [x for x in failures if not x.absent]
        ),
    )


def _has_global_ranks(records: Sequence[LogRecord]) -> bool:
    """
    Return whether no line contradicts that group ranks are global ranks.
    """
    return all(
        x.rank == x.group_rank
        for x in records
        if x.rank is not None and x.group_rank is not None
    )


def _group_suffix(records: Sequence[LogRecord]) -> str:
    return "" if _has_global_ranks(records) else " of the group"


def explain_heartbeats(logs: CollectiveLogs) -> list[Finding]:
    """
    Explain watchdogs that were stuck, other than after a timeout.
    """
    findings = []
    by_attempt: dict[int, dict[object, Heartbeat]] = defaultdict(dict)
    for heartbeat in logs.heartbeats:
        by_attempt[heartbeat.attempt].setdefault(
            _reporter_key(heartbeat), heartbeat
        )
    for attempt, heartbeats in by_attempt.items():
        # After its own timeout, a watchdog is stuck while it cleans up.
        timed_out = {
            _reporter_key(x) for x in logs.timeouts if x.attempt == attempt
        } | {x.rank for x in logs.timeouts if x.attempt == attempt}
        stuck = {
            reporter: heartbeat
            for reporter, heartbeat in heartbeats.items()
            if reporter not in timed_out
            and (heartbeat.rank is None or heartbeat.rank not in timed_out)
        }
        if stuck:
            findings.append(_heartbeat_finding(stuck, is_all=not timed_out))
    return findings


def _reporter_key(record: LogRecord) -> object:
    if record.rank is not None:
        return record.rank
    return (record.source, record.origin, record.group_rank)


def _heartbeat_finding(
    stuck: Mapping[object, Heartbeat], *, is_all: bool
) -> Finding:
    ranks = tuple(sorted(x.rank for x in stuck.values() if x.rank is not None))
    members = [
        x.group_rank for x in stuck.values() if x.group_rank is not None
    ]
    seconds = next((x.seconds for x in stuck.values() if x.seconds), None)
    label = (
        ranks_text(ranks)
        if ranks
        else f"rank {fold_ranks(members)} of its group"
        if members
        else "a rank"
    )
    duration = f" for {seconds:.0f} s" if seconds else ""
    return Finding(
        cause=Cause.RANK_BLOCKED_IN_LAUNCH,
        ranks=ranks,
        summary=f"the watchdog of {label} did not move{duration}: a call of CUDA "
        "or NCCL does not return there, or a thread keeps the GIL",
        confidence="possible" if is_all and len(stuck) > 1 else "likely",
        remedy=REMEDIES[Cause.RANK_BLOCKED_IN_LAUNCH],
        evidence=make_evidence(stuck.values()),
    )
