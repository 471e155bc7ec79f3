"""
Who did not find whom, as the store and groups that were never made tell?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...findings import Cause, Finding
from .logs import CollectiveLogs
from .model import StoreTimeout
from .quoting import evidence_of, who_waited, within


__all__ = ["explain_stores"]

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
