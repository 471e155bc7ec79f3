"""
Which processes belong to the same job?

On a node there may be several jobs, each with a rank 0.  Nobody waits for a
rank of another job.  If nothing names the jobs, but a rank is there twice, then
those with the same parent are taken for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..findings import Finding
from .model import ProcessStacks


__all__ = [
    "is_same_job",
    "members_of_job",
    "split_jobs",
    "without_strangers",
]

_MOST_ANCESTORS = 16
_DEAD = frozenset({"Z", "X", "x"})

_Place = tuple[str | None, int]


def split_jobs(
    processes: Iterable[ProcessStacks],
) -> dict[str, tuple[ProcessStacks, ...]]:
    """
    Sort processes by job.

    A process that does not know its job belongs to that of its parent, its
    children, or its siblings; and a rank to the only job that there is, unless
    that has another process of this rank.

    Args:
        processes: The processes of any number of jobs.

    Returns:
        The processes of each job, by what tells it from others, such as
        ``"of parent 4711"``; ``""`` if nothing does.  The order is that of
        *processes*.
    """
    known = tuple(processes)
    names = {(p.host, p.pid): p.job for p in known if p.job}
    for process in known:
        if process.job and process.parent_pid is not None:
            # That is how its launcher and its siblings know it.
            names.setdefault((process.host, process.parent_pid), process.job)
    all_names = set(names.values())
    only = all_names.pop() if len(all_names) == 1 else ""
    taken = {p.rank for p in _ranks(known) if only and _name(p, names)}

    jobs: dict[str, list[ProcessStacks]] = {}
    for process in known:
        name = _name(process, names)
        if not name and process.rank is not None:
            name = only if process.rank not in taken else _stranger(process)
        jobs.setdefault(name, []).append(process)
    split = {name: tuple(members) for name, members in jobs.items()}
    if _has_twins(nameless := split.get("", ())):
        del split[""]
        split.update(_by_parent(nameless))
    return split


def without_strangers(
    processes: Iterable[ProcessStacks],
) -> tuple[ProcessStacks, ...]:
    """
    Leave out the dead that have nothing to do with any rank.

    A zombie has lost its environment, so that only its ancestors tell whose it
    was.

    Args:
        processes: The processes of any number of jobs.

    Returns:
        All the others, and everybody on nodes without ranks.
    """
    known = tuple(processes)
    kin: dict[_Place, str] = {}
    for rank in known:
        if rank.rank is not None and rank.parent_pid is not None:
            kin[rank.host, rank.pid] = kin[rank.host, rank.parent_pid] = "kin"
    hosts = {host for host, _ in kin}
    parents = {(p.host, p.pid): p.parent_pid for p in known}
    return tuple(
        p
        for p in known
        if p.host not in hosts
        or not _is_nameless(p)
        or _inherited(p, parents, kin)
    )


def _is_nameless(process: ProcessStacks) -> bool:
    """
    Whether a process has ended, and does not tell whose it was.
    """
    if process.job or process.state not in _DEAD:
        return False
    # The first thread may end before the others do.
    lives = any(
        t.frames or t.state not in {"", *_DEAD} for t in process.threads
    )
    return process.rank is None and not lives


def members_of_job(
    finding: Finding, processes: Iterable[ProcessStacks]
) -> tuple[ProcessStacks, ...]:
    """
    Which processes belong to the job that a finding is about?

    Args:
        finding: Any finding.  The files that it quotes tell.

        processes: The processes of any number of jobs.

    Returns:
        Those of its job; all of them if it quotes none.
    """
    known = tuple(processes)
    quoted = {evidence.source for evidence in finding.evidence}
    jobs = [
        members
        for members in split_jobs(known).values()
        if any(p.source in quoted for p in members)
    ]
    return tuple(p for members in jobs for p in members) or known


def is_same_job(
    one: Finding, other: Finding, processes: Iterable[ProcessStacks]
) -> bool:
    """
    Whether two findings may be about the same job.

    Args:
        one: A finding.

        other: Another one.

        processes: The processes of any number of jobs.
    """
    known = tuple(processes)
    own = {p.source for p in members_of_job(one, known)}
    others = {p.source for p in members_of_job(other, known)}
    return not known or not own.isdisjoint(others)


def _stranger(process: ProcessStacks) -> str:
    # Pasted stacks, which have no process, may show the same rank twice.
    is_known = process.pid and process.parent_pid is not None
    return f"of parent {process.parent_pid}" if is_known else ""


def _has_twins(processes: Iterable[ProcessStacks]) -> bool:
    ranks = [p.rank for p in _ranks(processes)]
    return len(ranks) > len(set(ranks))


def _ranks(processes: Iterable[ProcessStacks]) -> list[ProcessStacks]:
    """
    Those that are ranks themselves; their children may carry their number.
    """
    known = [p for p in processes if p.role == "rank" and p.rank is not None]
    places = {(p.host, p.pid) for p in known}
    return [p for p in known if (p.host, p.parent_pid) not in places]


def _by_parent(
    processes: Sequence[ProcessStacks],
) -> dict[str, tuple[ProcessStacks, ...]]:
    """
    Sort ranks by who started them, and the others by whose relatives they are.
    """
    names: dict[_Place, str] = {}
    has_hosts = len({p.host for p in processes}) > 1
    for rank in _ranks(processes):
        if rank.parent_pid is not None:
            host = f" on {rank.host}" if has_hosts and rank.host else ""
            name = f"of parent {rank.parent_pid}{host}"
            names[rank.host, rank.pid] = name
            names[rank.host, rank.parent_pid] = name
    if len(set(names.values())) < 2:
        return {"": tuple(processes)}

    parents = {(p.host, p.pid): p.parent_pid for p in processes}
    split: dict[str, list[ProcessStacks]] = {}
    for process in processes:
        split.setdefault(_inherited(process, parents, names), []).append(
            process
        )
    return {name: tuple(members) for name, members in split.items()}


def _inherited(
    process: ProcessStacks,
    parents: Mapping[_Place, int | None],
    names: Mapping[_Place, str],
) -> str:
    """
    The name of the job of a process, or of its nearest ancestor that has one.
    """
    pid: int | None = process.pid
    # Hostile files may name each other as parents.
    for _ in range(_MOST_ANCESTORS):
        if pid is None:
            break
        if name := names.get((process.host, pid)):
            return name
        pid = parents.get((process.host, pid))
    return ""


def _name(
    process: ProcessStacks, names: Mapping[tuple[str | None, int], str]
) -> str:
    own = names.get((process.host, process.pid), "")
    if own or process.parent_pid is None:
        return own

    return names.get((process.host, process.parent_pid), "")
