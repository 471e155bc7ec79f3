"""
What does this call return, if it returns in time?
"""

from __future__ import annotations

import threading

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar


__all__ = ["in_time"]

T = TypeVar("T")


def in_time(call: Callable[[], T], seconds: float) -> T:
    """
    Call something that may never return.

    A thread that waits inside the kernel or a driver cannot be ended.  So it
    is left behind if its time is over; it does not keep Python from ending.

    Args:
        call: What to call, in a thread of its own.

        seconds: How long it may take.

    Returns:
        What it returned.

    Raises:
        TimeoutError: It did not return in time.

        Exception: Whatever it raised.
    """
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 it is raised again
            future.set_exception(error)

    threading.Thread(target=work, name="distdebug", daemon=True).start()
    return future.result(seconds)
