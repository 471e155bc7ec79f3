"""
What would this rank have entered next?

Training repeats itself: after the same calls as now, a rank makes the call that
it made after them the last time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from numpy.typing import NDArray

from .job import Job
from .stuck import StuckCall


__all__ = [
    "is_next_of",
    "kinds_passed",
    "make_the_same",
    "next_rows",
    "usual_instead",
]

# So many calls tell well enough where in its loop a rank is.
_LONGEST = 256
# So many earlier places that look like this one are told.
_MOST_ALIKE = 16


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
    longest, _ = _repetitions(_kinds(job, rank), _LONGEST)
    return int(longest[-1]) + 1 if len(longest) else None


def _kinds(job: Job, rank: int) -> NDArray[np.int64]:
    """
    Group and operation of each record of a rank, as one number.
    """
    e = job.dumps[rank].entries
    return (e.group.astype(np.int64) << 32) | e.op


def _repetitions(
    calls: NDArray[np.int64], most: int
) -> tuple[NDArray[np.int64], int]:
    """
    Find where the last calls were made in the same order before.

    Returns:
        Positions before the last at which the longest repetitions end, and
        how many calls were compared.
    """
    alike = np.flatnonzero(calls[:-1] == calls[-1:])
    length = 1
    for back in range(1, min(most, len(calls))):
        before = alike[alike >= back]
        longer = before[calls[before - back] == calls[-1 - back]]
        if not len(longer):
            break
        alike, length = longer, back + 1
    return alike, length


def usual_instead(job: Job, rank: int, row: int) -> list[int]:
    """
    Find what a rank used to do where it made this call for the first time.

    Args:
        job: What is known about the job.

        rank: Global rank.

        row: Position of the record of the call.

    Returns:
        The positions of what it did otherwise, the likeliest first; none if
        the call has followed on the same ones before, or if those were new.
    """
    kinds = _kinds(job, rank)
    calls = kinds[:row]
    longest, length = _repetitions(calls, _LONGEST)
    # One call again and again is no loop: what follows it is open.
    if not len(longest) or (calls == calls[-1]).all():
        return []

    # Loops have phases: half of the history has to be the same.
    similar, _ = _repetitions(calls, max(length // 2, 1))
    if (kinds[similar + 1] == kinds[row]).any():
        return []

    found = np.r_[longest[::-1], similar[::-1]][:_MOST_ALIKE] + 1
    return [int(at) for at in found]


def make_the_same(job: Job, rank: int, row: int, other: int) -> bool:
    """
    Whether two records of a rank are of the same operation in the same group.

    Args:
        job: What is known about the job.

        rank: Global rank.

        row: Position of one record.

        other: Position of another one.
    """
    e = job.dumps[rank].entries
    return bool(e.group[row] == e.group[other] and e.op[row] == e.op[other])


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


def kinds_passed(calls: Sequence[StuckCall], job: Job) -> list[int]:
    """
    Behind how many of these calls does each of them stand in the loop?

    Ranks in the same position make the same calls.  Who waits in one of them,
    and went through as many of the kind of another, shows which comes first.

    Args:
        calls: Stuck calls that wait for the same ranks.

        job: What is known about the job.

    Returns:
        For each call, how many kinds of the others its ranks are through with;
        0 for transfers, because their other end is in another position.
    """
    due: dict[str, int] = {}
    for call in calls:
        kind = _kind(job, call.group, *next(iter(call.waiting.items())))
        due[kind] = min(due.get(kind, call.seq), call.seq)
    through: dict[int, set[str]] = defaultdict(set)
    for rank, kind, seq in _done(job):
        if seq >= due.get(kind, seq + 1):
            through[rank].add(kind)

    return [
        0 if c.p2p else len(set().union(*(through[r] for r in c.waiting)))
        for c in calls
    ]


def _kind(job: Job, group: int, rank: int, row: int) -> str:
    """
    What a call and its like in the groups of other ranks have in common.
    """
    ref = job.membership.groups[group].ref
    operation = job.operation(rank, row)
    if not operation.is_p2p:
        return str(ref)

    return f"{ref} {operation.name} {operation.source}->{operation.target}"


def _done(job: Job) -> Iterator[tuple[int, str, int]]:
    """
    What every rank is through with: kinds of calls, and how many.
    """
    for state in job.states:
        kind = str(state.group.ref)
        for rank, position in state.positions.items():
            yield rank, kind, position.done
    for c in job.channels:
        # Counted by the other end, as the stuck calls are.
        for side, peer in ((c.recv, c.source), (c.send, c.target)):
            if side is not None and side.pending < len(side.rows):
                row = int(side.rows[-1 - side.pending])
                seq = int(job.dumps[side.rank].entries.p2p_seq[row])
                yield peer, _kind(job, c.group, side.rank, row), seq
