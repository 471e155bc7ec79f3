"""
How far did each rank get in each group?

One pass over the ranks, a constant number of array operations each, reduces
millions of records to one :class:`Position` per member of a group, and notes
on the way which calls do not look the same on all ranks.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs
import numpy as np

from numpy.typing import NDArray

from ..reading.columns import COMPLETED, Dumps, Entries, GroupStatus, RankDump
from ..sidecar import Sidecar
from .membership import Group, Membership, Signatures, group_status


# Torch raises its own kinds of errors; and RuntimeError, which anybody raises.
_OF_TORCH = re.compile(r"(?:\w+\.)*Dist\w*Error\b")
_OF_ANYBODY = re.compile(
    r"RuntimeError\b(?!.*dataloader).*?(?:gloo|nccl|timed out|pair closure"
    r"|connection (?:closed by peer|reset|refused))",
    re.IGNORECASE | re.DOTALL,
)
_PEER_IS_GONE = re.compile(
    r"connection (?:closed by peer|reset|refused)|broken pipe"
    r"|remote process exit|pair closure",
    re.IGNORECASE,
)
_CHILD_IS_GONE = re.compile(
    r"RuntimeError: DataLoader worker .{0,80}(?:killed by signal"
    r"|exited unexpectedly)|(?:\w+\.){0,9}BrokenProcessPool\b",
)
# Reasons of those who go on afterwards.
_GOES_ON = {"start", "request", "call"}
# A rank may notice the signal later than its child does.
_CHILD_FIRST_S = 0.1
# What Gloo does not record (torch 2.13).
_OFF_RECORD = {"irecv", "isend", "monitored_barrier", "recv", "send"}


def failed_in_call(error: str) -> bool:
    """
    Whether an exception came out of a collective, not out of other code.

    Args:
        error: Type and text, such as ``"RuntimeError: Connection closed by
            peer"``.
    """
    return bool(_OF_TORCH.match(error) or _OF_ANYBODY.match(error))


def failed_off_record(sidecar: Sidecar) -> bool:
    """
    Whether a rank died of a call that Gloo does not record.

    Args:
        sidecar: Of that rank.
    """
    if not failed_in_call(sidecar.error):
        return False

    stack = dict(sidecar.threads).get("MainThread", ())
    in_torch = (
        frame.name
        for frame in stack
        if frame.filename.endswith("distributed_c10d.py")
    )
    return next(in_torch, "") in _OFF_RECORD


def failed_on_record(sidecar: Sidecar) -> bool:
    """
    Whether a rank died of the last call that it recorded.

    Args:
        sidecar: Of that rank.
    """
    return failed_in_call(sidecar.error) and not failed_off_record(sidecar)


def lost_peer(error: str) -> bool:
    """
    Whether a collective failed because another rank had gone.

    Args:
        error: Type and text of the exception.
    """
    return failed_in_call(error) and bool(_PEER_IS_GONE.search(error))


def lost_child(error: str) -> bool:
    """
    Whether a rank failed because a process of its own had gone.

    Args:
        error: Type and text of the exception.
    """
    return bool(_CHILD_IS_GONE.match(error))


def last_words(dumps: Dumps, rank: int) -> tuple[Sidecar, ...]:
    """
    What a rank noted when it ended, oldest first.

    Args:
        dumps: Its side-cars tell.

        rank: Global rank.

    Returns:
        Side-cars; none of a rank that goes on, or ended without a word.
    """
    newest = dumps.sidecars.get(rank)
    if newest is None:
        return ()

    notes = (*dumps.earlier.get(rank, ()), newest)
    return tuple(s for s in notes if s.error or s.reason not in _GOES_ON)


def ended_s(dumps: Dumps) -> float | None:
    """
    When was this job ended from outside, by a signal?

    Whoever dies by itself leaves its last words before the others are told to
    end, or none.

    Args:
        dumps: Its side-cars tell.

    Returns:
        When the first rank was told to end, in seconds since the epoch;
        ``None`` if some rank may have died by itself.
    """
    sizes = (s.world_size for s in dumps.sidecars.values())
    if len(dumps.sidecars) < max([1, len(dumps), *sizes]):
        return None

    first: list[Sidecar] = []
    for rank in dumps.sidecars:
        words = last_words(dumps, rank)
        if not words:
            return None
        first.append(words[0])
    begin = min(first, key=died_s)
    return begin.written if begin.reason == "SIGTERM" else None


def died_s(sidecar: Sidecar) -> float:
    """
    When did what ended a rank happen, at the latest?

    Args:
        sidecar: Its last words.

    Returns:
        Seconds since the epoch; a rank may lose its children before it hears
        of the signal that ended them all.
    """
    late_s = _CHILD_FIRST_S if lost_child(sidecar.error) else 0.0
    return sidecar.written + late_s


def was_interrupted(error: str) -> bool:
    """
    Whether a person ended the rank, perhaps because it was stuck.

    Args:
        error: Type and text of the exception.
    """
    return error.startswith("KeyboardInterrupt")


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


@attrs.frozen(kw_only=True)
class Position:
    """
    Where one rank stands in one group; sequence numbers, 0 for none.

    Attributes:
        rank: Global rank.

        last: The newest call that it entered.

        done: The newest call that completed.

        sync_done: The newest completed call that proves that every member
            entered it.

        pending: The oldest call after *done*; 0 if there is none.

        row: Position of its record; -1 if there is none.

        last_row: Position of the record of *last*; -1 if there is none.

        is_final: Whether *last* is the last thing that the rank recorded.

        status: The counters that torch keeps, if they tell of collectives.
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


