"""
Whose stacks are there, and who of them is to blame?
"""

from __future__ import annotations

from ....diagnosis.hosts import all_stacks
from ....diagnosis.seen import Seen
from ....findings import Diagnosis
from ....stacks.merge import StackTree
from ....stacks.model import ProcessStacks


__all__ = ["culprits_of", "processes_seen"]


def processes_seen(seen: Seen) -> tuple[ProcessStacks, ...]:
    """
    Whose stacks are known?

    Args:
        seen: What a diagnosis was made from.

    Returns:
        What was captured from outside; of ranks of which nothing was, what
        they noted of themselves.
    """
    if seen.flight is None:
        return seen.stacks

    return all_stacks(seen.flight.dumps, seen.stacks)


def culprits_of(diagnosis: Diagnosis, tree: StackTree) -> frozenset[int]:
    """
    Which of these processes does the verdict blame?

    Args:
        diagnosis: Its verdict names ranks; in its evidence, processes
            without one.

    tree: Who was merged.

    Returns:
        Positions in the tree's *processes*; nobody if nothing is wrong.
    """
    if diagnosis.is_healthy:
        return frozenset()

    blamed = set(diagnosis.verdict.ranks)
    quoted = {
        (e.source, e.location.partition(",")[0])
        for e in diagnosis.verdict.evidence
    }
    jobs = {p.job for p in tree.processes if (p.source, _name_of(p)) in quoted}
    is_told = tree.has_jobs and jobs
    return frozenset(
        member
        for member, process in enumerate(tree.processes)
        if (not is_told or process.job in jobs)
        and (
            process.rank in blamed
            if process.rank is not None
            else (process.source, _name_of(process)) in quoted
        )
    )


def _name_of(process: ProcessStacks) -> str:
    # As quotes of stacks call it.
    if process.rank is None:
        return f"pid {process.pid}"
    return f"rank {process.rank}"
