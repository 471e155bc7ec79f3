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
from ..protocol import job_folder, make_folder, socket_path
from .agent import (
    Opened,
    cancel_interrupt,
    close_own,
    finish_answers,
    forget_clients,
    is_own,
    listen,
    opened,
    serve,
)
from .prompt import release_thread
from .settings import (
    describe_process,
    is_off,
    is_post_mortem_wanted,
    is_wanted,
    pause_limit_s,
    say_once,
    set_labels,
)
from .stops import after_fork, close_stops, raise_timeouts, restore_timeouts


__all__ = ["arm", "disarm", "is_armed", "is_to_stop", "ready_to_stop"]


# Only who is just answering somebody waits so long: where many processes share a
# core, its turn may come late.
_FAREWELL_S = 5.0


class _Armed(NamedTuple):
    path: Path
    listener: socket.socket
    opened: Opened
    pid: int


_armed: list[_Armed] = []
# In which folder this process was to be armed; it is empty if nobody asked for that.
_wished: list[str | os.PathLike[str] | None] = []
# A handler of signals, or of logs, may come to a breakpoint in here.
_lock = threading.RLock()


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

        post_mortem: Whether to stop where an exception would end the program;
            ``DISTDEBUG_POST_MORTEM=1`` says so, too.

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

    # At a breakpoint, it may be too late to open files.
    from . import breakpoints as crashes
    from . import breakpoints as stopping

    set_labels(labels, mesh)
    pause_limit_s()  # which tells of a mistake now, and not at the first stop
    if collective_timeout is not None:
        raise_timeouts(collective_timeout)
    if post_mortem or is_post_mortem_wanted():
        crashes.examine_crashes()
    if breakpoints:
        sys.breakpointhook = stopping.set_trace
    with _lock:
        _wished[:] = [dir]
        problem = "" if is_armed() else _arm(dir)
        path = None if problem else _armed[0].path
    if problem:
        say_once(problem)
    return path


def _arm(chosen: str | os.PathLike[str] | None) -> str:
    """
    Begin to listen; tell why that cannot be, if so.
    """
    try:
        folder = Path(chosen).absolute() if chosen else job_folder()
        _listen_in(folder)
    # A name that is none is a ValueError; no more threads, a RuntimeError.
    except (DebuggerError, OSError, ValueError, RuntimeError) as exc:
        remedy = (
            getattr(exc, "remedy", "")
            or "name a folder in DISTDEBUG_DIR that can be made on this node"
        )
        return f"this rank cannot be debugged: {exc}; {remedy}"

    return ""


def _listen_in(folder: Path) -> None:
    make_folder(folder)
    path = socket_path(folder, describe_process()["rank"])
    listener = listen(path)
    # It is known before anybody is served, so that disarm() ends it also if
    # Ctrl-C comes in between.
    _armed[:] = [_Armed(path, listener, opened(listener), os.getpid())]
    try:
        serve(listener, folder)
    except BaseException:
        _close(_armed.pop())
        raise


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
    with _lock:
        was_armed = is_armed()
        problem = _arm_again() if was_armed else ""
    if problem:
        say_once(problem)
    if was_armed:
        return not problem
    return (
        is_to_stop() and arm(dir=_wished[0] if _wished else None) is not None
    )


def is_to_stop() -> bool:
    """
    Is this process to be held at breakpoints, whether or not it can be?

    So it is if the user said so, or if it was armed, or forked by one that was.
    """
    return is_wanted() or bool(_wished)


def _arm_again() -> str:
    """
    Listen again, where somebody has removed the folder, or closed the socket.
    """
    armed = _armed[0]
    is_there = os.path.exists(armed.path)  # noqa: PTH110 that of Path may raise
    if is_there and is_own(armed.listener, armed.opened):
        return ""

    _close(_armed.pop())
    return _arm(armed.path.parent)


def disarm() -> None:
    """
    Take back what :func:`arm` did.

    The socket is closed, and collectives wait for as long as before.
    """
    restore_timeouts()
    with _lock:
        _wished.clear()
        while _armed:
            _close(_armed.pop())


def _close(armed: _Armed) -> None:
    if armed.pid == os.getpid():
        with suppress(OSError):
            armed.path.unlink()
        # A thread that waits in accept() only wakes up by this.
        if is_own(armed.listener, armed.opened):
            with suppress(OSError):
                armed.listener.shutdown(socket.SHUT_RDWR)
    close_own(armed.listener, armed.opened)


def _forget() -> None:
    """
    Leave the socket to the parent: a child arms itself at its first stop.
    """
    global _lock  # noqa: PLW0603 its owner does not exist here
    _lock = threading.RLock()
    after_fork()
    forget_clients()
    # The parent is stepped, or about to be stopped, not the child.
    cancel_interrupt()
    release_thread()
    while _armed:
        gone = _armed.pop()
        close_own(gone.listener, gone.opened)
        _wished[:] = [gone.path.parent]


def _end() -> None:
    close_stops()
    finish_answers(_FAREWELL_S)
    disarm()


os.register_at_fork(after_in_child=_forget)
atexit.register(_end)
