"""
Who comes late, as a table?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...._text import clean
from ....findings import Cause, Diagnosis
from .lateness import Lateness, from_scale_ns
from .recorded import Recorded
from .views import View


__all__ = ["duration_text", "latest_of"]

_MOST = 6


def latest_of(
    views: Sequence[View],
    late: Sequence[Lateness | None],
    recorded: Recorded,
    diagnosis: Diagnosis,
) -> dict[str, Any] | None:
    """
    Who comes late to the calls of the group that the verdict names?

    Args:
        views: All pictures.

        late: Their times.

        recorded: What all ranks recorded.

        diagnosis: What is wrong with the job.

    Returns:
        What the template shows; None if nobody is said to be late.
    """
    verdict = diagnosis.verdict
    if verdict.cause is not Cause.STRAGGLER or verdict.group is None:
        return None

    for view, times in zip(views, late, strict=True):
        for group in view.groups:
            known = recorded.membership.groups[group]
            if times is not None and known.ref == verdict.group:
                rows = np.flatnonzero(view.group == group)
                return {
                    "name": clean(str(known.ref)),
                    "rows": _rows(view, times, rows, set(verdict.ranks)),
                }

    return None


def _rows(
    view: View,
    times: Lateness,
    rows: np.ndarray[tuple[int], np.dtype[np.int64]],
    culprits: set[int],
) -> list[dict[str, Any]]:
    ns = np.array([_mean_ns(times.late[row]) for row in rows])
    worst = from_scale_ns(times.late[rows].max(axis=1))
    order = np.argsort(-np.nan_to_num(ns), kind="stable")[:_MOST]
    longest = float(np.nan_to_num(ns).max(initial=0)) or 1.0
    return [
        {
            "rank": int(view.ranks[rows[at]]),
            "is_culprit": int(view.ranks[rows[at]]) in culprits,
            "mean": duration_text(float(ns[at])),
            "worst": duration_text(float(worst[at])),
            "share": round(float(np.nan_to_num(ns[at])) / longest * 100, 1),
        }
        for at in order.tolist()
    ]


def _mean_ns(steps: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> float:
    # Of several calls in a step, it is late in the first: no median shows it.
    known = steps[steps > 0]
    return float(from_scale_ns(known).mean()) if len(known) else np.nan


def duration_text(ns: float) -> str:
    """
    How is a short duration written?

    Args:
        ns: Nanoseconds; NaN for unknown.

    Returns:
        Such as ``"1.2 ms"``.
    """
    if np.isnan(ns):
        return "?"
    if ns < 1e6:
        return f"{ns / 1e3:,.0f} µs"
    if ns < 1e9:
        return f"{ns / 1e6:,.1f} ms"

    return f"{ns / 1e9:,.1f} s"
