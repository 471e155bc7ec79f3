"""
Is this thread stuck, or merely slow?

Its stack alone cannot tell: whoever waits for a slow peer shows the same lines
at every look.  But who waits in vain does not even wake up.
"""

from __future__ import annotations

from enum import Enum

from .model import ThreadActivity, ThreadStack


__all__ = [
    "Motion",
    "cpu_share",
    "is_busy",
    "is_running",
    "motion_of",
    "wakes_per_s",
]

# Nobody waits this long within a step that was watched.
_LONG_S = 30.0
# A thread that only looks whether something happened needs some 50 µs.
_WORK_S = 500e-6
# Who waits in these calls only wakes up if something happened.
_WITHOUT_END = frozenset(
    {"accept", "accept4", "flock", "open", "openat", "wait4", "waitid"}
)
_BUSY = 0.5
_QUIET = 0.02


class Motion(Enum):
    """
    What became of a thread while it was watched.
    """

    UNKNOWN = "unknown"
    STILL = "still"  # did not run, or only looked whether it may go on
    SPINNING = "spinning"  # ran all the time, in the same place
    MOVING = "moving"


def motion_of(thread: ThreadStack, wakes: float | None = None) -> Motion:
    """
    Tell what became of a thread.

    Args:
        thread: The thread.

        wakes: How often per second it wakes up at most although nothing
            happens; ``None`` if unknown.

    Returns:
        Whether it moves; unknown if it was looked at only once, or wants a
        processor that it does not get.
    """
    a = thread.activity
    if a is None or a.seconds <= 0:
        has_slept = thread.idle_s is not None and thread.idle_s > _LONG_S
        # The kernel forgets when a thread ran, if that is about to run.
        is_awake = thread.state == "R" or thread.active
        return Motion.STILL if has_slept and not is_awake else Motion.UNKNOWN
    if a.has_left or (a.has_moved and a.has_left is None):
        return Motion.MOVING
    if is_busy(a):
        # Its place was seen once, as the other looks failed.
        if a.has_moved is None and thread.frames:
            return Motion.UNKNOWN
        # In the same functions, but called anew: a recursion, for example.
        return Motion.MOVING if a.has_returned else Motion.SPINNING
    call = thread.system_call.name if thread.system_call else ""
    if call in _WITHOUT_END:
        wakes = 0.0
    is_eager = _is_eager(thread, a)
    if _is_awake(a, wakes) or (is_eager and a.has_returned):
        return Motion.MOVING
    return Motion.UNKNOWN if is_eager else Motion.STILL


def _is_awake(a: ThreadActivity, wakes: float | None) -> bool:
    if wakes is not None and a.voluntary / a.seconds > wakes:
        return True
    return a.voluntary > 0 and a.cpu_s / a.voluntary > _WORK_S


def is_busy(a: ThreadActivity) -> bool:
    """
    Whether a thread wanted the processor all the time.

    On a busy machine it gets less than a processor, but it never waits.

    Args:
        a: What became of it.
    """
    share = cpu_share(a)
    never_waits = a.voluntary <= a.seconds and a.involuntary > 10 * a.seconds
    return share >= _BUSY or (never_waits and share > _QUIET)


def _is_eager(thread: ThreadStack, a: ThreadActivity) -> bool:
    """
    Whether it wants the processor, however little of it it gets: beside one
    other program, the nicest has a seventieth.
    """
    return thread.state == "R" and a.voluntary <= a.seconds


def wakes_per_s(thread: ThreadStack) -> float:
    """
    How often a thread gave up the processor, per second.

    Args:
        thread: The thread; 0 if it was not watched.
    """
    a = thread.activity
    return a.voluntary / a.seconds if a and a.seconds > 0 else 0.0


def cpu_share(a: ThreadActivity | None) -> float:
    """
    Which part of a processor a thread used; 0 if it was not watched.

    Args:
        a: What became of it.
    """
    return a.cpu_s / a.seconds if a and a.seconds > 0 else 0.0


def is_running(thread: ThreadStack) -> bool | None:
    """
    Whether a thread was running on a processor; ``None`` if unknown.

    Args:
        thread: The thread.
    """
    a = thread.activity
    if a is not None:
        if is_busy(a):
            return True
        if cpu_share(a) <= _QUIET:
            # Who was never driven away may have been asleep until now.
            is_starved = a.involuntary > a.voluntary or None
            return is_starved if _is_eager(thread, a) else False
    if thread.system_call is not None and thread.system_call.name != "running":
        return False
    if thread.state:
        return thread.state == "R"
    return thread.active
