"""
What is known about the job, computed once for all questions?
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
    is_done,
    is_p2p,
    measure_progress,
    take_back,
)


@attrs.frozen(kw_only=True, eq=False)
class Side:
    """
    One end of a channel, as its rank recorded it.

    Attributes:
        rank: Global rank.

        rows: Positions of its records, in order.

        pending: How many of the last ones are not complete.

        is_whole: Whether the first one is on record.
    """

    rank: int
    rows: NDArray[np.int64]
    pending: int
    is_whole: bool

    @property
    def oldest_pending(self) -> int:
        """
        Position of the record of the oldest pending call.
        """
        return int(self.rows[-self.pending])


@attrs.frozen(kw_only=True, eq=False)
class Channel:
    """
    All sends from one rank to another in one group, and their receives.

    Attributes:
        group: The group, as index.

        source: Global rank that sends.

        target: Global rank that receives.

        send: What *source* recorded; ``None`` if it recorded nothing.

        recv: What *target* recorded, likewise.
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
    Find every pair of ranks that exchanged something, in each direction.

    Args:
        dumps: What the ranks recorded.

        membership: The groups of the job.

        signatures: Of the whole job.

    Returns:
        One channel per group, source, and target.
    """
    sides: dict[tuple[int, int, int], dict[bool, Side]] = defaultdict(dict)
    for dump in dumps:
        for key, is_send, side in _sides(dump, membership, signatures):
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


def _sides(
    dump: RankDump, membership: Membership, signatures: Signatures
) -> Iterator[tuple[tuple[int, int, int], bool, Side]]:
    """
    Sort the sends and receives of one rank by channel.

    Yields:
        Channel, whether it is the sending side, and the side.
    """
    e = dump.entries
    p2p = is_p2p(e, signatures)
    if not p2p.any():
        return

    done = _batched_done(dump, p2p, signatures)
    if dump.is_filtered:
        done |= _at_rest(dump, membership)
    rows_of: dict[tuple[int, int], list[int]] = defaultdict(list)
    rows = np.flatnonzero(p2p & signatures.column("is_p2p")[e.op])
    for row, op, code in zip(
        rows.tolist(), e.op[rows].tolist(), e.group[rows].tolist(), strict=True
    ):
        rows_of[code, op].append(row)
    for (code, op), found in rows_of.items():
        operation = signatures.operations[op]
        index = membership.by_code[dump.rank][code]
        ends = _ends(dump.rank, operation, membership.groups[index])
        if ends is not None:
            side = _side(dump, np.array(found), done)
            yield (index, *ends), operation.is_send, side


def _ends(
    rank: int, operation: Operation, group: Group
) -> tuple[int, int] | None:
    """
    Source and target as global ranks; ``None`` if they cannot be told.
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


def _side(
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


def _at_rest(dump: RankDump, membership: Membership) -> NDArray[np.bool_]:
    """
    Which records belong to groups in which nothing is pending?

    A dump of active calls only keeps the parts of batches for ever, but not
    the ends that would say that they are done.
    """
    codes = membership.by_code[dump.rank]
    resting = {
        group
        for group, status in group_status(dump, membership).items()
        if status.enqueued == status.completed
    }
    return np.isin(
        dump.entries.group,
        [code for code, group in codes.items() if group in resting],
    )


def _batched_done(
    dump: RankDump, p2p: NDArray[np.bool_], signatures: Signatures
) -> NDArray[np.bool_]:
    """
    Which calls are done, where the end of a batch speaks for its parts?
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
            # An end that is not on record was left out, because it is done.
            done[batch] = all(done[row] for row in batch if is_end[row])

    return done


Stack = tuple[Frame, ...]


@attrs.define(kw_only=True, eq=False)
class Job:
    """
    The dumps of a job and what follows directly from them.

    Attributes:
        dumps: What the ranks recorded.

        membership: The groups of the job.

        signatures: What makes calls comparable.

        states: Where every rank stands in every group.

        channels: The point-to-point traffic.
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
        The collectives of one rank in one group; ``None`` if it has none.
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
        What one record of one rank called.
        """
        op = int(self.dumps[rank].entries.op[row])
        return self.signatures.operations[op]

    def stack(self, rank: int, row: int) -> Stack:
        """
        Where one record of one rank was made, innermost line first.
        """
        self.read_stacks([(rank, row)])
        return self._stacks[rank, row]

    def read_stacks(self, places: Iterable[tuple[int, int]]) -> None:
        """
        Read at once, which is much faster, what is asked for one by one later.

        Args:
            places: Ranks and the positions of their records.
        """
        wanted: dict[int, list[int]] = defaultdict(list)
        for rank, row in dict.fromkeys(places):
            if (rank, row) not in self._stacks:
                wanted[rank].append(row)
        for rank, stacks in self.dumps.frames_of(wanted).items():
            keys = ((rank, row) for row in wanted[rank])
            self._stacks.update(zip(keys, stacks, strict=True))


def survey(dumps: Dumps) -> Job:
    """
    Find the groups, the progress, and the traffic of a job.

    Args:
        dumps: What the ranks recorded.

    Returns:
        What all questions need.
    """
    membership = find_groups(dumps)
    signatures = Signatures(dumps.ops, dumps.shapes)
    states = measure_progress(dumps, membership, signatures)
    take_back(states, dumps, membership, signatures)
    return Job(
        dumps=dumps,
        membership=membership,
        signatures=signatures,
        states=states,
        channels=find_channels(dumps, membership, signatures),
    )
