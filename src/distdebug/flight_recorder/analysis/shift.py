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
    "is_repeated",
    "order_in_program",
    "order_in_round",
    "skipped_by_habit",
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


def is_repeated(stream: Stream, seq: int) -> bool:
    """
    Whether a call is the same as the one before it.

    Args:
        stream: What one rank did.

        seq: The call; it has to be on record.
    """
    at = int(np.searchsorted(stream.seq, seq))
    return bool(at and stream.signature[at - 1] == stream.signature[at])


def skipped_by_habit(bad: Stream, good: Stream, seq: int) -> int:
    """
    Count the calls that always come before the one that *bad* made instead.

    Args:
        bad: What the odd rank did.

        good: What another rank did.

        seq: The first call that differs; it has to be on record in both.

    Returns:
        How many they are, beginning with the one that is due; 0 if they were
        not the same in each round of the loop, or there was none.
    """
    at = int(np.searchsorted(good.seq, seq))
    calls, due = good.signature[:at], good.signature[at]
    here = bad.signature[int(np.searchsorted(bad.seq, seq))]
    # Only where the call before it was the same, too: loops have phases.
    alike = (calls[:-1] == calls[-1:]) & (calls[1:] == due)
    rounds = np.split(calls, np.flatnonzero(alike) + 1)[1:]
    ways = {tuple(x[: (x == here).argmax()].tolist()) for x in rounds}
    if len(ways) != 1 or any(here not in x for x in rounds):
        return 0

    # What leads past the call before is another round, or another branch.
    (way,) = ways
    return 0 if calls[-1] in way[1:] else len(way)


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
    lines = _parting_lines(mine, others)
    if lines is None:
        return 0

    return -1 if lines[0] < lines[1] else 1


def order_in_round(
    before: Sequence[Frame], mine: Sequence[Frame], others: Sequence[Frame]
) -> int:
    """
    Which of two calls comes earlier after a call that all made before?

    Args:
        before: The stack of that call, innermost line first.

        mine: The stack of one call.

        others: That of the other one.

    Returns:
        The same as :func:`order_in_program`; but 0 if only one of the two is
        at an earlier line than the call before: in a loop it may have come
        round, or the other one may have left the loop.
    """
    order = order_in_program(mine, others)
    to_mine = _parting_lines(before, mine)
    to_others = _parting_lines(before, others)
    if not order or to_mine is None or to_others is None:
        return order

    # Lines of the same function only: those of two are in no order.
    if to_mine[0] != to_others[0]:
        return order
    last, (here, there) = to_mine[0], (to_mine[1], to_others[1])
    return order if (here < last) == (there < last) else 0


def _parting_lines(
    a: Sequence[Frame], b: Sequence[Frame]
) -> tuple[int, int] | None:
    """
    The lines of the function in which two stacks part, if they do in one.
    """
    for x, y in zip(reversed(a), reversed(b), strict=False):
        if (x.name, x.filename) != (y.name, y.filename):
            return None
        if x.line != y.line:
            return x.line, y.line

    return None
