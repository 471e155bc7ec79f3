"""
Compute groups, progress, and point-to-point channels of a job once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import attrs
import numpy as np

from numpy.typing import NDArray

from ..reading.columns import Dumps, Frame, RankDump
from .membership import (
    Group,
    Membership,
    Operation,
    Signatures,
    find_groups,
    group_status,
)
from .progress import (
    GroupState,
    Stream,
    collective_streams,
    correct_failed_ranks,
    is_done,
    is_p2p,
    measure_progress,
)


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


@attrs.frozen(kw_only=True, eq=False)
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


def find_channels(
    dumps: Dumps, membership: Membership, signatures: Signatures
) -> list[Channel]:
    """
    Return one channel per group, source rank, and target rank.
    """
    sides: dict[tuple[int, int, int], dict[bool, Side]] = defaultdict(dict)
    for dump in dumps:
        for key, is_send, side in _channel_sides(dump, membership, signatures):
            sides[key][is_send] = side

    return [
        Channel(
            group=group,
            source=source,
            target=target,
            send=side.get(True),
            recv=side.get(False),
        )
        for (group, source, target), side in sides.items()
    ]


def _channel_sides(
    dump: RankDump, membership: Membership, signatures: Signatures
) -> Iterator[tuple[tuple[int, int, int], bool, Side]]:
    """
    Yield channel key, whether it is the sending side, and the side of a rank.
    """
    e = dump.entries
    p2p = is_p2p(e, signatures)
    if not p2p.any():
        return

    done = _is_done_in_batch(dump, p2p, signatures)
    if dump.is_filtered:
        done |= _in_idle_groups(dump, membership)
    rows_of: dict[tuple[int, int], list[int]] = defaultdict(list)
    rows = np.flatnonzero(p2p & signatures.column("is_p2p")[e.op])
    for row, op, code in zip(
        rows.tolist(), e.op[rows].tolist(), e.group[rows].tolist(), strict=True
    ):
        rows_of[code, op].append(row)
    for (code, op), found in rows_of.items():
        operation = signatures.operations[op]
        index = membership.by_code[dump.rank][code]
        ends = _endpoints(dump.rank, operation, membership.groups[index])
        if ends is not None:
            side = _make_side(dump, np.array(found), done)
            yield (index, *ends), operation.is_send, side


def _endpoints(
    rank: int, operation: Operation, group: Group
) -> tuple[int, int] | None:
    """
    Return source and target as global ranks; ``None`` if unknown.
    """
    last = max(operation.source, operation.target)
    if not group.is_known or last >= len(group.order):
        return None

    source, target = (
        group.order[operation.source],
        group.order[operation.target],
    )
    mine = source if operation.is_send else target
    return (source, target) if rank == mine else None


def _make_side(
    dump: RankDump, rows: NDArray[np.int64], done: NDArray[np.bool_]
) -> Side:
    completed = np.flatnonzero(done[rows])
    newest = int(completed[-1]) if len(completed) else -1
    return Side(
        rank=dump.rank,
        rows=rows,
        pending=len(rows) - 1 - newest,
        is_whole=not dump.wrapped and not dump.is_filtered,
    )


def _in_idle_groups(
    dump: RankDump, membership: Membership
) -> NDArray[np.bool_]:
    """
    Return a mask of the records in groups without pending calls.

    A dump of active calls only keeps the parts of batches for ever, but not
    the end records that complete them.
    """
    codes = membership.by_code[dump.rank]
    idle = {
        group
        for group, status in group_status(dump, membership).items()
        if status.enqueued == status.completed
    }
    return np.isin(
        dump.entries.group,
        [code for code, group in codes.items() if group in idle],
    )


def _is_done_in_batch(
    dump: RankDump, p2p: NDArray[np.bool_], signatures: Signatures
) -> NDArray[np.bool_]:
    """
    Return a mask of completed calls; the end of a batch completes its parts.
    """
    e = dump.entries
    done = is_done(dump, signatures)
    is_end = signatures.column("ends_batch")[e.op]
    batches: dict[tuple[int, int], list[int]] = defaultdict(list)
    rows = np.flatnonzero(p2p)
    for row, code, seq in zip(
        rows.tolist(),
        e.group[rows].tolist(),
        e.p2p_seq[rows].tolist(),
        strict=True,
    ):
        batches[code, seq].append(row)
    for batch in batches.values():
        if len(batch) > 1:
            # Without an end record, it is complete: the dump has active calls.
            done[batch] = all(done[row] for row in batch if is_end[row])

    return done


Stack = tuple[Frame, ...]


@attrs.define(kw_only=True, eq=False)
class Job:
    """
    The dumps of a job and what is computed from them once.

    Attributes:
        states: Progress of every rank, one state per group.

        channels: Point-to-point traffic.
    """

    dumps: Dumps
    membership: Membership
    signatures: Signatures
    states: list[GroupState]
    channels: list[Channel]
    _streams: dict[int, dict[int, Stream]] = attrs.field(factory=dict)
    _stacks: dict[tuple[int, int], Stack] = attrs.field(factory=dict)

    def stream(self, rank: int, group: int) -> Stream | None:
        """
        Return the collectives of a rank in a group; ``None`` if it has none.
        """
        if rank not in self.dumps.by_rank:
            return None
        if rank not in self._streams:
            self._streams[rank] = collective_streams(
                self.dumps[rank],
                self.membership.by_code[rank],
                self.signatures,
            )
        return self._streams[rank].get(group)

    def operation(self, rank: int, row: int) -> Operation:
        """
        Return the operation of one record of a rank.
        """
        op = int(self.dumps[rank].entries.op[row])
        return self.signatures.operations[op]

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


def build_job(dumps: Dumps) -> Job:
    """
    Return the groups, progress, and channels of a job.
    """
    membership = find_groups(dumps)
    signatures = Signatures(dumps.ops, dumps.shapes)
    states = measure_progress(dumps, membership, signatures)
    correct_failed_ranks(states, dumps, membership, signatures)
    return Job(
        dumps=dumps,
        membership=membership,
        signatures=signatures,
        states=states,
        channels=find_channels(dumps, membership, signatures),
    )
