"""
Which slices are joined, because they are the same call?

An arrow leads from the last one to arrive to those that waited.  A large job
has millions of them, so those of the longest waits are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from numpy.typing import NDArray

from ..analysis.membership import Group
from .arrivals import Arrivals
from .drawing import Drawing


__all__ = [
    "Arrow",
    "Joints",
    "Place",
    "choose_calls",
    "join_slices",
    "make_arrows",
]

# Of a call of thousands, so many ranks show it well enough.
_MOST_PER_CALL = 32


@attrs.frozen
class Place:
    """
    A moment within a slice.
    """

    rank: int
    track: int
    ns: int


@attrs.frozen
class Arrow:
    """
    From the last one to arrive to one that waited.
    """

    call: int
    source: Place
    target: Place


@attrs.frozen(kw_only=True, eq=False)
class Joints:
    """
    What is known of the calls whose slices are joined, as ranks are drawn.

    Attributes:
        stride: Of each call, every how many-th member is joined; 0 for none.

        positions: Which member of a group a rank is, by group.

        possible: How many arrows there could be in all.

        sources: Where the last one to arrive is, by call.

        targets: Where those are that waited.
    """

    stride: NDArray[np.int64]
    positions: Mapping[int, Mapping[int, int]]
    possible: int
    sources: dict[int, Place] = attrs.field(factory=dict)
    targets: list[tuple[int, Place]] = attrs.field(factory=list)


def choose_calls(
    arrivals: Arrivals, groups: Sequence[Group], most: int
) -> Joints:
    """
    Choose the calls whose slices are joined: those with the longest waits that
    can be.

    Args:
        arrivals: All calls.

        groups: Who is in which group.

        most: How many arrows may be drawn.

    Returns:
        Which they are, and of none of them where they are.
    """
    sizes = np.array([len(group.order) for group in groups], np.int64)
    members = np.maximum(sizes[arrivals.group], arrivals.count)
    stride = -(-members // _MOST_PER_CALL)
    drawn = -(-members // stride)
    drawn[arrivals.count < 2] = stride[arrivals.count < 2] = 0
    waits = arrivals.last_ns - arrivals.first_ns
    # Where clocks are wrong by more than a call takes, it seems to end before
    # all are there, and the longest waits are those of the worst clocks.
    is_odd = arrivals.end_ns <= arrivals.last_ns
    order = np.lexsort((-waits, is_odd))
    stride[order[np.cumsum(drawn[order]) > most]] = 0
    used = np.unique(arrivals.group[stride > 1]).tolist()
    return Joints(
        stride=stride,
        positions={
            group: {rank: i for i, rank in enumerate(groups[group].order)}
            for group in used
        },
        possible=int((arrivals.count - 1).sum()),
    )


def join_slices(
    joints: Joints, arrivals: Arrivals, drawing: Drawing
) -> Drawing:
    """
    Note where the calls are that are joined.

    Args:
        joints: What is known so far; it is added to.

        arrivals: All calls.

        drawing: The slices of another rank.

    Returns:
        The same, which says what is joined.
    """
    at = np.maximum(drawing.call, 0)
    if not len(arrivals) or not len(at):
        return drawing

    stride = np.where(drawing.call >= 0, joints.stride[at], 0)
    is_chosen = stride > 0
    is_last = is_chosen & (arrivals.last_rank[at] == drawing.rank)
    # A slice without an extent cannot be pointed at.
    source = is_last & (drawing.end_ns > drawing.start_ns)
    for i in np.flatnonzero(source).tolist():
        joints.sources[int(at[i])] = _place(drawing, i, drawing.start_ns[i])

    target = is_chosen & ~is_last
    target &= _position(joints, arrivals, drawing) % np.maximum(stride, 1) == 0
    moment = np.maximum(arrivals.last_ns[at], drawing.start_ns)
    # The clocks are not that exact: no arrow leads backwards, or past the end.
    target &= moment < drawing.end_ns
    for i in np.flatnonzero(target).tolist():
        joints.targets.append((int(at[i]), _place(drawing, i, moment[i])))
    return attrs.evolve(drawing, is_joined=source | target)


def _position(
    joints: Joints, arrivals: Arrivals, drawing: Drawing
) -> NDArray[np.int64]:
    """
    Which member of the group of each slice is its rank?
    """
    group = arrivals.group[np.maximum(drawing.call, 0)]
    known, at = np.unique(group, return_inverse=True)
    positions = [
        joints.positions.get(index, {}).get(drawing.rank, 0)
        for index in known.tolist()
    ]
    return np.array(positions, np.int64)[at]


def _place(drawing: Drawing, i: int, ns: np.int64) -> Place:
    return Place(drawing.rank, int(drawing.track[i]), int(ns))


def make_arrows(joints: Joints) -> list[Arrow]:
    """
    Make the arrows of which both ends are drawn.

    Args:
        joints: Where the calls are.
    """
    return [
        Arrow(call, joints.sources[call], target)
        for call, target in joints.targets
        if call in joints.sources
    ]
