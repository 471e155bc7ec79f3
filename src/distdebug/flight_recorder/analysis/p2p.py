"""
Which sends and receives do not meet?

Point-to-point calls are matched per (group, source, target), in order.  Their
sequence numbers count all point-to-point calls of a rank in the group, so they
never compare between ranks; what compares is the *k*-th send with the *k*-th
receive of the same pair.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import attrs
import numpy as np

from numpy.typing import NDArray

from ..columns import Dumps, RankDump
from .membership import Group, Membership, group_status
from .operations import Operation, Signatures
from .streams import is_done, is_p2p


__all__ = ["Channel", "Side", "find_channels"]


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
