"""
How is one thread asked where it is, and when has it said all?

A signal to a process that does not handle it would end that process.  So
whatever can be checked is checked just before the signal is sent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time

from collections.abc import Callable
from typing import NamedTuple

from ...processes.procfs import parse_status, read_proc


__all__ = ["ThreadSignals", "await_handled", "knock", "read_signals"]

# Linux 6.9 and later can hold on to a thread.
_PIDFD_THREAD = os.O_EXCL

_PAUSE_S = 0.0005
_LOOKS = 4


class ThreadSignals(NamedTuple):
    """
    How a thread stands to signals.

    Attributes:
        name: Its name of at most 15 characters.

        letter: Its state, such as ``"S"``.

        pending: Bit *n - 1* is set if signal *n* waits for it.

        blocked: Bit *n - 1* is set if it takes no signal *n* now: always, or
            because it is handling one.
    """

    name: str
    letter: str
    pending: int
    blocked: int


def read_signals(pid: int, thread_id: int) -> ThreadSignals | None:
    """
    How does a thread stand to signals?

    Args:
        pid: The process.

        thread_id: The thread.

    Returns:
        What the kernel tells anybody; ``None`` if the thread is gone.
    """
    path = f"/proc/{pid}/task/{thread_id}/status"
    status = parse_status(read_proc(path))
    try:
        return ThreadSignals(
            status["Name"],
            status["State"][0],
            int(status["SigPnd"], 16),
            int(status["SigBlk"], 16),
        )
    except (KeyError, IndexError, ValueError):
        return None


def knock(
    pid: int, thread_id: int, number: int, check: Callable[[], object]
) -> None:
    """
    Send a signal to one thread.

    Args:
        pid: The process.

        thread_id: The thread.

        number: The signal.

        check: Called last of all; nothing is sent if it raises an error.

    Raises:
        OSError: It may not be sent, or the thread is gone.
    """
    # From here on, no other thread can have this number.
    held = _hold(thread_id)
    try:
        check()
        if held is None:
            _tgkill(pid, thread_id, number)
        else:
            signal.pidfd_send_signal(held, number)
    finally:
        if held is not None:
            os.close(held)


def await_handled(
    pid: int,
    thread_id: int,
    number: int,
    has_written: Callable[[], bool],
    deadline: float,
) -> bool:
    """
    Wait until a thread has handled a signal.

    While its handler runs the kernel blocks the signal.  Between that and the
    time when it was pending is a moment in which it is neither; a thread that
    has nothing to say looks the same, but for longer.

    Args:
        pid: The process.

        thread_id: The thread.

        number: The signal.

        has_written: Whether the handler has begun to write.

        deadline: Until when, by ``time.monotonic()``.

    Returns:
        Whether it is done.
    """
    bit, looks = 1 << (number - 1), 0
    while time.monotonic() < deadline:
        has_begun = has_written()
        thread = read_signals(pid, thread_id)
        if thread is None:
            return True

        if (thread.pending | thread.blocked) & bit:
            looks = 0
        elif has_begun or (looks >= _LOOKS and thread.letter != "R"):
            return True
        looks += 1
        time.sleep(_PAUSE_S)
    return False


def _hold(thread_id: int) -> int | None:
    with contextlib.suppress(AttributeError, OSError):
        return os.pidfd_open(thread_id, _PIDFD_THREAD)
    return None


def _tgkill(pid: int, thread_id: int, number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.tgkill(pid, thread_id, number):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
