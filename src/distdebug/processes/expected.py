"""
Which ranks should be on this node, and are not?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..identity import current_identity
from .model import Worker


__all__ = ["missing_ranks"]

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
