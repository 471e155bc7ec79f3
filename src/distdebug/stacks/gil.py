"""
Who keeps the others from running Python?

One thread at a time may run Python.  If it waits without giving up that lock,
or never stops computing, all the others look innocent: at the line where they
came back from whatever they did.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Sequence

from ..findings import Confidence
from .formats.gil import wants_gil as wants_gil_by_native_stack
from .model import ThreadStack
from .motion import Motion, cpu_share, is_running, motion_of, wakes_per_s


__all__ = ["find_gil_trouble", "wants_gil"]

_CALLS = 16
_RUNS_PYTHON = re.compile(r"^_?PyEval_(EvalFrame|EvalCode|Vector)")
# Functions of Python itself give the lock up before they wait.
_LETS_GO = re.compile(
    r"lock_PyThread_acquire|acquire_timed|PySleep|pysleep|time_sleep|^select_"
    r"|^sock_|^_io_|^os_\w+_impl|^_Py_(read|write|open)|gil_scoped_release"
    r"|PyEval_SaveThread|semlock_acquire|_PySemaphore|PyThread_acquire_lock"
)

# Whoever waits for the lock looks every 5 ms whether it is free; on a busy
# machine less often.
_WAKES = (60.0, 600.0)
_MOST_CPU = 0.2
# Between two waits it may do some work.
_CONVOY = 0.35
_HOG = 0.2
_INTERRUPTED = 100.0
_LITTLE = 0.02
_NO_CALL = frozenset({"", "futex", "running"})

Trouble = tuple[ThreadStack, str, Confidence]


def find_gil_trouble(
    threads: Sequence[ThreadStack],
    main: ThreadStack,
) -> Trouble | None:
    """
    Find out whether one thread keeps the main thread from running.

    Args:
        threads: Those with stacks.

        main: The main thread.

    Returns:
        The thread that holds the lock (or waits for it, if the holder is not
        known), what it is doing as a predicate, and how sure that is.
    """
    owner = _owner(threads)
    waiting = [t for t in threads if t is not owner and wants_gil(t)]
    hog = next((t for t in threads if _hogs(t, main)), None)
    if hog is not None and (main in waiting or _looks_for_it(main, _CONVOY)):
        doing = "does not let go of the lock of the interpreter"
        return hog, _say(hog, doing, [main]), "likely"
    if owner is None:
        return _without_owner(threads, waiting, main)

    is_blocked = _is_blocked(owner)
    if is_blocked and (waiting or _is_sure(owner)):
        doing = "holds the lock of the interpreter while it waits"
        sure = _is_sure(owner) and bool(waiting)
        return owner, _say(owner, doing, waiting), _sure(is_sure=sure)
    if waiting and is_running(owner) is None:
        doing = "holds the lock of the interpreter"
        return owner, _say(owner, doing, waiting), "possible"
    return None


def wants_gil(thread: ThreadStack) -> bool:
    """
    Whether a thread waits for the lock of the interpreter.

    Args:
        thread: The thread.
    """
    if thread.waits_for_gil is not None:
        return thread.waits_for_gil

    call = thread.system_call.name if thread.system_call else ""
    return _is_seen_waiting(thread) or (
        _looks_for_it(thread) and call in _NO_CALL
    )


def _is_seen_waiting(thread: ThreadStack) -> bool:
    frames = thread.native or thread.frames
    return bool(thread.waits_for_gil or wants_gil_by_native_stack(frames))


def _looks_for_it(thread: ThreadStack, most_cpu: float = _MOST_CPU) -> bool:
    """
    Whether a thread wakes up as often as one that waits for the lock.
    """
    low, high = _WAKES
    return (
        low <= wakes_per_s(thread) <= high
        and cpu_share(thread.activity) <= most_cpu
    )


def _owner(threads: Iterable[ThreadStack]) -> ThreadStack | None:
    return next((t for t in threads if t.owns_gil), None)


def _is_blocked(owner: ThreadStack) -> bool:
    """
    Whether the owner waits for something else.
    """
    return is_running(owner) is False and not wants_gil(owner)


def _is_sure(owner: ThreadStack) -> bool:
    """
    Whether it was seen to wait for longer than a moment.
    """
    return motion_of(owner, 0.0) is Motion.STILL


def _hogs(thread: ThreadStack, main: ThreadStack) -> bool:
    """
    Whether a thread runs Python all the time, and the main thread hardly does.
    """
    if thread is main or not any(not f.is_native for f in thread.frames):
        return False
    if thread.activity is None:
        return bool(thread.owns_gil and thread.active)

    a, share = thread.activity, cpu_share(thread.activity)
    # Who is asked for the lock gives it up, and waits for it, too; and who
    # goes from line to line is not in native code.
    runs_python = (
        thread.owns_gil is True
        or wakes_per_s(thread) >= wakes_per_s(main) / 4
        or (a.has_moved is True and a.has_left is False)
    )
    # On a busy machine it gets little, but is interrupted whenever it runs.
    wants_more = a.involuntary >= _INTERRUPTED * a.seconds and share > _LITTLE
    is_greedy = share >= _HOG or wants_more
    return is_greedy and runs_python and share >= 2 * cpu_share(main.activity)


def _without_owner(
    threads: Sequence[ThreadStack],
    waiting: Sequence[ThreadStack],
    main: ThreadStack,
) -> Trouble | None:
    """
    Who holds it, if the tool does not tell?
    """
    # Nobody may hold it: others wake up as often as who waits for it.
    waiting = [t for t in waiting if _is_seen_waiting(t)]
    if not waiting or motion_of(main) is Motion.MOVING:
        return None
    if main in waiting:
        return main, "is waiting for the lock of the interpreter", "likely"

    others = [t for t in threads if t not in waiting and _may_hold(t)]
    if others != [main] or is_running(main):
        return None
    doing = "seems to hold the lock of the interpreter while it waits"
    return main, _say(main, doing, waiting), "possible"


def _may_hold(thread: ThreadStack) -> bool:
    """
    Whether a native stack lets it be that the thread holds the lock.
    """
    natives = [f.name for f in (thread.native or thread.frames)[:200]]
    return any(map(_RUNS_PYTHON.match, natives)) and not any(
        map(_LETS_GO.search, natives[:_CALLS])
    )


def _say(
    owner: ThreadStack, doing: str, waiting: Sequence[ThreadStack]
) -> str:
    name = owner.name or owner.thread_id
    who = (
        f"has a thread ({name}) that {doing}"
        if name
        else f"has a thread that {doing}"
    )
    if owner.is_main:
        who = doing
    if not waiting:
        return who
    many = (
        "another thread waits"
        if len(waiting) == 1
        else (f"{len(waiting)} other threads wait")
    )
    return f"{who} ({many} for it)"


def _sure(*, is_sure: bool) -> Confidence:
    return "certain" if is_sure else "likely"
