"""
Measure the progress of each rank in each process group; parse exit errors.

One pass over the ranks, with a constant number of array operations for each,
reduces millions of records to one :class:`Position` per member of a group.  It
also collects the sequence numbers at which the signatures of ranks differ.
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


# Torch raises its own error types, and RuntimeError, as other code does.
_TORCH_DIST_ERROR = re.compile(r"(?:\w+\.)*Dist\w*Error\b")
_BACKEND_ERROR = re.compile(
    r"RuntimeError\b(?!.*dataloader).*?(?:gloo|nccl|timed out|pair closure"
    r"|connection (?:closed by peer|reset|refused))",
    re.IGNORECASE | re.DOTALL,
)
_PEER_LOST = re.compile(
    r"connection (?:closed by peer|reset|refused)|broken pipe"
    r"|remote process exit|pair closure",
    re.IGNORECASE,
)
_CHILD_LOST = re.compile(
    r"RuntimeError: DataLoader worker .{0,80}(?:killed by signal"
    r"|exited unexpectedly)|(?:\w+\.){0,9}BrokenProcessPool\b",
)
# Sidecar reasons after which the rank continues.
_RUNNING_REASONS = {"start", "request", "call"}
# A child may receive the signal this much earlier than its rank.
_CHILD_SIGNAL_LEAD_S = 0.1
# Calls that Gloo does not record (torch 2.13).
_UNRECORDED_CALLS = {"irecv", "isend", "monitored_barrier", "recv", "send"}


def is_collective_error(error: str) -> bool:
    """
    Return whether an exception came out of a collective, not other code.

    Args:
        error: Type and message, such as ``"RuntimeError: Connection closed by
            peer"``.
    """
    return bool(_TORCH_DIST_ERROR.match(error) or _BACKEND_ERROR.match(error))


def failed_in_unrecorded_call(sidecar: Sidecar) -> bool:
    """
    Return whether a rank failed in a call that Gloo does not record.
    """
    if not is_collective_error(sidecar.error):
        return False

    stack = dict(sidecar.threads).get("MainThread", ())
    in_torch = (
        frame.name
        for frame in stack
        if frame.filename.endswith("distributed_c10d.py")
    )
    return next(in_torch, "") in _UNRECORDED_CALLS


def failed_in_recorded_call(sidecar: Sidecar) -> bool:
    """
    Return whether a rank failed in the last call that it recorded.
    """
    return is_collective_error(
        sidecar.error
    ) and not failed_in_unrecorded_call(sidecar)


def is_peer_lost_error(error: str) -> bool:
    """
    Return whether a collective failed because another rank was gone.

    Args:
        error: Type and message of the exception.
    """
    return is_collective_error(error) and bool(_PEER_LOST.search(error))


def is_child_lost_error(error: str) -> bool:
    """
    Return whether a rank failed because its child process was gone.

    Args:
        error: Type and message of the exception.
    """
    return bool(_CHILD_LOST.match(error))


def exit_sidecars(dumps: Dumps, rank: int) -> tuple[Sidecar, ...]:
    """
    Return the sidecars that a rank wrote at its exit, oldest first.

    They are empty for a rank that still runs, and for one that left none.
    """
    newest = dumps.sidecars.get(rank)
    if newest is None:
        return ()

    sidecars = (*dumps.earlier.get(rank, ()), newest)
    return tuple(
        s for s in sidecars if s.error or s.reason not in _RUNNING_REASONS
    )


def sigterm_time_s(dumps: Dumps) -> float | None:
    """
    Return when SIGTERM ended the job from outside.

    A rank that fails by itself writes its exit sidecar before the others
    receive SIGTERM, or writes none.

    Returns:
        Time of the first SIGTERM in seconds since the epoch; ``None`` if some
        rank may have failed by itself.
    """
    sizes = (s.world_size for s in dumps.sidecars.values())
    if len(dumps.sidecars) < max([1, len(dumps), *sizes]):
        return None

    first: list[Sidecar] = []
    for rank in dumps.sidecars:
        sidecars = exit_sidecars(dumps, rank)
        if not sidecars:
            return None
        first.append(sidecars[0])
    earliest = min(first, key=exit_time_s)
    return earliest.written if earliest.reason == "SIGTERM" else None


def exit_time_s(sidecar: Sidecar) -> float:
    """
    Return the latest possible time of the event that ended a rank.

    A rank may lose its children before it receives the signal that ended all.

    Args:
        sidecar: One that it wrote at its exit.

    Returns:
        Seconds since the epoch.
    """
    lead_s = (
        _CHILD_SIGNAL_LEAD_S if is_child_lost_error(sidecar.error) else 0.0
    )
    return sidecar.written + lead_s


def is_keyboard_interrupt(error: str) -> bool:
    """
    Return whether a user interrupted the rank, perhaps because it was stuck.

    Args:
        error: Type and message of the exception.
    """
    return error.startswith("KeyboardInterrupt")


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


def collective_streams(
    dump: RankDump, codes: Mapping[int, int], signatures: Signatures
) -> dict[int, Stream]:
    """
    Split the collectives of one rank by group.

    Args:
        codes: Group index by group code of the records.

    Returns:
        One stream per group index in which the rank recorded a collective.
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
    # A batch of coalesced calls shares one sequence number.
    first = np.flatnonzero(
        np.r_[True, (group[1:] != group[:-1]) | (seq[1:] != seq[:-1])]
    )
    calls = _merge_batches(dump, rows, first, signatures)
    edges = np.flatnonzero(np.r_[True, np.diff(group[first]) != 0, True])
    return {
        int(group[first[a]]): Stream(
            seq=seq[first[a:b]],
            **{name: column[a:b] for name, column in calls.items()},
        )
        for a, b in pairwise(edges.tolist())
    }


