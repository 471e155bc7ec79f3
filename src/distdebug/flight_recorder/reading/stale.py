"""
Which files are left over from an earlier run?

Folders of dumps are used again, and a rank that left no dump this time may
have left one last time: taken for real, it would get the blame.

Side-cars tell.  Without them the times inside the dumps do, if they are far
off: clocks of hosts differ, ranks start late, and some get stuck long before
the others, which must never look like an earlier run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from numpy.typing import NDArray

from ..columns import COMPLETED, Entries, RankDump
from ..sidecar import Sidecar


__all__ = ["current_job", "find_stale", "last_activity"]

_SECOND = 1_000_000_000

# Clocks differ by seconds, and what is written last may be a minute old.
_MARGIN_NS = 60 * _SECOND

# Where the ring lost the beginning, less is certain.
_WRAPPED_MARGIN_NS = 600 * _SECOND

# How long calls may wait for others if the dump does not say.
_PATIENCE_NS = 1800 * _SECOND

# A stale dump is compared with that many others.
_WITNESSES = 16


def current_job(sidecars: Iterable[Sidecar]) -> str:
    """
    Which run is the newest?

    Args:
        sidecars: Of any runs.

    Returns:
        Its identifier, or ``""`` if there is none.
    """
    started = defaultdict(list)
    for sidecar in sidecars:
        if sidecar.job:
            started[sidecar.job].append(sidecar.started)

    # The median, because the clock of one host may be wrong.
    return max(started, key=lambda job: median(started[job]), default="")


def find_stale(dumps: Sequence[RankDump]) -> dict[int, float]:
    """
    Find dumps of an earlier run by the times in them.

    The majority decides which run is the current one.

    Args:
        dumps: One per rank.

    Returns:
        By rank, how many seconds the dump is older than the others.
    """
    ends = {d.rank: last_activity(d) for d in dumps if len(d.entries)}
    if len(ends) < 3:
        return {}

    newest = median(ends.values())
    suspects = [
        d for d in dumps if 0 < ends.get(d.rank, 0) < newest - _MARGIN_NS
    ]
    others = [d for d in dumps if ends.get(d.rank, 0) >= newest - _MARGIN_NS]
    witnesses = others[:: len(others) // _WITNESSES + 1]
    return {
        d.rank: (newest - ends[d.rank]) / _SECOND
        for d in suspects
        if d.sidecar is None and _is_stale(d, ends[d.rank], witnesses)
    }


def last_activity(dump: RankDump) -> int:
    """
    When was the last thing recorded, in nanoseconds since the epoch?
    """
    e = dump.entries
    if not len(e):
        return 0

    return int(
        max(e.created_ns.max(), e.started_ns.max(), e.completed_ns.max())
    )


def _is_stale(dump: RankDump, end: int, witnesses: Sequence[RankDump]) -> bool:
    whole = [w for w in witnesses if not w.wrapped]
    margin = (
        _MARGIN_NS if len(whole) * 2 > len(witnesses) else _WRAPPED_MARGIN_NS
    )
    gaps = [_gap(dump.entries, w.entries) for w in witnesses]
    told = [gap for gap in gaps if gap is not None]
    if told:
        return bool(median(told) > margin)

    # They have no calls in common, so only the distance in time is left.
    firsts = [int(w.entries.created_ns[0]) for w in whole]
    return len(whole) * 2 > len(witnesses) and end + margin + _patience(
        dump.entries
    ) < median(firsts)


def _gap(one: Entries, other: Entries) -> int | None:
    """
    By how many nanoseconds did *one* enter the same calls earlier?

    A rank can enter one call long before the others, and wait there; so what
    counts is the call that they entered most closely together.  If that is
    the only one that was left, it may have waited as long as it had patience.
    """
    rows, other_rows = _common(one, other)
    if not len(rows):
        return None

    left = (one.state[rows] == COMPLETED) | one.retired[rows]
    seen = np.maximum(one.created_ns[rows], one.completed_ns[rows])
    gaps = other.created_ns[other_rows] - seen
    if np.count_nonzero(left) > 1:
        return int(gaps[left].min())

    return int(gaps.min()) - _patience(one)


def _common(one: Entries, other: Entries) -> tuple[NDArray[np.int64], ...]:
    """
    The rows at which two ranks recorded the same collectives.
    """
    _, rows, other_rows = np.intersect1d(
        _keys(one), _keys(other), return_indices=True
    )
    # What has no collective number was replaced by -1.
    is_call = (_keys(one)[rows] >= 0) if len(rows) else rows.astype(np.bool_)
    return rows[is_call], other_rows[is_call]


def _keys(entries: Entries) -> NDArray[np.int64]:
    keys = entries.group.astype(np.int64) << 40 | entries.seq & (1 << 40) - 1
    return np.where(entries.is_p2p, -1, keys)


def _patience(entries: Entries) -> int:
    """
    How long would its calls have waited for others, in nanoseconds?
    """
    limit = int(entries.timeout_ms.max(initial=0)) * 1_000_000
    return limit if limit > 0 else _PATIENCE_NS
