"""
What does it mean that a rank has no record of a call?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import attrs

from ....findings import Diagnosis
from ....flight_recorder.analysis.report import FlightReport
from .recorded import Recorded, State


__all__ = ["Absences", "absences_of"]


@attrs.frozen(kw_only=True)
class Absences:
    """
    What tells why ranks are absent.

    Attributes:
        blamed: Who is at fault.

        seen: Who left a dump.

        busy: In which groups (as index) each rank waits; -1 for a transfer.

        outdated: Whose dump was written before the others'.
    """

    blamed: frozenset[int]
    seen: frozenset[int]
    busy: Mapping[int, frozenset[int]]
    outdated: frozenset[int]

    def state(self, rank: int, group: int) -> int:
        """
        The state of a call that a rank has no record of.

        Args:
            rank: The rank.

            group: The group of the call, as index.
        """
        if rank not in self.seen:
            return State.NO_DUMP
        if rank in self.outdated:
            return State.NOT_RECORDED
        if self.busy.get(rank, frozenset()) - {group}:
            return State.ELSEWHERE

        return State.NOT_ENTERED


def absences_of(
    recorded: Recorded, diagnosis: Diagnosis, flight: FlightReport
) -> Absences:
    """
    What tells why ranks are absent?

    Args:
        recorded: What all ranks recorded.

        diagnosis: What is wrong with the job.

        flight: What the dumps say about it.
    """
    names: dict[tuple[str, tuple[int, ...]], int] = {}
    for i, group in enumerate(recorded.membership.groups):
        for rank in group.order:
            names[group.name, (rank,)] = i
    busy: dict[int, set[int]] = defaultdict(set)
    for wait in flight.waits:
        for rank in wait.waiting:
            # A transfer is in no column: it keeps a rank from all of them.
            at = -1 if wait.p2p else names.get((wait.group, (rank,)), -1)
            busy[rank].add(at)

    return Absences(
        blamed=frozenset(diagnosis.verdict.ranks),
        seen=frozenset(recorded.dumps.by_rank),
        busy={rank: frozenset(groups) for rank, groups in busy.items()},
        outdated=frozenset(flight.outdated),
    )
