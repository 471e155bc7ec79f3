"""
Lay out the calls of a rank as timeline slices, tracks, and arrows.
"""

from __future__ import annotations

import heapq

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import count, pairwise
from typing import Any, NamedTuple

import attrs
import numpy as np

from numpy.typing import NDArray

from ..._text import clean
from ...findings import described
from ...usercode import user_location
from ..analysis.job import Job, run_starts
from ..analysis.membership import Group, Operation
from ..analysis.report import FlightReport
from ..reading.columns import (
    COMPLETED,
    Dumps,
    Entries,
    Labels,
    RankDump,
    state_text,
)
from .clocks import Arrivals, HostClock, ProgressCallback


# Slices without a recorded end: as short as viewers can show and select.
_MIN_SLICE_NS = 1_000
# A watchdog writes its dump within the timeout and a few minutes.  A newer
# file was copied, so its time is not that of the dump.
_MAX_DUMP_DELAY_NS = 300 * 10**9


class SliceEnd(IntEnum):
    """
    Kind of the end of a slice.
    """

    NOTICED = 0
    CLOSED = 1
    ARRIVED = 2
    UNKNOWN = 3
    OPEN = 4
    ABORTED = 5


_END_TEXTS = {
    SliceEnd.NOTICED: "when torch noticed the completion",
    SliceEnd.CLOSED: "when the next part of its batch was enqueued",
    SliceEnd.ARRIVED: "not recorded; drawn until the last rank arrived",
    SliceEnd.UNKNOWN: "not recorded",
    SliceEnd.OPEN: "not complete when the dump was taken",
    SliceEnd.ABORTED: "timed out",
}


def dump_time_ns(dump: RankDump) -> int | None:
    """
    Return when a dump was taken, by the clock of its rank.

    Returns:
        Nanoseconds since the epoch; ``None`` if the file was copied since.
    """
    newest = dump.last_activity_ns
    longest = int(dump.entries.timeout_ms.max(initial=0)) * 10**6
    age = dump.written_ns - newest
    if dump.sidecar or (
        dump.written_ns and age <= longest + _MAX_DUMP_DELAY_NS
    ):
        # Calls may follow while the dump is taken.
        return max(dump.written_ns, newest)

    return None


