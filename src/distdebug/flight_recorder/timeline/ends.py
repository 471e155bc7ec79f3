"""
How long does the slice of a call reach, and what is that time?

Torch notes when a call was enqueued.  It notes when it *noticed* the end, up to
100 ms late, and not at all on Gloo, for the parts of batches, and for calls
that never ended.  Every slice says which of these its end is.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from numpy.typing import NDArray

from ..analysis.operations import Signatures
from ..analysis.streams import is_done, is_p2p
from ..columns import COMPLETED, RankDump
from .arrivals import Arrivals


__all__ = ["End", "known_until", "newest_ns", "slice_ends"]

# An end that is not on record: as short as can be seen and pointed at.
_SHORTEST_NS = 1_000
# A watchdog writes its dump within the time-out and a few minutes; a file that
# is newer was copied, and its time says nothing.
_SLACK_NS = 300 * 10**9


class End(IntEnum):
    """
    What the end of a slice is.
    """

    NOTICED = 0
    CLOSED = 1
    ARRIVED = 2
    UNKNOWN = 3
    OPEN = 4
    ABORTED = 5

    @property
    def words(self) -> str:
        """
        The same for people.
        """
        return _WORDS[self]


_WORDS = {
    End.NOTICED: "when torch noticed the completion",
    End.CLOSED: "when the next part of its batch was enqueued",
    End.ARRIVED: "not recorded; drawn until the last rank arrived",
    End.UNKNOWN: "not recorded",
    End.OPEN: "not complete when the dump was taken",
    End.ABORTED: "timed out",
}


def newest_ns(dump: RankDump) -> int:
    """
    The latest time in the records of a rank, by its own clock; 0 if none.

    Args:
        dump: What the rank recorded.
    """
    e = dump.entries
    times = (e.created_ns, e.started_ns, e.completed_ns)
    return max(int(column.max(initial=0)) for column in times)


def known_until(dump: RankDump) -> int | None:
    """
    When was this dump taken, by the clock of its rank?

    Args:
        dump: What the rank recorded.

    Returns:
        Nanoseconds since the epoch; ``None`` if the file was copied since.
    """
    newest = newest_ns(dump)
    longest = int(dump.entries.timeout_ms.max(initial=0)) * 10**6
    age = dump.written_ns - newest
    if dump.sidecar or (dump.written_ns and age <= longest + _SLACK_NS):
        # Calls may come while the dump is taken.
        return max(dump.written_ns, newest)

    return None


def slice_ends(  # noqa: PLR0913
    dump: RankDump,
    signatures: Signatures,
    *,
    call: NDArray[np.int64],
    arrivals: Arrivals,
    offset_ns: int,
    until_ns: int,
) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """
    Find the end of every call of a rank.

    Args:
        dump: What the rank recorded.

        signatures: What makes calls comparable.

        call: Which collective each record stands for.

        arrivals: When all ranks arrived in them.

        offset_ns: By how much the times of the rank are to be set back.

        until_ns: Until when the dump knows, by the common clock.

    Returns:
        One time per record, by the common clock, and what it is (:class:`End`).
    """
    e = dump.entries
    start = e.created_ns - offset_ns
    done = is_done(dump, signatures)
    end = np.full(len(e), until_ns, np.int64)
    kind = np.full(len(e), End.OPEN, np.int8)

    unknown = done & (e.completed_ns == 0)
    end[unknown] = start[unknown] + _SHORTEST_NS
    kind[unknown] = End.UNKNOWN

    met = unknown & (call >= 0) & signatures.column("synchronizes")[e.op]
    end[met] = arrivals.last_ns[call[met]] + _SHORTEST_NS
    kind[met] = End.ARRIVED

    noticed = e.completed_ns > 0
    end[noticed] = e.completed_ns[noticed] - offset_ns
    kind[noticed] = np.where(done[noticed], End.NOTICED, End.ABORTED)

    part, following = _parts(dump, signatures)
    end[part] = start[following]
    kind[part] = End.CLOSED
    return np.maximum(end, start), kind


def _parts(
    dump: RankDump, signatures: Signatures
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """
    The parts of coalesced batches, whose own end torch never notes.

    Returns:
        Their positions, and those of the records that follow in their batch.
    """
    e = dump.entries
    ends = signatures.column("ends_batch")[e.op]
    if not ends.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)

    p2p = is_p2p(e, signatures)
    number = np.where(p2p, e.p2p_seq, e.seq)
    order = np.lexsort((e.record_id, number, p2p, e.group))
    keys = np.array([e.group, p2p, number])[:, order]
    is_same = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    bounds = np.flatnonzero(np.r_[True, ~is_same])
    has_end = np.logical_or.reduceat(ends[order], bounds)
    sizes = np.diff(np.r_[bounds, len(e)])
    is_part = np.repeat(has_end, sizes)[:-1] & is_same
    is_part &= ~ends[order][:-1] & (e.state[order][:-1] != COMPLETED)
    return order[:-1][is_part], order[1:][is_part]
