"""
What does a thread do that runs, and that no rule knows?
"""

from __future__ import annotations

import re

from collections.abc import Callable

from ..findings import Cause
from .matching import Sight
from .model import StackFrame
from .motion import is_busy
from .places import is_native, is_users


__all__ = ["IsInLoop", "cause_of_running"]

# Functions of the interpreter that every loop in Python calls.
_QUICK = re.compile(
    r"^_*(Py|py)|^(long|float|unicode|list|dict|tuple|set|object|type|bool|int"
    r"|slot|gen|range\w*|method|builtin|cfunction|vectorcall|binary|mapping"
    r"|frame|gc|lookdict|insertdict|enum|zip|map|bytes|free|malloc|_int_free"
    r"|_int_malloc|mem\w+|cfree|deallocate|subtype)_?(?!.*(sort|pow))\w*"
)

IsInLoop = Callable[[str, int], bool | None]


def cause_of_running(sight: Sight, is_in_loop: IsInLoop) -> Cause | None:
    """
    Tell a loop in Python from native code.

    Args:
        sight: The thread.

        is_in_loop: Tells of a file and line whether it can run again and
            again without a new call.

    Returns:
        What it does; ``None`` if it does not run.
    """
    innermost = sight.innermost
    if not sight.runs or innermost is None:
        return None

    if not _computes(sight, innermost, is_in_loop):
        return Cause.PYTHON_LOOP
    # The host turns round and round until its GPU is done.
    return Cause.GPU_SYNC_WAIT if sight.gpu else Cause.NATIVE_SPIN


def _computes(
    sight: Sight, innermost: StackFrame, is_in_loop: IsInLoop
) -> bool:
    """
    Whether a thread that runs is in native code, and not in Python.
    """
    if sight.natives and not is_native(innermost):
        return not all(_QUICK.match(f.name) for f in sight.natives)

    thread, a = sight.thread, sight.thread.activity
    was_watched = a is not None and is_busy(a)
    if not thread.owns_gil and (
        # Libraries compute in native code.
        sight.gpu or not is_users(innermost) or thread.owns_gil is False
    ):
        return True
    if was_watched and a is not None and a.has_moved is False:
        # Who calls native code again and again holds the lock in between.
        if a.has_let_go:
            return True
        # In the same line all the time, and it is no loop.
        return is_in_loop(innermost.filename, innermost.line) is False
    return is_native(innermost)
