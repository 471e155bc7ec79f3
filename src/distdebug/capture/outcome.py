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

        state: What the kernel told last; ``None`` if it told nothing, or the
            process is gone, which the last attempt tells.
    """
    last = process.attempts[-1]
    told = status_of_state(state, process.worker.pid) if state else None
    if state is None and last.status is CaptureStatus.EXITED:
        told = last.status, last.remedy
    if told is not None:
        status, remedy = told
        return attrs.evolve(process, status=status, remedy=remedy)

    if any(t.frames or t.native for t in process.stacks.threads):
        return attrs.evolve(process, status=CaptureStatus.OK)

    return attrs.evolve(process, status=last.status, remedy=last.remedy)
