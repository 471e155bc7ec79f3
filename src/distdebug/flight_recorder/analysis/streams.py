"""
What did one rank do in one group, call by call?

The records of a rank mix all groups, collectives, point-to-point operations,
and the parts of coalesced batches.  Here they become one *stream* per group:
one row per call, by ascending sequence number, and whether it is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import attrs
import numpy as np

from numpy.typing import NDArray

from ..columns import COMPLETED, Entries, RankDump
from .endings import failed_on_record
from .operations import Signatures


__all__ = ["Stream", "collective_streams", "is_done", "is_p2p"]


@attrs.frozen(kw_only=True, eq=False)
class Stream:
    """
    The collectives of one rank in one group, by ascending number.

    Attributes:
        seq: The sequence numbers, each once.

        signature: What was called, comparable between ranks.

        done: Whether the call completed.

        synchronizes: Whether completing it needs every member.

        row: Position of its first record in the records of the rank.
    """

    seq: NDArray[np.int64]
    signature: NDArray[np.int64]
    done: NDArray[np.bool_]
    synchronizes: NDArray[np.bool_]
    row: NDArray[np.int64]

    def find(self, seq: int) -> int | None:
        """
        The position of call number *seq*; ``None`` if it is not on record.
        """
        at = int(np.searchsorted(self.seq, seq))
        return at if at < len(self.seq) and self.seq[at] == seq else None


def collective_streams(
    dump: RankDump, codes: Mapping[int, int], signatures: Signatures
) -> dict[int, Stream]:
    """
    Sort the collectives of one rank by group.

    Args:
        dump: What the rank recorded.

        codes: The group (as index) behind each code in its records.

        signatures: Of the whole job.

    Returns:
        One stream per group (by index) in which it recorded a collective.
    """
    e = dump.entries
    rows = np.flatnonzero(~is_p2p(e, signatures))
    if not len(rows):
        return {}

    to_group = np.zeros(max(codes) + 1, np.int64)
    for code, index in codes.items():
        to_group[code] = index
    group = to_group[e.group[rows]]
    order = np.lexsort((e.seq[rows], group))
    rows, group = rows[order], group[order]
    seq = e.seq[rows]
    # A batch of coalesced calls shares one number: it is one call.
    first = np.flatnonzero(
        np.r_[True, (group[1:] != group[:-1]) | (seq[1:] != seq[:-1])]
    )
    calls = _calls(dump, rows, first, signatures)
    edges = np.flatnonzero(np.r_[True, np.diff(group[first]) != 0, True])
    return {
        int(group[first[a]]): Stream(
            seq=seq[first[a:b]],
            **{name: column[a:b] for name, column in calls.items()},
        )
        for a, b in pairwise(edges.tolist())
    }


def _calls(
    dump: RankDump,
    rows: NDArray[np.int64],
    first: NDArray[np.int64],
    signatures: Signatures,
) -> dict[str, NDArray[Any]]:
    e = dump.entries
    op = e.op[rows]
    ends = signatures.column("ends_batch")[op]
    done = is_done(dump, signatures)[rows]
    signature = np.where(ends, 0, signatures.of(op, e.shape[rows]))
    # The parts of a batch never change their state; its end record does.
    part = ends | done
    has_end = np.logical_or.reduceat(ends, first)
    end_done = np.logical_and.reduceat(~ends | done, first)
    return {
        "signature": np.add.reduceat(signature, first),
        "done": np.where(
            has_end, end_done, np.logical_and.reduceat(part, first)
        ),
        "synchronizes": np.logical_and.reduceat(
            signatures.column("synchronizes")[op] & ~ends, first
        ),
        "row": np.minimum.reduceat(rows, first),
    }


def is_p2p(e: Entries, signatures: Signatures) -> NDArray[np.bool_]:
    """
    Which records are point-to-point, whatever their version flags?

    Args:
        e: The records of one rank.

        signatures: Of the whole job.

    Returns:
        One truth per record.
    """
    return e.is_p2p | signatures.column("is_p2p")[e.op]


def is_done(dump: RankDump, signatures: Signatures) -> NDArray[np.bool_]:
    """
    Which calls of a rank completed, as opposed to failed or pending?

    Backends without device events (Gloo) never say "completed"; there, a call
    that torch stopped watching is done, unless it is the one that failed.

    Args:
        dump: What the rank recorded.

        signatures: Of the whole job.

    Returns:
        One truth per record.
    """
    e = dump.entries
    # A call that a watchdog aborted is marked as completed, too.
    took_ns = e.completed_ns - e.created_ns
    is_aborted = (
        (e.timeout_ms > 0)
        & (e.completed_ns > 0)
        & (took_ns >= e.timeout_ms * 950_000)
    )
    completed = ((e.state == COMPLETED) | (e.completed_ns > 0)) & ~is_aborted
    has_events = signatures.column("has_events")[e.op]
    done = np.where(has_events, completed, e.retired)
    if len(done) and dump.sidecar and failed_on_record(dump.sidecar):
        last = np.argmax(e.record_id)
        done[last] &= has_events[last]

    return done
