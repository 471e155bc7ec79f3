"""
On which track does each call of a rank lie?

There is one track per group for its collectives, and one per peer for messages,
as these run on streams of their own.  Slices of a track must not overlap, so a
track has as many lanes as calls were in flight at once.
"""

from __future__ import annotations

import heapq

from typing import NamedTuple

import numpy as np

from numpy.typing import NDArray

from ..._text import clean
from ..analysis.membership import Group
from ..analysis.operations import Operation, Signatures
from ..analysis.streams import is_p2p
from ..columns import RankDump


__all__ = ["Channels", "assign_lanes", "assign_tracks", "group_label"]

_COLLECTIVES, _BATCHES = -2, -1


class Channels(NamedTuple):
    """
    Between which two members of a group do operations pass something?

    Attributes:
        code: One number per operation; negative if it is between all.

        pairs: The members (as ranks in the group) behind each number.
    """

    code: NDArray[np.int64]
    pairs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, signatures: Signatures) -> Channels:
        """
        Number the pairs of a job.
        """
        pairs: dict[tuple[int, int], int] = {}
        codes = [
            pairs.setdefault(_pair(op), len(pairs)) if op.is_p2p else _BATCHES
            for op in signatures.operations
        ]
        return cls(np.array(codes, np.int64), tuple(pairs))


def _pair(op: Operation) -> tuple[int, int]:
    return min(op.source, op.target), max(op.source, op.target)


def group_label(group: Group) -> str:
    """
    How is a group called in a timeline?

    Args:
        group: The group.

    Returns:
        What it is for, and its name; one line.
    """
    if group.desc in {"", "undefined"}:
        return clean(f"group {group.name}")

    return clean(f"{group.desc} ({group.name})")


def assign_tracks(
    dump: RankDump,
    rows: NDArray[np.int64],
    group: NDArray[np.int64],
    signatures: Signatures,
    channels: Channels,
) -> tuple[NDArray[np.int64], list[tuple[int, tuple[int, int] | None, bool]]]:
    """
    Tell the streams of a rank apart.

    Args:
        dump: What the rank recorded.

        rows: The records that are drawn.

        group: Their groups, as index.

        signatures: What makes calls comparable.

        channels: The pairs of the job.

    Returns:
        One track per record; and of each track its group, the pair of members
        if it is between two, and whether it is point-to-point.
    """
    e = dump.entries
    p2p = is_p2p(e, signatures)[rows]
    channel = np.where(p2p, channels.code[e.op[rows]], _COLLECTIVES)
    keys, track = np.unique(
        np.stack([group, channel]), axis=1, return_inverse=True
    )
    streams = [
        (index, channels.pairs[code] if code >= 0 else None, code >= _BATCHES)
        for index, code in keys.T.tolist()
    ]
    return track.reshape(-1), streams


def assign_lanes(
    start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """
    Spread slices over lanes such that those of a lane do not overlap.

    Args:
        start: When each slice begins, ascending.

        end: When it ends.

    Returns:
        The lane of each slice, counted from 0; as few as possible.
    """
    lanes = np.zeros(len(start), np.int64)
    if (start[1:] >= end[:-1]).all():
        return lanes

    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for i, (begin, until) in enumerate(
        zip(start.tolist(), end.tolist(), strict=True)
    ):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (until, lane))
        lanes[i] = lane
    return lanes
