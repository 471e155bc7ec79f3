"""
What would this rank have entered next?

Training repeats itself: after the same calls as now, a rank makes the call that
it made after them the last time.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .job import Job
from .stuck import StuckCall


__all__ = ["is_next_of", "next_rows"]

# So many calls tell well enough where in its loop a rank is.
_LONGEST = 256


def next_rows(job: Job, ranks: Iterable[int]) -> dict[int, int]:
    """
    Find what each rank recorded the last time it was where it is now.

    Args:
        job: What is known about the job.

        ranks: Global ranks.

    Returns:
        By rank, the position of the record that followed the newest of the
        longest repetitions of its last records; not of ranks whose last call
        was their first of this kind.
    """
    return {
        rank: row
        for rank in ranks
        if rank in job.dumps.by_rank
        and (row := _next_row(job, rank)) is not None
    }


def _next_row(job: Job, rank: int) -> int | None:
    e = job.dumps[rank].entries
    calls = (e.group.astype(np.int64) << 32) | e.op
    if not len(calls):
        return None

    alike = np.flatnonzero(calls[:-1] == calls[-1])
    for back in range(1, min(_LONGEST, len(calls))):
        before = alike[alike >= back]
        longer = before[calls[before - back] == calls[-1 - back]]
        if not len(longer):
            break
        alike = longer
    return int(alike[-1]) + 1 if len(alike) else None


def is_next_of(job: Job, rank: int, row: int, call: StuckCall) -> bool:
    """
    Whether a rank would enter a call if it repeated one of its records.

    Args:
        job: What is known about the job.

        rank: Global rank, awaited in the call.

        row: Position of the record.

        call: A stuck call.
    """
    code = int(job.dumps[rank].entries.group[row])
    if job.membership.by_code[rank][code] != call.group:
        return False

    operation = job.operation(rank, row)
    if not operation.is_p2p or not call.p2p:
        return operation.is_p2p == call.p2p

    order = job.membership.groups[call.group].order
    ends = (operation.source, operation.target)
    last = max(ends)
    return last < len(order) and not {order[end] for end in ends}.isdisjoint(
        call.waiting
    )
