"""
Interruption of commands: an exception in their thread, and a signal for sleeps.

Both reach a thread only between two instructions of Python, or in a call that
lets signals interrupt it, as :func:`time.sleep` in the main thread.  Other
native code goes on until it returns.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from ...processes import parse_status, read_proc


Answer = TypeVar("Answer")

# Ignored by default: one that arrives late does no harm.
_WAKE_UP = signal.SIGURG


class CommandEnded(SystemExit):
    """
    Raised in a thread to end the command that it runs.
    """


def _raise_in(ident: int) -> None:
    """
    Raise :class:`CommandEnded` in a thread; it replaces a pending one.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(ident), ctypes.py_object(CommandEnded)
    )


def _await_exception() -> None:
    """
    Raise :class:`CommandEnded` here, instead of a pending one.
    """
    _raise_in(threading.get_ident())
    while True:
        time.sleep(0)


class InterruptibleCommand:
    """
    Let other threads end the command that this thread runs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._is_ended = False

    def run(self, command: Callable[[], Answer]) -> Answer:
        """
        Return the result of a command.

        Raises:
            CommandEnded: It was ended.  Nothing is raised any more afterwards,
                in code of the program.
        """
        before, own_ident = self._thread, threading.get_ident()
        with _main_thread_wakes_up():
            self._is_ended = False
            self._thread = own_ident
            try:
                return command()
            finally:
                # Nothing is raised before this line: it must have no call.
                self._thread = before
                try:
                    self._settle()
                except CommandEnded:
                    # One more may have been on its way.
                    self._settle()
                    raise

    def _settle(self) -> None:
        """
        Wait for an `end` in progress, and raise what it left pending.
        """
        with self._lock:
            is_ended = self._is_ended
        if is_ended:
            _await_exception()

    @contextmanager
    def protected(self) -> Iterator[None]:
        """
        Protect a part of a command.
        """
        with self._lock:
            before, self._thread = self._thread, None
        try:
            yield
        finally:
            with self._lock:
                self._thread = before

    def end(self) -> bool:
        """
        End the command, unless it waits in native code or is protected.

        Code that catches every exception survives this, so that it may have to
        be repeated.

        Returns:
            Whether there was one.
        """
        with self._lock:
            ident = self._thread
            if ident is None:
                return False

            self._is_ended = True
            _raise_in(ident)
            if (
                ident == threading.main_thread().ident
                and signal.getsignal(_WAKE_UP) is _wake_up
            ):
                signal.pthread_kill(ident, _WAKE_UP)
        _let_traced_threads_go_on()
        return True


def _let_traced_threads_go_on() -> None:
    """
    Clear the flag of a pending exception in Python 3.11.

    Traced threads would spin until it is raised, which may be never.  The
    thread that it is for sets the flag again as soon as it runs.
    """
    if sys.version_info < (3, 12):
        with suppress(CommandEnded):
            _await_exception()


def _wake_up(_number: int, _frame: object) -> None:
    """
    Do nothing; the pending exception is raised as soon as this is called.
    """


@contextmanager
def _main_thread_wakes_up() -> Iterator[None]:
    """
    Let a signal interrupt sleeps of the main thread, if nobody else uses it.
    """
    if not _is_signal_free():
        yield
        return

    signal.signal(_WAKE_UP, _wake_up)
    try:
        yield
    finally:
        signal.signal(_WAKE_UP, signal.SIG_DFL)


def _is_signal_free() -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(_WAKE_UP) is not signal.SIG_DFL:
        return False

    # Python does not know the handlers of native code.
    status = parse_status(read_proc("/proc/thread-self/status"))
    caught = int(status.get("SigCgt", "0"), 16)
    return bool(status) and not caught & 1 << (_WAKE_UP - 1)
