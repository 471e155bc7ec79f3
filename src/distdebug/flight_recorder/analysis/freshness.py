"""
Is this a hang, or a job caught in the middle of a step?

In a running job somebody always waits, but never for long.  A wait is *fresh*
if it was no older, when the dump was taken, than what the rank had gone
through before.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..columns import Dumps, RankDump
from .stuck import StuckCall


__all__ = ["are_fresh"]

_LONGEST_NS = 30 * 10**9
_LONGEST_DUMP_NS = 5 * 10**9


def are_fresh(calls: Iterable[StuckCall], dumps: Dumps) -> bool:
    """
    Whether no call waits for longer than is normal in this job.

    Args:
        calls: All stuck calls.

        dumps: What the ranks recorded, and when each dump was taken.

    Returns:
        ``False`` also where it is not known when the dumps were taken.
    """
    oldest: dict[int, int] = {}
    for call in calls:
        for rank, row in call.waiting.items():
            created = int(dumps[rank].entries.created_ns[row])
            oldest[rank] = min(oldest.get(rank, created), created)

    return all(
        _earliest_ns(dumps[rank])
        <= dumps[rank].written_ns - created
        <= _normal_ns(dumps[rank])
        for rank, created in oldest.items()
    )


def _earliest_ns(dump: RankDump) -> int:
    """
    How old a wait must be at least for the times to make sense.
    """
    # A side-car is written first; calls may come while the dump is taken.
    return -_LONGEST_DUMP_NS if dump.sidecar else 0


def _normal_ns(dump: RankDump) -> float:
    """
    How long the rank has been seen to go without a new call, or to wait.
    """
    e = dump.entries
    if len(e) < 8:
        return 0.0

    gaps = np.diff(np.sort(e.created_ns))
    took = (e.completed_ns - e.created_ns)[e.completed_ns > 0]
    longest = max(
        float(np.quantile(part, 0.95)) for part in (gaps, took) if len(part)
    )
    return min(longest, _LONGEST_NS)
