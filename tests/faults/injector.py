"""
What if the n-th system call of a kind fails?

The functions by which Python reaches the kernel are replaced while a block
runs, so that files, processes, and sockets fail where, and as, a test wants.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import socket
import stat
import subprocess
import threading
import time

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

import attrs


# What may fail, and by which functions Python does it.
CALLS: dict[str, tuple[tuple[Any, str], ...]] = {
    "open": ((os, "open"), (os, "memfd_create")),
    "read": ((os, "read"), (os, "pread")),
    "write": ((os, "write"), (os, "fsync")),
    "stat": ((os, "stat"), (os, "lstat")),
    "list": ((os, "listdir"), (os, "scandir")),
    "mkdir": ((os, "mkdir"), (os, "mkfifo")),
    "rename": ((os, "rename"), (os, "replace")),
    "unlink": ((os, "unlink"), (os, "remove"), (os, "rmdir")),
    "link": ((os, "symlink"), (os, "link"), (os, "readlink")),
    "chmod": ((os, "chmod"), (os, "fchmod")),
    "pipe": ((os, "pipe"),),
    "start": ((subprocess.Popen, "__init__"),),
    "thread": ((threading.Thread, "start"),),
    "socket": tuple(
        (socket.socket, name)
        for name in (
            *("__init__", "bind", "connect", "connect_ex", "listen"),
            *("accept", "recv", "recv_into", "send", "sendall"),
        )
    ),
}

# How each may fail, apart from EIO: what the manuals of the kernel name and
# what is seen on clusters.
ERRORS: dict[str, tuple[int, ...]] = {
    "open": (errno.EACCES, errno.ENOENT),
    "read": (errno.EIO,),
    "write": (errno.ENOSPC,),
    "stat": (errno.ESTALE,),
    "list": (errno.EACCES, errno.ENOENT),
    "mkdir": (errno.ENOSPC,),
    "rename": (errno.EIO,),
    "unlink": (errno.EROFS,),
    "link": (errno.EPERM,),
    "chmod": (errno.EPERM,),
    "pipe": (errno.EMFILE,),
    "start": (errno.ENOMEM, errno.ENOENT),
    "thread": (errno.EAGAIN,),
    "socket": (errno.ECONNRESET,),
}


@attrs.frozen(kw_only=True)
class Fault:
    """
    One kind of call fails once.

    Attributes:
        call: The kind, one of `CALLS`.

        nth: Which of them, counted from 1; 0 for none, which only counts.

        error: How, as a number of :mod:`errno`.

        is_lasting: Whether all later ones fail as well.

        below: Only what is done to files below this path counts, if it is
            given; not for what has no path, such as threads.

        wait_s: How long each of them takes before it is done or fails.

        instead: What happens just before that call, which then does not fail.
    """

    call: str
    nth: int = 0
    error: int = errno.EIO
    is_lasting: bool = False
    below: str = ""
    wait_s: float = 0.0
    instead: Callable[[], object] | None = None


@attrs.define
class Seen:
    """
    What was seen of a fault.

    Attributes:
        calls: How often the kind was called.

        failed: How often it was made to fail.
    """

    calls: int = 0
    failed: int = 0


@contextmanager
def inject(fault: Fault) -> Iterator[Seen]:
    """
    Have one kind of call fail while the block runs.

    Args:
        fault: Which, and how.

    Yields:
        What was seen of it.
    """
    seen, lock = Seen(), threading.Lock()

    def strike(subject: Any) -> None:
        if fault.below and not _is_below(subject, fault.below):
            return
        with lock:
            seen.calls += 1
            due = seen.calls == fault.nth or (
                fault.is_lasting and 0 < fault.nth < seen.calls
            )
            seen.failed += due
        if fault.wait_s:
            time.sleep(fault.wait_s)
        if due and fault.instead is not None:
            fault.instead()
            return
        if due and fault.call == "thread":
            msg = "can't start new thread"
            raise RuntimeError(msg)  # as the interpreter says it
        if due:
            raise OSError(fault.error, os.strerror(fault.error))

    with ExitStack() as stack:
        for owner, name in CALLS[fault.call]:
            failing = _failing(getattr(owner, name), strike)
            stack.enter_context(mock.patch.object(owner, name, failing))
        if fault.call in {"open", "read", "write"}:
            _strikes.append((fault.call, strike))
            stack.callback(_strikes.remove, (fault.call, strike))
            stack.enter_context(mock.patch.object(builtins, "open", _open))
            stack.enter_context(mock.patch.object(io, "open", _open))
        yield seen


def _failing(
    real: Callable[..., Any], strike: Callable[[Any], None]
) -> Callable[..., Any]:
    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        subject = args[0] if args else ""
        is_pipe = isinstance(subject, int) and _is_pipe(subject)
        # An object for a socket that is there already asks nobody.
        if not is_pipe and kwargs.get("fileno") is None:
            strike(subject)
        return real(*args, **kwargs)

    return call


def _is_pipe(fd: int) -> bool:
    """
    Whether it leads to a process, and so to no disk that could fail.
    """
    with suppress(OSError):
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    return False


def _is_below(subject: Any, folder: str) -> bool:
    """
    Whether a path, or an open file, is a folder or something in it.
    """
    with suppress(OSError, TypeError, ValueError):
        if isinstance(subject, int):
            path = os.fsdecode(_readlink(f"/proc/self/fd/{subject}"))
        else:
            path = os.fsdecode(subject)
        return path == folder or path.startswith(f"{folder}/")
    return False


_readlink = os.readlink  # which may be made to fail
# What is done when a file is opened, read, or written by Python's own function.
_strikes: list[tuple[str, Callable[[Any], None]]] = []


class _Raw(io.FileIO):
    """
    A file whose every read or write may fail.
    """

    strikes: tuple[tuple[str, Callable[[Any], None]], ...] = ()

    def _strike(self, call: str) -> None:
        for kind, strike in self.strikes:
            if kind == call and not _is_pipe(self.fileno()):
                strike(self.fileno())

    def readinto(self, buffer: Any) -> Any:
        self._strike("read")
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self._strike("read")
        return super().readall()

    def read(self, size: int | None = -1) -> Any:
        self._strike("read")
        return super().read(-1 if size is None else size)

    def write(self, data: Any) -> Any:
        self._strike("write")
        return super().write(data)


def _open(  # noqa: PLR0917 as the real one
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    """
    Open a file as the real function does, but so that it may fail.
    """
    # With a number, nothing is opened; and an opener calls os.open.
    strikes = tuple(_strikes)
    if not isinstance(file, int) and opener is None:
        for kind, strike in strikes:
            if kind == "open":
                strike(file)
    raw = _Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
    raw.strikes = strikes
    if buffering == 0:
        return raw

    if "+" in mode:
        buffered: Any = io.BufferedRandom(raw)
    elif raw.readable():
        buffered = io.BufferedReader(raw)
    else:
        buffered = io.BufferedWriter(raw)
    if "b" in mode:
        return buffered

    text = io.TextIOWrapper(buffered, encoding, errors, newline)
    text.mode = mode
    return text
