"""
What became of each call, for ranks that recorded the same?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np

from numpy.typing import NDArray

from .recorded import Record, State
from .usual import Program, aligned


__all__ = ["Look", "columns_of", "states_of"]

_MOST_CELLS = 1 << 25
_MOST_COLUMNS = 16_384
# Of each kind of rank; whoever is out of step differs to the end.
_MOST_DIFFERENCES = 256


@attrs.frozen
class Look:
    """
    What the row of a rank depends on; equal ones look the same.

    Attributes:
        record: What the rank recorded, as index; -1 for nothing.

        counted: Without a record, how many calls torch counted.

        absence: The state of calls that it has no record of.

        program: What it is measured by, as index.
    """

    record: int
    counted: int
    absence: int
    program: int


def columns_of(
    records: Sequence[Record], rows: int
) -> tuple[NDArray[np.int64], int]:
    """
    Which sequence numbers are shown?

    Args:
        records: All that was recorded.

        rows: How many ranks there are.

    Returns:
        The numbers, ascending, and how many older ones are not shown.
    """
    if not records:
        return np.empty(0, np.int64), 0

    most = min(max(_MOST_CELLS // rows, 64), _MOST_COLUMNS)
    columns = records[0].seq
    for record in records[1:]:
        if not np.array_equal(record.seq, columns):
            columns = np.union1d(columns, record.seq)
    return columns[-most:], max(len(columns) - most, 0)


def states_of(
    looks: Iterable[Look],
    records: Mapping[int, Record],
    programs: Sequence[Program],
    columns: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], dict[tuple[int, int], int]]:
    """
    What became of each call?

    Args:
        looks: All different ones.

        records: What they refer to, by index.

        programs: What they refer to.

        columns: The sequence number of each column, ascending.

    Returns:
        A row of states (see :class:`State`) for each look; and what was
        called instead, by row and column.
    """
    rows: list[NDArray[np.uint8]] = []
    others: dict[tuple[int, int], int] = {}
    for row, look in enumerate(looks):
        record = records.get(look.record)
        cells = _cells(record, look, columns)
        if record is not None:
            others |= {
                (row, column): call
                for column, call in _differences(
                    cells, record, columns, programs[look.program]
                )
            }
        rows.append(cells)

    return np.array(rows, np.uint8), others


def _cells(
    record: Record | None, look: Look, columns: NDArray[np.int64]
) -> NDArray[np.uint8]:
    if look.absence == State.NO_DUMP:
        return np.full(len(columns), State.NO_DUMP, np.uint8)

    newest = int(record.seq[-1]) if record is not None else look.counted
    cells = np.where(columns > newest, look.absence, State.NOT_RECORDED)
    if record is not None:
        own = aligned(record.state, record, columns, -1)
        cells = np.where(own >= 0, own, cells)
    found: NDArray[np.uint8] = cells.astype(np.uint8)
    return found


def _differences(
    cells: NDArray[np.uint8],
    record: Record,
    columns: NDArray[np.int64],
    program: Program,
) -> Iterable[tuple[int, int]]:
    """
    Mark the calls that are not those of the others, and tell what they are.
    """
    call = aligned(record.call, record, columns, -1)
    signature = aligned(record.signature, record, columns, 0)
    differs = (call >= 0) & (signature != program.signature)
    cells[differs] |= State.DIFFERS
    for column in np.flatnonzero(differs)[:_MOST_DIFFERENCES].tolist():
        yield column, int(call[column])
