"""
Know the ranks of processes, nodes, and GPUs that lines of logs name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ..identity import same_host
from .collectives.model import CollectiveLogs, rank_origins


class ProcessRanks:
    """
    The known ranks of processes, nodes, and GPUs.
    """

    def __init__(self) -> None:
        self._ranks: defaultdict[tuple[str, str], set[int]] = defaultdict(set)

    def add(self, rank: int, **names: object) -> None:
        """
        Add what is known of a rank.

        Args:
            names: Its ``pid``, ``host``, and ``pci``, the address of its GPU,
                as far as they are known.
        """
        for kind, value in names.items():
            if value not in (None, ""):
                self._ranks[kind, _normalize(kind, str(value))].add(rank)

    def find(self, named: Iterable[tuple[str, str]]) -> set[int]:
        """
        Return the ranks of what lines name.

        A process or a GPU counts only if no other node has one of that name.
        """
        found: set[int] = set()
        for kind, value in named:
            if kind == "host":
                found |= self._ranks_on(value)
                continue
            ranks = self._ranks.get((kind, _normalize(kind, value)), set())
            if len(ranks) == 1:
                found |= ranks
        return found

    def _ranks_on(self, host: str) -> set[int]:
        known = (
            ranks
            for (kind, name), ranks in self._ranks.items()
            if kind == "host" and same_host(name, host)
        )
        return set().union(*known)


NO_PROCESSES = ProcessRanks()


def ranks_of_processes(logs: CollectiveLogs) -> ProcessRanks:
    """
    Return the ranks that lines of watchdogs and NCCL show.
    """
    known = ProcessRanks()
    for origin in rank_origins(logs).values():
        known.add(origin.rank, pid=origin.pid, host=origin.host)
        known.add(origin.rank, host=origin.ip)
    for init in logs.inits:
        if init.size == logs.world_size:
            known.add(init.member, pci=init.bus)
    return known


def _normalize(kind: str, value: str) -> str:
    if kind != "pci":
        return value
    # NCCL prints 4e000 for what the kernel calls 0000:4e:00.0.
    digits = value.replace(":", "").replace(".", "")
    if ":" in value and "." not in value:
        digits += "0"
    return digits.lstrip("0").lower()
