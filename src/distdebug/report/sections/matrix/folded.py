"""
Which calls matter, and which ranks did the same in them?

This is the part of the matrix that is read without a script, and on paper: a
few calls around the one that is stuck, and one row for all ranks that did the
same in them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import attrs
import numpy as np

from ...._text import clean
from ....findings import Diagnosis
from ....flight_recorder.analysis.report import FlightReport
from ....ranks import ranks_text
from .chosen import chosen_groups, focus_of
from .names import call_name, other_call
from .recorded import Recorded, State
from .views import View


__all__ = ["Cell", "Column", "Row", "Table", "folded_tables"]

_BEFORE, _AFTER = 3, 2
_MOST_TABLES = 3
_MOST_ROWS = 12
_LONGEST = 60


@attrs.frozen(kw_only=True)
class Cell:
    """
    What became of a call: its state, and what was called if it differs.
    """

    state: int
    instead: str = ""


@attrs.frozen(kw_only=True)
class Column:
    """
    A call: its sequence number, and what most members called.
    """

    seq: int
    op: str
    is_focus: bool


@attrs.frozen(kw_only=True)
class Row:
    """
    Ranks that did the same: how many, in few characters, and the first one.
    """

    count: int
    ranks: str
    first: int
    is_culprit: bool
    cells: tuple[Cell, ...]


@attrs.frozen(kw_only=True)
class Table:
    """
    The calls of one group that matter.

    Attributes:
        name: Of the group.

        group: The name torch gave it.

        size: How many members it has.

        columns: The calls.

        rows: Ranks that did the same, those at fault first.

        more: How many kinds of ranks are left out.
    """

    name: str
    group: str
    size: int
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    more: int


def folded_tables(
    views: Sequence[View],
    recorded: Recorded,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> tuple[list[Table], int]:
    """
    Which calls of which groups matter?

    Args:
        views: All pictures.

        recorded: What all ranks recorded.

        diagnosis: What is wrong with the job.

        flight: What the dumps say about it.

    Returns:
        A table for each group that matters most, and how many more groups
        are stuck.
    """
    chosen = chosen_groups(views, recorded, diagnosis, flight)
    tables = [
        _table(view, group, recorded, diagnosis, flight)
        for view, group in chosen[:_MOST_TABLES]
    ]
    return tables, len(chosen) - len(tables)


def _table(
    view: View,
    group: int,
    recorded: Recorded,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> Table:
    focus = focus_of(view, group, recorded, diagnosis, flight)
    known = recorded.membership.groups[group]
    at = int(view.kind[int((view.group == group).argmax())])
    program = view.programs[view.program[at]]
    # Other groups of the picture may be elsewhere.
    own = np.union1d(np.flatnonzero(program >= 0), [focus])
    place = int(np.searchsorted(own, focus))
    window = own[max(place - _BEFORE, 0) : place + _AFTER + 1]
    culprits = frozenset(diagnosis.verdict.ranks)
    rows = _rows(view, group, window, recorded, culprits)
    return Table(
        name=clean(str(known.ref)),
        group=clean(known.name),
        size=len(known.order),
        columns=tuple(
            Column(
                seq=int(view.columns[c]),
                op=call_name(int(program[c]), recorded),
                is_focus=c == focus,
            )
            for c in window.tolist()
        ),
        rows=tuple(rows[:_MOST_ROWS]),
        more=max(len(rows) - _MOST_ROWS, 0),
    )


def _rows(
    view: View,
    group: int,
    window: np.ndarray[tuple[int], np.dtype[np.int64]],
    recorded: Recorded,
    culprits: frozenset[int],
) -> list[Row]:
    alike: dict[object, list[int]] = defaultdict(list)
    cells_of: dict[object, tuple[Cell, ...]] = {}
    cells = {
        kind: _cells(view, kind, window.tolist(), recorded)
        for kind in np.unique(view.kind[view.group == group]).tolist()
    }
    for at in np.flatnonzero(view.group == group).tolist():
        rank = int(view.ranks[at])
        key = cells[int(view.kind[at])], rank in culprits
        alike[key].append(rank)
        cells_of[key] = key[0]
    found = [
        Row(
            count=len(ranks),
            ranks=_few(ranks_text(ranks)),
            first=ranks[0],
            is_culprit=ranks[0] in culprits,
            cells=cells_of[key],
        )
        for key, ranks in alike.items()
    ]
    return sorted(found, key=lambda row: (not row.is_culprit, row.first))


def _cells(
    view: View, kind: int, window: Sequence[int], recorded: Recorded
) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            state=int(view.states[kind, column]) & ~State.DIFFERS,
            instead=other_call(view, kind, column, recorded)
            if view.states[kind, column] & State.DIFFERS
            else "",
        )
        for column in window
    )


def _few(text: str) -> str:
    if len(text) <= _LONGEST:
        return text

    return f"{text[:_LONGEST].rpartition(',')[0]},…"
