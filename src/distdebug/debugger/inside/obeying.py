"""
How does a command end that would hold its thread for ever?

An exception is raised in the thread, between two instructions of Python.  Code
that waits outside of Python, as ``time.sleep()`` does, sees it when it returns.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time

from collections.abc import Iterator
from contextlib import contextmanager


__all__ = ["CommandEnded", "Obeying", "end_thread"]


class CommandEnded(SystemExit):
    """
    A command was ended from outside.
    """


def end_thread(ident: int) -> bool:
    """
    Raise :class:`CommandEnded` in a thread; it replaces one not seen yet.

    Args:
        ident: The number of the thread.

    Returns:
        Whether that could be done.  Python 3.11 cannot: threads that are traced
        would spin until this one sees it.
    """
    if sys.version_info < (3, 12):
        return False

    return bool(
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(ident), ctypes.py_object(CommandEnded)
        )
    )


class Obeying:
    """
    Lets other threads end what this thread obeys, and nothing else.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._is_ended = False

    @contextmanager
    def may_end(self) -> Iterator[None]:
        """
        Let the block be ended by :class:`CommandEnded`, at most once.
        """
        me = threading.get_ident()
        try:
            self._thread, self._is_ended = me, False
            yield
        finally:
            self._close(me)

    def _close(self, me: int) -> None:
        with self._lock:
            self._thread = None
        # It must not be seen later, in code of the program.
        while self._is_ended and end_thread(me):
            time.sleep(0)

    @contextmanager
    def may_not_end(self) -> Iterator[None]:
        """
        Let a part of such a block be safe from that.
        """
        with self._lock:
            before, self._thread = self._thread, None
        try:
            yield
        finally:
            with self._lock:
                self._thread = before

    def end(self) -> None:
        """
        End the block, if a thread is in it.
        """
        with self._lock:
            ident, self._thread = self._thread, None
            if ident is not None:
                self._is_ended = end_thread(ident)
