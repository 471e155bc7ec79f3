"""
Who is the process of this number?
"""

from __future__ import annotations

from collections.abc import Mapping

from .family import Family, family_of
from .model import Worker
from .scan import Process, list_processes
from .survey import describe_workers, survey


__all__ = ["worker_of"]


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
    family = family_of(list_processes(root))
    process = family.processes.get(pid)
    if process is None:
        return None

    scene, claims = survey(
        family_of(_relatives(family, process)),
        lambda other: other.pid == pid,
        root,
    )
    return next(
        iter(describe_workers(scene, claims, claims.keys() & {pid})), None
    )


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
