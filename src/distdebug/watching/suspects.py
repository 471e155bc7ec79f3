"""
Who may hang, and do they at all?
"""

from __future__ import annotations

from collections.abc import Iterable

from ..capture.node import capture_node
from ..findings import Cause, Finding
from ..processes.environ import read_environ
from ..processes.find import find_workers
from ..processes.model import Worker
from ..processes.worker import workers_of


__all__ = ["find_crew", "has_others", "is_fine", "look_at", "run_of"]

_LOOK_S = 30.0
# Who does this does not hang, unless for very long.
_SLOW = frozenset({Cause.COMPILING, Cause.CHECKPOINTING})
# So does a long evaluation, and a loop that never ends.
_RUNNING = frozenset({Cause.PYTHON_LOOP, Cause.NATIVE_SPIN})
# A launcher that starts a job again counts how often.
_ATTEMPT = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


def find_crew(
    pids: Iterable[int] | None,
    patterns: Iterable[str],
    inside: int | None,
) -> tuple[Worker, ...]:
    """
    Find those to look at.

    Args:
        pids: Exactly these, if there are any.

        patterns: Regular expressions for the command lines of workers.

        inside: The rank that asks: then those of its job, and of no other.

    Returns:
        The processes.
    """
    if pids:
        return tuple(workers_of(pids))
    if inside is None:
        return tuple(find_workers(patterns))

    found = find_workers(patterns, include_ancestors=True)
    mine = [worker for worker in found if worker.pid == inside]
    if not mine:
        return tuple(workers_of([inside]))
    return tuple(x for x in found if _is_together(x, mine[0]))


def _is_together(worker: Worker, mine: Worker) -> bool:
    if worker.job or mine.job:
        return worker.job == mine.job

    # Nothing names their jobs; those who started them tell them apart.
    return mine.pid in {worker.pid, worker.parent_pid} or (
        worker.parent_pid == mine.parent_pid
        and worker.world_size == mine.world_size
    )


def run_of(crew: Iterable[Worker], host: str) -> str:
    """
    Tell this run of a job from other jobs, and from other runs of it.

    Args:
        crew: Its processes on this node.

        host: The name of this node.

    Returns:
        A text that is the same on all nodes if the job has a name.
    """
    ranks = [worker for worker in crew if worker.role == "rank"]
    jobs = sorted({worker.job for worker in ranks if worker.job})
    if not jobs:
        return f"{host}: {sorted(worker.pid for worker in crew)}"

    environ, _ = read_environ(ranks[0].pid)
    attempt = [environ.get(name, "") for name in _ATTEMPT]
    return " ".join(filter(None, [*jobs, *attempt]))


def look_at(crew: Iterable[Worker]) -> tuple[Finding, ...]:
    """
    Look at the stacks, which takes seconds and stops nobody.

    Args:
        crew: The processes.

    Returns:
        What they tell, the verdict first.
    """
    pids = [worker.pid for worker in crew]
    return capture_node(pids=pids, timeout_s=_LOOK_S).findings


def is_fine(
    seen: Finding, stalled_s: float, *, patience_s: float, running_s: float
) -> bool:
    """
    Tell whether nothing hangs, or somebody does what just takes long.

    Args:
        seen: The verdict.

        stalled_s: For how many seconds nothing moved.

        patience_s: How long a checkpoint or a compilation may take.

        running_s: How long a rank may compute while others wait for it.

    Returns:
        Whether there is nothing to tell.
    """
    if seen.cause.is_fine:
        return True

    causes = {seen.cause, seen.detail_cause}
    if causes & _SLOW:
        return stalled_s < patience_s
    return bool(causes & _RUNNING) and stalled_s < running_s


def has_others(crew: Iterable[Worker]) -> bool:
    """
    Tell whether the job may have ranks on other nodes.

    Args:
        crew: Its processes on this one.

    Returns:
        Whether its world is larger, as far as is known.
    """
    known = list(crew)
    here = {x.rank for x in known if x.rank is not None}
    sizes = [x.world_size for x in known if x.world_size is not None]
    return len(here) < max(sizes, default=len(here))
