"""
Does this thread wait for the lock of the interpreter?

Seen from machine code: functions that take the lock are called by the thread,
and nothing but waiting is called by them.
"""

from __future__ import annotations

import re

from collections.abc import Iterable
from itertools import islice

from ..model import StackFrame


__all__ = ["wants_gil"]

_DEEPEST = 16

# Who was asked to give the lock up waits in drop_gil until it is taken.
_TAKES = re.compile(
    r"take_gil|drop_gil|_?Py(Eval_(RestoreThread|AcquireThread|AcquireLock)"
    r"|GILState_Ensure|ThreadState_Attach)|tstate_wait_attach"
    r"|pybind11::gil_scoped_acquire::gil_scoped_acquire"
)
_WAITS = re.compile(
    r"futex|pthread_(cond|mutex|rwlock)|lll_lock|_L_lock|sem_(timed|clock)?wait"
    r"|do_wait|PyCOND_|PyMUTEX_|PyMutex_Lock|ParkingLot_Park|PySemaphore_"
    r"|^(__)?syscall$|^_?cond_(timed)?wait|^\?\?|^0x[0-9a-f]"
)
_TIMED = re.compile(r"pthread_cond_(?:timed|clock)wait")


def wants_gil(frames: Iterable[StackFrame]) -> bool | None:
    """
    Does a thread with this stack wait for the interpreter lock?

    Args:
        frames: Innermost first, with those of machine code.

    Returns:
        ``True``, or ``None``: a stack without names of functions proves
        nothing.
    """
    waits = ""
    for frame in islice(frames, _DEEPEST):
        name = frame.name.partition("@")[0].partition("(")[0].rstrip()
        if not frame.is_native:
            # py-spy leaves out the functions of the interpreter, so that
            # Python seems to wait itself; it does so for nothing else.
            return _TIMED.search(waits) is not None or None

        if _TAKES.fullmatch(name):
            # Who takes a free lock is not seen in it.
            return True if waits or name == "take_gil" else None

        if not _WAITS.search(name):
            return None
        waits = name

    return None
