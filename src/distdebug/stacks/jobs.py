"""
Which processes belong to the same job?

On a node there may be several jobs, each with a rank 0.  Nobody waits for a
rank of another job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .model import ProcessStacks


__all__ = ["split_jobs"]


def split_jobs(
    processes: Iterable[ProcessStacks],
) -> dict[str, tuple[ProcessStacks, ...]]:
    """
    Sort processes by job.

    A process that does not know its job belongs to that of its parent, its
    children, or its siblings; and a rank to the only job that there is.

    Args:
        processes: The processes of any number of jobs.

    Returns:
        The processes of each job, by what tells it from others; ``""`` if
        nothing does.  The order is that of *processes*.
    """
    known = tuple(processes)
    names = {(p.host, p.pid): p.job for p in known if p.job}
    for process in known:
        if process.job and process.parent_pid is not None:
            # That is how its launcher and its siblings know it.
            names.setdefault((process.host, process.parent_pid), process.job)
    all_names = set(names.values())
    only = all_names.pop() if len(all_names) == 1 else ""

    jobs: dict[str, list[ProcessStacks]] = {}
    for process in known:
        name = _name(process, names)
        if not name and process.rank is not None:
            name = only
        jobs.setdefault(name, []).append(process)
    return {name: tuple(members) for name, members in jobs.items()}


def _name(
    process: ProcessStacks, names: Mapping[tuple[str | None, int], str]
) -> str:
    own = names.get((process.host, process.pid), "")
    if own or process.parent_pid is None:
        return own

    return names.get((process.host, process.parent_pid), "")
