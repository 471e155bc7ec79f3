"""
Which C function handles a signal of this process?

:mod:`signal` only knows handlers that Python installed, and can only install
such as need the interpreter.  Here are the others.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import ctypes
import functools
import struct

from pathlib import Path
from typing import Any, Literal


__all__ = [
    "address_of",
    "clear_alarm",
    "disposition",
    "get_handler",
    "restore_action",
    "save_action",
    "set_handler",
]

# More than any libc needs for its ``struct sigaction``.
_ACTION_BYTES = 1024


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None)


def disposition(number: int) -> Literal["default", "ignored", "caught"]:
    """
    What does this process do about a signal, whoever arranged for it?

    Args:
        number: Number of the signal.

    Raises:
        OSError: This is not Linux.
    """
    bit = 1 << (number - 1)
    status = Path("/proc/thread-self/status").read_text("ascii", "replace")
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key == "SigIgn" and int(value, 16) & bit:
            return "ignored"
        if key == "SigCgt" and int(value, 16) & bit:
            return "caught"
    return "default"


def address_of(function: str) -> int:
    """
    Where is a function of the C library?
    """
    address = ctypes.cast(getattr(_libc(), function), ctypes.c_void_p).value
    return address or 0


def get_handler(number: int) -> int:
    """
    Which function handles a signal?

    Returns:
        Its address; 0 is the default action.
    """
    (handler,) = struct.unpack_from("P", save_action(number))
    return int(handler)


def set_handler(number: int, address: int, *, once: bool = False) -> None:
    """
    Have a C function handle a signal; 0 stands for the default action.

    Args:
        number: Number of the signal.

        address: From :func:`address_of`.

        once: Whether the default action returns with the first signal, where
            the C library can do that.
    """
    libc = _libc()
    install = (
        getattr(libc, "sysv_signal", libc.signal) if once else libc.signal
    )
    install(ctypes.c_int(number), ctypes.c_void_p(address))


def save_action(number: int) -> bytes:
    """
    All that the C library knows about the handling of a signal.
    """
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    _libc().sigaction(number, None, action)
    return action.raw


def restore_action(number: int, action: bytes) -> None:
    """
    Handle a signal as at the time of :func:`save_action`.
    """
    _libc().sigaction(number, action, None)


def clear_alarm() -> None:
    """
    Cancel the pending SIGALRM.
    """
    _libc().alarm(0)
