"""
How is a call, or the record of one, named and quoted?
"""

from __future__ import annotations

from ...findings import CollectiveRef, Evidence
from ...location import user_location
from .job import Job
from .stuck import StuckCall


__all__ = ["awaited_text", "call_text", "collective_of", "record_evidence"]

_STATES = ("scheduled", "started", "completed")


def collective_of(job: Job, call: StuckCall) -> CollectiveRef:
    """
    What is a stuck call, by the record of a rank that waits in it?

    Args:
        job: What is known about the job.

        call: One of those that are stuck.
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

    Args:
        job: What is known about the job.

        call: One of those that are stuck.
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


def awaited_text(job: Job, call: StuckCall) -> str:
    """
    Name what is missing from a stuck call: itself, or the other end of it.

    Args:
        job: What is known about the job.

        call: One of those that are stuck.
    """
    rank, row = next(iter(call.waiting.items()))
    operation = job.operation(rank, row)
    if not operation.is_p2p:
        return call_text(job, call)

    what = "the recv from" if operation.is_send else "the send to"
    group = job.membership.groups[call.group].ref
    return f"{what} rank {rank} in group {str(group)!r}"


def record_evidence(
    job: Job, rank: int, row: int, *, what: str = ""
) -> Evidence:
    """
    Quote one record of one rank.

    Args:
        job: What is known about the job.

        rank: Global rank.

        row: Position of the record in its dump.

        what: What it shows, to begin with.
    """
    dump = job.dumps[rank]
    e = dump.entries
    operation = job.operation(rank, row)
    state = _STATES[int(e.state[row])]
    if not operation.has_events:
        state = "returned" if e.retired[row] else "in flight"
    group = job.membership.groups[
        job.membership.by_code[rank][int(e.group[row])]
    ]
    seq = e.p2p_seq[row] if operation.is_p2p else e.seq[row]
    where = user_location(job.stack(rank, row))
    return Evidence(
        kind="dump",
        source=dump.path,
        location=f"rank {rank}, record {int(e.record_id[row])}",
        quote=f"{what}{job.dumps.ops[e.op[row]]} #{seq} of group "
        f"{str(group.ref)!r} ({state})" + (f" at {where}" if where else ""),
    )
