"""
Who left the order in which the ranks of a circle used to make their calls?

Ranks that wait for each other in a circle did not agree on what comes next.
Those that did what they always do are right; so are the most in a large group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import attrs

from ...findings import Cause
from .habit import is_next_of, make_the_same, usual_instead
from .job import Job
from .shift import order_in_program
from .stuck import StuckCall


__all__ = ["Departure", "find_departure"]

# What one rank would have done next takes a millisecond to find.
_MOST_HABITS = 256
# So many calls may be between leaving the order and waiting for others.
_LOOK_BACK = 8
# So many ranks tell whether those in one call left the order together.
_WITNESSES = 16
# So many times that a call was made before are looked at.
_MOST_LINES = 8


@attrs.frozen(kw_only=True)
class Departure:
    """
    Some ranks of a circle that did something else than they used to.

    Attributes:
        ranks: Who they are.

        cause: ``SKIPPED_COLLECTIVE`` if a call was left out,
            ``GROUP_ORDER_DEADLOCK`` if that cannot be told.

        due: Which of the calls was due (as index), if any of them was.
    """

    ranks: frozenset[int]
    cause: Cause
    due: int | None = None


def find_departure(
    calls: Sequence[StuckCall], ranks: Iterable[int], job: Job
) -> Departure | None:
    """
    Find who left the usual order of calls, if that explains a circle.

    Args:
        calls: Stuck calls that wait for each other.

        ranks: The ranks because of which they do.

        job: What is known about the job.

    Returns:
        The departure; ``None`` if all did as usual, or all something else, or
        if nothing was usual yet.
    """
    some = sorted(ranks)[:_MOST_HABITS]
    left = {r: at for r in some if (at := _left_at(job, r, calls)) is not None}
    together = {
        r
        for c in calls
        if _has_most(c, job) and _left_together(c, job)
        for r in c.waiting
    }
    if not left or len(left) == len(some):
        return None
    if alone := left.keys() - together:
        return _departure(calls, alone, left[min(alone)], job)

    # Most went on to something new, but for these.
    return Departure(
        ranks=frozenset(some).difference(left),
        cause=Cause.GROUP_ORDER_DEADLOCK,
    )


def _left_at(
    job: Job, rank: int, calls: Sequence[StuckCall]
) -> tuple[int, list[int]] | None:
    """
    Where a rank left its habit, of late, and has not made up for it since.

    Returns:
        The position of what it did, and of what it used to do.
    """
    newest = min(c.waiting[rank] for c in calls if rank in c.waiting)
    for row in range(newest, max(newest - _LOOK_BACK, 0), -1):
        since = range(row + 1, newest + 1)
        usual = [
            due
            for due in usual_instead(job, rank, row)
            if not any(make_the_same(job, rank, due, k) for k in since)
        ]
        if usual:
            return row, usual
    return None


def _has_most(call: StuckCall, job: Job) -> bool:
    """
    Whether most of the members of a call have entered it.
    """
    return 2 * len(call.waiting) > len(job.membership.groups[call.group].order)


def _left_together(call: StuckCall, job: Job) -> bool:
    """
    Whether most of the ranks in a call never made it at this place.
    """
    some = sorted(call.waiting.items())[:_WITNESSES]
    new = [r for r, row in some if usual_instead(job, r, row)]
    return 2 * len(new) > len(some)


def _departure(
    calls: Sequence[StuckCall],
    left: Collection[int],
    place: tuple[int, list[int]],
    job: Job,
) -> Departure:
    rank, (made, usual) = min(left), place
    owed = [
        (i, row)
        for row in usual
        for i, c in enumerate(calls)
        if rank in c.absent and is_next_of(job, rank, row, c)
    ][:1]
    is_skipped = any(_went_past(job, rank, row, made) for _, row in owed)
    return Departure(
        ranks=frozenset(left),
        cause=Cause.SKIPPED_COLLECTIVE
        if is_skipped
        else Cause.GROUP_ORDER_DEADLOCK,
        due=owed[0][0] if owed else None,
    )


def _went_past(job: Job, rank: int, due: int, made: int) -> bool:
    """
    Whether a rank went past the line of the call that was due.

    At the usual line of what it made instead, or at a later one, it has come
    past the other one.  Where one line makes both calls, or where it never was
    before, it may have changed their order.
    """
    before = [
        row
        for row in range(made - 1, -1, -1)
        if make_the_same(job, rank, row, made)
    ][:_MOST_LINES]
    job.read_stacks((rank, row) for row in [due, made, *before])
    here, there = job.stack(rank, made), job.stack(rank, due)
    if here == there:
        return False

    usual = {job.stack(rank, row) for row in before}
    return here in usual or order_in_program(here, there) > 0
