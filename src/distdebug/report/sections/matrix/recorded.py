"""
What did each rank record in each group, with equal records kept once?

Most ranks of a job did the same, so a thousand ranks are a few records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from numpy.typing import NDArray

from ....flight_recorder.analysis.membership import (
    Membership,
    find_groups,
    group_status,
)
from ....flight_recorder.analysis.operations import Signatures
from ....flight_recorder.analysis.streams import Stream, collective_streams
from ....flight_recorder.columns import COMPLETED, STARTED, Dumps, RankDump


__all__ = ["Arrivals", "Record", "Recorded", "State", "look_at"]

# So many times of arrival are kept, the newest of each rank.
_MOST_TIMES = 1 << 21


class State:
    """
    What became of a call, as a number for each case.
    """

    NOT_RECORDED = 0
    COMPLETED = 1
    STARTED = 2
    SCHEDULED = 3
    FAILED = 4
    NOT_ENTERED = 5
    ELSEWHERE = 6
    NO_DUMP = 7
    # Added to any of them: the call is not that of the others.
    DIFFERS = 8


@attrs.frozen(kw_only=True, eq=False)
class Record:
    """
    What some ranks recorded in a group: one element per call.

    Attributes:
        seq: Sequence numbers, ascending.

        signature: What was called, comparable between ranks.

        call: The operation and shape, as ``op * number of shapes + shape``.

        state: What became of it.
    """

    seq: NDArray[np.int64]
    signature: NDArray[np.int64]
    call: NDArray[np.int64]
    state: NDArray[np.uint8]


@attrs.frozen(kw_only=True, eq=False)
class Arrivals:
    """
    When one rank entered its newest calls in a group, and left them.

    Attributes:
        seq: Sequence numbers, ascending.

        created_ns: When it entered, by the clock of its host.

        completed_ns: When the end was noticed; 0 if it was not.
    """

    seq: NDArray[np.int64]
    created_ns: NDArray[np.int64]
    completed_ns: NDArray[np.int64]


@attrs.frozen(kw_only=True, eq=False)
class Recorded:
    """
    What all ranks recorded.

    Attributes:
        dumps: Where it comes from.

        membership: The groups of the job.

        records: All different ones.

        of: For each rank and group (as index), its record (as index).

        enqueued: For each rank and group without a record, how many calls
            torch counted there.

        arrivals: For each rank and group, when it came.
    """

    dumps: Dumps
    membership: Membership
    records: tuple[Record, ...]
    of: Mapping[tuple[int, int], int]
    enqueued: Mapping[tuple[int, int], int]
    arrivals: Mapping[tuple[int, int], Arrivals]


def look_at(dumps: Dumps, *, most_times: int = _MOST_TIMES) -> Recorded:
    """
    What did each rank record in each group?

    Args:
        dumps: The dumps of all ranks.

        most_times: How many times of arrival are kept in all.

    Returns:
        All of it; the time needed is linear in the number of records.
    """
    membership = find_groups(dumps)
    signatures = Signatures(dumps.ops, dumps.shapes)
    total = sum(len(dump.entries) for dump in dumps)
    share = min(1.0, most_times / max(total, 1))
    known: dict[tuple[bytes, ...], int] = {}
    records: list[Record] = []
    of: dict[tuple[int, int], int] = {}
    enqueued: dict[tuple[int, int], int] = {}
    arrivals: dict[tuple[int, int], Arrivals] = {}
    for dump in dumps:
        codes = membership.by_code[dump.rank]
        for group, stream in collective_streams(
            dump, codes, signatures
        ).items():
            state = _states(dump, stream)
            parts = stream.seq, stream.signature, state
            key = tuple(part.tobytes() for part in parts)
            if key not in known:
                known[key] = len(records)
                records.append(_record(dump, stream, state, len(dumps.shapes)))
            of[dump.rank, group] = known[key]
            arrivals[dump.rank, group] = _arrivals(dump, stream, share)
        if any((dump.rank, g) not in of for g in _own(dump, membership)):
            for group, status in group_status(dump, membership).items():
                enqueued[dump.rank, group] = max(status.enqueued, 0)

    return Recorded(
        dumps=dumps,
        membership=membership,
        records=tuple(records),
        of=of,
        enqueued=enqueued,
        arrivals=arrivals,
    )


def _own(dump: RankDump, membership: Membership) -> set[int]:
    return set(membership.by_name[dump.rank].values())


def _states(dump: RankDump, stream: Stream) -> NDArray[np.uint8]:
    e, rows = dump.entries, stream.row
    recorded = e.state[rows]
    over = e.retired[rows] | (recorded == COMPLETED)
    pending = np.where(recorded == STARTED, State.STARTED, State.SCHEDULED)
    state = np.where(over, State.FAILED, pending)
    found: NDArray[np.uint8] = np.where(
        stream.done, State.COMPLETED, state
    ).astype(np.uint8)
    return found


def _record(
    dump: RankDump, stream: Stream, state: NDArray[Any], shapes: int
) -> Record:
    e = dump.entries
    op = e.op[stream.row].astype(np.int64)
    return Record(
        seq=stream.seq,
        signature=stream.signature,
        call=op * max(shapes, 1) + e.shape[stream.row],
        state=state,
    )


def _arrivals(dump: RankDump, stream: Stream, share: float) -> Arrivals:
    newest = slice(len(stream.seq) - int(len(stream.seq) * share), None)
    rows = stream.row[newest]
    return Arrivals(
        seq=stream.seq[newest],
        created_ns=dump.entries.created_ns[rows],
        completed_ns=dump.entries.completed_ns[rows],
    )