def _merge_batches(
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
    # Only the end record of a batch changes its state, the parts never do.
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
    Return a mask of point-to-point records, for all dump versions.
    """
    return e.is_p2p | signatures.column("is_p2p")[e.op]


def is_done(dump: RankDump, signatures: Signatures) -> NDArray[np.bool_]:
    """
    Return a mask of completed calls; failed and pending ones are not.

    Backends without device events (Gloo) never record "completed".  There, a
    call that torch has retired is done, unless it is the one that failed.
    """
    e = dump.entries
    # A call that the watchdog aborted is marked as completed, too.
    took_ns = e.completed_ns - e.created_ns
    is_aborted = (
        (e.timeout_ms > 0)
        & (e.completed_ns > 0)
        & (took_ns >= e.timeout_ms * 950_000)
    )
    completed = ((e.state == COMPLETED) | (e.completed_ns > 0)) & ~is_aborted
    has_events = signatures.column("has_events")[e.op]
    done = np.where(has_events, completed, e.retired)
    if len(done) and dump.sidecar and failed_in_recorded_call(dump.sidecar):
        last = np.argmax(e.record_id)
        done[last] &= has_events[last]

    return done


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


@attrs.define(kw_only=True, eq=False)
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


class _SignatureComparison:
    """
    Comparison of the signatures of all members, call by call.
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

        common, own, known = np.intersect1d(
            stream.seq, self.seq, assume_unique=True, return_indices=True
        )
        differs = stream.signature[own] != self.signature[known]
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
    Return the progress of every rank, one state per group of *membership*.
    """
    eventless = _groups_without_events(dumps, membership, signatures)
    states = [
        GroupState(group=g, has_events=i not in eventless)
        for i, g in enumerate(membership.groups)
    ]
    agreements = [_SignatureComparison() for _ in states]
    mixed = _p2p_groups(dumps, membership, signatures)
    for dump in dumps:
        streams = collective_streams(
            dump, membership.by_code[dump.rank], signatures
        )
        for index, position in _rank_positions(
            dump, streams, membership, mixed, eventless
        ):
            states[index].positions[dump.rank] = position
        for index, stream in streams.items():
            agreements[index].add(stream)

    for state, agreement in zip(states, agreements, strict=True):
        _complete_state(state, agreement, dumps)

    return states


def _complete_state(
    state: GroupState, agreement: _SignatureComparison, dumps: Dumps
) -> None:
    without = [r for r in state.group.order if r not in state.positions]
    state.unknown = tuple(sorted(r for r in without if r in dumps.by_rank))
    state.missing = tuple(sorted(r for r in without if r not in dumps.by_rank))
    if agreement.suspects:
        state.suspects = np.unique(np.concatenate(agreement.suspects))


def _rank_positions(
    dump: RankDump,
    streams: dict[int, Stream],
    membership: Membership,
    mixed: Mapping[int, tuple[int, int]],
    eventless: set[int],
) -> Iterable[tuple[int, Position]]:
    counters = group_status(dump, membership)
    e = dump.entries
    newest = int(np.argmax(e.record_id)) if len(e) else -1
    # Counters begin at the first call, so a group without them had none.
    has_all = bool(dump.status) and len(counters) == len(dump.status)
    never_used = has_all or not dump.wrapped
    for index in set(membership.by_name[dump.rank].values()):
        status = counters.get(index)
        if index in streams:
            exact = None if index in mixed else status
            yield (
                index,
                find_position(dump.rank, streams[index], exact, newest),
            )
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
    Return whether the counters, which also count transfers, mean a collective.
    """
    if newest is None:
        return True

    collective, transfer = newest
    return abs(status.enqueued - collective) < abs(status.enqueued - transfer)


def _p2p_groups(
    dumps: Dumps, membership: Membership, signatures: Signatures
) -> dict[int, tuple[int, int]]:
    """
    Find the groups with point-to-point traffic.

    Returns:
        By group index, the newest sequence numbers of collectives and of
        transfers that any member recorded.
    """
    mixed: dict[int, tuple[int, int]] = {}
    for dump in dumps:
        e = dump.entries
        p2p = is_p2p(e, signatures)
        codes = membership.by_code[dump.rank]
        for code in np.unique(e.group[p2p]).tolist():
            in_group = e.group == code
            old = mixed.get(codes[code], (0, 0))
            mixed[codes[code]] = (
                max(int(e.seq[in_group].max()), old[0]),
                max(int(e.p2p_seq[in_group & p2p].max()), old[1]),
            )

    return mixed


def _groups_without_events(
    dumps: Dumps, membership: Membership, signatures: Signatures
) -> set[int]:
    """
    Return groups whose counters include calls that are not recorded.
    """
    silent = ~signatures.column("has_events")
    return {
        membership.by_code[dump.rank][code]
        for dump in dumps
        for code in np.unique(
            dump.entries.group[silent[dump.entries.op]]
        ).tolist()
    }


def find_position(
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


def correct_failed_ranks(
    states: Sequence[GroupState],
    dumps: Dumps,
    membership: Membership,
    signatures: Signatures,
) -> None:
    """
    Correct the progress of ranks that failed in several calls at once.

    Args:
        states: Result of :func:`measure_progress`; changed in place.
    """
    entered_by_all: dict[int, _EnteredByAll] = {}
    for dump in dumps:
        if dump.sidecar is None or not failed_in_recorded_call(dump.sidecar):
            continue
        limits: dict[int, int] = {}
        for index in set(membership.by_name[dump.rank].values()):
            state = states[index]
            if state.has_events or dump.rank not in state.positions:
                continue
            if index not in entered_by_all:
                entered_by_all[index] = _EnteredByAll.of(state, dumps)
            limit = entered_by_all[index].at_time(dump.written_ns)
            if 0 < limit < state.positions[dump.rank].sync_done:
                limits[index] = limit
        if limits:
            _limit_positions(limits, states, dump, membership, signatures)


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
            (dumps[p.rank].written_ns, p.last)
            for p in state.positions.values()
            if not dumps[p.rank].truncated
        )
        written, last = np.array(members, np.int64).reshape(-1, 2).T
        return cls(written, np.minimum.accumulate(last[::-1])[::-1])

    def at_time(self, written_ns: int) -> int:
        """
        Return the newest call in all dumps since then; 0 if unknown.
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
        states[index].positions[dump.rank] = find_position(
            dump.rank,
            attrs.evolve(stream, done=stream.done & ~is_failed),
            before.status,
            newest,
        )
