"""
What did most members of a group call, and who called something else?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from numpy.typing import NDArray

from .recorded import Record


__all__ = ["Program", "aligned", "program_of"]

# One who is blamed anyway does not tell what is right.
_OF_THE_BLAMED = 1e-3


@attrs.frozen(kw_only=True, eq=False)
class Program:
    """
    What most members of a group called: one element per column.

    Attributes:
        signature: What was called, comparable between ranks; 0 for nothing.

        call: Operation and shape; -1 for nothing.
    """

    signature: NDArray[np.int64]
    call: NDArray[np.int64]


def aligned(
    values: NDArray[np.generic],
    record: Record,
    columns: NDArray[np.int64],
    fill: int,
) -> NDArray[np.int64]:
    """
    Put the calls of a record into columns.

    Args:
        values: One per call of the record.

        record: Whose they are.

        columns: The sequence number of each column, ascending.

        fill: What stands where there is no call.
    """
    found = np.full(len(columns), fill, np.int64)
    at = np.searchsorted(columns, record.seq)
    there = at < len(columns)
    there[there] = columns[at[there]] == record.seq[there]
    found[at[there]] = values[there]
    return found


def program_of(
    records: Mapping[int, Record],
    ranks: Mapping[int, Sequence[int]],
    columns: NDArray[np.int64],
    blamed: frozenset[int],
) -> Program:
    """
    What did most members of a group call?

    Args:
        records: The records of its members, by number.

        ranks: Whose each of them is.

        columns: The sequence number of each column, ascending.

        blamed: Ranks that are at fault, as somebody found out.

    Returns:
        The call of the majority, column by column.
    """
    weights = {
        i: sum(_OF_THE_BLAMED if r in blamed else 1.0 for r in ranks[i])
        for i in records
    }
    count = np.zeros(len(columns))
    signature = np.zeros(len(columns), np.int64)
    call = np.full(len(columns), -1, np.int64)
    # The vote of Boyer and Moore: one pass, however many parties there are.
    for i in sorted(records, key=lambda i: (-weights[i], i)):
        other = aligned(records[i].signature, records[i], columns, 0)
        called = aligned(records[i].call, records[i], columns, -1)
        agrees = other == signature
        count += np.where(called < 0, 0, np.where(agrees, 1, -1)) * weights[i]
        wins = count < 0
        signature[wins], call[wins] = other[wins], called[wins]
        count = np.abs(count)

    return Program(signature=signature, call=call)
