"""
Can this process be debugged from outside?
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import DebuggerError
from ..folders import job_folder, make_folder, socket_path
from .agent import listen, serve
from .labels import describe_process, set_labels
from .patience import raise_timeouts, restore_timeouts
from .prompt import release_thread
from .settings import is_off, is_wanted, say
from .stops import after_fork


__all__ = ["arm", "disarm", "is_armed", "ready_to_stop"]


class _Armed(NamedTuple):
    path: Path
    listener: socket.socket
    pid: int


_armed: list[_Armed] = []
_lock = threading.Lock()


def arm(  # noqa: PLR0913 each can be left out
    *,
    dir: str | os.PathLike[str] | None = None,  # noqa: A002 it is a folder
    labels: Mapping[str, Any] | None = None,
    mesh: Mapping[str, int] | None = None,
    collective_timeout: float | None = None,
    post_mortem: bool = False,
    breakpoints: bool = False,
) -> Path | None:
    """
    Let this process be debugged from outside, by its own user.

    A thread begins to listen on a Unix socket.  Nothing else changes until a
    client asks.  It never raises for a reason that lies outside of the program:
    the log says then why this rank cannot be debugged.

    Args:
        dir: The folder of the sockets, on a file system of this node; by
            default ``DISTDEBUG_DIR``, or one in ``/tmp`` that is named after
            the user and the job.

        labels: How clients address this process, other than by what its
            launcher says: *group*, *rank*, *world_size*, and *coords*, the
            index in each dimension of a mesh by name.

        mesh: Size of each dimension of the mesh, outermost first, if the
            coordinates are to follow from the rank.

        collective_timeout: Let collectives wait for so many seconds from now
            on, so that the other ranks wait for one that is held.

        post_mortem: Whether to stop where an exception would end the program.

        breakpoints: Whether to take over ``breakpoint()``, also from a launcher
            that has done so, such as Ray or Monarch.  Without it,
            ``PYTHONBREAKPOINT`` tells who is called.

    Returns:
        The socket; ``None`` if the debugger is switched off, or cannot listen.

    Raises:
        ValueError: A label is not understood.
    """
    if is_off():
        return None

    set_labels(labels, mesh)
    if collective_timeout is not None:
        raise_timeouts(collective_timeout)
    if post_mortem:
        from .crashes import examine_crashes

        examine_crashes()
    if breakpoints:
        from .breakpoints import set_trace

        sys.breakpointhook = set_trace
    with _lock:
        if not is_armed():
            _arm(Path(dir).absolute() if dir else job_folder())
        return _armed[0].path if _armed else None


def _arm(folder: Path) -> None:
    try:
        make_folder(folder)
        path = socket_path(folder, describe_process()["rank"])
        listener = listen(path)
    except (DebuggerError, OSError) as exc:
        say("this rank cannot be debugged: %s", exc)
        return

    serve(listener, folder)
    _armed[:] = [_Armed(path, listener, os.getpid())]


def is_armed() -> bool:
    """
    Can this process be reached?
    """
    return bool(_armed) and _armed[0].pid == os.getpid()


def ready_to_stop() -> bool:
    """
    May this process be held, because somebody can let it go on?

    Returns:
        Whether it is armed, or was to be armed and now is.
    """
    return is_armed() or (is_wanted() and arm() is not None)


def disarm() -> None:
    """
    Take back what :func:`arm` did.

    The socket is closed, and collectives wait for as long as before.
    """
    restore_timeouts()
    with _lock:
        while _armed:
            _close(_armed.pop())


def _close(armed: _Armed) -> None:
    if armed.pid == os.getpid():
        with suppress(OSError):
            armed.path.unlink()
        # A thread that waits in accept() only wakes up by this.
        with suppress(OSError):
            armed.listener.shutdown(socket.SHUT_RDWR)
    armed.listener.close()


def _forget() -> None:
    """
    Leave the socket to the parent: a child arms itself at its first stop.
    """
    global _lock  # noqa: PLW0603 its owner does not exist here
    _lock = threading.Lock()
    after_fork()
    # The parent is stepped, not the child.
    release_thread()
    while _armed:
        _armed.pop().listener.close()


os.register_at_fork(after_in_child=_forget)
atexit.register(disarm)
