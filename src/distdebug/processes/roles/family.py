"""
Who descends from whom?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from .frameworks import MULTIPROCESSING, MULTIPROCESSING_HELPER
from .scan import Process


__all__ = ["Family", "family_of"]


@attrs.frozen
class Family:
    """
    The processes of a node as a tree.

    Attributes:
        processes: Processes by number.

        children: Numbers of the children of a process, by its own.
    """

    processes: Mapping[int, Process]
    children: Mapping[int, tuple[int, ...]]

    def parent(self, process: Process) -> Process | None:
        """
        The process that started this one.
        """
        parent = self.processes.get(process.parent_pid)
        # A number can be used again; whoever started it is older.
        if parent and parent.start_ticks <= process.start_ticks:
            return parent
        return None

    def ancestors(self, process: Process) -> Iterator[Process]:
        """
        The processes above this one, nearest first.
        """
        seen = {process.pid}
        above = self.parent(process)
        while above is not None and above.pid not in seen:
            yield above
            seen.add(above.pid)
            above = self.parent(above)

    def elder(self, process: Process) -> Process | None:
        """
        The process in Python that this one comes from, if there is one.

        Shells and other wrappers between them do not count, nor do the
        servants of *multiprocessing*.
        """
        for above in self.ancestors(process):
            if above.is_python and not self.is_servant(above):
                return above
        return None

    def is_servant(self, process: Process) -> bool:
        """
        Whether a process only helps *multiprocessing*.

        What a fork server forks has the same command line as the server.
        """
        if MULTIPROCESSING_HELPER.search(process.text) is None:
            return False
        parent = self.parent(process)
        return parent is None or parent.text != process.text

    def is_copy(self, process: Process, elder: Process) -> bool:
        """
        Whether *multiprocessing* started a process: anew, or as a copy.
        """
        if MULTIPROCESSING.search(process.text):
            return True
        is_zombie = not process.arguments
        same = process.name == elder.name if is_zombie else False
        return same or process.text == elder.text

    def walk(self) -> Iterator[Process]:
        """
        Every process, parents before their children.
        """
        # Last come those without a parent, from where all others are reached.
        waiting = sorted(
            self.processes,
            key=lambda pid: self.parent(self.processes[pid]) is None,
        )
        seen: set[int] = set()
        while waiting:
            pid = waiting.pop()
            if pid not in seen:
                seen.add(pid)
                yield self.processes[pid]
                waiting.extend(self.children.get(pid, ()))

    def below(self, pid: int) -> Iterator[Process]:
        """
        The processes that descend from one, parents before their children.
        """
        waiting, seen = list(self.children.get(pid, ())), {pid}
        while waiting:
            child = waiting.pop()
            if child not in seen:
                seen.add(child)
                yield self.processes[child]
                waiting.extend(self.children.get(child, ()))


def family_of(processes: Mapping[int, Process]) -> Family:
    """
    Who descends from whom?

    Args:
        processes: Processes by number.
    """
    children: dict[int, list[int]] = {}
    family = Family(processes, {})
    for process in processes.values():
        parent = family.parent(process)
        if parent is not None and parent.pid != process.pid:
            children.setdefault(parent.pid, []).append(process.pid)
    return Family(
        processes, {pid: tuple(found) for pid, found in children.items()}
    )
