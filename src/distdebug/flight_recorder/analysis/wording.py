"""
How is a conclusion about dumps put into words?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...findings import (
    Cause,
    CollectiveRef,
    Confidence,
    Evidence,
    Finding,
    GroupRef,
)
from ...location import user_location
from ...ranks import fold_ranks
from .job import Job
from .mismatch import Mismatch
from .roots import Root
from .stuck import StuckCall


__all__ = ["collective_of", "explain_mismatch", "explain_root", "victims_of"]

_REMEDY = {
    Cause.RANK_NOT_ARRIVED: "look at the Python stack of these ranks: they "
    "are busy, or stuck, outside of any collective",
    Cause.RANK_CRASHED: "look for the exit of these ranks in the logs of "
    "their nodes (out of memory, signal, node lost)",
    Cause.RANK_NOT_STARTED: "look at what runs on the GPUs of these ranks: "
    "an earlier kernel does not finish",
    Cause.RANK_BLOCKED_IN_LAUNCH: "take native stacks of these ranks "
    "(py-spy dump --native): the launch does not return",
    Cause.COLLECTIVE_STUCK_IN_FLIGHT: "everyone arrived: check links, NICs, "
    "and GPU health (Xid) of these ranks, and the NCCL logs",
    Cause.GROUP_ORDER_DEADLOCK: "call the collectives of these groups in the "
    "same order on all ranks",
    Cause.P2P_DEADLOCK: "let one side of each pair send first, or use "
    "batch_isend_irecv",
    Cause.TYPE_MISMATCH: "make all ranks of the group call the same operation",
    Cause.SIZE_MISMATCH: "make all ranks of the group pass the same sizes",
    Cause.DTYPE_MISMATCH: "make all ranks of the group pass the same dtype",
    Cause.SKIPPED_COLLECTIVE: "look for a branch that leaves the call out on "
    "these ranks only",
    Cause.EXTRA_COLLECTIVE: "look for a branch that makes the call on these "
    "ranks only",
    Cause.UNKNOWN: "take the dumps of all ranks again, at the same time",
}


def ranks_text(ranks: Sequence[int]) -> str:
    """
    Name some ranks: ``rank 3``, ``ranks 0-3,7``.
    """
    return f"rank{'s' if len(ranks) != 1 else ''} {fold_ranks(ranks)}"


def collective_of(job: Job, call: StuckCall) -> CollectiveRef:
    """
    What a stuck call is, by the record of a rank that waits in it.
    """
    for rank, row in call.waiting.items():
        entries = job.dumps[rank].entries
        if call.p2p or int(entries.seq[row]) == call.seq:
            break

    return CollectiveRef(
        op=job.operation(rank, row).name, seq=call.seq, p2p=call.p2p
    )


def call_text(job: Job, call: StuckCall) -> str:
    """
    Name a stuck call: ``all_reduce #9 of group 'dp'``.
    """
    what = str(collective_of(job, call))
    rank, row = next(iter(call.waiting.items()))
    operation = job.operation(rank, row)
    if operation.is_p2p:
        order = job.membership.groups[call.group].order
        what += (
            f" from rank {order[operation.source]}"
            f" to rank {order[operation.target]}"
        )
    return f"{what} of group {str(job.membership.groups[call.group].ref)!r}"


def explain_root(
    job: Job,
    root: Root,
    calls: Sequence[StuckCall],
    confidence: Confidence,
) -> Finding:
    """
    Put into words where the waiting begins.

    Args:
        job: What is known about the job.

        root: Where it begins.

        calls: All stuck calls.

        confidence: How sure it is.
    """
    first = calls[root.calls[0]]
    return Finding(
        cause=root.cause,
        ranks=root.ranks,
        summary=_summary(job, root, calls),
        confidence=confidence,
        remedy=_REMEDY.get(root.cause),
        group=job.membership.groups[first.group].ref,
        collective=collective_of(job, first),
        evidence=tuple(_evidence(job, root, calls)),
    )


def victims_of(
    root: Root, calls: Sequence[StuckCall], edges: Sequence[Iterable[int]]
) -> set[int]:
    """
    Find everyone who waits because of *root*, directly or through others.
    """
    back: dict[int, set[int]] = {}
    for i, targets in enumerate(edges):
        for target in targets:
            back.setdefault(target, set()).add(i)
    todo, seen = list(root.calls), set(root.calls)
    while todo:
        new = back.get(todo.pop(), set()) - seen
        seen |= new
        todo.extend(new)

    waiting = {rank for i in seen for rank in calls[i].waiting}
    return waiting - set(root.ranks)


def _summary(job: Job, root: Root, calls: Sequence[StuckCall]) -> str:
    who = ranks_text(root.ranks)
    first = calls[root.calls[0]]
    what = call_text(job, first)
    waiting = len({r for i in root.calls for r in calls[i].waiting})
    wait = f"{waiting} rank{'s wait' if waiting != 1 else ' waits'}"
    is_one = len(root.ranks) == 1
    match root.cause:
        case Cause.RANK_NOT_ARRIVED:
            return f"{who} never entered {what} ({wait})"
        case Cause.RANK_CRASHED:
            return f"{who} left no dump; {wait} for {'it' if is_one else 'them'} in {what}"
        case Cause.GROUP_ORDER_DEADLOCK | Cause.P2P_DEADLOCK:
            return f"{who} wait for each other: {_circle(job, root, calls)}"
        case Cause.RANK_NOT_STARTED:
            return (
                f"{who} enqueued {what}, but the GPU never started it "
                f"({wait} in it)"
            )
        case Cause.RANK_BLOCKED_IN_LAUNCH:
            return f"{who} {'is' if is_one else 'are'} stuck inside the launch of {what}"
        case Cause.COLLECTIVE_STUCK_IN_FLIGHT:
            return f"all {len(first.waiting)} members entered {what}, and it does not complete"
        case _:
            return (
                f"it cannot be told who holds up {what}: the dumps of "
                f"{who} do not show how far they got"
            )


def _circle(job: Job, root: Root, calls: Sequence[StuckCall]) -> str:
    return ", ".join(
        f"{ranks_text(sorted(calls[i].waiting))} in {call_text(job, calls[i])}"
        for i in root.calls[:4]
    )


def _evidence(
    job: Job, root: Root, calls: Sequence[StuckCall]
) -> Iterable[Evidence]:
    for i in root.calls[:4]:
        rank, row = next(iter(calls[i].waiting.items()))
        yield record_evidence(job, rank, row)
    for rank in root.ranks[:4]:
        dump = job.dumps.by_rank.get(rank)
        if dump is not None and len(dump.entries):
            row = int(dump.entries.record_id.argmax())
            yield record_evidence(job, rank, row, what="last on record: ")


def record_evidence(
    job: Job, rank: int, row: int, *, what: str = ""
) -> Evidence:
    """
    Quote one record of one rank.
    """
    dump = job.dumps[rank]
    e = dump.entries
    operation = job.operation(rank, row)
    state = ("scheduled", "started", "completed")[int(e.state[row])]
    if not operation.has_events:
        state = "returned" if e.retired[row] else "in flight"
    group = job.membership.groups[
        job.membership.by_code[rank][int(e.group[row])]
    ]
    seq = e.p2p_seq[row] if operation.is_p2p else e.seq[row]
    where = user_location(job.dumps.frames(rank, [row])[0])
    return Evidence(
        kind="dump",
        source=dump.path,
        location=f"rank {rank}, record {int(e.record_id[row])}",
        quote=f"{what}{job.dumps.ops[e.op[row]]} #{seq} of group "
        f"{str(group.ref)!r} ({state})" + (f" at {where}" if where else ""),
    )


def explain_mismatch(job: Job, found: Mismatch) -> Finding:
    """
    Put into words who called something else.

    Args:
        job: What is known about the job.

        found: The first call that differs.
    """
    group = job.membership.groups[found.group].ref
    place = f" at {found.location}" if found.location else ""
    return Finding(
        cause=found.cause,
        ranks=found.culprits,
        summary=_mismatch_summary(found, group, place),
        confidence="certain" if found.is_decided else "possible",
        remedy=_REMEDY.get(found.cause),
        group=group,
        collective=CollectiveRef(
            op=found.expected.partition(" ")[0], seq=found.seq
        ),
        location=found.location,
        evidence=tuple(
            record_evidence(job, rank, row) for rank, row in found.rows
        ),
    )


def _mismatch_summary(found: Mismatch, group: GroupRef, place: str) -> str:
    where = f"call #{found.seq} of group {str(group)!r}"
    if not found.is_decided:
        return (
            f"{ranks_text(found.culprits)} do not agree on {where}: "
            f"{found.theirs} against {found.expected}; it cannot be told who "
            "is wrong"
        )

    who = ranks_text(found.culprits)
    verb = {
        Cause.SKIPPED_COLLECTIVE: "skipped a call, and from",
        Cause.EXTRA_COLLECTIVE: "made one call too many, and from",
    }.get(found.cause)
    if verb is None:
        return (
            f"{who} called {found.theirs}{place} as {where}, "
            f"where the others called {found.expected}"
        )
    return (
        f"{who} {verb} {where} on is out of step: {found.theirs}{place} "
        f"meets {found.expected} of the others"
    )
