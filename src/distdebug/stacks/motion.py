"""
Distinguish stuck threads from slow ones, and find the holder of the GIL.

One stack cannot show this: a thread that waits for a slow peer has the same
frames in every sample.  But a thread that waits in vain does not even wake up.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from .._lazy import late_pattern
from ..findings import Confidence
from .model import ThreadActivity, ThreadStack, is_gil_wait


# A thread that makes progress does not sleep longer than this.
_MOST_STEP_S = 30.0
# A thread that only polls needs about 50 µs per wakeup.
_POLL_CPU_S = 500e-6
# A signal, or a dump that is asked for, wakes a thread once or twice, for 60 µs
# at most; then it goes on to wait.
_MOST_DISTURBANCES, _DISTURBANCE_CPU_S = 2, 100e-6
# System calls that only return when something has happened.
_BLOCKING_CALLS = frozenset(
    {"accept", "accept4", "flock", "open", "openat", "wait4", "waitid"}
)
# A loop that waits prints less.
_WORK_BYTES_PER_S = 64 << 10
_BUSY_SHARE = 0.5
_QUIET_SHARE = 0.02


class Motion(Enum):
    """
    The progress of a thread between its samples.
    """

    UNKNOWN = "unknown"
    STILL = "still"  # did not run, or only polled
    SPINNING = "spinning"  # ran all the time, in the same place
    MOVING = "moving"


def classify_motion(thread: ThreadStack, wakes: float | None = None) -> Motion:
    """
    Classify the progress of a thread.

    Args:
        wakes: How often it wakes up at most without progress, per second;
            ``None`` if unknown.

    Returns:
        Unknown if there is one sample only, or if the thread is runnable but
        gets no CPU.
    """
    activity = thread.activity
    if activity is None or activity.seconds <= 0:
        has_slept = thread.idle_s is not None and thread.idle_s > _MOST_STEP_S
        # The kernel does not report this time for a runnable thread.
        is_awake = thread.state == "R" or thread.active
        return Motion.STILL if has_slept and not is_awake else Motion.UNKNOWN
    if activity.has_left or (activity.has_moved and activity.has_left is None):
        return Motion.MOVING
    if is_busy(activity):
        # There is one stack only, as the other samples failed.
        if activity.has_moved is None and thread.frames:
            return Motion.UNKNOWN
        # The same functions, but called again: a recursion, for example.
        return Motion.MOVING if activity.has_returned else Motion.SPINNING
    if _call_name(thread) in _BLOCKING_CALLS:
        wakes = 0.0
    is_eager = _is_runnable(thread, activity)
    if _does_work(activity, wakes) or (is_eager and activity.has_returned):
        return Motion.MOVING
    return Motion.UNKNOWN if is_eager else Motion.STILL


def _call_name(thread: ThreadStack) -> str:
    return thread.system_call.name if thread.system_call else ""


def _does_work(activity: ThreadActivity, wakes: float | None) -> bool:
    count = activity.voluntary
    if not count:
        return False
    cpu_s = activity.cpu_s / count
    if cpu_s > _POLL_CPU_S:
        return True
    is_disturbed = count <= _MOST_DISTURBANCES and cpu_s < _DISTURBANCE_CPU_S
    if wakes is None or (is_disturbed and not activity.has_returned):
        return False
    return count / activity.seconds > wakes


def is_busy(activity: ThreadActivity | None) -> bool:
    """
    Return whether a thread wanted a CPU all the time; False without samples.

    On a busy machine it gets less than one CPU, but it never blocks.
    """
    if activity is None:
        return False
    share = cpu_share(activity)
    never_waits = (
        activity.voluntary <= activity.seconds
        and activity.involuntary > 10 * activity.seconds
    )
    return share >= _BUSY_SHARE or (never_waits and share > _QUIET_SHARE)


def _is_runnable(thread: ThreadStack, activity: ThreadActivity) -> bool:
    """
    Return whether a thread wants a CPU, however little it gets.

    Beside one other program, a thread of the lowest priority gets a
    seventieth.
    """
    return thread.state == "R" and activity.voluntary <= activity.seconds


def wakes_per_s(thread: ThreadStack) -> float:
    """
    Return how often a thread blocked, per second; 0 without samples.
    """
    return _per_s(thread.activity, "voluntary")


def cpu_share(activity: ThreadActivity | None) -> float:
    """
    Return the share of a CPU that a thread used; 0 without samples.
    """
    return _per_s(activity, "cpu_s")


def bytes_per_s(thread: ThreadStack) -> float:
    """
    Return how much a thread writes, and reads from storage, in bytes a second.

    Returns:
        0 if that is unknown, or no more than a loop that only waits may print.
    """
    rate = _per_s(thread.activity, "io_bytes")
    return rate if rate >= _WORK_BYTES_PER_S else 0.0


def _per_s(activity: ThreadActivity | None, name: str) -> float:
    if activity is None or activity.seconds <= 0:
        return 0.0
    return (getattr(activity, name) or 0.0) / activity.seconds


def is_running(thread: ThreadStack) -> bool | None:
    """
    Return whether a thread was running on a CPU; ``None`` if unknown.
    """
    activity = thread.activity
    if activity is not None:
        if is_busy(activity):
            return True
        if cpu_share(activity) <= _QUIET_SHARE:
            # A thread that was never preempted may have just woken up.
            is_starved = activity.involuntary > activity.voluntary or None
            return is_starved if _is_runnable(thread, activity) else False
    if _call_name(thread) not in {"", "running"}:
        return False
    if thread.state:
        return thread.state == "R"
    return thread.active


_INNER_FRAMES = 16
# The loop that runs bytecode; other functions of the interpreter may be
# callers that gave the GIL back.
_RUNS_PYTHON = late_pattern(r"_?PyEval_(EvalFrame|EvalCode|Vector)")
# Functions that release the GIL before they wait.
_RELEASES_GIL = late_pattern(
    r"lock_PyThread_acquire|acquire_timed|PySleep|pysleep|time_sleep|^select_"
    r"|^sock_|^_io_|^os_\w+_impl|^_Py_(read|write|open)|gil_scoped_release"
    r"|PyEval_SaveThread|semlock_acquire|_PySemaphore|PyThread_acquire_lock"
)

# A thread that waits for the GIL polls it every 5 ms; less often on a busy
# machine.  Lower and upper limit, per second.
_GIL_WAITER_WAKES_PER_S = (60.0, 600.0)
_GIL_WAITER_CPU_SHARE = 0.2
# CPU share of a thread that does some work between two waits for the GIL.
_CONVOY_CPU_SHARE = 0.35
_HOG_CPU_SHARE = 0.2
_HOG_INTERRUPTS_PER_S = 100.0
_STARVED_HOG_CPU_SHARE = 0.02
_GIL_WAIT_CALLS = frozenset({"", "futex", "running"})

GilHolder = tuple[ThreadStack, str, Confidence]


def find_gil_holder(
    threads: Sequence[ThreadStack], main: ThreadStack
) -> GilHolder | None:
    """
    Find the thread that blocks the main thread by holding the GIL.

    Args:
        threads: The threads with stacks.

    Returns:
        The thread that holds the GIL (or waits for it, if the holder is
        unknown), what it is doing as a predicate, and the confidence.
    """
    owner = next((t for t in threads if t.owns_gil), None)
    waiting = [t for t in threads if t is not owner and is_waiting_for_gil(t)]
    holder = next((t for t in threads if _hogs_gil(t, main)), None)
    if holder is not None and (
        main in waiting or _wakes_like_gil_waiter(main, _CONVOY_CPU_SHARE)
    ):
        doing = "does not release the GIL"
        return _describe_holder(holder, doing, [main], "likely")
    if owner is None:
        return _guess_holder(threads, waiting, main)

    # The owner of the GIL waits for something else.
    is_blocked = is_running(owner) is False and not is_waiting_for_gil(owner)
    if is_blocked and (waiting or _is_still(owner)):
        doing = "holds the GIL while it waits"
        is_certain = _is_still(owner) and waiting
        confidence: Confidence = "certain" if is_certain else "likely"
        return _describe_holder(owner, doing, waiting, confidence)
    if waiting and is_running(owner) is None:
        return _describe_holder(owner, "holds the GIL", waiting, "possible")
    return None


def is_waiting_for_gil(thread: ThreadStack) -> bool:
    """
    Return whether a thread waits for the GIL.
    """
    if thread.waits_for_gil is not None:
        return thread.waits_for_gil

    return _stack_shows_gil_wait(thread) or (
        _wakes_like_gil_waiter(thread)
        and _call_name(thread) in _GIL_WAIT_CALLS
    )


def _stack_shows_gil_wait(thread: ThreadStack) -> bool:
    frames = thread.native or thread.frames
    return bool(thread.waits_for_gil or is_gil_wait(frames))


def _wakes_like_gil_waiter(
    thread: ThreadStack, most_cpu: float = _GIL_WAITER_CPU_SHARE
) -> bool:
    """
    Return whether a thread wakes up as often as one that waits for the GIL.
    """
    low, high = _GIL_WAITER_WAKES_PER_S
    return (
        low <= wakes_per_s(thread) <= high
        and cpu_share(thread.activity) <= most_cpu
    )


def _is_still(owner: ThreadStack) -> bool:
    """
    Return whether the owner of the GIL waited longer than a moment.
    """
    return classify_motion(owner, 0.0) is Motion.STILL


def _hogs_gil(thread: ThreadStack, main: ThreadStack) -> bool:
    """
    Return whether a thread runs Python all the time, and the main hardly does.
    """
    if thread is main or not any(not f.is_native for f in thread.frames):
        return False
    if thread.activity is None:
        return bool(thread.owns_gil and thread.active)

    activity, share = thread.activity, cpu_share(thread.activity)
    # A Python thread releases the GIL on request, and then waits for it, too.
    # A thread that moves from line to line is not in native code.
    runs_python = (
        thread.owns_gil is True
        or wakes_per_s(thread) >= wakes_per_s(main) / 4
        or (activity.has_moved is True and activity.has_left is False)
    )
    # On a busy machine it gets little CPU, but is preempted whenever it runs.
    wants_more = (
        activity.involuntary >= _HOG_INTERRUPTS_PER_S * activity.seconds
        and share > _STARVED_HOG_CPU_SHARE
    )
    uses_much_cpu = share >= _HOG_CPU_SHARE or wants_more
    return (
        uses_much_cpu and runs_python and share >= 2 * cpu_share(main.activity)
    )


def _guess_holder(
    threads: Sequence[ThreadStack],
    waiting: Sequence[ThreadStack],
    main: ThreadStack,
) -> GilHolder | None:
    """
    Guess the holder of the GIL, if the tool does not report it.
    """
    # Threads that do not wait for the GIL may wake up as often.
    waiting = [t for t in waiting if _stack_shows_gil_wait(t)]
    if not waiting or classify_motion(main) is Motion.MOVING:
        return None
    if main in waiting:
        return main, "is waiting for the GIL", "likely"

    others = [t for t in threads if t not in waiting and _may_hold_gil(t)]
    if others != [main] or is_running(main):
        return None
    doing = "seems to hold the GIL while it waits"
    return _describe_holder(main, doing, waiting, "possible")


def _may_hold_gil(thread: ThreadStack) -> bool:
    """
    Return whether a native stack allows that the thread holds the GIL.
    """
    natives = [f.name for f in (thread.native or thread.frames)[:200]]
    return any(map(_RUNS_PYTHON.match, natives)) and not any(
        map(_RELEASES_GIL.search, natives[:_INNER_FRAMES])
    )


def _describe_holder(
    owner: ThreadStack,
    doing: str,
    waiting: Sequence[ThreadStack],
    confidence: Confidence,
) -> GilHolder:
    name = owner.name or owner.thread_id
    named = f" ({name})" if name else ""
    text = doing if owner.is_main else f"has a thread{named} that {doing}"
    if len(waiting) == 1:
        text += " (another thread waits for it)"
    elif waiting:
        text += f" ({len(waiting)} other threads wait for it)"
    return owner, text, confidence
