"""
Did one rank skip a call, or make one too many?

From there on its stream is that of the others, some calls earlier or later.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...findings import Cause
from ..columns import Frame
from .streams import Stream


__all__ = [
    "find_shift",
    "is_next_by_habit",
    "order_in_program",
    "times_called_before",
]

# How far a shifted stream is followed, and by how many calls it may be off.
_HORIZON = 256
_LARGEST_SHIFT = 3


def times_called_before(stream: Stream, seq: int) -> int:
    """
    How often was the same called before?

    Args:
        stream: What one rank did.

        seq: The call; it has to be on record.
    """
    at = int(np.searchsorted(stream.seq, seq))
    return int((stream.signature[:at] == stream.signature[at]).sum())


def is_next_by_habit(bad: Stream, good: Stream, seq: int) -> bool:
    """
    Whether *bad* made the call that always follows the one that is due.

    Args:
        bad: What the odd rank did.

        good: What another rank did.

        seq: The first call that differs; it has to be on record in both.
    """
    at = int(np.searchsorted(good.seq, seq))
    due = good.signature[at]
    before = np.flatnonzero(good.signature[: max(at - 1, 0)] == due)
    if not len(before) or not at:
        return False

    # Only where the call before it was the same, too: loops have phases.
    previous = good.signature[at - 1]
    before = before[before > 0]
    before = before[good.signature[before - 1] == previous]
    here = bad.signature[int(np.searchsorted(bad.seq, seq))]
    after = good.signature[before + 1]
    return bool(len(after)) and bool((after == here).all())


def find_shift(bad: Stream, good: Stream, seq: int) -> Cause | None:
    """
    Whether *bad* does what *good* does, some calls earlier or later.

    Args:
        bad: What the odd rank did.

        good: What another rank did.

        seq: The first call that differs; it has to be on record in both.

    Returns:
        ``SKIPPED_COLLECTIVE`` if it is ahead, ``EXTRA_COLLECTIVE`` if it is
        behind, ``None`` if it is neither.
    """
    a = _tail(bad, seq)
    b = _tail(good, seq)
    surplus = len(a) - len(b)
    in_step = _follows(a, b, 0, skip_first=True)
    for by in range(1, _LARGEST_SHIFT + 1):
        skipped = _follows(a, b, by)
        extra = _follows(b, a, by)
        if in_step and surplus not in {by, -by}:
            continue  # One wrong call explains it; no shift is needed.
        if extra and (surplus == by or not skipped):
            return Cause.EXTRA_COLLECTIVE
        if skipped:
            return Cause.SKIPPED_COLLECTIVE

    return None


def _tail(stream: Stream, seq: int) -> list[int]:
    at = int(np.searchsorted(stream.seq, seq))
    tail: list[int] = stream.signature[at : at + _HORIZON].tolist()
    return tail


def _follows(
    late: Sequence[int],
    early: Sequence[int],
    by: int,
    *,
    skip_first: bool = False,
) -> bool:
    """
    Whether *late* goes on as *early* does from *by* calls later on.
    """
    pairs = list(zip(late, early[by:], strict=False))[int(skip_first) :]
    return bool(pairs) and all(x == y for x, y in pairs)


def order_in_program(mine: Sequence[Frame], others: Sequence[Frame]) -> int:
    """
    Which of two calls stands earlier in the program?

    Args:
        mine: A stack, innermost line first.

        others: Another one.

    Returns:
        -1 if *mine* is at an earlier line of the function in which the stacks
        part, 1 if at a later one, 0 if that cannot be told.
    """
    for a, b in zip(reversed(mine), reversed(others), strict=False):
        if (a.name, a.filename) != (b.name, b.filename):
            return 0
        if a.line != b.line:
            return -1 if a.line < b.line else 1

    return 0
