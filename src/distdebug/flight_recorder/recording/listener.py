"""
Who reacts when somebody asks a rank for a dump?

One thread sleeps until something is written to one of its pipes.  It costs
nothing until then.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading

from collections.abc import Callable, Mapping
from pathlib import Path

from .complaints import quietly
from .describe import THREAD_PREFIX


__all__ = ["Listener", "drain", "open_request_pipe"]

_PATIENCE_S = 1.0
_CHUNK = 1 << 16


class Listener:
    """
    A thread that calls what belongs to a pipe when the pipe is written to.

    Args:
        actions: What to call, by file descriptor.  Each must empty its pipe;
            its errors are logged once and otherwise ignored.

        prepare: Called first of all, in the thread.
    """

    def __init__(
        self,
        actions: Mapping[int, Callable[[], object]],
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._actions = dict(actions)
        self._prepare = prepare
        self._stop_reader, self._stop_writer = os.pipe()
        self._prepared = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"{THREAD_PREFIX} listener", daemon=True
        )

    def start(self) -> None:
        """
        Listen from now on.

        Raises:
            RuntimeError: There can be no more threads.
        """
        self._thread.start()
        self._prepared.wait(_PATIENCE_S)

    def stop(self) -> bool:
        """
        Stop listening, and wait a moment for what is going on.

        Returns:
            Whether the thread is gone.  If not, its pipes must stay open.
        """
        os.write(self._stop_writer, b"x")
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            return False

        self.close()
        return True

    def close(self) -> None:
        """
        Let go of the pipes, as in a forked child: it has no such thread.
        """
        for fd in (self._stop_reader, self._stop_writer):
            with contextlib.suppress(OSError):
                os.close(fd)

    def _run(self) -> None:
        quietly(self._prepare)
        self._prepared.set()
        poll = select.poll()
        for fd in (self._stop_reader, *self._actions):
            poll.register(fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._stop_reader in ready:
                return
            for fd in ready:
                quietly(self._actions[fd])


def open_request_pipe(path: Path) -> int:
    """
    Make a named pipe that only its owner can write to.

    Args:
        path: Its name; what a dead process left there is replaced.

    Returns:
        A file descriptor to read from.  It never ends: it is also open for
        writing.

    Raises:
        OSError: The pipe cannot be made.
    """
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISFIFO(path.lstat().st_mode):
            path.unlink()
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def drain(fd: int) -> None:
    """
    Read all that is in a pipe: many requests at once are one.
    """
    with contextlib.suppress(BlockingIOError):
        while len(os.read(fd, _CHUNK)) == _CHUNK:
            pass
