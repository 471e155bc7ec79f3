"""
Which processes cannot go on, whatever their stacks say?
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ..findings import Cause, Confidence
from .model import ProcessStacks, ThreadActivity, ThreadStack
from .places import user_frame, where
from .rules import RuleBook
from .view import ProcessView


__all__ = ["outlived_view", "state_view"]

# So long a disk may take, if it is busy.
_SLOW_S = 1.0
_LONG_S = 10.0


def state_view(process: ProcessStacks, book: RuleBook) -> ProcessView | None:
    """
    Tell what the state of a process says about it.

    Args:
        process: The process.

        book: Says what to do about it.

    Returns:
        That it is dead, stopped, or waits in the kernel; ``None`` if it is
        none of these.
    """
    found = _cause(process)
    if found is None:
        return None

    cause, doing, confidence = found
    thread = process.main_thread
    return ProcessView(
        process=process,
        cause=cause,
        doing=doing or book.doing.get(cause, ""),
        thread=thread,
        frame=thread.frames[0] if thread and thread.frames else None,
        location=where(user_frame(thread.frames)) if thread else None,
        confidence=confidence,
        remedy=book.remedy.get(cause, ""),
    )


def outlived_view(
    process: ProcessStacks, view: ProcessView | None, book: RuleBook
) -> ProcessView | None:
    """
    Add that the main thread of a process has ended, and others have not.

    Args:
        process: The process.

        view: What its threads tell, if they tell anything.

        book: Says what to do about it.
    """
    if process.state != "Z" or not _has_life(process.threads):
        return view

    if view is None:
        return ProcessView(
            process=process,
            cause=Cause.UNKNOWN,
            doing="has ended its main thread, but not all others",
            remedy=book.remedy.get(Cause.UNKNOWN, ""),
        )
    note = f"{view.note} (its main thread has ended)".strip()
    return attrs.evolve(view, note=note)


def _cause(process: ProcessStacks) -> tuple[Cause, str, Confidence] | None:
    tracer = process.tracer_pid
    if process.state == "Z" and not _has_life(process.threads):
        doing = "has ended, and nobody asked for its exit status (a zombie)"
        return Cause.DEAD, doing, "certain"
    if process.state in {"X", "x"}:
        return Cause.DEAD, "is gone", "certain"
    if process.state == "t" or (process.state == "T" and tracer):
        who = f"process {tracer}, a debugger" if tracer else "a debugger"
        return Cause.STOPPED, f"is stopped by {who}", "certain"
    if process.state == "T":
        return Cause.STOPPED, "is stopped by a signal", "certain"
    main = process.main_thread
    if process.state == "D" or (main is not None and main.state == "D"):
        return _uninterruptible(main)
    return None


def _has_life(threads: Iterable[ThreadStack]) -> bool:
    # The first thread may end before the others do.
    return any(t.state and t.state not in "ZX" for t in threads)


def _has_run(activity: ThreadActivity) -> bool:
    return bool(
        activity.voluntary
        or activity.involuntary
        or activity.cpu_s > 0
        or activity.has_moved
        or activity.has_left
        or activity.has_new_values
    )


def _uninterruptible(
    main: ThreadStack | None,
) -> tuple[Cause, str, Confidence] | None:
    """
    Whether a process is in the kernel for longer than any disk needs.
    """
    doing = ""
    call = main.system_call if main is not None else None
    if call is not None and call.name != "running":
        doing = f"cannot be interrupted while it waits in the kernel: {call}"
    activity = main.activity if main is not None else None
    idle_s = main.idle_s if main is not None else None
    if activity is not None and _has_run(activity):
        return None
    is_short = activity is None or activity.seconds < _SLOW_S
    if idle_s is not None and idle_s < _SLOW_S and is_short:
        return None
    if activity is not None or (idle_s is not None and idle_s > _LONG_S):
        return Cause.UNINTERRUPTIBLE, doing, "certain"
    return Cause.UNINTERRUPTIBLE, doing, "likely"
