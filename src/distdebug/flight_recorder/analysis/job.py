"""
Compute groups, progress, and point-to-point channels of a job once.

One pass over the ranks, with a constant number of array operations for each,
reduces millions of records to one :class:`Position` per member of a group.  It
also collects the sequence numbers at which the signatures of ranks differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import attrs
import numpy as np

from numpy.typing import NDArray

from ...findings import Evidence
from ..reading.columns import (
    COMPLETED,
    ISSUED,
    Dumps,
    Frame,
    GroupStatus,
    RankDump,
    Shape,
)
from .endings import failed_in_recorded_call
from .membership import (
    Group,
    Membership,
    Operation,
    Signatures,
    find_groups,
    group_status,
)


@attrs.frozen(kw_only=True, eq=False)
class Stream:
    """
    The collectives of one rank in one group, by ascending sequence number.

    Attributes:
        seq: Sequence numbers, each once.

        signature: Comparable between ranks, see :class:`Signatures`.

        done: Whether the call completed.

        synchronizes: Whether its completion needs every member.

        row: Index of its first record among the records of the rank.
    """

    seq: NDArray[np.int64]
    signature: NDArray[np.int64]
    done: NDArray[np.bool_]
    synchronizes: NDArray[np.bool_]
    row: NDArray[np.int64]

    def find(self, seq: int) -> int | None:
        """
        Return the position of call number *seq*; ``None`` if not on record.
        """
        at = int(np.searchsorted(self.seq, seq))
        return at if at < len(self.seq) and self.seq[at] == seq else None


def common_numbers(numbers: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """
    Return the sequence numbers that are in all of some ascending arrays.
    """
    common, *others = numbers
    for seq in others:
        if not np.array_equal(common, seq):
            common = np.intersect1d(common, seq, assume_unique=True)

    return common


@attrs.frozen(kw_only=True)
class Position:
    """
    Progress of one rank in one group; sequence numbers, 0 for none.

    Attributes:
        rank: Global rank.

        last: Newest call that it entered.

        done: Newest call that completed.

        sync_done: Newest completed call that proves that every member entered.

        pending: Oldest call after *done*; 0 if there is none.

        row: Record index of *pending*; -1 if there is none.

        last_row: Record index of *last*; -1 if there is none.

        is_final: Whether *last* is the newest record of the rank in any group.

        status: Counters of torch, if they count collectives.
    """

    rank: int
    last: int = 0
    done: int = 0
    sync_done: int = 0
    pending: int = 0
    row: int = -1
    last_row: int = -1
    is_final: bool = False
    status: GroupStatus | None = None


@attrs.frozen(kw_only=True, eq=False)
class GroupState:
    """
    Progress of all members in one group.

    Attributes:
        positions: By global rank, for members whose position is known.

        unknown: Members with a dump, but without records of the group.

        missing: Members without a dump.

        suspects: Sequence numbers at which the signatures of members differ.

        has_events: Whether "completed" is recorded; Gloo only has "returned".
    """

    group: Group
    positions: dict[int, Position]
    unknown: tuple[int, ...]
    missing: tuple[int, ...]
    suspects: NDArray[np.int64]
    has_events: bool

    @property
    def sync_done(self) -> int:
        """
        Sequence number that every member entered, even if its dump is older.
        """
        positions = self.positions.values()
        done = max((p.sync_done for p in positions), default=0)
        # On Gloo, a call that fails because a peer died looks completed.
        failed = (
            self.missing
            and not self.has_events
            and any(p.pending == done for p in positions)
            and all(p.is_final for p in positions if p.last == done)
        )
        return done - 1 if failed else done


@attrs.frozen(kw_only=True, eq=False)
class Side:
    """
    One end of a point-to-point channel, as its rank recorded it.

    Attributes:
        rank: Global rank.

        rows: Record indices of its calls, in order.

        pending: Number of incomplete calls at the end of *rows*.

        is_whole: Whether the first call is still in the ring buffer.
    """

    rank: int
    rows: NDArray[np.int64]
    pending: int
    is_whole: bool

    @property
    def oldest_pending(self) -> int:
        """
        Record index of the oldest pending call.
        """
        return int(self.rows[-self.pending])


@attrs.frozen(eq=False)
class Channel:
    """
    All sends from one rank to another in one group, and their receives.

    Attributes:
        group: Index of the group in :class:`Membership`.

        source: Global rank that sends.

        target: Global rank that receives.

        send: Records of *source*; ``None`` if it recorded nothing.

        recv: Records of *target*; ``None`` if it recorded nothing.
    """

    group: int
    source: int
    target: int
    send: Side | None
    recv: Side | None


Stack = tuple[Frame, ...]


@attrs.define(eq=False)
class Job:
    """
    The dumps of a job and all that is computed from them, once and on demand.
    """

    dumps: Dumps
    _streams: dict[int, dict[int, Stream]] = attrs.field(
        init=False, factory=dict
    )
    _stacks: dict[tuple[int, int], Stack] = attrs.field(
        init=False, factory=dict
    )

    @cached_property
    def membership(self) -> Membership:
        """
        The process groups, and the names that each rank has for them.
        """
        return find_groups(self.dumps)

    @property
    def groups(self) -> tuple[Group, ...]:
        """
        The process groups; other data refers to them by index.
        """
        return self.membership.groups

    @cached_property
    def signatures(self) -> Signatures:
        """
        Signatures of calls, to match a call between ranks.
        """
        return Signatures(self.dumps.ops, self.dumps.shapes)

    @cached_property
    def states(self) -> list[GroupState]:
        """
        Progress of every rank, one state per group.
        """
        states = _measure_progress(self)
        _correct_failed_calls(states, self)
        return states

    @cached_property
    def channels(self) -> list[Channel]:
        """
        One channel per group, source rank, and target rank.
        """
        sides: dict[tuple[int, int, int], dict[bool, Side]] = defaultdict(dict)
        for dump in self.dumps:
            for key, is_send, side in _channel_sides(self, dump):
                sides[key][is_send] = side
        return [
            Channel(*key, side.get(True), side.get(False))
            for key, side in sides.items()
        ]

    def flags(self, dump: RankDump, attribute: str) -> NDArray[np.bool_]:
        """
        Return a boolean attribute of :class:`Operation` for each record.
        """
        return self.signatures.column(attribute)[dump.entries.op]

    def group_indices(self, dump: RankDump) -> NDArray[np.int64]:
        """
        Return the index of the group of each record.
        """
        codes = self.membership.by_code[dump.rank]
        index = np.zeros(max(codes, default=0) + 1, np.int64)
        index[list(codes)] = list(codes.values())
        return index[dump.entries.group]

    def is_p2p(self, dump: RankDump) -> NDArray[np.bool_]:
        """
        Return a mask of point-to-point records, for all dump versions.
        """
        return dump.entries.is_p2p | self.flags(dump, "is_p2p")

    def has_events(self, dump: RankDump) -> NDArray[np.bool_]:
        """
        Return a mask of records whose state follows the call.
        """
        is_issued: NDArray[np.bool_] = dump.entries.state == ISSUED
        return self.flags(dump, "has_events") & ~is_issued

    def is_done(self, dump: RankDump) -> NDArray[np.bool_]:
        """
        Return a mask of completed calls; failed and pending ones are not.

        Backends without device events (Gloo) never record "completed".  There,
        a call that torch has retired is done, unless it is the one that failed.
        Where a recorder sees no ends at all, a call that was issued counts.
        """
        e = dump.entries
        # A call that the watchdog aborted is marked as completed, too.
        took_ns = e.completed_ns - e.created_ns
        is_aborted = (
            (e.timeout_ms > 0)
            & (e.completed_ns > 0)
            & (took_ns >= e.timeout_ms * 950_000)
        )
        completed = (
            (e.state == COMPLETED) | (e.completed_ns > 0)
        ) & ~is_aborted
        has_events = self.has_events(dump)
        done = np.where(has_events, completed, e.retired)
        if (
            len(done)
            and dump.sidecar
            and failed_in_recorded_call(dump.sidecar)
        ):
            last = np.argmax(e.record_id)
            done[last] &= has_events[last]

        return done

    def streams(self, rank: int) -> dict[int, Stream]:
        """
        Split the collectives of one rank by group; nothing is kept of it.

        Returns:
            One stream per group index in which the rank recorded a collective.
        """
        dump = self.dumps[rank]
        rows = np.flatnonzero(~self.is_p2p(dump))
        if not len(rows):
            return {}

        group = self.group_indices(dump)[rows]
        seq = dump.entries.seq[rows].astype(np.int64)
        order = np.lexsort((seq, group))
        rows, group, seq = rows[order], group[order], seq[order]
        # A batch of coalesced calls shares one sequence number.
        first = run_starts(group, seq)
        calls = _merge_batches(self, dump, rows, first)
        edges = [*run_starts(group[first]).tolist(), len(first)]
        return {
            int(group[first[a]]): Stream(
                seq=seq[first[a:b]],
                **{name: column[a:b] for name, column in calls.items()},
            )
            for a, b in pairwise(edges)
        }

    def stream(self, rank: int, group: int) -> Stream | None:
        """
        Return the collectives of a rank in a group; ``None`` if it has none.
        """
        if rank not in self.dumps.by_rank:
            return None
        if rank not in self._streams:
            self._streams[rank] = self.streams(rank)
        return self._streams[rank].get(group)

    def operation(self, rank: int, row: int) -> Operation:
        """
        Return the operation of one record of a rank.
        """
        op = int(self.dumps[rank].entries.op[row])
        return self.signatures.operations[op]

    def shape(self, rank: int, row: int) -> Shape:
        """
        Return the shape of one record of a rank.
        """
        return self.dumps.shapes[int(self.dumps[rank].entries.shape[row])]

    def created_ns(self, rank: int, row: int) -> int:
        """
        Return when a rank enqueued one record, by the clock of its host.
        """
        return int(self.dumps[rank].entries.created_ns[row])

    def evidence(self, rank: int, place: str, quote: str) -> Evidence:
        """
        Return what the dump of a rank says at some place as evidence.
        """
        return Evidence(
            kind="dump",
            source=self.dumps[rank].path,
            location=f"rank {rank}, {place}",
            quote=quote,
        )

    def stack(self, rank: int, row: int) -> Stack:
        """
        Return the stack of one record of a rank, innermost frame first.
        """
        self.read_stacks([(rank, row)])
        return self._stacks[rank, row]

    def read_stacks(self, records: Iterable[tuple[int, int]]) -> None:
        """
        Read many stacks at once, which is much faster than one by one.

        Args:
            records: Pairs of global rank and record index.
        """
        unread: dict[int, list[int]] = defaultdict(list)
        for rank, row in dict.fromkeys(records):
            if (rank, row) not in self._stacks:
                unread[rank].append(row)
        for rank, stacks in self.dumps.frames_of(unread).items():
            keys = ((rank, row) for row in unread[rank])
            self._stacks.update(zip(keys, stacks, strict=True))


def run_starts(*columns: NDArray[Any]) -> NDArray[np.int64]:
    """
    Return where runs of rows with equal values in all columns start.
    """
    changes = [column[1:] != column[:-1] for column in columns]
    is_start = np.ones(len(columns[0]), np.bool_)
    is_start[1:] = np.logical_or.reduce(changes)
    return np.flatnonzero(is_start)


def _merge_batches(
    job: Job,
    dump: RankDump,
    rows: NDArray[np.int64],
    first: NDArray[np.int64],
) -> dict[str, NDArray[Any]]:
    """
    Reduce sorted records to one row per call, which begins at *first*.
    """
    e = dump.entries
    ends = job.flags(dump, "ends_batch")[rows]
    done = job.is_done(dump)[rows]
    signature = np.where(ends, 0, job.signatures.of(e.op[rows], e.shape[rows]))
    every = np.logical_and.reduceat
    return {
        "signature": np.add.reduceat(signature, first),
        # Only the end record of a batch changes its state, the parts never do.
        "done": np.where(
            np.logical_or.reduceat(ends, first),
            every(~ends | done, first),
            every(done, first),
        ),
        "synchronizes": every(
            job.flags(dump, "synchronizes")[rows] & ~ends, first
        ),
        "row": np.minimum.reduceat(rows, first),
    }


class _SignatureComparison:
    """
    Comparison of the signatures of all members, call by call.
    """

    def __init__(self) -> None:
        self.seq = np.empty(0, np.int64)
        self.signature = np.empty(0, np.int64)
        self.suspects = [self.seq]

    def add(self, stream: Stream) -> None:
        """
        Compare one more member, and remember the calls that are new.
        """
        if np.array_equal(stream.seq, self.seq):
            differs = stream.signature != self.signature
            if differs.any():
                self.suspects.append(stream.seq[differs])
            return

        common, own, known = np.intersect1d(
            stream.seq, self.seq, assume_unique=True, return_indices=True
        )
        differs = stream.signature[own] != self.signature[known]
        self.suspects.append(common[differs])
        if len(common) < len(stream.seq):
            seq = np.concatenate([self.seq, stream.seq])
            signature = np.concatenate([self.signature, stream.signature])
            self.seq, at = np.unique(seq, return_index=True)
            self.signature = signature[at]


def _measure_progress(job: Job) -> list[GroupState]:
    eventless, newest_calls = _survey_groups(job)
    positions: list[dict[int, Position]] = [{} for _ in job.groups]
    comparisons = [_SignatureComparison() for _ in job.groups]
    for dump in job.dumps:
        streams = job.streams(dump.rank)
        for index, position in _rank_positions(
            job, dump, streams, newest_calls, eventless
        ):
            positions[index][dump.rank] = position
        for index, stream in streams.items():
            comparisons[index].add(stream)

    states = []
    for i, group in enumerate(job.groups):
        without = sorted({*group.order}.difference(positions[i]))
        state = GroupState(
            group=group,
            positions=positions[i],
            unknown=tuple(r for r in without if r in job.dumps.by_rank),
            missing=tuple(r for r in without if r not in job.dumps.by_rank),
            suspects=np.unique(np.concatenate(comparisons[i].suspects)),
            has_events=i not in eventless,
        )
        states.append(state)
    return states


def _rank_positions(
    job: Job,
    dump: RankDump,
    streams: Mapping[int, Stream],
    newest_calls: Mapping[int, tuple[int, int]],
    eventless: set[int],
) -> Iterator[tuple[int, Position]]:
    """
    Yield group and position for all groups in which the position is known.
    """
    counters = group_status(dump, job.membership)
    e, rank = dump.entries, dump.rank
    newest = int(np.argmax(e.record_id)) if len(e) else -1
    # Counters begin at the first call, so a group without them had none.
    has_all = bool(dump.status) and len(counters) == len(dump.status)
    never_used = has_all or not dump.wrapped
    for index in set(job.membership.by_name[rank].values()):
        status, mixed = counters.get(index), newest_calls.get(index)
        if index in streams:
            exact = status if mixed is None else None
            yield index, _find_position(rank, streams[index], exact, newest)
        elif status.enqueued <= 0 if status else never_used:
            yield index, Position(rank=rank)
        elif (
            status
            and index not in eventless
            and _counts_collectives(status, mixed)
        ):
            done = max(status.completed, 0)
            yield index, Position(rank=rank, last=status.enqueued, done=done)


def _counts_collectives(
    status: GroupStatus, newest: tuple[int, int] | None
) -> bool:
    """
    Return whether the counters, which also count transfers, mean a collective.
    """
    if newest is None:
        return True

    collective, transfer = newest
    return abs(status.enqueued - collective) < abs(status.enqueued - transfer)


def _survey_groups(job: Job) -> tuple[set[int], dict[int, tuple[int, int]]]:
    """
    Find the groups without events of the device, and those with transfers.

    Returns:
        The indices of the former; and by the indices of the latter, the newest
        sequence numbers of collectives and of transfers that any member recorded.
    """
    eventless: set[int] = set()
    newest: dict[int, tuple[int, int]] = {}
    for dump in job.dumps:
        e, p2p, group = dump.entries, job.is_p2p(dump), job.group_indices(dump)
        eventless.update(np.unique(group[~job.has_events(dump)]).tolist())
        for index in np.unique(group[p2p]).tolist():
            in_group = group == index
            collective, transfer = newest.get(index, (0, 0))
            newest[index] = (
                max(int(e.seq[in_group].max()), collective),
                max(int(e.p2p_seq[in_group & p2p].max()), transfer),
            )

    return eventless, newest


def _find_position(
    rank: int, s: Stream, status: GroupStatus | None, newest: int
) -> Position:
    """
    Return the progress of a rank in a group.

    Args:
        s: Its collectives in the group.

        status: Counters of torch, if they count collectives.

        newest: Index of its newest record in any group.
    """
    done = s.seq[s.done]
    sync = s.seq[s.done & s.synchronizes]
    highest = int(done[-1]) if len(done) else 0
    at = int(np.searchsorted(s.seq, highest, side="right"))
    has_pending = at < len(s.seq)
    return Position(
        rank=rank,
        last=int(s.seq[-1]),
        done=highest,
        sync_done=int(sync[-1]) if len(sync) else 0,
        pending=int(s.seq[at]) if has_pending else 0,
        row=int(s.row[at]) if has_pending else -1,
        last_row=int(s.row[-1]),
        is_final=int(s.row[-1]) == newest,
        status=status,
    )


def _correct_failed_calls(states: Sequence[GroupState], job: Job) -> None:
    """
    Correct the progress of ranks whose records do not say how calls ended.

    Without device events, a call that failed looks as if it were completed.
    None is that a member never entered: one that an exception ended, or that
    wrote its dump later than a rank that failed.

    Args:
        states: Changed in place.
    """
    entered_by_all: dict[int, _EnteredByAll] = {}
    for dump in job.dumps:
        since_ns = _INFINITE
        if (dump.entries.state == ISSUED).any():
            since_ns = 0
        elif dump.sidecar and failed_in_recorded_call(dump.sidecar):
            since_ns = dump.written_ns or _INFINITE
        limits: dict[int, int] = {}
        for index in set(job.membership.by_name[dump.rank].values()):
            state = states[index]
            if state.has_events or dump.rank not in state.positions:
                continue
            if index not in entered_by_all:
                entered_by_all[index] = _EnteredByAll.of(state, job.dumps)
            limit = entered_by_all[index].since(since_ns)
            if limit < state.positions[dump.rank].sync_done:
                limits[index] = limit
        streams = job.streams(dump.rank) if limits else {}
        for index, limit in limits.items():
            positions = states[index].positions
            positions[dump.rank] = _limit_position(
                positions[dump.rank], streams[index], limit
            )


# No time, and no number of a call, is greater.
_INFINITE = np.iinfo(np.int64).max


@attrs.frozen(eq=False)
class _EnteredByAll:
    """
    The newest call that all members had entered, by time of their dumps.

    Attributes:
        written_ns: Times of the dumps, ascending.

        last: Minimum of the newest calls in this dump and all later ones.
    """

    written_ns: NDArray[np.int64]
    last: NDArray[np.int64]

    @classmethod
    def of(cls, state: GroupState, dumps: Dumps) -> _EnteredByAll:
        """
        Sort the members of a group by the time of their dump.
        """
        members = sorted(
            (_last_possible_ns(dumps[p.rank]), p.last)
            for p in state.positions.values()
            if not dumps[p.rank].truncated
        )
        written, last = np.array(members, np.int64).reshape(-1, 2).T
        return cls(written, np.minimum.accumulate(last[::-1])[::-1])

    def since(self, time_ns: int) -> int:
        """
        Return the newest call in all dumps since then; infinite if none is.
        """
        at = int(np.searchsorted(self.written_ns, time_ns))
        return int(self.last[at]) if at < len(self.last) else _INFINITE


def _last_possible_ns(dump: RankDump) -> int:
    """
    Return until when the dump tells which calls its rank had entered.
    """
    has_ended = dump.sidecar is not None and dump.sidecar.reason == "exception"
    return _INFINITE if has_ended else dump.written_ns


def _limit_position(p: Position, stream: Stream, limit: int) -> Position:
    """
    Return a position without the calls after *limit* that need all members.
    """
    is_failed = stream.synchronizes & (stream.seq > limit)
    return _find_position(
        p.rank,
        attrs.evolve(stream, done=stream.done & ~is_failed),
        p.status,
        p.last_row if p.is_final else -1,
    )


def _channel_sides(
    job: Job, dump: RankDump
) -> Iterator[tuple[tuple[int, int, int], bool, Side]]:
    """
    Yield channel key, whether it is the sending side, and the side of a rank.
    """
    rows = np.flatnonzero(job.flags(dump, "is_p2p"))
    if not len(rows):
        return

    done = _is_done_in_batch(job, dump)
    group, op = job.group_indices(dump)[rows], dump.entries.op[rows]
    rows_of: dict[tuple[int, int], list[int]] = defaultdict(list)
    keys = zip(group.tolist(), op.tolist(), strict=True)
    for row, key in zip(rows.tolist(), keys, strict=True):
        rows_of[key].append(row)
    for (index, code), found in rows_of.items():
        operation, of = job.signatures.operations[code], job.groups[index]
        ends = operation.ends_in(of) if of.is_known else None
        if ends and ends[0 if operation.is_send else 1] == dump.rank:
            completed = np.flatnonzero(done[found])
            newest = int(completed[-1]) if len(completed) else -1
            side = Side(
                rank=dump.rank,
                rows=np.array(found),
                pending=len(found) - 1 - newest,
                is_whole=dump.is_whole,
            )
            yield (index, *ends), operation.is_send, side


def _is_done_in_batch(job: Job, dump: RankDump) -> NDArray[np.bool_]:
    """
    Return a mask of completed calls; the end of a batch completes its parts.
    """
    done = job.is_done(dump)
    rows, batch, sizes = find_batches(job, dump)
    # Without an end record, it is complete: the dump has active calls.
    is_open = job.flags(dump, "ends_batch")[rows] & ~done[rows]
    has_open_end = np.bincount(batch, is_open, len(sizes)) > 0
    is_part = sizes[batch] > 1
    done[rows[is_part]] = ~has_open_end[batch[is_part]]
    if dump.is_filtered:
        # A dump of active calls only keeps the parts of batches for ever, but
        # not the end records that complete them.
        status = group_status(dump, job.membership).items()
        idle = [i for i, s in status if s.enqueued == s.completed]
        done |= np.isin(job.group_indices(dump), idle)
    return done


def find_batches(
    job: Job, dump: RankDump
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """
    Find the batches that a rank's transfers belong to.

    Returns:
        The records of transfers, the batch of each, and the size of each batch.
    """
    rows = np.flatnonzero(job.is_p2p(dump))
    keys = [job.group_indices(dump)[rows], dump.entries.p2p_seq[rows]]
    _, batch, sizes = np.unique(
        np.stack(keys), axis=1, return_inverse=True, return_counts=True
    )
    return rows, batch.reshape(-1), sizes
