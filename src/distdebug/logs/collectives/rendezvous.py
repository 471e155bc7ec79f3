"""
Explain failures of Gloo, store, rendezvous, monitored barrier, heartbeat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from ...causes import Cause
from ...findings import CollectiveRef, Finding
from ...ranks import fold_ranks, ranks_text
from ..signatures import lost_peer
from .model import (
    BarrierFailure,
    CollectiveLogs,
    FingerPrint,
    FingerPrintMismatch,
    GlooError,
    Heartbeat,
    LogGroup,
    LogRecord,
    StoreTimeout,
    first_difference,
    group_members,
    log_finding,
    ranks_label,
    reporting_ranks,
    timeout_text,
)


_DETAIL_REMEDY = (
    "collect the logs of all ranks, and run again with "
    "TORCH_DISTRIBUTED_DEBUG=DETAIL, which names who is missing"
)


_LOOPBACK_REMEDY = (
    "; a node whose /etc/hosts gives its own name a loopback address tells that "
    "to the others"
)


def explain_gloo(logs: CollectiveLogs) -> list[Finding]:
    """
    Explain timeouts, lost connections, and failed connects of Gloo.
    """
    by_kind = defaultdict(list)
    for error in logs.gloo:
        by_kind[error.kind].append(error)
    if timeouts := by_kind["timeout"]:
        return [_gloo_timeout_finding(logs, timeouts)]
    unreached = by_kind["connect"]
    if not unreached:
        return _explain_closed_connections(logs, by_kind["closed"])
    addresses = dict.fromkeys(x.peer for x in unreached if x.peer)
    peers = ", ".join(addresses)
    is_loopback = bool(peers) and all(
        x.lstrip("[").startswith("127.") for x in addresses
    )
    return [
        log_finding(
            Cause.NETWORK_MISCONFIGURED
            if is_loopback
            else Cause.NETWORK_FAILURE,
            f"{ranks_label(unreached)} did not reach the others over Gloo"
            + (f" ({peers[:200]})" if peers else ""),
            unreached,
            "check GLOO_SOCKET_IFNAME on every node: each must name an "
            "interface through which the others are reached"
            + _LOOPBACK_REMEDY
            * is_loopback,
        )
    ]


def _gloo_timeout_finding(
    logs: CollectiveLogs, timeouts: Sequence[GlooError]
) -> Finding:
    absent, is_silent = _absent_ranks(logs, set(reporting_ranks(timeouts)))
    duration, waiting = timeout_text(timeouts), ranks_label(timeouts)
    names = ranks_text(absent)
    if not absent:
        text = f"{waiting} waited in a call over Gloo{duration}, and these "
        text += "logs do not show for whom"
    elif is_silent:
        text = f"{names} did not enter a call over Gloo{duration}"
    else:
        text = f"{names} came late to a call over Gloo, or would have waited "
        text += "a little longer: their connections were closed by those who "
        text += f"gave up{duration}"
    # A rank that lost a connection may have waited as long.
    is_likely = len(absent) < len(timeouts) and (is_silent or not absent)
    closed = [x for x in logs.gloo if x.rank in absent]
    return log_finding(
        Cause.RANK_NOT_ARRIVED if absent else Cause.COLLECTIVE_TIMEOUT,
        f"{text}; {waiting} waited" if absent else text,
        (*timeouts[:3], *closed[:3]),
        None if absent else _DETAIL_REMEDY,
        ranks=absent,
        confidence="likely" if is_likely else "possible",
    )


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


def _explain_closed_connections(
    logs: CollectiveLogs, closed: Sequence[GlooError]
) -> list[Finding]:
    """
    Report ranks that left, if all but a few found a connection closed.

    Only neighbors of a rank that leaves lose the connection to it, and ranks
    that are then ended do not complain either.
    """
    reporting = set(reporting_ranks(closed))
    if not reporting:
        return []
    most = len(reporting)
    ranks = range(logs.world_size or 0)
    if not ranks:  # it is not known how many there are; one between may count
        most, ranks = 1, range(min(reporting), max(reporting))
    gone = set(ranks) - reporting
    if not 0 < len(gone) <= most:
        return []

    return [
        _departed_finding(
            closed,
            gone,
            "one or more",
            f"{ranks_text(reporting)} found a connection of Gloo closed",
            "look for how the processes of those ended that do not complain: "
            "the end of their logs, exit codes, the kernel log",
            is_likely=len(gone) == 1 < len(reporting),
        )
    ]


def explain_lost_connections(logs: CollectiveLogs) -> list[Finding]:
    """
    Explain NCCL errors about a remote process that exited.

    A rank that left does not complain itself, so ranks without a complaint are
    suspects if they are few.
    """
    lost = [x for x in logs.notes if x.kind == "lost"]
    if not lost:
        return []

    reporting = set(reporting_ranks(lost))
    gone = set(range(logs.world_size or 0)) - reporting
    if 0 < 2 * len(gone) <= len(reporting):
        return [
            _departed_finding(
                lost,
                gone,
                "some",
                f"{len(reporting)} ranks lost a connection of NCCL",
                "look for the first error in the logs of those that do not "
                "complain",
                is_likely=3 * len(gone) <= len(reporting),
            )
        ]
    return [
        log_finding(
            Cause.NETWORK_FAILURE,
            "ranks lost a connection of NCCL: another rank left, or the "
            "network failed",
            lost,
            confidence="possible",
            remedy="look for the first error in the logs of all ranks; without"
            " one, check the network between their nodes",
        )
    ]


def _departed_finding(  # noqa: PLR0913 the parts of one sentence
    records: Iterable[LogRecord],
    gone: set[int],
    share: str,
    complaint: str,
    remedy: str,
    *,
    is_likely: bool,
) -> Finding:
    """
    Report ranks that left, as all others but these complain.
    """
    label, pronoun = ranks_text(gone), "it does"
    if len(gone) > 1:
        label, pronoun = f"{share} of {label}", "these do"
    return log_finding(
        Cause.RANK_CRASHED,
        f"{label} left: {complaint}, and only {pronoun} not complain",
        records,
        ranks=gone,
        confidence="likely" if is_likely else "possible",
        remedy=remedy,
    )


_MAX_RANKS = 1 << 20
_MISSING_RANKS_REMEDY = (
    "look at the logs of those that are missing: they did not start, died, or "
    "cannot reach the address of the first rank"
)


class _StoreRule(NamedTuple):
    """
    What a timeout or an error of the store means.
    """

    summary: str
    remedy: str = _MISSING_RANKS_REMEDY
    cause: Cause = Cause.RENDEZVOUS_TIMEOUT


# By the kind of the records, the most specific first.
_STORE_RULES = {
    "clients": _StoreRule(
        "{joined} of {expected} processes joined the store{within}"
    ),
    "barrier": _StoreRule(
        "{joined} of {expected} ranks came while a group was made; {reporters} "
        "waited"
    ),
    "unique_id": _StoreRule(
        "{first} {problem} when {reporters} set up the communicator with it",
        "look at the log of {first}: it never made this call",
    ),
    "listen": _StoreRule(
        "the port of the store was taken when {reporters} opened it",
        "end what is left of an earlier job there, or choose another "
        "MASTER_PORT; each job of a node needs its own",
        Cause.NODE_MISCONFIGURED,
    ),
    "connect": _StoreRule(
        "{reporters} did not reach the store at {address}{within}",
        "check that the first rank runs, that MASTER_ADDR and MASTER_PORT are "
        "its, and that no firewall is between",
    ),
    "rendezvous": _StoreRule(
        "torchrun waited in vain for other nodes in its rendezvous"
    ),
    "keys": _StoreRule(
        "{reporters} waited{key} in the store{within}, and no rank set it"
    ),
}


def explain_store_timeouts(logs: CollectiveLogs) -> list[Finding]:
    """
    Explain timeouts and errors of the store and of rendezvous.

    Returns:
        One finding per kind of failure, the most specific first.
    """
    findings: list[Finding] = []
    # Ranks of an attempt before may not have come back.
    present = set(logs.present if logs.attempts == 1 else ())
    for kind, rule in _STORE_RULES.items():
        timeouts = [x for x in logs.stores if x.kind == kind]
        # A missing key may follow from any other failure.
        if timeouts and not (kind == "keys" and findings):
            findings.append(_store_finding(kind, rule, timeouts, present))
    return findings


def _store_finding(
    kind: str,
    rule: _StoreRule,
    timeouts: Sequence[StoreTimeout],
    present: AbstractSet[int],
) -> Finding:
    latest = max(timeouts, key=lambda x: x.joined or 0)
    # Whether group ranks are known to be global ranks.
    is_default = bool(reporting_ranks(timeouts)) and all(
        x.rank in {None, x.group_rank} for x in timeouts
    )
    ranks: set[int] = set()
    cause, problem = rule.cause, "did not come"
    everyone = set(range(min(latest.expected or 0, _MAX_RANKS)))
    joined = latest.joined or 0
    if kind == "barrier":
        # Who was missing is known if all others complain.
        members = {x.group_rank for x in timeouts} - {None}
        if 0 < joined <= len(members):
            ranks = everyone - members
    elif kind == "clients" and joined == len(present & everyone):
        # A few may have printed something and not joined.
        ranks = everyone - present if 2 * joined > len(everyone) else set()
    elif kind == "unique_id":
        ranks = {0} if is_default else set()
        if any(lost_peer().search(x.reason) for x in timeouts):
            cause, problem = Cause.RANK_CRASHED, "was gone"
    facts = {
        "joined": joined,
        "expected": latest.expected or 0,
        "within": timeout_text(timeouts),
        "reporters": ranks_label(timeouts),
        "first": "rank 0" if is_default else "the first rank of the group",
        "problem": problem,
        "address": timeouts[0].address,
        "key": f" for {timeouts[0].keys}" if timeouts[0].keys else "",
    }
    summary, remedy = (x.format_map(facts) for x in rule[:2])
    return log_finding(cause, summary, timeouts, remedy, ranks=ranks)


# Aspects in which calls may differ, the most specific first.
_CALL_ASPECTS: tuple[tuple[Cause, Callable[[FingerPrint], str]], ...] = (
    (Cause.TYPE_MISMATCH, lambda x: x.op),
    (Cause.SKIPPED_COLLECTIVE, lambda x: f"{x.op} #{x.seq}"),
    (Cause.SIZE_MISMATCH, lambda x: f"{x.op} of {x.shape}"),
    (Cause.DTYPE_MISMATCH, lambda x: f"{x.op} of {x.dtype}"),
)
_RunGroup = tuple[int, LogGroup | None]


def explain_debug_checks(logs: CollectiveLogs) -> list[Finding]:
    """
    Explain calls that differ and monitored barriers that failed.

    Returns:
        For each run and group, one finding for the first call that differs,
        and one for failed barriers.
    """
    mismatches: dict[_RunGroup, list[FingerPrintMismatch]] = defaultdict(list)
    for record in logs.mismatches:
        known = mismatches[record.attempt, record.group]
        if not known or known[0].own.seq == record.own.seq:
            known.append(record)
    barriers: dict[_RunGroup, list[BarrierFailure]] = defaultdict(list)
    for barrier in logs.barriers:
        barriers[barrier.attempt, barrier.group].append(barrier)
    return [
        *map(_mismatch_finding, mismatches.values()),
        *(
            _barrier_finding(failures)
            for failures in barriers.values()
            if any(x.absent for x in failures)
        ),
    ]


def _mismatch_finding(records: Sequence[FingerPrintMismatch]) -> Finding:
    # The report of a rank itself goes before that of another one.
    fingerprints = {x.other.rank: x.other for x in records[::-1]}
    fingerprints |= {x.own.rank: x.own for x in records}
    cause, kinds = _differing_calls(fingerprints)
    (usual_call, expected), *others = kinds
    # One report names only two of possibly many ranks.
    is_tie = bool(others) and len(expected) == len(others[0][1])
    ranks = sorted(
        fingerprints if is_tie else (r for _, some in others for r in some)
    )
    own = fingerprints[expected[0]]
    if is_tie:
        calls = ", ".join(f"{ranks_text(some)} {x}" for x, some in kinds)
        summary = f"ranks do not agree on call #{own.seq}: {calls}; which of "
        summary += "them is wrong cannot be known"
    else:
        calls = " and ".join(dict.fromkeys(x for x, _ in others))
        summary = f"{ranks_text(ranks)}{_group_suffix(records)} called {calls}"
        summary += f" where the others called {usual_call} (call #{own.seq})"
    return log_finding(
        cause,
        summary,
        records,
        ranks=ranks if _has_global_ranks(records) else (),
        confidence="possible" if is_tie else "certain",
        collective=CollectiveRef(op=own.op, seq=own.seq),
    )


def _differing_calls(
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
        return Cause.TYPE_MISMATCH, group_members(shapes)

    if found := first_difference(fingerprints, _CALL_ASPECTS):
        return found
    same = group_members({r: x.op for r, x in fingerprints.items()})
    return Cause.TYPE_MISMATCH, [*same, ("something else", [])]


def _barrier_finding(failures: Sequence[BarrierFailure]) -> Finding:
    naming = [x for x in failures if x.absent]
    absent = {rank for x in failures for rank in x.absent}
    absent -= {x.group_rank for x in failures if not x.absent}
    label = (
        ranks_text(absent) + _group_suffix(failures) if absent else "a rank"
    )
    return log_finding(
        Cause.RANK_NOT_ARRIVED,
        f"{label} did not reach a monitored barrier{timeout_text(failures)}",
        (*naming, *(x for x in failures if not x.absent)),
        ranks=absent if _has_global_ranks(failures) else (),
        confidence="certain" if absent else "possible",
    )


def _has_global_ranks(records: Iterable[LogRecord]) -> bool:
    """
    Return whether no line contradicts that group ranks are global ranks.
    """
    return all(
        x.rank == x.group_rank
        for x in records
        if x.rank is not None and x.group_rank is not None
    )


def _group_suffix(records: Iterable[LogRecord]) -> str:
    return "" if _has_global_ranks(records) else " of the group"


def explain_heartbeats(logs: CollectiveLogs) -> list[Finding]:
    """
    Explain watchdogs that were stuck, other than after a timeout.
    """
    by_attempt: dict[int, dict[object, Heartbeat]] = defaultdict(dict)
    for heartbeat in logs.heartbeats:
        key = _reporter_key(heartbeat)
        by_attempt[heartbeat.attempt].setdefault(key, heartbeat)
    findings = []
    for attempt, heartbeats in by_attempt.items():
        # After its own timeout, a watchdog is stuck while it cleans up.
        timed_out = {
            _reporter_key(x) for x in logs.timeouts if x.attempt == attempt
        }
        stuck = [x for key, x in heartbeats.items() if key not in timed_out]
        if stuck:
            findings.append(_heartbeat_finding(stuck, is_all=not timed_out))
    return findings


def _reporter_key(record: LogRecord) -> object:
    if record.rank is not None:
        return record.rank
    return (record.source, record.origin, record.group_rank)


def _heartbeat_finding(stuck: Sequence[Heartbeat], *, is_all: bool) -> Finding:
    ranks = reporting_ranks(stuck)
    members = [x.group_rank for x in stuck if x.group_rank is not None]
    label = ranks_text(ranks) if ranks else "a rank"
    if members and not ranks:
        label = f"rank {fold_ranks(members)} of its group"
    seconds = next((x.seconds for x in stuck if x.seconds), None)
    duration = f" for {seconds:.0f} s" if seconds else ""
    return log_finding(
        Cause.RANK_BLOCKED_IN_LAUNCH,
        f"the watchdog of {label} did not move{duration}: a call of CUDA or "
        "NCCL does not return there, or a thread keeps the GIL",
        stuck,
        ranks=ranks,
        confidence="possible" if is_all and len(stuck) > 1 else "likely",
    )
