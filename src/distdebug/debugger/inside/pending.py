"""
How is the main thread stopped at its next line, without a signal?

The interpreter is asked to call us on the main thread as soon as that runs
Python again.  A thread that is blocked in native code, such as a collective,
comes to that only when the call returns; nothing is interrupted.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time

from functools import partial
from types import FrameType
from typing import Any

from .looking import place_of, place_text, user_frame
from .prompt import current_prompt, prompts
from .settings import DEFAULT_LIMIT_S, pause_limit_s
from .stops import open_stop, open_stops


__all__ = ["cancel_interrupt", "interrupt_main"]

# Until when an interrupt is wanted, on the monotonic clock.
_wanted_until = 0.0
_callbacks: list[Any] = []  # C holds no reference to them
# With a second call in its queue, Python 3.11 spins for ever in the first that is
# traced; so this has something in it from when it is asked until it has called.
_MAY_SPIN = sys.version_info < (3, 12)
_asked: dict[str, object] = {}


def interrupt_main(wait_s: float) -> dict[str, Any]:
    """
    Stop the main thread at the next line it comes to.

    Who asks twice stops it once.  A step that it is just making ends where it
    is interrupted.

    Args:
        wait_s: How long to wait for that, in seconds.

    Returns:
        Plain data: the state, and where the main thread is.
    """
    global _wanted_until  # noqa: PLW0603 one thread of the process is main
    if _is_main_stopped():
        return {"state": "stopped", "output": "it is stopped already"}

    _wanted_until = time.monotonic() + (pause_limit_s() or DEFAULT_LIMIT_S)
    _ask_interpreter()
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        if _is_main_stopped():
            return {"state": "stopped", "output": "it is stopped now"}
        time.sleep(0.01)

    return _why_not()


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


def _main() -> int:
    return threading.main_thread().ident or 0


def _is_main_stopped() -> bool:
    main = str(_main())
    return any(
        stop.key.split(":")[3] == main and stop.state == "stopped"
        for stop in open_stops()
    )


def _why_not() -> dict[str, Any]:
    where = _place()
    place = place_text(where)
    prompt = prompts().get(_main())
    if prompt and prompt.is_asking:
        text = f"obeys a command of the debugger, at {place}"
    elif prompt and not prompt.stop:
        text = (
            f"runs code of a framework, called at {place}; "
            "it stops at the next line of yours"
        )
    else:
        text = (
            f"blocked in native code, called at {place}; "
            "it stops when that returns"
        )
    return {"state": "running", "output": text, **where}


def _place() -> dict[str, Any]:
    frame = sys._current_frames().get(_main())  # noqa: SLF001 there is no other way
    if frame is None:
        return {"function": "?", "file": "?", "line": 0}
    return place_of(user_frame(frame))


def _ask_interpreter() -> None:
    token = object()
    if _MAY_SPIN and _asked.setdefault("by", token) is not token:
        return  # it is going to call
    if not _callbacks:
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
        _callbacks.append(kind(_on_main))
    if ctypes.pythonapi.Py_AddPendingCall(_callbacks[0], None) != 0:
        _asked.clear()
        msg = "the interpreter takes no more calls at the moment"
        raise RuntimeError(msg)


def _on_main(_: object) -> int:
    """
    Runs on the main thread, between two instructions of it.
    """
    try:
        _watch(sys._getframe(1))  # noqa: SLF001 whom we came between
    finally:
        # Last of all, and no call, after which another thread might run.
        if "by" in _asked:
            del _asked["by"]  # noqa: RUF051 pop() is a call
    return 0


def _watch(frame: FrameType) -> None:
    prompt = current_prompt()
    if cancel_interrupt() and not prompt.is_asking:
        prompt.watch(frame, partial(open_stop, "interrupt", None, None))
