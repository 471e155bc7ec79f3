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
from .endings import ended_s
from .stuck import StuckCall, last_sign_ns


__all__ = ["are_fresh", "is_unprecedented", "silent_s", "waited_ns"]

_LONGEST_NS = 30 * 10**9
# Asking a rank for its dump takes a moment, in which its peers wait.
_LONGEST_ASKED_NS = 10**9
_ASKED = {"request", "call"}
# Nor are all ranks told at once that the job is to end.
_LONGEST_ENDING_NS = 10 * 10**9
_LONGEST_DUMP_NS = 5 * 10**9
# Shorter silences are of every job, longer ones than this many pauses of few.
_SHORTEST_SILENCE_S = 5.0
_PAUSES = 2


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

    end_s = ended_s(dumps)
    return all(
        _earliest_ns(dumps[rank])
        <= _until_ns(dumps[rank], end_s) - created
        <= _normal_ns(dumps[rank], is_ended=end_s is not None)
        for rank, created in oldest.items()
    )


def _until_ns(dump: RankDump, end_s: float | None) -> int:
    """
    Until when may a rank have waited for others that went on?
    """
    if end_s is None:
        return dump.written_ns

    end_ns = int(1e9 * end_s)
    is_one_end = dump.written_ns - end_ns <= _LONGEST_ENDING_NS
    return min(dump.written_ns, end_ns) if is_one_end else dump.written_ns


def is_unprecedented(calls: Iterable[StuckCall], dumps: Dumps) -> bool:
    """
    Whether one of these calls waits for longer than its ranks ever paused.

    Args:
        calls: Some stuck calls.

        dumps: What the ranks recorded, and when each dump was taken.

    Returns:
        ``True`` also where it is not known when the dumps were taken.
    """
    return any(
        age is None or age > _longest_pause_ns(dumps[rank])
        for call in calls
        for rank in call.waiting
        for age in [_age_ns(call, rank, dumps)]
    )


def waited_ns(calls: Iterable[StuckCall], dumps: Dumps) -> int | None:
    """
    For how long has somebody waited in these calls?

    Args:
        calls: Some stuck calls.

        dumps: What the ranks recorded, and when each dump was taken.

    Returns:
        Nanoseconds; ``None`` where no side-car tells when a dump was taken.
    """
    ages = [
        age
        for call in calls
        for rank in call.waiting
        if (age := _age_ns(call, rank, dumps)) is not None
    ]
    return max(ages, default=None)


def silent_s(dumps: Dumps) -> float:
    """
    For how long did no rank record anything, if that never was so before?

    Args:
        dumps: What the ranks recorded, and when each dump was taken.

    Returns:
        Seconds; 0 if such silences are normal in this job, or if it is not
        known of each rank when its dump was taken.
    """
    if any(d.sidecar is None or not len(d.entries) for d in dumps):
        return 0.0

    ages = [d.written_ns - last_sign_ns(d) for d in dumps]
    is_new = all(
        age > _PAUSES * _longest_pause_ns(dump)
        for age, dump in zip(ages, dumps, strict=True)
    )
    seconds = min(ages, default=0) / 1e9
    return seconds if is_new and seconds >= _SHORTEST_SILENCE_S else 0.0


def _age_ns(call: StuckCall, rank: int, dumps: Dumps) -> int | None:
    dump = dumps[rank]
    if dump.sidecar is None:
        return None

    return dump.written_ns - int(dump.entries.created_ns[call.waiting[rank]])


def _longest_pause_ns(dump: RankDump) -> int:
    gaps = np.diff(np.sort(dump.entries.created_ns))
    return int(gaps.max(initial=0))


def _earliest_ns(dump: RankDump) -> int:
    """
    How old a wait must be at least for the times to make sense.
    """
    # A side-car is written first; calls may come while the dump is taken.
    return -_LONGEST_DUMP_NS if dump.sidecar else 0


def _normal_ns(dump: RankDump, *, is_ended: bool) -> float:
    """
    How long the rank has been seen to go without a new call, or to wait.
    """
    e = dump.entries
    asked = dump.sidecar is not None and dump.sidecar.reason in _ASKED
    least = _LONGEST_ASKED_NS if asked or is_ended else 0
    if len(e) < 8:
        return least

    gaps = np.diff(np.sort(e.created_ns))
    took = (e.completed_ns - e.created_ns)[e.completed_ns > 0]
    longest = max(
        float(np.quantile(part, 0.95)) for part in (gaps, took) if len(part)
    )
    return max(min(longest, _LONGEST_NS), least)
