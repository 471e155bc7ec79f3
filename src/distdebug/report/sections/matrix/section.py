"""
What does the page show of single calls?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....diagnosis.seen import seen_by
from ....findings import Cause, Diagnosis
from ....flight_recorder.analysis.report import FlightReport
from ...section import Section
from .chosen import focus_of
from .folded import folded_tables
from .lateness import Lateness, lateness_of
from .latest import latest_of
from .lines import lines_of
from .packed import packed_calls, packed_view
from .pairs import pairs_of
from .recorded import Recorded, look_at
from .views import View, views_of


__all__ = ["matrix_section"]

# A sign and a word for each state, in the order of their numbers.
_STATES = (
    ("lost", "·", "not recorded"),
    ("done", "✓", "completed"),
    ("started", "▶", "started"),
    ("scheduled", "…", "entered, waits"),
    ("ended", "✕", "failed"),
    ("absent", "○", "not entered"),
    ("away", "◌", "waits elsewhere"),
    ("none", "?", "no dump"),
)


def matrix_section(diagnosis: Diagnosis) -> Section | None:
    """
    Which rank made which call, and what became of it?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        The calls that matter as a table, and all of them for a script; None
        if there are no dumps.
    """
    flight = seen_by(diagnosis).flight
    if flight is None or not len(flight.dumps):
        return None

    recorded = look_at(flight.dumps)
    views = views_of(recorded, diagnosis, flight)
    pairs = pairs_of(recorded, diagnosis.verdict.ranks)
    if not views and pairs is None:
        return None

    late = [lateness_of(view, recorded) for view in views]
    latest = latest_of(views, late, recorded, diagnosis)
    tables, more = folded_tables(views, recorded, diagnosis, flight)
    # Of who is late, or in a transfer, these tables know nothing.
    call = diagnosis.verdict.collective
    is_in_tables = latest is None and not (call is not None and call.p2p)
    return Section(
        name="matrix",
        title="Every call of every rank",
        summary=_summary(views) if views else "only from rank to rank",
        values={
            "tables": tables if is_in_tables else (),
            "late": latest,
            "more": more,
            "pairs": pairs,
            "states": _STATES,
            "has_views": bool(views),
        },
        data=_data(views, late, recorded, diagnosis, flight)
        if views
        else None,
    )


def _data(
    views: Sequence[View],
    late: Sequence[Lateness | None],
    recorded: Recorded,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> dict[str, Any]:
    calls, codes = packed_calls(views, recorded)
    stacks, lines = lines_of(views, recorded)
    return {
        "states": [list(state) for state in _STATES],
        "color": "late"
        if diagnosis.verdict.cause is Cause.STRAGGLER
        else "state",
        "blamed": list(diagnosis.verdict.ranks),
        "calls": calls,
        "stacks": stacks,
        "views": [
            packed_view(
                view,
                recorded,
                codes,
                lateness=times,
                focus=_focus(view, recorded, diagnosis, flight),
                lines=own,
            )
            for view, times, own in zip(views, late, lines, strict=True)
        ],
    }


def _focus(
    view: View,
    recorded: Recorded,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> tuple[int, int]:
    """
    The cell to look at first: a culprit's, in the call of the verdict.
    """
    blamed = np.flatnonzero(np.isin(view.ranks, diagnosis.verdict.ranks))
    row = int(blamed[0]) if len(blamed) else 0
    group = int(view.group[row])
    return row, focus_of(view, group, recorded, diagnosis, flight)


def _summary(views: Sequence[View]) -> str:
    ranks = max(len(view.ranks) for view in views)
    columns = sum(len(view.columns) for view in views)
    return f"{ranks:,} ranks, {columns:,} calls"
