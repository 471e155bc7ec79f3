"""
Who are the processes of these numbers?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .model import Worker
from .roles.family import Family, family_of
from .roles.scan import Process, list_processes
from .roles.scene import Claim
from .roles.survey import describe_workers, survey


__all__ = ["worker_of", "workers_of"]


def worker_of(pid: int, root: str = "/proc") -> Worker | None:
    """
    Who is the process of this number, to its job?

    Args:
        pid: A process that the user named, whatever it is.

        root: Where the kernel's files are.

    Returns:
        The process; its framework is ``"pattern"`` if none is known to have
        started it.  ``None`` if there is no such process.
    """
    return next(iter(workers_of([pid], root)), None)


def workers_of(pids: Iterable[int], root: str = "/proc") -> tuple[Worker, ...]:
    """
    Who are the processes of these numbers, to their job?

    Args:
        pids: Processes that the user named, whatever they are.

        root: Where the kernel's files are.

    Returns:
        Those that are there; as for :func:`worker_of`.
    """
    named = frozenset(pids)
    family = family_of(list_processes(root, named=named))
    wanted = family.processes.keys() & named
    related: dict[int, Process] = {}
    for pid in wanted:
        if pid not in related:
            related.update(_relatives(family, family.processes[pid]))
    scene, claims = survey(
        family_of(related), lambda other: other.pid in wanted, root
    )
    # Also whom a search would leave out, such as the twin of a rank.
    for pid in wanted - claims.keys():
        claims[pid] = Claim("pattern", "rank")
    return describe_workers(scene, claims, wanted)


def _relatives(family: Family, process: Process) -> Mapping[int, Process]:
    """
    Who matters for what a process is: those above it, and all below them.

    The others need not be looked at, which takes a millisecond for each.
    """
    above = list(family.ancestors(process))
    interpreters = [p for p in above if p.is_python]
    top = interpreters[-1] if interpreters else process
    related = [process, *above, *family.below(top.pid)]
    return {p.pid: p for p in related}
