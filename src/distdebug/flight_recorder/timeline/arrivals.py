"""
Who was first and who was last in every collective?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import numpy as np

from numpy.typing import NDArray

from ..analysis.membership import Membership
from ..analysis.operations import Signatures
from ..analysis.streams import Stream, collective_streams
from ..columns import Dumps


__all__ = ["Arrivals", "gather_arrivals"]

# So many arrivals are gathered before those in the same call are merged.
_BATCH = 1 << 20
_NEVER = 1 << 62

Columns = dict[str, NDArray[np.int64]]


@attrs.frozen(kw_only=True, eq=False)
class Arrivals:
    """
    Every collective of the job, by group and number: one array per field.

    Attributes:
        group: The group, as index.

        seq: Its number in the group.

        first_ns: When the first rank arrived, by the common clock.

        last_ns: When the last one did.

        last_rank: Who that was.

        end_ns: When the first rank noted its end; far away if none did.

        count: How many ranks have it on record.
    """

    group: NDArray[np.int64]
    seq: NDArray[np.int64]
    first_ns: NDArray[np.int64]
    last_ns: NDArray[np.int64]
    last_rank: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    count: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.seq)

    def find(
        self, streams: Mapping[int, Stream], size: int
    ) -> NDArray[np.int64]:
        """
        Which collective does each record of a rank stand for?

        Args:
            streams: The collectives of the rank, by group.

            size: How many records it has.

        Returns:
            One position per record; -1 if it begins no collective.
        """
        call = np.full(size, -1, np.int64)
        for group, stream in streams.items():
            begin, end = np.searchsorted(self.group, [group, group + 1])
            call[stream.row] = begin + np.searchsorted(
                self.seq[begin:end], stream.seq
            )
        return call


def gather_arrivals(
    dumps: Dumps,
    membership: Membership,
    signatures: Signatures,
    offsets: Mapping[int, int],
    tick: Callable[[], object] = lambda: None,
) -> Arrivals:
    """
    Go through all ranks and note who entered which collective when.

    Memory grows with the number of collectives, not of records.

    Args:
        dumps: What the ranks recorded.

        membership: The groups of the job.

        signatures: What makes calls comparable.

        offsets: By how much the times of each rank are to be set back.

        tick: Called after each rank.

    Returns:
        When the ranks arrived, by the common clock.
    """
    found: list[Columns] = [_no_arrivals()]
    waiting = 0
    for dump in dumps:
        streams = collective_streams(
            dump, membership.by_code[dump.rank], signatures
        )
        entries, ahead = dump.entries, offsets[dump.rank]
        ends = np.where(entries.completed_ns, entries.completed_ns, _NEVER)
        for group, stream in streams.items():
            created = entries.created_ns[stream.row] - ahead
            ended = ends[stream.row] - ahead
            found.append(_arrivals(group, stream, dump.rank, created, ended))
            waiting += len(stream.seq)
        if waiting >= _BATCH:
            found, waiting = [_merged(found)], 0
        tick()

    return Arrivals(**_merged(found))


def _no_arrivals() -> Columns:
    return {f.name: np.empty(0, np.int64) for f in attrs.fields(Arrivals)}


def _arrivals(
    group: int,
    stream: Stream,
    rank: int,
    arrived: NDArray[np.int64],
    ended: NDArray[np.int64],
) -> Columns:
    size = len(arrived)
    return {
        "group": np.full(size, group, np.int64),
        "seq": stream.seq,
        "first_ns": arrived,
        "last_ns": arrived,
        "last_rank": np.full(size, rank, np.int64),
        "end_ns": ended,
        "count": np.ones(size, np.int64),
    }


def _merged(found: list[Columns]) -> Columns:
    """
    Put what was seen of the same collective into one row.
    """
    rows = {
        name: np.concatenate([part[name] for part in found])
        for name in found[0]
    }
    if not len(rows["seq"]):
        return rows

    order = np.lexsort((rows["last_ns"], rows["seq"], rows["group"]))
    rows = {name: column[order] for name, column in rows.items()}
    group, seq = rows["group"], rows["seq"]
    is_new = (group[1:] != group[:-1]) | (seq[1:] != seq[:-1])
    first = np.flatnonzero(np.r_[True, is_new])
    last = np.r_[first[1:], len(seq)] - 1
    return {
        "group": group[first],
        "seq": seq[first],
        "first_ns": np.minimum.reduceat(rows["first_ns"], first),
        "last_ns": rows["last_ns"][last],
        "last_rank": rows["last_rank"][last],
        "end_ns": np.minimum.reduceat(rows["end_ns"], first),
        "count": np.add.reduceat(rows["count"], first),
    }
