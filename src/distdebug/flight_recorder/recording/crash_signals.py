"""
How does a process that is being killed still say where it was?

When a rank hangs, its main thread sits inside C++: Python's own signal
handlers would never run, and one written in Python may wait for the
interpreter for ever.  What works is a chain of functions that do not need it,
each of them in :mod:`faulthandler` or the C library:

* *faulthandler*'s handler writes the stacks into a pipe, which wakes our
  listener;
* the handler behind it only limits the time.  The kernel calls handlers with
  the number of the signal, so ``alarm`` as the handler of SIGTERM (15) ends
  the process 15 s later if nothing else did, and ``sleep`` as that of SIGABRT
  (6) holds the thread that aborts for 6 s.

The listener dumps, puts the default back, and sends the signal again, so that
the process ends as it would have.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import functools
import os
import selectors
import signal
import struct
import threading
import time
import weakref

from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple


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


class FaultFile:
    """
    As much of a file as *faulthandler* needs.

    Args:
        fd: Where to write.  It is not closed with this.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """
        Where to write.
        """
        return self._fd

    def flush(self) -> None:
        """
        Nothing is kept back.
        """


IsHeld = weakref.ref[FaultFile]
"""Returns ``None`` once *faulthandler* has let go."""


# Linux has no other use for this signal: the kernel sends it to the listener
# when something is written to SIGABRT's pipe.
_ALARMING = int(getattr(signal, "SIGSTKFLT", 16))

# <fcntl.h>, where Python does not name them.
_F_SETSIG = 10
_F_SETOWN_EX = 15
_F_OWNER_TID = 0

# How long a handler may take to go from writing to what follows, and how long
# a pipe is silent when all is written, in seconds.
_SETTLE_S = 0.5
_QUIET_S = 0.02

_MOST_BYTES = 1 << 20


class CaughtSignal(NamedTuple):
    """
    A signal whose arrival can be read from a pipe.

    Attributes:
        number: Such as ``signal.SIGTERM``.

        reader: Where the listener reads the stacks.

        writer: Where *faulthandler* writes them.

        held: Whether it still does.

        handler: Address of *faulthandler*'s handler.

        is_final: Whether the process ends by it; otherwise somebody else has
            a handler.
    """

    number: signal.Signals
    reader: int
    writer: BinaryIO
    held: IsHeld
    handler: int
    is_final: bool


def catch_sigterm() -> CaughtSignal | None:
    """
    Have SIGTERM write where every thread is.

    A handler that is there already stays, and is called afterwards.

    Returns:
        The signal, or ``None`` if this process ignores it, or could not be
        ended in time should its interpreter be stuck.
    """
    number = signal.SIGTERM
    state = disposition(number)
    if state == "ignored" or disposition(signal.SIGALRM) != "default":
        return None

    reader, writer = _open_pipe()
    if state == "default":
        set_handler(number, address_of("alarm"))
    file = FaultFile(writer.fileno())
    faulthandler.register(number, file=file, all_threads=True, chain=True)
    return CaughtSignal(
        number=number,
        reader=reader,
        writer=writer,
        held=IsHeld(file),
        handler=get_handler(number),
        is_final=state == "default",
    )


def catch_sigabrt() -> CaughtSignal | None:
    """
    Have SIGABRT, as from ``std::terminate``, write where every thread is.

    Returns:
        The signal, or ``None`` if it is handled already.  So it is where
        :mod:`faulthandler` is enabled: its words go where they went.
    """
    number = signal.SIGABRT
    needed = (number, signal.SIGALRM, _ALARMING)
    if any(disposition(n) != "default" for n in needed):
        return None

    reader, writer = _open_pipe()
    set_handler(number, address_of("sleep"), once=True)
    file = FaultFile(writer.fileno())
    faulthandler.enable(file=file, all_threads=True)
    return CaughtSignal(
        number=number,
        reader=reader,
        writer=writer,
        held=IsHeld(file),
        handler=get_handler(number),
        is_final=True,
    )


