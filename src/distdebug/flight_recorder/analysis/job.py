"""
What is known about the job, computed once for all questions?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import attrs

from ..columns import Dumps, Frame
from .aborted import take_back
from .membership import Membership, find_groups
from .operations import Operation, Signatures
from .p2p import Channel, find_channels
from .progress import GroupState, measure_progress
from .streams import Stream, collective_streams


__all__ = ["Job", "survey"]

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
