"""
What keeps a tool from attaching to this process?
"""

from __future__ import annotations

import time

from ...processes.model import ProcessState
from ...processes.threads import read_state
from ..attaching.guard import why_never
from ..model import CaptureStatus
from .denial import why_denied
from .namespace import enter_namespace, proc_is_foreign
from .status import status_of_state


__all__ = ["attach_hindrance"]

# Who reads a file waits inside the kernel for a moment, again and again.
_LOOKS, _BETWEEN_S = 4, 0.05


def attach_hindrance(pid: int) -> tuple[CaptureStatus, str] | None:
    """
    What keeps a tool from attaching to this process?

    It is found out without touching the process.

    Args:
        pid: A process of this node.

    Returns:
        What is in the way, and what to do about it; ``None`` if a tool may
        try.
    """
    state = read_state(pid)
    reason = "" if state is None or state.tracer_pid else why_never(pid)
    if reason:
        return CaptureStatus.SKIPPED, f"{reason}: name a process of the job"

    told = status_of_state(state, pid)
    if state is None:
        return told
    if told is not None and told[0] is CaptureStatus.UNINTERRUPTIBLE:
        told = _settled(pid)
    if told is not None:
        return told

    if proc_is_foreign():
        return CaptureStatus.OTHER_NAMESPACE, enter_namespace(pid, 0)
    denied = why_denied(pid)
    if denied is None and state.pid_inside != pid:
        remedy = enter_namespace(pid, state.pid_inside)
        return CaptureStatus.OTHER_NAMESPACE, remedy
    return denied


def _settled(pid: int) -> tuple[CaptureStatus, str] | None:
    """
    Does a thread stay uninterruptible for longer than a moment?
    """
    state: ProcessState | None = read_state(pid)
    stuck = _waiting(state)
    for _ in range(_LOOKS):
        time.sleep(_BETWEEN_S)
        state = read_state(pid)
        stuck &= _waiting(state)
        if not stuck:
            break
    told = status_of_state(state, pid)
    if told is not None and told[0] is CaptureStatus.UNINTERRUPTIBLE:
        return told if stuck else None
    return told


def _waiting(state: ProcessState | None) -> set[int]:
    return set(state.uninterruptible) if state is not None else set()