def slice_ends(
    context: TimelineContext, dump: RankDump, call: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """
    Return the end of every call of a rank.

    Args:
        call: Position of the collective of each record in the arrivals.

    Returns:
        Time of the end per record, by the common clock, and its
        :class:`SliceEnd`.
    """
    e, offset_ns = dump.entries, context.offsets[dump.rank]
    start = e.created_ns - offset_ns
    done = context.job.is_done(dump)
    end = np.full(len(e), context.dump_times_ns[dump.rank], np.int64)
    kind = np.full(len(e), SliceEnd.OPEN, np.int8)

    unknown = done & (e.completed_ns == 0)
    end[unknown] = start[unknown] + _MIN_SLICE_NS
    kind[unknown] = SliceEnd.UNKNOWN

    arrived = unknown & (call >= 0) & context.job.flags(dump, "synchronizes")
    end[arrived] = context.arrivals.last_ns[call[arrived]] + _MIN_SLICE_NS
    kind[arrived] = SliceEnd.ARRIVED

    noticed = e.completed_ns > 0
    end[noticed] = e.completed_ns[noticed] - offset_ns
    kind[noticed] = np.where(done[noticed], SliceEnd.NOTICED, SliceEnd.ABORTED)

    part, following = _batch_parts(context.job, dump)
    end[part] = start[following]
    kind[part] = SliceEnd.CLOSED
    return np.maximum(end, start), kind


def _batch_parts(
    job: Job, dump: RankDump
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """
    Return the parts of coalesced batches, whose own end torch never records.

    Returns:
        Their positions, and those of the next records in the same batch.
    """
    e, ends, p2p = (
        dump.entries,
        job.flags(dump, "ends_batch"),
        job.is_p2p(dump),
    )
    if not ends.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)

    number = np.where(p2p, e.p2p_seq, e.seq)
    order = np.lexsort((e.record_id, number, p2p, e.group))
    ends = ends[order]
    starts = run_starts(e.group[order], p2p[order], number[order])
    has_end = np.logical_or.reduceat(ends, starts)
    is_part = np.repeat(has_end, np.diff(np.r_[starts, len(e)])) & ~ends
    is_part &= e.state[order] != COMPLETED
    # The last record of a batch has no next one.
    is_part[np.r_[starts[1:], len(e)] - 1] = False
    return order[is_part], order[1:][is_part[:-1]]


_COLLECTIVE, _BATCH, _FIRST_PAIR = range(3)


def number_channels(job: Job) -> NDArray[np.int64]:
    """
    Number the pairs of members between which operations send.

    Returns:
        The number of the pair by operation code; ``_BATCH`` for operations that
        are no transfers between two members.
    """
    pairs = defaultdict[frozenset[int], int](count(_FIRST_PAIR).__next__)
    codes = [
        pairs[frozenset((op.source, op.target))] if op.is_p2p else _BATCH
        for op in job.signatures.operations
    ]
    return np.array(codes, np.int64)


def group_label(group: Group) -> str:
    """
    Return description and name of a group, in one line.
    """
    if not described(group.desc):
        return clean(f"group {group.name}")

    return clean(f"{group.desc} ({group.name})")


def assign_tracks(
    context: TimelineContext, dump: RankDump, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[str]]:
    """
    Assign records to tracks: collectives by group, transfers also by peer.

    Args:
        rows: Selected records.

    Returns:
        One track per record, and the names of the tracks.
    """
    job, ops = context.job, dump.entries.op[rows]
    group, is_p2p = job.group_indices(dump)[rows], job.is_p2p(dump)[rows]
    channel = np.where(is_p2p, context.channels[ops], _COLLECTIVE)
    _, first, track = np.unique(
        group << 32 | channel, return_index=True, return_inverse=True
    )
    names = [
        _track_name(
            job.groups[group[i]],
            job.signatures.operations[ops[i]],
            dump.rank,
            is_batch=bool(is_p2p[i]),
        )
        for i in first.tolist()
    ]
    return track, names


def assign_lanes(
    start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """
    Assign slices to lanes such that those of a lane do not overlap.

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
class TimelineContext:
    """
    Data that the layout of all ranks shares.

    Attributes:
        report: Analysis of the dumps.

        shown: Selected ranks, ascending.

        start_ns: Time zero of the file, by the common clock.

        clocks: Clock offsets of the hosts.

        channels: Result of :func:`number_channels`.

        offsets: Nanoseconds to subtract from the times of each rank.

        dump_times_ns: Time of the dump of each rank, by the common clock.

        late_ns: Minimum delay of a late arrival.

        is_group_shown: Whether a group is selected, by code of the records.

        last: Maximum number of newest records per rank; ``None`` for all.

        on_progress: Called with the stage, the number of ranks done, and their
            total.
    """

    report: FlightReport
    job: Job
    shown: tuple[int, ...]
    start_ns: int
    clocks: tuple[HostClock, ...]
    channels: NDArray[np.int64]
    arrivals: Arrivals
    offsets: Mapping[int, int]
    dump_times_ns: Mapping[int, int]
    late_ns: int
    is_group_shown: NDArray[np.bool_]
    last: int | None
    on_progress: ProgressCallback


@attrs.frozen(kw_only=True, eq=False)
class RankSlices:
    """
    The slices of one rank, by track, lane, and start.

    Attributes:
        rank: Global rank.

        host: Its node; ``None`` if unknown.

        entries: The records, in the order of the slices.

        rows: Their indices in the dump.

        start_ns: Start of each slice, by the common clock.

        end_ns: Its end.

        end: Kind of the end (:class:`SliceEnd`).

        track: Track of each slice.

        tracks: Names of the tracks.

        call: Position of its collective in :class:`Arrivals`; -1 for none.

        is_late: Whether all others waited for it.

        is_joined: Whether an arrow or flow joins it with other ranks.
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
        Name of the process in the viewer.
        """
        host = clean(self.host or "")
        return f"rank {self.rank}" + (f" ({host})" if host else "")


def select_rows(
    dump: RankDump, is_group_shown: NDArray[np.bool_], last: int | None
) -> NDArray[np.int64]:
    """
    Return the indices of the selected records of a rank, ascending.
    """
    rows = np.flatnonzero(is_group_shown[dump.entries.group])
    return rows if last is None else rows[-last:]


def lay_out_rank(context: TimelineContext, rank: int) -> RankSlices:
    """
    Lay out the slices of one rank; those of a lane never overlap.
    """
    dump = context.job.dumps[rank]
    streams = context.job.streams(rank)
    call = context.arrivals.find(streams, len(dump.entries))
    end, kind = slice_ends(context, dump, call)
    rows = select_rows(dump, context.is_group_shown, context.last)
    start = dump.entries.created_ns - context.offsets[rank]
    rows, track, names = _lay_out(context, dump, rows, start, end)
    return RankSlices(
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
        is_late=_is_last_and_late(context, rank, call[rows]),
        is_joined=np.zeros(len(rows), np.bool_),
    )


def _lay_out(
    context: TimelineContext,
    dump: RankDump,
    rows: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """
    Assign track and lane to every record, and sort by these.

    Returns:
        The records, their tracks, and the names of the tracks.
    """
    if not len(rows):
        return rows, rows, ()

    stream, stream_names = assign_tracks(context, dump, rows)
    order = np.lexsort((end[rows], start[rows], stream))
    rows, stream = rows[order], stream[order]
    bounds = [*run_starts(stream).tolist(), len(rows)]
    track = np.zeros(len(rows), np.int64)
    names: list[str] = []
    for (a, b), name in zip(pairwise(bounds), stream_names, strict=True):
        lane = assign_lanes(start[rows[a:b]], end[rows[a:b]])
        track[a:b] = len(names) + lane
        names += [name, *[f"{name}, also"] * int(lane.max())]
    order = np.lexsort((start[rows], track))
    return rows[order], track[order], tuple(names)


def _track_name(
    group: Group, operation: Operation, rank: int, *, is_batch: bool
) -> str:
    label = group_label(group)
    if not operation.is_p2p:
        return f"{label} batches" if is_batch else label

    ends = operation.ends_in(group) if group.is_known else None
    if ends is None:
        pair = sorted((operation.source, operation.target))
        return f"{label} members {pair[0]} and {pair[1]}"

    return f"{label} with rank {ends[1] if ends[0] == rank else ends[0]}"


def _is_last_and_late(
    context: TimelineContext, rank: int, call: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """
    Return a mask of collectives in which all others waited for this rank.
    """
    a, at = context.arrivals, np.maximum(call, 0)
    if not len(a) or not len(call):
        return np.zeros(len(call), np.bool_)

    sizes = np.array([len(group.order) for group in context.job.groups])
    late: NDArray[np.bool_] = (
        (call >= 0)
        & (a.last_rank[at] == rank)
        & (a.last_ns[at] - a.first_ns[at] >= context.late_ns)
        & (a.count[at] > 1)
        & (a.count[at] == sizes[a.group[at]])
    )
    return late


SliceKind = tuple[int, int, int, int, bool, int, int, bool]
_NAME_SUFFIXES = {
    SliceEnd.OPEN: ": not complete",
    SliceEnd.ABORTED: ": timed out",
}


def describe_kind(
    labels: Labels, kind: SliceKind
) -> tuple[str, dict[str, Any]]:
    """
    Return name and arguments that slices of the same kind share.
    """
    op, shape, group, state, retired, ended, timeout_ms, p2p = kind
    end, text = SliceEnd(ended), labels.ops[op]
    name, desc = labels.groups[group]
    inputs, outputs = labels.shape(shape)
    args = {
        "op": text,
        "group": name,
        "desc": desc,
        "p2p": p2p or None,
        "in": inputs,
        "out": outputs,
        "state": state_text(state, retired=retired),
        "end": _END_TEXTS[end],
        "timeout_ms": timeout_ms,
    }
    return (
        (text.partition(":")[2] or text) + _NAME_SUFFIXES.get(end, ""),
        {key: value for key, value in args.items() if value},
    )


class Slice(NamedTuple):
    """
    One slice, with what differs between slices of the same kind.

    Attributes:
        start_ns: Its start, by the common clock.

        end_ns: Its end.

        end: Kind of the end (:class:`SliceEnd`).

        kind: Selects what it shares with others (:func:`describe_kind`).

        more: Arguments that only some slices have.
    """

    start_ns: int
    end_ns: int
    end: int
    track: int
    call: int
    is_late: bool
    is_joined: bool
    seq: int
    record: int
    kind: SliceKind
    more: Mapping[str, Any]


def iter_slices(
    rank_slices: RankSlices, lines: Sequence[str]
) -> Iterator[Slice]:
    """
    Yield the slices of a rank, by track and start.

    Args:
        lines: Line of code of each slice; empty if they were not read.
    """
    x, e = rank_slices, rank_slices.entries
    seq = np.where(e.is_p2p, e.p2p_seq, e.seq)
    own = (
        *(x.start_ns, x.end_ns, x.end, x.track, x.call),
        *(x.is_late, x.is_joined, seq, e.record_id),
    )
    kind = (
        *(e.op, e.shape, e.group, e.state, e.retired),
        *(x.end, e.timeout_ms, e.is_p2p),
    )
    more = _rare_args(e, lines)
    own_rows = zip(*(column.tolist() for column in own), strict=True)
    kinds = zip(*(column.tolist() for column in kind), strict=True)
    for i, (row, key) in enumerate(zip(own_rows, kinds, strict=True)):
        yield Slice._make((*row, key, more.get(i, {})))


def _rare_args(e: Entries, lines: Sequence[str]) -> dict[int, dict[str, Any]]:
    """
    Return the arguments that only some slices have, by position.
    """
    args: dict[int, dict[str, Any]] = defaultdict(dict)
    for i in np.flatnonzero(e.started_ns > 0).tolist():
        after_ns = int(e.started_ns[i] - e.created_ns[i])
        args[i]["start noticed after ms"] = after_ns / 1e6
    for i in np.flatnonzero(np.isfinite(e.duration_ms)).tolist():
        args[i]["on device ms"] = float(e.duration_ms[i])
    for i, line in enumerate(lines):
        if line:
            args[i]["line"] = line
    return args


def read_code_lines(dumps: Dumps, rank_slices: RankSlices) -> list[str]:
    """
    Read the line of code of each call, which reads the dump file once more.

    Returns:
        One text per slice; empty if it is not on record.
    """
    order = np.argsort(rank_slices.rows)
    stacks = dumps.frames(rank_slices.rank, rank_slices.rows[order].tolist())
    lines = [""] * len(order)
    for at, stack in zip(order.tolist(), stacks, strict=True):
        where = user_location(stack)
        lines[at] = clean(str(where), limit=400) if where else ""
    return lines


# Joined members per call; more are not readable.
_MAX_JOINED_PER_CALL = 32


@attrs.frozen
class SlicePoint:
    """
    A point in time within a slice.
    """

    rank: int
    track: int
    ns: int


# From the last rank to arrive to one that waited.
Arrow = tuple[SlicePoint, SlicePoint]


@attrs.frozen(kw_only=True, eq=False)
class ArrowPlan:
    """
    The calls whose slices are joined by arrows, and their points so far.

    Attributes:
        stride: By call, every how many-th member is joined; 0 for none.

        positions: Rank in the group by global rank, for each group.

        possible: Number of all possible arrows.

        sources: Point of the last rank to arrive, by call.

        targets: Points of the ranks that waited, with their call.
    """

    stride: NDArray[np.int64]
    positions: Mapping[int, Mapping[int, int]]
    possible: int
    sources: dict[int, SlicePoint] = attrs.field(factory=dict)
    targets: list[tuple[int, SlicePoint]] = attrs.field(factory=list)


def choose_arrow_calls(
    arrivals: Arrivals, groups: Sequence[Group], max_arrows: int
) -> ArrowPlan:
    """
    Choose the calls for arrows: those with the longest plausible waits.

    Args:
        max_arrows: Maximum number of joined slices.
    """
    sizes = np.array([len(group.order) for group in groups], np.int64)
    members = np.maximum(sizes[arrivals.group], arrivals.count)
    stride = -(-members // _MAX_JOINED_PER_CALL)
    joined = -(-members // stride)
    joined[arrivals.count < 2] = stride[arrivals.count < 2] = 0
    waits = arrivals.last_ns - arrivals.first_ns
    # With clock errors longer than a call, it seems to end before all have
    # arrived, and the longest waits are those of the worst clocks.
    is_odd = arrivals.end_ns <= arrivals.last_ns
    order = np.lexsort((-waits, is_odd))
    stride[order[np.cumsum(joined[order]) > max_arrows]] = 0
    sampled_groups = np.unique(arrivals.group[stride > 1]).tolist()
    return ArrowPlan(
        stride=stride,
        positions={
            group: {rank: i for i, rank in enumerate(groups[group].order)}
            for group in sampled_groups
        },
        possible=int((arrivals.count - 1).sum()),
    )


def mark_joined_slices(
    arrow_plan: ArrowPlan, arrivals: Arrivals, rank_slices: RankSlices
) -> RankSlices:
    """
    Add the joined slices of another rank to the plan of arrows.

    Args:
        arrow_plan: Changed in place.

    Returns:
        The slices, with :attr:`RankSlices.is_joined` set.
    """
    at = np.maximum(rank_slices.call, 0)
    if not len(arrivals) or not len(at):
        return rank_slices

    stride = np.where(rank_slices.call >= 0, arrow_plan.stride[at], 0)
    is_chosen = stride > 0
    is_last = is_chosen & (arrivals.last_rank[at] == rank_slices.rank)
    # An arrow cannot start at an empty slice.
    source = is_last & (rank_slices.end_ns > rank_slices.start_ns)
    for i in np.flatnonzero(source).tolist():
        arrow_plan.sources[int(at[i])] = _slice_point(
            rank_slices, i, rank_slices.start_ns[i]
        )

    target = is_chosen & ~is_last
    target &= (
        _member_positions(arrow_plan, arrivals, rank_slices)
        % np.maximum(stride, 1)
        == 0
    )
    moment = np.maximum(arrivals.last_ns[at], rank_slices.start_ns)
    # Clocks are inexact: skip arrows that would point past the end.
    target &= moment < rank_slices.end_ns
    for i in np.flatnonzero(target).tolist():
        arrow_plan.targets.append(
            (int(at[i]), _slice_point(rank_slices, i, moment[i]))
        )
    return attrs.evolve(rank_slices, is_joined=source | target)


def _member_positions(
    arrow_plan: ArrowPlan, arrivals: Arrivals, rank_slices: RankSlices
) -> NDArray[np.int64]:
    """
    Return the rank within the group of each slice.
    """
    group = arrivals.group[np.maximum(rank_slices.call, 0)]
    known, at = np.unique(group, return_inverse=True)
    positions = [
        arrow_plan.positions.get(index, {}).get(rank_slices.rank, 0)
        for index in known.tolist()
    ]
    return np.array(positions, np.int64)[at]


def _slice_point(rank_slices: RankSlices, i: int, ns: np.int64) -> SlicePoint:
    return SlicePoint(rank_slices.rank, int(rank_slices.track[i]), int(ns))


def make_arrows(arrow_plan: ArrowPlan) -> list[Arrow]:
    """
    Return the arrows of which both ends are in the timeline.
    """
    return [
        (arrow_plan.sources[call], target)
        for call, target in arrow_plan.targets
        if call in arrow_plan.sources
    ]


def describe_lateness(
    arrivals: Arrivals, call: int
) -> tuple[str, dict[str, Any]]:
    """
    Return name and arguments of the mark of a late arrival.

    Args:
        call: Position of the collective in the arrivals.
    """
    waited_ns = int(arrivals.last_ns[call] - arrivals.first_ns[call])
    return "arrived last", {
        "ms after the first": waited_ns / 1e6,
        "ranks": int(arrivals.count[call]),
    }


def label_ranks(report: FlightReport) -> dict[int, str]:
    """
    Label the culprits and the victims of a report.
    """
    labels = dict.fromkeys(report.victims, "waits for others")
    verdict = report.verdict
    if not verdict.cause.is_fine:
        labels |= dict.fromkeys(verdict.ranks, str(verdict.cause))
    for finding in report.findings:
        if cost := finding.cost:
            what = _SLOW.get(cost.side, f"slow on its {cost.side}")
            text = f"{what}: the others wait {cost.seconds:,.1f} s for it, "
            text += f"{cost.share:.0%} of the time"
            labels |= dict.fromkeys(finding.ranks, text)
    return labels


_SLOW = {"link": "behind a slow link", "rank": "slow"}

# When a rank that others wait for was dumped, with the call as arguments.
Absence = tuple[SlicePoint, Mapping[str, Any]]

# The track of a rank itself.
_WHOLE_RANK = -1


def find_absences(context: TimelineContext) -> Iterator[Absence]:
    """
    Yield the shown ranks that others wait for, with their call.
    """
    shown = frozenset(context.shown)
    for wait in context.report.waits:
        args = {
            "call": clean(f"{wait.op} #{wait.seq}"),
            "group": clean(wait.desc or wait.group),
            "ranks that wait": len(wait.waiting),
        }
        for rank in wait.awaited:
            if rank in shown:
                ns = context.dump_times_ns[rank]
                yield SlicePoint(rank, _WHOLE_RANK, ns), args
