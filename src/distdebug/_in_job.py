"""
Keep our threads and descriptors inside a job apart from the program.

A program may block a signal and wait for it, so our threads take none.  It may
close every descriptor and open files, which then get the lowest free numbers:
ours have high numbers, and each use checks what is behind them.  The stacks of
its threads are read without harm to it.

Training jobs import this module: it needs only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import gc
import itertools
import os
import signal
import sys
import threading
import traceback

from collections.abc import Callable, Iterator
from types import FrameType


# Caused by the thread itself: blocked, they would end the process unreported.
_OWN_FAULTS = {
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
}
# The kernel keeps 8 bytes for each number up to the highest.
_MAX_DESCRIPTOR = 1 << 13

# A frame and its current line; the innermost frame of a stack comes first.
Stack = list[tuple[FrameType, int]]

_MAX_FRAMES = 200
# Newer versions collect garbage between two instructions only.
_COLLECTS_ANYWHERE = sys.version_info < (3, 12)

# The signals that the program blocks where it started a thread of ours.
_program = threading.local()


class OwnThread(threading.Thread):
    """
    A daemon thread that takes no signals.

    Args:
        work: What it runs.
    """

    def __init__(
        self, work: Callable[[], object], name: str = "distdebug"
    ) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self._blocked: set[signal.Signals] = set()

    def start(self) -> None:
        """
        Start the thread.

        Raises:
            RuntimeError: The process may have no more threads, or it ends.
        """
        _load_thread_exit()
        before = _blocked_signals()
        self._blocked = getattr(_program, "blocked", before)
        try:
            # A thread inherits the mask of the one that starts it.
            signal.pthread_sigmask(
                signal.SIG_BLOCK, signal.valid_signals() - _OWN_FAULTS
            )
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def run(self) -> None:
        """
        Run in the thread.
        """
        _program.blocked = self._blocked
        super().run()


@functools.cache
def _load_thread_exit() -> None:
    """
    Load the library by which glibc ends a thread.

    Up to Python 3.13, a daemon thread that wakes up while the interpreter ends
    is ended by ``pthread_exit``, which loads it, and aborts the process if no
    descriptor is free.  Torch loads it anyway.
    """
    with contextlib.suppress(OSError):
        ctypes.CDLL("libgcc_s.so.1")


@contextlib.contextmanager
def program_signals() -> Iterator[None]:
    """
    Take signals in this thread as in the one that started it.

    That is for code of the user, whose child processes inherit the mask.
    """
    before = _blocked_signals()
    try:
        signal.pthread_sigmask(
            signal.SIG_SETMASK, getattr(_program, "blocked", before)
        )
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _blocked_signals() -> set[signal.Signals]:
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())  # type: ignore[return-value]


class OwnDescriptor:
    """
    A file descriptor of ours, which the program may close, and reuse.

    Args:
        fd: An open descriptor; a high number takes its place if one is free.

    Attributes:
        fd: The number.

    Raises:
        OSError: It is closed already.
    """

    def __init__(self, fd: int) -> None:
        self.fd = _move_up(fd)
        self._file = _identify(self.fd)

    def is_intact(self) -> bool:
        """
        Return whether the number still stands for this file.
        """
        try:
            return _identify(self.fd) == self._file
        except OSError:
            return False

    def close(self) -> None:
        """
        Close the file, unless the number stands for another one by now.
        """
        if self.is_intact():
            os.close(self.fd)


def _move_up(fd: int) -> int:
    least = min(os.sysconf("SC_OPEN_MAX"), _MAX_DESCRIPTOR) * 3 // 4
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    except (OSError, ValueError):  # no high number is free
        return fd

    os.close(fd)
    return moved


def _identify(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def stacks_of_threads() -> dict[int, Stack]:
    """
    Return the stack of each thread of this process, by its ID.

    That of the calling thread starts at the caller.
    """
    with _no_collection():
        current = sys._current_frames()  # noqa: SLF001 no public way
        if threading.get_ident() in current:
            current[threading.get_ident()] = sys._getframe(1)  # noqa: SLF001
        return {
            ident: [*itertools.islice(traceback.walk_stack(f), _MAX_FRAMES)]
            for ident, f in current.items()
        }


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """
    Keep the garbage collector of Python 3.11 off for the moment.

    It may start where the frame object of a caller is created.  A finalizer
    lets other threads run, so that the caller has returned when its frame is
    read: the process crashes or hangs.
    """
    if not (_COLLECTS_ANYWHERE and gc.isenabled()):
        yield
        return

    gc.disable()
    try:
        yield
    finally:
        gc.enable()
