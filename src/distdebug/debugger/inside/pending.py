"""
How is the main thread stopped at its next line, without a signal?

The interpreter is asked to call us on the main thread as soon as that runs
Python again.  A thread that is blocked in native code, such as a collective,
comes to that only when the call returns; nothing is interrupted.
"""

from __future__ import annotations

import sys
import threading
import time

from functools import partial
from typing import Any

from .looking import place_of, user_frame
from .prompt import current_prompt
from .settings import pause_limit_s
from .stops import open_stop, open_stops


__all__ = ["cancel_interrupt", "interrupt_main"]

# Until when an interrupt is wanted, on the monotonic clock.
_wanted_until = 0.0
_callbacks: list[Any] = []  # C holds no reference to them


def interrupt_main(wait_s: float) -> dict[str, Any]:
    """
    Stop the main thread at the next line it comes to.

    Args:
        wait_s: How long to wait for that, in seconds.

    Returns:
        Plain data: the state, and where the main thread is.
    """
    global _wanted_until  # noqa: PLW0603 one thread of the process is main
    before = {stop.key for stop in open_stops()}
    if _stop_of_main(set()):
        return {"state": "stopped", "output": "it is stopped already"}

    _wanted_until = time.monotonic() + pause_limit_s()
    _ask_interpreter()
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        if key := _stop_of_main(before):
            return {"state": "stopped", "output": f"stopped: {key}"}
        time.sleep(0.01)

    where = _place()
    return {
        "state": "running",
        "output": f"blocked in native code, called at {where['file']}:"
        f"{where['line']} in {where['function']}; "
        "it stops when that returns",
        **where,
    }


def cancel_interrupt() -> bool:
    """
    Do not stop the main thread after all.

    Returns:
        Whether it was about to be stopped.
    """
    global _wanted_until  # noqa: PLW0603 one thread of the process is main
    was_wanted = time.monotonic() < _wanted_until
    _wanted_until = 0.0
    return was_wanted


def _stop_of_main(before: set[str]) -> str:
    main = str(threading.main_thread().ident)
    for stop in open_stops():
        is_main = stop.key.split(":")[3] == main
        if is_main and stop.state == "stopped" and stop.key not in before:
            return stop.key

    return ""


def _place() -> dict[str, Any]:
    main = threading.main_thread().ident or 0
    frame = sys._current_frames().get(main)  # noqa: SLF001 there is no other way
    if frame is None:
        return {"function": "?", "file": "?", "line": 0}
    return place_of(user_frame(frame))


def _ask_interpreter() -> None:
    import ctypes

    if not _callbacks:
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
        _callbacks.append(kind(_on_main))
    if ctypes.pythonapi.Py_AddPendingCall(_callbacks[0], None) != 0:
        msg = "the interpreter takes no more calls at the moment"
        raise RuntimeError(msg)


def _on_main(_: object) -> int:
    """
    Runs on the main thread, between two instructions of it.
    """
    if cancel_interrupt():
        frame = sys._getframe(1)  # noqa: SLF001 whom we came between
        prompt = current_prompt()
        if not prompt.is_asking:
            prompt.watch(frame, partial(open_stop, "interrupt", None, None))
    return 0
