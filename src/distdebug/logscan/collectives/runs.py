"""
In which run of the job was this printed, where no line tells that it began?
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from functools import partial

from .model import LogRecord, WorkTimeout


__all__ = ["find_cuts", "part_of"]

# Seconds that it takes to end a job of which one rank gave up.
_SLACK = 120


def find_cuts(timeouts: Iterable[WorkTimeout]) -> dict[int, list[float]]:
    """
    When did a new run begin, though no line says so?

    Once one rank has given up, the others do not wait for longer than it did.
    And no rank gives up again in the same group without waiting as long again.

    Args:
        timeouts: All of them.

    Returns:
        Moments between two runs, in seconds since the epoch, by the number of
        the restart.
    """
    by_attempt: dict[int, list[WorkTimeout]] = defaultdict(list)
    for timeout in timeouts:
        if timeout.time is not None and not timeout.is_p2p:
            by_attempt[timeout.attempt].append(timeout)
    cuts = {}
    for attempt, found in by_attempt.items():
        found.sort(key=lambda x: x.time or 0)
        cuts[attempt] = _gaps(found)
    return cuts


def _gaps(found: Sequence[WorkTimeout]) -> list[float]:
    cuts: list[float] = []
    last: dict[Hashable, int] = {}
    for i, timeout in enumerate(found):
        allowed = timeout.timeout or 600
        key = (timeout.group, timeout.group_rank, timeout.rank)
        begin = i
        if i and _gap(found, i) > allowed + _SLACK:
            begin = i - 1
        elif timeout.group is not None:
            begin = last.get(key, i)
        at = max(range(begin + 1, i + 1), key=partial(_gap, found), default=0)
        if at and _gap(found, at) >= allowed / 2:
            before, after = found[at - 1].time or 0, found[at].time or 0
            cuts.append((before + after) / 2)
            last.clear()
        last[key] = i
    return cuts


def _gap(found: Sequence[WorkTimeout], i: int) -> float:
    """
    Seconds since the time-out before.
    """
    return (found[i].time or 0) - (found[i - 1].time or 0)


def part_of(record: LogRecord, cuts: Sequence[float]) -> int:
    """
    Count the moments before a line was printed.

    Args:
        record: What stands in the line.

        cuts: Moments between two runs, ascending.
    """
    return 0 if record.time is None else bisect_right(cuts, record.time)
