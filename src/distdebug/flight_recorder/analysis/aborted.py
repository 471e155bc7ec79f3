"""
Which calls look as if they had completed, and failed?

Gloo records no completion: torch stops watching a call that fails as well as
one that succeeds.  A rank that dies of a call has failed in the last one on
record, and in those before it that were made asynchronously and that another
member, whose dump is newer, never entered.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from numpy.typing import NDArray

from ..columns import Dumps, RankDump
from .endings import failed_on_record
from .membership import Membership
from .operations import Signatures
from .progress import GroupState, position_of
from .streams import collective_streams


__all__ = ["take_back"]


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
