"""
Find the workers of jobs on this node, and ranks that are missing.
"""

from __future__ import annotations

import os
import re

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ..identity import current_identity
from .model import Worker
from .roles import ProcessKind, ProcessTree, Survey
from .scan import Process, as_patterns, is_match, list_processes


_COLLECTOR = re.compile(
    r"(-m |/)distdebug( (mcp|preflight|snapshot|stacks|watch)"
    r"|\.(nodes|watching)\.child)\b"
    r"|/guard_program\.py "
)
_CHILD_ROLES = frozenset({"child", "compile", "dataloader"})


def find_workers(
    patterns: Iterable[str] = (),
    *,
    include_children: bool = True,
    include_ancestors: bool = False,
    root: str = "/proc",
) -> tuple[Worker, ...]:
    """
    Find the workers of all jobs on this node.

    Known are workers of SGLang, vLLM, Ray, torchrun, accelerate, DeepSpeed,
    Slurm, MPI, Megatron, and *multiprocessing*, and every other Python process
    with a rank in its environment, or with the threads of a rank.  No process
    is stopped or changed.  This process is left out.

    Args:
        patterns: Regular expressions to search in command lines.  If there are
            any, only processes that match, and their descendants, are
            returned.

        include_children: Whether to include children of ranks: data loaders,
            compilers, and others.

        include_ancestors: Whether to include ancestors of this process.  They
            are usually its shells, whose command lines match the patterns,
            unless a rank has started it.

        root: Mount point of procfs.

    Returns:
        Ranks first, by rank, and then the others.  A process that ends
        meanwhile is left out; attributes that may not be read are unknown.

    Raises:
        PatternError: A pattern is no regular expression.
    """
    compiled = tuple(map(re.compile, as_patterns(patterns)))
    tree = ProcessTree(list_processes(root))
    own = tree.processes.get(_own_pid(root))
    excluded = _other_collectors(tree)
    if own is not None:
        excluded |= {own.pid}
        if not include_ancestors:
            excluded |= {ancestor.pid for ancestor in tree.ancestors(own)}

    def is_selected(process: Process) -> bool:
        return process.pid not in excluded and is_match(process, compiled)

    survey = Survey(tree, is_selected, root)
    chosen = survey.kinds.keys() - excluded
    if compiled:
        matching = {p for p in chosen if is_selected(tree.processes[p])}
        descendants = {
            p.pid for pid in matching for p in tree.descendants(pid)
        }
        chosen &= matching | descendants
    if not include_children:
        chosen = {
            p for p in chosen if survey.kinds[p].role not in _CHILD_ROLES
        }
    return survey.describe_workers(chosen)


def _own_pid(root: str) -> int:
    """
    Return the PID of this process in *root*, or -1 if it is not there.

    With procfs of another container, our PID belongs to another process.
    """
    try:
        return int(os.readlink(f"{root}/self"))  # noqa: PTH115 a text
    except (OSError, ValueError):
        return -1


def _other_collectors(tree: ProcessTree) -> set[int]:
    """
    Return the PIDs of other distdebug processes, and of the tools they run.
    """
    found = {
        pid for pid, p in tree.processes.items() if _COLLECTOR.search(p.text)
    }
    return found | {p.pid for pid in found for p in tree.descendants(pid)}


def find_workers_by_pid(
    pids: Iterable[int], root: str = "/proc"
) -> tuple[Worker, ...]:
    """
    Return the workers with some PIDs, as far as they exist.

    Args:
        pids: Any processes; the framework of one is ``"pattern"`` if no known
            one started it.

        root: Mount point of procfs.
    """
    named = frozenset(pids)
    tree = ProcessTree(list_processes(root, named=named))
    existing = tree.processes.keys() & named
    related: dict[int, Process] = {}
    for pid in existing:
        if pid not in related:
            related.update(_related_processes(tree, tree.processes[pid]))
    survey = Survey(
        ProcessTree(related), lambda other: other.pid in existing, root
    )
    # Also those that a search drops, such as a process with an inherited rank.
    for pid in existing - survey.kinds.keys():
        survey.kinds[pid] = ProcessKind("pattern", "rank")
    return survey.describe_workers(existing)


def _related_processes(
    tree: ProcessTree, process: Process
) -> Mapping[int, Process]:
    """
    Return the processes that classify one: its ancestors, and their
    descendants.

    Reading the others would take about a millisecond each.
    """
    above = list(tree.ancestors(process))
    interpreters = [p for p in above if p.is_python]
    top = interpreters[-1] if interpreters else process
    related = [process, *above, *tree.descendants(top.pid)]
    return {p.pid: p for p in related}


# A title may hold any number; no node has more ranks.
_MAX_RANKS_ON_NODE = 4096
_LOCAL_ADDRESSES = ("127.0.0.1:", "localhost:", "[::1]:", "::1:")


def absent_peers(workers: Iterable[Worker]) -> dict[int, tuple[int, ...]]:
    """
    Map ranks to those of their job that should be on this node, but are not.

    The number of ranks of a node is known from the environment of torchrun, or
    if the whole job is on this node.  Titles of SGLang and vLLM only number
    the ranks; of these, a rank is absent only if it is between two that were
    found.

    Args:
        workers: All workers of this node.

    Returns:
        By the pid of a rank, the ranks that were not found, in order.  A rank is
        left out if it may be on another node, or may be a worker whose rank is
        unknown.
    """
    ranks = [w for w in workers if w.role == "rank"]
    # A worker of unknown rank may be the missing one among its siblings.
    unknown = {w.parent_pid for w in ranks if w.rank is None}
    jobs: dict[tuple[object, ...], list[Worker]] = defaultdict(list)
    for worker in ranks:
        jobs[_job_key(worker)].append(worker)
    known = (
        (job, tuple(sorted(_missing_in_job(job))))
        for job in jobs.values()
        if unknown.isdisjoint(w.parent_pid for w in job)
    )
    return {w.pid: absent for job, absent in known for w in job if absent}


def _job_key(worker: Worker) -> tuple[object, ...]:
    # Only the parent distinguishes two servers of one node.
    if worker.coordinates:
        return worker.framework, worker.parent_pid
    return worker.framework, worker.job, worker.world_size


def _missing_in_job(ranks: Sequence[Worker]) -> set[int]:
    found = {w.rank for w in ranks if w.rank is not None}
    expected = _expected_ranks(ranks, found)
    if len(expected) > _MAX_RANKS_ON_NODE or not found <= {*expected}:
        return set()
    # This process, and a rank that started it, are not in the list.
    own = current_identity()
    if own.rank is not None and own.job == ranks[0].job:
        found.add(own.rank)
    return {*expected} - found


def _expected_ranks(ranks: Sequence[Worker], found: set[int]) -> range:
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
    if size is not None and _is_single_node(first.job):
        return range(size)
    return range(0)


def _is_single_node(job: str) -> bool:
    """
    Return whether the ranks of a job use a local address for rendezvous.
    """
    return job.rpartition(" ")[2].startswith(_LOCAL_ADDRESSES)
