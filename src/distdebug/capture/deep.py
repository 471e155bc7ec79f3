"""
Which processes are worth being stopped for a moment, and what is seen then?
"""

from __future__ import annotations

import time

from collections.abc import Callable, Iterable, Sequence

import attrs

from ..errors import CaptureError
from ..stacks.join import join_threads
from ..stacks.merge import merge_stacks
from ..stacks.model import ProcessStacks, ThreadStack
from .attaching.cuda import capture_cuda
from .attaching.lock import node_lock
from .attaching.native import capture_native
from .model import Attempt, CaptureStatus, ProcessCapture
from .pool import each


__all__ = ["look_deeper"]

Tell = Callable[[str, int, int], object]

_MOST_CHOSEN = 8
# A tool takes 60 seconds at most, which the guard adds its share to.
_TOOL_S = 60.0
_LOCK_S = 5.0
# For tools that are being killed.
_GRACE_S = 3.0


def look_deeper(
    processes: Sequence[ProcessCapture],
    *,
    native: str,
    cuda: bool,
    deadline: float,
    tell: Tell,
) -> Sequence[ProcessCapture]:
    """
    Add native stacks and GPU kernels, as far as they are asked for.

    Args:
        processes: What was seen without stopping anybody.

        native: ``"none"``, ``"classes"``, or ``"all"``.

        cuda: Whether every process is looked into with cuda-gdb.

        deadline: When to be done, by the monotonic clock.

        tell: Called with the stage, and how many of how many are done.

    Returns:
        All processes.  If another collector is at work, nothing is added but
        that.
    """
    chosen = _chosen(processes, native)
    stages = [_Stage("native stacks", _with_native, chosen)] if chosen else []
    if cuda:
        everybody = {p.worker.pid for p in processes}
        stages.append(_Stage("cuda-gdb", _with_cuda, everybody))
    if not stages:
        return processes

    try:
        with node_lock(_LOCK_S):
            for stage in stages:
                processes = _run(stage, processes, deadline, tell)
    except CaptureError as exc:
        # What was seen without stopping anybody is still worth a lot.
        processes = [_refused(p, exc) for p in processes]
    return processes


@attrs.frozen
class _Stage:
    name: str
    look: Callable[[ProcessCapture, float], ProcessCapture]
    pids: set[int]


def _run(
    stage: _Stage,
    processes: Sequence[ProcessCapture],
    deadline: float,
    tell: Tell,
) -> Sequence[ProcessCapture]:
    def one(process: ProcessCapture) -> ProcessCapture | None:
        left_s = min(deadline - time.monotonic(), _TOOL_S)
        return stage.look(process, left_s) if left_s > 0 else None

    todo = [p for p in processes if p.worker.pid in stage.pids]
    done = each(
        one,
        todo,
        timeout_s=max(deadline - time.monotonic(), 0) + _GRACE_S,
        tell=lambda n, total: tell(stage.name, n, total),
    )
    by_pid = {
        process.worker.pid: new or _too_late(process, stage.name)
        for process, new in zip(todo, done, strict=True)
    }
    return [by_pid.get(p.worker.pid, p) for p in processes]


def _too_late(process: ProcessCapture, stage: str) -> ProcessCapture:
    attempt = Attempt(
        tool=stage,
        status=CaptureStatus.TIMED_OUT,
        detail="the time for all processes of this node was over",
        remedy="allow more time, or name fewer processes",
    )
    return attrs.evolve(process, attempts=(*process.attempts, attempt))


def _refused(process: ProcessCapture, exc: CaptureError) -> ProcessCapture:
    attempt = Attempt(
        tool="lock",
        status=CaptureStatus.SKIPPED,
        detail=str(exc),
        remedy=exc.remedy or "",
    )
    return attrs.evolve(process, attempts=(*process.attempts, attempt))


def _with_native(process: ProcessCapture, timeout_s: float) -> ProcessCapture:
    threads, attempts = capture_native(
        process.worker.pid,
        timeout_s=timeout_s,
        start_ticks=process.worker.start_ticks,
    )
    return attrs.evolve(
        process,
        stacks=_join(process.stacks, threads),
        attempts=(*process.attempts, *attempts),
    )


def _with_cuda(process: ProcessCapture, timeout_s: float) -> ProcessCapture:
    found = capture_cuda(
        process.worker.pid,
        timeout_s=timeout_s,
        start_ticks=process.worker.start_ticks,
    )
    stacks = _join(process.stacks, found.threads)
    return attrs.evolve(
        process,
        stacks=attrs.evolve(stacks, kernels=found.kernels),
        attempts=(*process.attempts, *found.attempts),
        cuda_text=found.text,
    )


def _join(
    stacks: ProcessStacks, native: Iterable[ThreadStack]
) -> ProcessStacks:
    return attrs.evolve(stacks, threads=join_threads(stacks.threads, native))


def _chosen(processes: Sequence[ProcessCapture], native: str) -> set[int]:
    """
    One process of each class, and everybody who stands apart.
    """
    if native == "none":
        return set()
    if native == "all":
        return {p.worker.pid for p in processes}

    tree = merge_stacks(p.stacks for p in processes)
    apart = [member for c in tree.outliers() for member in c.members]
    one_each = [c.members[0] for c in reversed(tree.classes)]
    chosen = [*dict.fromkeys([*one_each, *apart])][:_MOST_CHOSEN]
    return {tree.processes[member].pid for member in chosen}
