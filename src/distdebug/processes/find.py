"""
Which processes of this node are the workers of a job?
"""

from __future__ import annotations

import os
import re

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ..identity import current_identity
from .model import Worker
from .roles import Claim, Family, describe_workers, family_of, survey
from .scan import Process, compile_patterns, is_match, list_processes


_COLLECTOR = re.compile(
    r"(-m |/)distdebug( (stacks|preflight|snapshot|watch)"
    r"|\.(nodes|watching)\.child)\b"
    r"|/guard_program\.py "
)
_CHILDREN = frozenset({"child", "compile", "dataloader"})


def find_workers(
    patterns: Iterable[str] = (),
    *,
    include_children: bool = True,
    include_ancestors: bool = False,
    root: str = "/proc",
) -> tuple[Worker, ...]:
    """
    Which processes of this node are the workers of a job?

    Workers of SGLang, vLLM, Ray, torchrun, accelerate, DeepSpeed, Slurm, MPI,
    Megatron, and *multiprocessing* are known, and every other process in
    Python that says which rank it is, or has the threads of a rank.  No
    process is stopped or changed.  This process is left out.

    Args:
        patterns: Regular expressions, to be searched in command lines.  If
            there are any, only processes that match are found, and what
            descends from them.

        include_children: Whether to include what ranks started: readers of
            data, compilers, and others.

        include_ancestors: Whether to include those that this process descends
            from.  They are its shells, and name what it looks for, unless a
            rank has started it.

        root: Where the kernel's files are.

    Returns:
        Ranks first, by rank, and then the others.  A process that ends
        meanwhile is left out; what may not be read of the others is unknown.

    Raises:
        PatternError: If a pattern is no regular expression.
    """
    wanted = compile_patterns(patterns)
    family = family_of(list_processes(root))
    own = family.processes.get(_own_number(root))
    hidden = _other_collectors(family)
    if own is not None:
        hidden |= {own.pid}
        if not include_ancestors:
            hidden |= {above.pid for above in family.ancestors(own)}

    def is_wanted(process: Process) -> bool:
        return process.pid not in hidden and is_match(process, wanted)

    scene, claims = survey(family, is_wanted, root)
    chosen = claims.keys() - hidden
    if wanted:
        matching = {p for p in chosen if is_wanted(family.processes[p])}
        below = {p.pid for pid in matching for p in family.below(pid)}
        chosen &= matching | below
    if not include_children:
        chosen = {p for p in chosen if claims[p].role not in _CHILDREN}
    return describe_workers(scene, claims, chosen)


def _own_number(root: str) -> int:
    """
    The number that this process has there, or -1 if it is not there.

    In the files of another container, ours belongs to somebody else.
    """
    try:
        return int(os.readlink(f"{root}/self"))  # noqa: PTH115 a text
    except (OSError, ValueError):
        return -1


def _other_collectors(family: Family) -> set[int]:
    """
    Those who look at processes as we do, with the tools that they started.
    """
    found = {
        pid for pid, p in family.processes.items() if _COLLECTOR.search(p.text)
    }
    return found | {p.pid for pid in found for p in family.below(pid)}


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


# A title may claim any number, and nobody has so many ranks on a node.
_MOST_ON_NODE = 4096
_HERE = ("127.0.0.1:", "localhost:", "[::1]:", "::1:")


def missing_ranks(workers: Iterable[Worker]) -> tuple[int, ...]:
    """
    Which ranks should be on this node, and were not found?

    How many ranks a node has is known from what torchrun tells its ranks, or
    if the whole job is on this node.  SGLang and vLLM count in their titles;
    of these, only a gap between two that were found is missing for sure.

    Args:
        workers: All workers of this node.

    Returns:
        The ranks of all jobs together, in order.  A rank is not among them if
        it is not known to belong here, or if a rank whose number could not be
        learned may be the one.
    """
    ranks = [w for w in workers if w.role == "rank"]
    # Any of their brothers may be the one that seems to be missing.
    unknown = {w.parent_pid for w in ranks if w.rank is None}
    jobs: dict[tuple[object, ...], list[Worker]] = defaultdict(list)
    for worker in ranks:
        jobs[_job(worker)].append(worker)
    known = (
        job
        for job in jobs.values()
        if unknown.isdisjoint(w.parent_pid for w in job)
    )
    return tuple(sorted({rank for job in known for rank in _absent(job)}))


def _job(worker: Worker) -> tuple[object, ...]:
    # Two servers on a node have nothing else that tells them apart.
    if worker.coordinates:
        return worker.framework, worker.parent_pid
    return worker.framework, worker.job, worker.world_size


def _absent(ranks: Sequence[Worker]) -> set[int]:
    found = {w.rank for w in ranks if w.rank is not None}
    expected = _expected(ranks, found)
    # Nobody finds himself, nor the rank that started him.
    own = current_identity()
    if own.rank is not None and own.job == ranks[0].job:
        found.add(own.rank)
    return set(expected) - found if len(expected) <= _MOST_ON_NODE else set()


def _expected(ranks: Sequence[Worker], found: set[int]) -> range:
    first = ranks[0]
    if first.coordinates:
        return range(min(found), max(found) + 1)

    size = first.world_size
    starts = {
        (w.rank - w.local_rank, w.local_world_size)
        for w in ranks
        if w.rank is not None
        and w.local_rank is not None
        and w.local_world_size is not None
    }
    if len(starts) == 1:
        ((start, count),) = starts
        return range(start, start + count)
    if size is not None and _is_here(first.job):
        return range(size)
    return range(0)


def _is_here(job: str) -> bool:
    """
    Whether the ranks of a job meet where no other node can come.
    """
    return job.rpartition(" ")[2].startswith(_HERE)
