"""
How far did each rank get in each group?

One pass over the ranks, a constant number of array operations each, reduces
millions of records to one :class:`Position` per member of a group, and notes
on the way which calls do not look the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import numpy as np

from numpy.typing import NDArray

from ..columns import Dumps, GroupStatus, RankDump
from .membership import Group, Membership, group_status
from .operations import Signatures
from .streams import Stream, collective_streams, is_p2p


__all__ = ["GroupState", "Position", "measure_progress", "position_of"]


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
