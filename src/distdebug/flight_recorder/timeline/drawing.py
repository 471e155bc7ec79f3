"""
What is drawn of one rank?
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise

import attrs
import numpy as np

from numpy.typing import NDArray

from ..._text import clean
from ..analysis.membership import Group, Membership
from ..analysis.operations import Signatures
from ..analysis.streams import collective_streams
from ..columns import Dumps, Entries, RankDump
from .arrivals import Arrivals
from .ends import slice_ends
from .tracks import Channels, assign_lanes, assign_tracks, group_label


__all__ = ["Drawing", "Scene", "chosen_rows", "draw_rank"]


@attrs.frozen(kw_only=True, eq=False)
class Scene:
    """
    What the drawings of all ranks have in common.

    Attributes:
        dumps: What the ranks recorded.

        membership: The groups of the job.

        signatures: What makes calls comparable.

        channels: The pairs of ranks that exchange messages.

        arrivals: Who arrived when.

        offsets: By how much the times of each rank are to be set back.

        until: Until when each rank knows, by the common clock.

        late_ns: From which delay on an arrival is late.

        groups: Names and descriptions of the groups that are drawn; ``None``
            for all.

        last: How many of its newest records are drawn of each rank; ``None``
            for all.
    """

    dumps: Dumps
    membership: Membership
    signatures: Signatures
    channels: Channels
    arrivals: Arrivals
    offsets: Mapping[int, int]
    until: Mapping[int, int]
    late_ns: int
    groups: Collection[str] | None = None
    last: int | None = None


@attrs.frozen(kw_only=True, eq=False)
class Drawing:
    """
    The slices of one rank, by track and lane and beginning.

    Attributes:
        rank: Global rank.

        host: Its node; ``None`` if that is not known.

        entries: The records, in the same order as the slices.

        rows: Where they are in the dump.

        start_ns: When each slice begins, by the common clock.

        end_ns: When it ends.

        end: What the end is (:class:`End`).

        track: The track of each slice.

        tracks: What the tracks are called.

        call: Which collective each slice stands for; -1 for none.

        is_late: Whether all others waited for it.

        is_joined: Whether it is joined with the same call of other ranks.
    """

    rank: int
    host: str | None
    entries: Entries
    rows: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    end: NDArray[np.int8]
    track: NDArray[np.int64]
    tracks: tuple[str, ...]
    call: NDArray[np.int64]
    is_late: NDArray[np.bool_]
    is_joined: NDArray[np.bool_]

    @property
    def label(self) -> str:
        """
        What its process is called.
        """
        host = clean(self.host or "")
        return f"rank {self.rank}" + (f" ({host})" if host else "")


def chosen_rows(scene: Scene, dump: RankDump) -> NDArray[np.int64]:
    """
    Which records of a rank are drawn?

    Args:
        scene: What is drawn.

        dump: What the rank recorded.

    Returns:
        Their positions, ascending.
    """
    e = dump.entries
    rows = np.arange(len(e), dtype=np.int64)
    if scene.groups is not None and len(e):
        wanted = np.array(
            [bool({*pair} & {*scene.groups}) for pair in scene.dumps.groups]
        )
        rows = rows[wanted[e.group]]
    return rows if scene.last is None else rows[-scene.last :]


def draw_rank(scene: Scene, rank: int) -> Drawing:
    """
    Lay out the slices of one rank.

    Args:
        scene: What all ranks have in common.

        rank: Global rank.

    Returns:
        Its slices; those of a lane never overlap.
    """
    dump = scene.dumps[rank]
    codes = scene.membership.by_code[rank]
    call = scene.arrivals.find(
        collective_streams(dump, codes, scene.signatures), len(dump.entries)
    )
    end, kind = slice_ends(
        dump,
        scene.signatures,
        call=call,
        arrivals=scene.arrivals,
        offset_ns=scene.offsets[rank],
        until_ns=scene.until[rank],
    )
    rows = chosen_rows(scene, dump)
    start = dump.entries.created_ns - scene.offsets[rank]
    rows, track, names = _laid_out(scene, dump, rows, start, end)
    return Drawing(
        rank=rank,
        host=dump.host,
        entries=dump.entries.take(rows),
        rows=rows,
        start_ns=start[rows],
        end_ns=end[rows],
        end=kind[rows],
        track=track,
        tracks=names,
        call=call[rows],
        is_late=_is_late(scene, rank, call[rows]),
        is_joined=np.zeros(len(rows), np.bool_),
    )


def _laid_out(
    scene: Scene,
    dump: RankDump,
    rows: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """
    Give every record a track and a lane, and order them by these.

    Returns:
        The records, their tracks, and the names of the tracks.
    """
    if not len(rows):
        return rows, rows, ()

    groups = scene.membership.groups
    codes = scene.membership.by_code[dump.rank]
    index = np.zeros(max(codes) + 1, np.int64)
    index[list(codes)] = list(codes.values())
    stream, kinds = assign_tracks(
        dump,
        rows,
        index[dump.entries.group[rows]],
        scene.signatures,
        scene.channels,
    )
    order = np.lexsort((end[rows], start[rows], stream))
    rows, stream = rows[order], stream[order]
    bounds = np.flatnonzero(np.r_[True, np.diff(stream) != 0, True])
    track = np.zeros(len(rows), np.int64)
    names: list[str] = []
    for (a, b), (group, pair, p2p) in zip(
        pairwise(bounds.tolist()), kinds, strict=True
    ):
        lane = assign_lanes(start[rows[a:b]], end[rows[a:b]])
        track[a:b] = len(names) + lane
        name = _track_name(groups[group], pair, dump.rank, p2p=p2p)
        names.append(name)
        names += [f"{name}, also" for _ in range(int(lane.max()))]
    order = np.lexsort((start[rows], track))
    return rows[order], track[order], tuple(names)


def _track_name(
    group: Group, pair: tuple[int, int] | None, rank: int, *, p2p: bool
) -> str:
    label = group_label(group)
    if pair is None:
        return f"{label} batches" if p2p else label

    if not group.is_known or pair[1] >= len(group.order):
        return f"{label} members {pair[0]} and {pair[1]}"

    low, high = (group.order[member] for member in pair)
    return f"{label} with rank {high if low == rank else low}"


def _is_late(
    scene: Scene, rank: int, call: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """
    For which collectives did all other members wait for this rank?
    """
    a, groups = scene.arrivals, scene.membership.groups
    if not len(a) or not len(call):
        return np.zeros(len(call), np.bool_)

    at = np.maximum(call, 0)
    sizes = np.array([len(group.order) for group in groups])
    late: NDArray[np.bool_] = (
        (call >= 0)
        & (a.last_rank[at] == rank)
        & (a.last_ns[at] - a.first_ns[at] >= scene.late_ns)
        & (a.count[at] > 1)
        & (a.count[at] == sizes[a.group[at]])
    )
    return late