@attrs.define(kw_only=True, eq=False)
class GroupState:
    """
    What all members together say about one group.

    Attributes:
        group: The group.

        positions: Of the members whose position is known, by rank.

        unknown: Members that left a dump, but lost all records of the group.

        missing: Members without a dump.

        suspects: Sequence numbers at which members did not do the same.

        has_events: Whether "completed" means that, and not "returned".
    """

    group: Group
    positions: dict[int, Position] = attrs.field(factory=dict)
    unknown: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    suspects: NDArray[np.int64] = attrs.field(
        factory=lambda: np.empty(0, np.int64)
    )
    has_events: bool = True

    @property
    def sync_done(self) -> int:
        """
        Every member entered this call, whatever its own dump says.
        """
        everyone = self.positions.values()
        done = max((p.sync_done for p in everyone), default=0)
        # On Gloo, a call that fails because a peer died looks completed.
        failed = (
            self.missing
            and not self.has_events
            and any(p.pending == done for p in everyone)
            and all(p.is_final for p in everyone if p.last == done)
        )
        return done - 1 if failed else done


class _Agreement:
    """
    Do all members do the same, call by call?
    """

    def __init__(self) -> None:
        self.seq = np.empty(0, np.int64)
        self.signature = np.empty(0, np.int64)
        self.suspects: list[NDArray[np.int64]] = []

    def add(self, stream: Stream) -> None:
        if np.array_equal(stream.seq, self.seq):
            differs = stream.signature != self.signature
            if differs.any():
                self.suspects.append(stream.seq[differs])
            return

        common, here, there = np.intersect1d(
            stream.seq, self.seq, assume_unique=True, return_indices=True
        )
        differs = stream.signature[here] != self.signature[there]
        if differs.any():
            self.suspects.append(common[differs])
        if len(common) < len(stream.seq):
            self._extend(stream)

    def _extend(self, stream: Stream) -> None:
        seq = np.concatenate([self.seq, stream.seq])
        signature = np.concatenate([self.signature, stream.signature])
        self.seq, at = np.unique(seq, return_index=True)
        self.signature = signature[at]


def measure_progress(
    dumps: Dumps, membership: Membership, signatures: Signatures
) -> list[GroupState]:
    """
    Find where every rank stands in every group.

    Args:
        dumps: What the ranks recorded.

        membership: The groups of the job.

        signatures: Of the whole job.

    Returns:
        One state per group, in the order of *membership*.
    """
    eventless = _groups_without_events(dumps, membership, signatures)
    states = [
        GroupState(group=g, has_events=i not in eventless)
        for i, g in enumerate(membership.groups)
    ]
    agreements = [_Agreement() for _ in states]
    mixed = _mixed_groups(dumps, membership, signatures)
    for dump in dumps:
        streams = collective_streams(
            dump, membership.by_code[dump.rank], signatures
        )
        for index, position in _positions(
            dump, streams, membership, mixed, eventless
        ):
            states[index].positions[dump.rank] = position
        for index, stream in streams.items():
            agreements[index].add(stream)

    for state, agreement in zip(states, agreements, strict=True):
        _complete(state, agreement, dumps)

    return states


def _complete(state: GroupState, agreement: _Agreement, dumps: Dumps) -> None:
    without = [r for r in state.group.order if r not in state.positions]
    state.unknown = tuple(sorted(r for r in without if r in dumps.by_rank))
    state.missing = tuple(sorted(r for r in without if r not in dumps.by_rank))
    if agreement.suspects:
        state.suspects = np.unique(np.concatenate(agreement.suspects))


def _positions(
    dump: RankDump,
    streams: dict[int, Stream],
    membership: Membership,
    mixed: Mapping[int, tuple[int, int]],
    eventless: set[int],
) -> Iterable[tuple[int, Position]]:
    counters = group_status(dump, membership)
    e = dump.entries
    newest = int(np.argmax(e.record_id)) if len(e) else -1
    # Torch counts from the first call on: a group without counters has none.
    has_all = bool(dump.status) and len(counters) == len(dump.status)
    never_used = has_all or not dump.wrapped
    for index in set(membership.by_name[dump.rank].values()):
        status = counters.get(index)
        if index in streams:
            exact = None if index in mixed else status
            yield index, position_of(dump.rank, streams[index], exact, newest)
        elif status.enqueued <= 0 if status else never_used:
            yield index, Position(rank=dump.rank)
        elif (
            status
            and index not in eventless
            and _counts_collectives(status, mixed.get(index))
        ):
            done = max(status.completed, 0)
            last = status.enqueued
            yield index, Position(rank=dump.rank, last=last, done=done)