def _open_pipe() -> tuple[int, BinaryIO]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)  # a full pipe must not stop a handler
    return reader, os.fdopen(writer, "wb", buffering=0)


def limit_abort(caught: CaughtSignal) -> None:
    """
    Set a limit for a process that gets SIGABRT while its interpreter is stuck.

    ``abort`` ends it anyhow; a SIGABRT from outside would not.  To be called
    by the thread that listens: it can take a signal at any time.
    """
    if caught.number != signal.SIGABRT:
        return

    set_handler(_ALARMING, address_of("alarm"))
    owner = struct.pack("ii", _F_OWNER_TID, threading.get_native_id())
    fcntl.fcntl(caught.reader, _F_SETOWN_EX, owner)
    fcntl.fcntl(caught.reader, _F_SETSIG, _ALARMING)
    flags = fcntl.fcntl(caught.reader, fcntl.F_GETFL)
    fcntl.fcntl(caught.reader, fcntl.F_SETFL, flags | os.O_ASYNC)


def read_words(caught: CaughtSignal) -> bytes:
    """
    What did the handler write?

    Returns:
        All of it, or ``b""`` if it was not this process that got the signal:
        a child that was forked just now writes to the pipe of its parent.
    """
    words = b""
    with selectors.DefaultSelector() as selector:
        selector.register(caught.reader, selectors.EVENT_READ)
        while selector.select(_QUIET_S) and len(words) < _MOST_BYTES:
            words += os.read(caught.reader, _MOST_BYTES)

    deadline = time.monotonic() + _SETTLE_S
    while not _is_for_us(caught):
        if time.monotonic() > deadline:
            if caught.number == signal.SIGABRT:
                clear_alarm()
            return b""
        time.sleep(_QUIET_S)
    return words


def _is_for_us(caught: CaughtSignal) -> bool:
    if not caught.is_final:
        return True
    if caught.number == signal.SIGTERM:
        return signal.getitimer(signal.ITIMER_REAL)[0] > 0
    # faulthandler steps back before it writes.
    return get_handler(caught.number) != caught.handler


def die_of(caught: CaughtSignal) -> None:
    """
    End this process as the signal would have, unless others handle it.
    """
    if caught.is_final:
        set_handler(caught.number, 0)
        os.kill(os.getpid(), caught.number)


def release(caught: CaughtSignal, *, in_child: bool = False) -> None:
    """
    Put everything back; a handler that came after ours stays.

    Args:
        caught: The signal.

        in_child: Whether this is a forked child.  It shares the pipe with its
            parent, which goes on listening.
    """
    later = save_action(caught.number)
    is_ours = get_handler(caught.number) == caught.handler
    if caught.number == signal.SIGTERM:
        faulthandler.unregister(caught.number)
    elif caught.held() is not None:
        faulthandler.disable()
    else:  # enabled again by somebody who wants it
        is_ours = False

    if not is_ours:
        restore_action(caught.number, later)
    elif caught.is_final:
        set_handler(caught.number, 0)
    if not in_child:
        _lift_limit(caught)
    elif caught.number == signal.SIGTERM and caught.is_final:
        _catch_up()


def close(caught: CaughtSignal) -> None:
    """
    Close the pipe, once nobody writes or listens any more.
    """
    os.close(caught.reader)
    caught.writer.close()


def _lift_limit(caught: CaughtSignal) -> None:
    """
    The kernel also tells of the end of a pipe, by a signal that would kill.
    """
    flags = fcntl.fcntl(caught.reader, fcntl.F_GETFL)
    if flags & os.O_ASYNC:
        fcntl.fcntl(caught.reader, fcntl.F_SETFL, flags & ~os.O_ASYNC)
        set_handler(_ALARMING, 0)


def _catch_up() -> None:
    """
    End a forked child that got SIGTERM before it could put things back.

    Children inherit no alarm, so one that is set is due to our handler.
    """
    if signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        clear_alarm()
        os.kill(os.getpid(), signal.SIGTERM)
