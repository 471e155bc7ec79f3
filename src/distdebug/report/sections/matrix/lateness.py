"""
How late did each rank come to each call?

Times are compared within a group.  Clocks of hosts differ, so they are first
corrected by what the collectives tell: their end is noticed everywhere at the
same time.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from numpy.typing import NDArray

from ....flight_recorder.analysis.stragglers import clock_offsets_ns
from .recorded import Arrivals, Recorded
from .views import View


__all__ = ["STEPS", "Lateness", "from_scale_ns", "lateness_of", "on_scale"]

# A factor of ten is so many steps of the scale, which begins at 1 µs.
STEPS = 24
_FIRST_NS = 1e3


@attrs.frozen(kw_only=True, eq=False)
class Lateness:
    """
    How late ranks came; all times are numbers on a scale, see `on_scale`.

    Attributes:
        start: The first column that has times.

        late: After the first one of the group: one row per row of the view.

        typical: The median of that: one row per group of the view.

        pause: Since the call before, by the median of the group; likewise.

        clocks: By how many clocks the times were taken; 1 if all agree.

        doubt_ns: By how much clocks may still be apart.
    """

    start: int
    late: NDArray[np.uint8]
    typical: NDArray[np.uint8]
    pause: NDArray[np.uint8]
    clocks: int
    doubt_ns: float


def on_scale(ns: NDArray[np.float64]) -> NDArray[np.uint8]:
    """
    Write durations as one byte each, to a twentieth of their size.

    Args:
        ns: Nanoseconds; NaN for unknown.

    Returns:
        0 for unknown, 1 for up to 1 µs, and one more for each
        24th of a factor of ten.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        steps = np.round(
            np.log10(np.maximum(ns, _FIRST_NS) / _FIRST_NS) * STEPS
        )
    known = np.where(np.isnan(ns), 0, np.clip(steps, 0, 254) + 1)
    found: NDArray[np.uint8] = np.where(known > 255, 255, known).astype(
        np.uint8
    )
    return found


def from_scale_ns(steps: NDArray[np.uint8]) -> NDArray[np.float64]:
    """
    Which durations do these bytes stand for?

    Args:
        steps: What :func:`on_scale` returned.

    Returns:
        Nanoseconds; NaN for unknown.
    """
    ns: NDArray[np.float64] = np.where(
        steps == 0, np.nan, _FIRST_NS * 10.0 ** ((steps - 1.0) / STEPS)
    )
    return ns


def lateness_of(view: View, recorded: Recorded) -> Lateness | None:
    """
    How late did each rank come?

    Args:
        view: A picture.

        recorded: What all ranks recorded.

    Returns:
        The times of its newest columns; None if there are none.
    """
    known = [
        a
        for pair in zip(view.ranks.tolist(), view.group.tolist(), strict=True)
        if (a := recorded.arrivals.get(pair)) is not None and len(a.seq)
    ]
    if not known:
        return None

    first = min(int(a.seq[0]) for a in known)
    start = int(np.searchsorted(view.columns, first))
    columns = view.columns[start:]
    late = np.zeros((len(view.ranks), len(columns)), np.uint8)
    by_group = []
    doubts = [0.0]
    hosts: set[object] = set()
    for group in view.groups:
        at = np.flatnonzero(view.group == group)
        own = [
            recorded.arrivals.get((rank, group))
            for rank in view.ranks[at].tolist()
        ]
        names = [_host(rank, recorded) for rank in view.ranks[at].tolist()]
        arrived, doubt = _arrived(own, columns, names)
        hosts.update(names)
        doubts.append(doubt)
        after, typical, pause = _compared(arrived)
        late[at] = on_scale(after)
        by_group.append((on_scale(typical), on_scale(pause)))

    return Lateness(
        start=start,
        late=late,
        typical=np.array([typical for typical, _ in by_group]),
        pause=np.array([pause for _, pause in by_group]),
        clocks=len(hosts),
        doubt_ns=max(doubts),
    )


def _host(rank: int, recorded: Recorded) -> object:
    dump = recorded.dumps.by_rank.get(rank)
    return (dump.host if dump else None) or rank


def _arrived(
    arrivals: Sequence[Arrivals | None],
    columns: NDArray[np.int64],
    hosts: Sequence[object],
) -> tuple[NDArray[np.float64], float]:
    """
    When each rank (row) came to each call (column), by one clock.
    """
    created = np.full((len(arrivals), len(columns)), np.nan)
    completed = np.zeros_like(created)
    for row, own in enumerate(arrivals):
        if own is not None:
            there = np.searchsorted(columns, own.seq)
            kept = own.seq >= columns[0]
            created[row, there[kept]] = own.created_ns[kept]
            completed[row, there[kept]] = own.completed_ns[kept]
    seen = [row for row, own in enumerate(arrivals) if own is not None]
    if not seen:
        return created, 0.0

    offsets, doubt = clock_offsets_ns(
        completed[seen], [hosts[row] for row in seen]
    )
    created[seen] -= offsets[:, None]
    return created, doubt if np.isfinite(doubt) else 0.0


def _compared(
    arrived: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """
    After the first one, the median of that, and since the call before.
    """
    unknown = np.isnan(arrived)
    whole = ~unknown.any(axis=0)
    partly = ~whole & ~unknown.all(axis=0)
    first = np.where(unknown, np.inf, arrived).min(axis=0)
    first[~whole & ~partly] = np.nan
    after = arrived - first
    typical = np.full(len(first), np.nan)
    # Medians among gaps are much slower, and gaps are few.
    typical[whole] = np.median(after[:, whole], axis=0)
    typical[partly] = np.nanmedian(after[:, partly], axis=0)
    middle = first + typical
    pause = np.diff(middle, prepend=np.nan)
    return after, typical, np.maximum(pause, 0)
