"""
What is drawn of one rank?
"""

from __future__ import annotations

import heapq

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import attrs
import numpy as np

from numpy.typing import NDArray

from ..._text import clean
from ...usercode import user_location
from ..analysis.membership import Group, Membership, Operation, Signatures
from ..analysis.progress import collective_streams, is_done, is_p2p
from ..analysis.report import FlightReport
from ..reading.columns import (
    COMPLETED,
    Dumps,
    Entries,
    RankDump,
    shape_words,
    state_text,
)
from .clocks import Arrivals


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


# So many different ones are kept: in a job that is repeated, nearly all.
_MOST_KEPT = 1 << 16


class Words(NamedTuple):
    """
    What can be said once for all slices of the same kind.

    Attributes:
        groups: Name and description behind each code, cleaned.

        ops: The operation behind each code, cleaned.

        shape: Tells what goes in and out behind a code.
    """

    groups: Sequence[tuple[str, str]]
    ops: Sequence[str]
    shape: Callable[[int], tuple[str, str]]

    @classmethod
    def of(cls, dumps: Dumps) -> Words:
        """
        Clean all that comes from the job, once.
        """
        return cls(
            groups=[(clean(name), clean(desc)) for name, desc in dumps.groups],
            ops=[clean(op) for op in dumps.ops],
            shape=shape_words(dumps.shapes),
        )


Kind = tuple[int, int, int, int, bool, int, int, bool]
T = TypeVar("T")


def say(
    drawing: Drawing,
    words: Words,
    write: Callable[[str, Mapping[str, Any]], T],
    kept: dict[Kind, T],
) -> list[T]:
    """
    Say of each slice what it has in common with others of its kind.

    Args:
        drawing: The slices.

        words: What the codes stand for.

        write: Turns a name and its arguments into what a format wants.

        kept: What was written already.

    Returns:
        One of what *write* returns per slice.
    """
    e = drawing.entries
    columns = (
        *(e.op, e.shape, e.group, e.state, e.retired),
        *(drawing.end, e.timeout_ms, e.is_p2p),
    )
    said: list[T] = []
    for kind in zip(*(c.tolist() for c in columns), strict=True):
        if kind not in kept:
            if len(kept) >= _MOST_KEPT:
                kept.clear()
            kept[kind] = write(*_name_and_args(kind, words))
        said.append(kept[kind])
    return said


def _name_and_args(kind: Kind, words: Words) -> tuple[str, dict[str, Any]]:
    op, shape, group, state, retired, ended, timeout_ms, p2p = kind
    end = End(ended)
    name, desc = words.groups[group]
    inputs, outputs = words.shape(shape)
    short = words.ops[op].partition(":")[2] or words.ops[op]
    mark = {End.OPEN: ": not complete", End.ABORTED: ": timed out"}
    args = {
        "op": words.ops[op],
        "group": name,
        "desc": desc,
        "p2p": p2p or None,
        "in": inputs,
        "out": outputs,
        "state": state_text(state, retired=retired),
        "end": end.words,
        "timeout_ms": timeout_ms,
    }
    return (
        short + mark.get(end, ""),
        {key: value for key, value in args.items() if value},
    )


def lines_of_code(dumps: Dumps, drawing: Drawing) -> list[str]:
    """
    Read where each call of a rank was made, which takes its file once more.

    Args:
        dumps: What the ranks recorded.

        drawing: The slices of the rank.

    Returns:
        One text per slice; empty where that is not on record.
    """
    order = np.argsort(drawing.rows)
    stacks = dumps.frames(drawing.rank, drawing.rows[order].tolist())
    lines = [""] * len(order)
    for at, stack in zip(order.tolist(), stacks, strict=True):
        where = user_location(stack)
        lines[at] = clean(str(where), limit=400) if where else ""
    return lines


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


@attrs.frozen(kw_only=True)
class Absence:
    """
    A rank that others wait for in vain.

    Attributes:
        rank: Global rank.

        ns: Until when it is known to be absent, by the common clock.

        args: In which call, and who waits.
    """

    rank: int
    ns: int
    args: Mapping[str, Any]


@attrs.frozen(kw_only=True, eq=False)
class Notes:
    """
    What is known beside the slices.

    Attributes:
        labels: What is said beside the names of ranks.

        arrivals: When the ranks arrived in collectives.
    """

    labels: Mapping[int, str]
    arrivals: Arrivals

    def lateness(self, drawing: Drawing, i: int) -> tuple[str, dict[str, Any]]:
        """
        What is said of a slice for which all others waited.

        Args:
            drawing: The slices of one rank.

            i: Which of them.

        Returns:
            The name of a mark, and its arguments.
        """
        a, call = self.arrivals, drawing.call[i]
        waited_ns = int(a.last_ns[call] - a.first_ns[call])
        args = {
            "ms after the first": waited_ns / 1e6,
            "ranks": int(a.count[call]),
        }
        return "arrived last", args


def take_notes(report: FlightReport, arrivals: Arrivals) -> Notes:
    """
    Note who is at fault, and who merely waits.

    Args:
        report: What is wrong with the job.

        arrivals: When the ranks arrived in collectives.
    """
    labels = dict.fromkeys(report.victims, "waits for others")
    verdict = report.verdict
    if not verdict.cause.is_fine:
        labels |= dict.fromkeys(verdict.ranks, str(verdict.cause))
    return Notes(labels=labels, arrivals=arrivals)


def absences(
    report: FlightReport, until: Mapping[int, int]
) -> Iterator[Absence]:
    """
    Who is waited for in vain, and in which call?

    Args:
        report: What is wrong with the job.

        until: Until when each rank that is drawn knows, by the common clock.
    """
    for wait in report.waits:
        args = {
            "call": clean(f"{wait.op} #{wait.seq}"),
            "group": clean(wait.desc or wait.group),
            "ranks that wait": len(wait.waiting),
        }
        for rank in wait.awaited:
            if rank in until:
                yield Absence(rank=rank, ns=until[rank], args=args)
