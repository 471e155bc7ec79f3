"""
What if no tool may look into a process?

Then the process may be willing to tell itself where its threads are.
"""

from __future__ import annotations

import time

from collections.abc import Sequence

import attrs

from ..stacks.model import ThreadStack
from .asking.inside import ask_process
from .model import CaptureStatus, ProcessCapture
from .pool import each


__all__ = ["ask_unseen"]

_ANSWER_S = 5.0
# They cannot answer, or there is nothing to be told.
_IN_VAIN = {
    CaptureStatus.EXITED,
    CaptureStatus.ZOMBIE,
    CaptureStatus.STOPPED,
    CaptureStatus.NOT_PYTHON,
}


def ask_unseen(
    processes: Sequence[ProcessCapture], deadline: float
) -> list[ProcessCapture]:
    """
    Ask those for their stacks that could not be looked into.

    Args:
        processes: All processes, as far as they were seen.

        deadline: When to be done, by the monotonic clock.

    Returns:
        All processes.
    """
    unseen = [p for p in processes if _is_worth_asking(p)]
    left_s = max(deadline - time.monotonic(), 0.1)
    answers = each(_ask, unseen, timeout_s=min(left_s, 4 * _ANSWER_S))
    by_pid = {
        before.worker.pid: after or before
        for before, after in zip(unseen, answers, strict=True)
    }
    return [by_pid.get(p.worker.pid, p) for p in processes]


def _is_worth_asking(process: ProcessCapture) -> bool:
    is_seen = any(t.frames for t in process.stacks.threads)
    return not is_seen and process.status not in _IN_VAIN


def _ask(process: ProcessCapture) -> ProcessCapture:
    worker = process.worker
    threads, attempt = ask_process(
        worker.pid, timeout_s=_ANSWER_S, start_ticks=worker.start_ticks
    )
    answered = {t.thread_id: t for t in threads}
    known = [
        _with_frames(thread, answered.pop(thread.thread_id, None))
        for thread in process.stacks.threads
    ]
    both = (*process.attempts, attempt)
    if not threads:
        return attrs.evolve(process, attempts=both)

    stacks = attrs.evolve(
        process.stacks,
        source=attempt.tool,
        threads=(*known, *answered.values()),
    )
    status = process.status
    if status is not CaptureStatus.UNINTERRUPTIBLE:
        status = CaptureStatus.OK
    return attrs.evolve(process, status=status, stacks=stacks, attempts=both)


def _with_frames(
    thread: ThreadStack, answer: ThreadStack | None
) -> ThreadStack:
    if answer is None:
        return thread

    return attrs.evolve(
        thread,
        name=answer.name or thread.name,
        frames=answer.frames,
        owns_gil=answer.owns_gil,
    )