def _counts_collectives(
    status: GroupStatus, newest: tuple[int, int] | None
) -> bool:
    """
    Whether the counters, which also count transfers, mean a collective here.
    """
    if newest is None:
        return True

    collective, transfer = newest
    return abs(status.enqueued - collective) < abs(status.enqueued - transfer)


def _mixed_groups(
    dumps: Dumps, membership: Membership, signatures: Signatures
) -> dict[int, tuple[int, int]]:
    """
    Find the groups with point-to-point traffic.

    Returns:
        Per group (as index), the newest collective and the newest transfer
        that any member has on record.
    """
    mixed: dict[int, tuple[int, int]] = {}
    for dump in dumps:
        e = dump.entries
        p2p = is_p2p(e, signatures)
        codes = membership.by_code[dump.rank]
        for code in np.unique(e.group[p2p]).tolist():
            here = e.group == code
            old = mixed.get(codes[code], (0, 0))
            mixed[codes[code]] = (
                max(int(e.seq[here].max()), old[0]),
                max(int(e.p2p_seq[here & p2p].max()), old[1]),
            )

    return mixed


def _groups_without_events(
    dumps: Dumps, membership: Membership, signatures: Signatures
) -> set[int]:
    """
    Find the groups whose counters count calls of any kind, recorded or not.
    """
    silent = ~signatures.column("has_events")
    return {
        membership.by_code[dump.rank][code]
        for dump in dumps
        for code in np.unique(
            dump.entries.group[silent[dump.entries.op]]
        ).tolist()
    }


def position_of(
    rank: int, s: Stream, status: GroupStatus | None, newest: int
) -> Position:
    """
    Where does a rank stand in a group?

    Args:
        rank: Global rank.

        s: What it did in the group.

        status: The counters that torch keeps, if they tell of collectives.

        newest: Position of its last record in any group.
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


def take_back(
    states: Sequence[GroupState],
    dumps: Dumps,
    membership: Membership,
    signatures: Signatures,
) -> None:
    """
    Correct where ranks stand that failed in several calls at once.

    Args:
        states: Where every rank stands in every group; changed.

        dumps: What the ranks recorded.

        membership: The groups of the job.

        signatures: Of the whole job.
    """
    later: dict[int, _Later] = {}
    for dump in dumps:
        if dump.sidecar is None or not failed_on_record(dump.sidecar):
            continue
        limits: dict[int, int] = {}
        for index in set(membership.by_name[dump.rank].values()):
            state = states[index]
            if state.has_events or dump.rank not in state.positions:
                continue
            if index not in later:
                later[index] = _Later.of(state, dumps)
            limit = later[index].least(dump.written_ns)
            if 0 < limit < state.positions[dump.rank].sync_done:
                limits[index] = limit
        if limits:
            _limit_positions(limits, states, dump, membership, signatures)


@attrs.frozen(eq=False)
class _Later:
    """
    What members of a group had entered that tell it late.

    Attributes:
        written_ns: When their dumps were taken, ascending.

        last: The least that any member had entered which told it then, or
            later.
    """

    written_ns: NDArray[np.int64]
    last: NDArray[np.int64]

    @classmethod
    def of(cls, state: GroupState, dumps: Dumps) -> _Later:
        """
        Sort the members of a group by when they tell.
        """
        told = sorted(
            (dumps[p.rank].written_ns, p.last)
            for p in state.positions.values()
            if not dumps[p.rank].truncated
        )
        written, last = np.array(told, np.int64).reshape(-1, 2).T
        return cls(written, np.minimum.accumulate(last[::-1])[::-1])

    def least(self, written_ns: int) -> int:
        """
        The last call that all entered whose dumps are as new; 0 if unknown.
        """
        at = int(np.searchsorted(self.written_ns, written_ns))
        return int(self.last[at]) if written_ns and at < len(self.last) else 0


def _limit_positions(
    limits: dict[int, int],
    states: Sequence[GroupState],
    dump: RankDump,
    membership: Membership,
    signatures: Signatures,
) -> None:
    streams = collective_streams(
        dump, membership.by_code[dump.rank], signatures
    )
    for index, limit in limits.items():
        stream = streams[index]
        is_failed = stream.synchronizes & (stream.seq > limit)
        before = states[index].positions[dump.rank]
        newest = before.last_row if before.is_final else -1
        states[index].positions[dump.rank] = position_of(
            dump.rank,
            attrs.evolve(stream, done=stream.done & ~is_failed),
            before.status,
            newest,
        )
