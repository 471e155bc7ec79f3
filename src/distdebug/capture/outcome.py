"""
How did it go with this process, in one word, and what would show more?
"""

from __future__ import annotations

import attrs

from ..processes.model import ProcessState
from .model import CaptureStatus, ProcessCapture
from .permission.status import status_of_state


__all__ = ["judge"]


def judge(
    process: ProcessCapture, state: ProcessState | None
) -> ProcessCapture:
    """
    Sum up the attempts: the state of the process comes before what tools say.

    Args:
        process: What was tried.

        state: What the kernel told last; ``None`` if the process is gone.
    """
    last = process.attempts[-1]
    nobody_answered = state is None and last.status is CaptureStatus.TIMED_OUT
    told = (
        None if nobody_answered else status_of_state(state, process.worker.pid)
    )
    if told is not None:
        status, remedy = told
        return attrs.evolve(process, status=status, remedy=remedy)

    if any(t.frames or t.native for t in process.stacks.threads):
        return attrs.evolve(process, status=CaptureStatus.OK)

    return attrs.evolve(process, status=last.status, remedy=last.remedy)
