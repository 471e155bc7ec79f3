"""
Can this process be debugged from outside?
"""

from __future__ import annotations

import atexit
import bdb
import functools
import inspect
import itertools
import os
import socket
import sys
import threading
import traceback

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

from ..._rank_syntax import read_selection
from ...errors import DebuggerError
from ...identity import current_identity
from ..protocol import is_selected, job_folder, make_folder, socket_path
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
from .frames import place_of, place_text
from .prompt import current_prompt, release_thread
from .settings import (
    describe_process,
    is_off,
    is_post_mortem_wanted,
    is_wanted,
    pause_limit_s,
    say,
    say_once,
    set_labels,
)
from .stops import (
    after_fork,
    close_stops,
    is_unanswered,
    open_stop,
    raise_timeouts,
    restore_timeouts,
)


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

    set_labels(labels, mesh)
    pause_limit_s()  # which tells of a mistake now, and not at the first stop
    if collective_timeout is not None:
        raise_timeouts(collective_timeout)
    if post_mortem or is_post_mortem_wanted():
        examine_crashes()
    if breakpoints:
        sys.breakpointhook = set_trace
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


_SEEN = "_distdebug_examined"
_hooks: list[Any] = []


class PostMortem:
    """
    What stops where an exception was raised: see :func:`post_mortem`.

    Args:
        limit: How long to wait for a client, in seconds.
    """

    def __init__(self, limit: float | None = None) -> None:
        self._limit = limit
        self._next_hook = sys.excepthook

    def __reduce__(self) -> tuple[Any, ...]:
        # A function that is pickled by value takes it along to another process.
        return PostMortem, (self._limit,)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            _examine(error, self._limit)

    def __call__(self, *args: Any) -> Any:
        """
        Decorate a function; or, with three arguments, be an excepthook.
        """
        if len(args) == 3:
            _examine(args[1], self._limit)
            return self._next_hook(*args)

        (function,) = args
        return self._decorated(function)

    def _decorated(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def in_loop(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return in_loop

        @functools.wraps(function)
        def plain(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return plain


def post_mortem(limit: float | None = None) -> PostMortem:
    """
    Stop where an exception is raised, before it ends the rank.

    ``with post_mortem():`` looks at what leaves the block, ``@post_mortem()``
    at what leaves a function, coroutine functions included, and
    ``sys.excepthook = post_mortem()`` at what ends the program.  The exception
    goes on afterwards.  Exceptions that are a wish to exit stop nothing.

    Args:
        limit: How long to wait for a client, in seconds; by default
            ``DISTDEBUG_LIMIT``, or 30 minutes.

    Returns:
        What can be used in all three ways.
    """
    return PostMortem(limit)


def examine_crashes() -> None:
    """
    Stop from now on wherever an exception would end the program or a thread.

    A program that has come to a breakpoint is being debugged; so this is called
    there.
    """
    if _hooks:
        return

    _hooks[:] = sys.excepthook, threading.excepthook
    sys.excepthook = _of_program
    threading.excepthook = _of_thread


def are_crashes_examined() -> bool:
    """
    Has this process been told to stop where it fails, or come to a breakpoint?
    """
    return bool(_hooks)


def _of_program(
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    _examine(error, None)
    _hooks[0](kind, error, trace)


def _of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        _examine(args.exc_value, None)
    _hooks[1](args)


def _examine(error: BaseException, limit: float | None) -> None:
    if is_off() or not isinstance(error, Exception):
        return
    # The client said abort; or it was looked at further in.
    if isinstance(error, bdb.BdbQuit) or getattr(error, _SEEN, False):
        return

    with suppress(Exception):
        setattr(error, _SEEN, True)
    text = "".join(traceback.format_exception_only(error)).strip()
    if pause_limit_s(limit) == 0:
        return
    if not ready_to_stop():
        say("not examined: %s; DISTDEBUG=1 stops there", text)
        return

    current_prompt().examine(
        error, partial(open_stop, "post mortem", limit, text)
    )


_passed: dict[tuple[str, int, str], Iterator[int]] = {}


def set_trace(  # noqa: PLR0913 each can be left out
    frame: Any = None,
    *,
    ranks: str | int | Iterable[int] | None = None,
    cond: object = True,
    skip: int = 0,
    once: bool = False,
    limit: float | None = None,
    header: str | None = None,
) -> None:
    """
    Stop this rank at this line, and wait for a client.

    ``PYTHONBREAKPOINT=distdebug.debugger.set_trace`` makes every
    ``breakpoint()`` do so.  Where the debugger is not armed and there is no terminal, or this rank
    cannot be stopped, it says in the log where it was, and goes on.  If a client
    says ``abort``, ``bdb.BdbQuit`` is raised at the line.

    Args:
        frame: Where to stop; by default the line that calls this.

        ranks: Which ranks are to stop, as ``"ranks(dp=0, tp=1:)"``, a rank, or
            several; by default all that come here.

        cond: Stop only if this is true; or a function that tells.

        skip: How often to pass this line before it stops.

        once: Whether to stop at this line once at most.

        limit: How long to wait for a client, in seconds; by default
            ``DISTDEBUG_LIMIT``, or 30 minutes.

        header: What to say to whoever attaches.

    Raises:
        distdebug.errors.RankSyntaxError: *ranks* is no selection.
    """
    if is_off():
        return

    # An expression or a handler of logs that runs for us is not held.
    if threading.current_thread().name.startswith("distdebug"):
        return
    try:
        here: FrameType = frame or sys._getframe(1)  # noqa: SLF001 as breakpoint() does
    except ValueError:  # it was called by no code, as atexit does
        say_once("passed a breakpoint that is in no line")
        return
    if not (cond() if callable(cond) else cond):
        return
    if ranks is not None and not _is_meant(ranks):
        return
    if not _has_its_turn(here, skip, once=once):
        return

    _stop(here, limit, header)


def _stop(here: FrameType, limit: float | None, header: str | None) -> None:
    place = place_of(here)
    if pause_limit_s(limit) == 0:
        say_once(f"passed a breakpoint at {place_text(place)}; the limit is 0")
        return
    if not ready_to_stop():
        if _has_terminal():
            import pdb  # noqa: T100 somebody sits there

            pdb.Pdb().set_trace(here)
        else:
            _pass(place)
        return
    if is_unanswered(place["file"], place["line"]):
        return

    examine_crashes()
    current_prompt().halt(
        here, partial(open_stop, "breakpoint", limit, header)
    )


def _pass(place: Mapping[str, Any]) -> None:
    text = f"passed a breakpoint at {place_text(place)}"
    if is_to_stop():  # and said why that cannot be
        say_once(f"{text}; this rank cannot be debugged")
    else:
        say("%s; DISTDEBUG=1 stops there", text)


def _is_meant(ranks: str | int | Iterable[int]) -> bool:
    labels = describe_process()
    if isinstance(ranks, str):
        by_rank, by_dimension = read_selection(ranks)
    else:
        several = [ranks] if isinstance(ranks, int) else ranks
        by_rank = tuple(range(rank, rank + 1) for rank in several)
        by_dimension = ()
    # A program that nobody launched runs as its own rank 0.
    rank = labels["rank"] or 0
    return is_selected(by_rank, by_dimension, rank, labels["coords"])


def _has_its_turn(here: FrameType, skip: int, *, once: bool) -> bool:
    """
    Count how often each line was passed, each line by itself.
    """
    if not (skip or once):
        return True

    code = here.f_code
    line = (code.co_filename, here.f_lineno, code.co_qualname)
    # No lock: a process that is forked would wait for it for ever.
    passed = next(_passed.setdefault(line, itertools.count(1)))
    return passed == skip + 1 if once else passed > skip


def _has_terminal() -> bool:
    """
    Whether one process alone has a person in front of it.
    """
    try:
        is_tty = sys.stdin.isatty() and sys.stdout.isatty()
    except (AttributeError, ValueError):
        return False

    return is_tty and (current_identity().world_size or 1) == 1


@contextmanager
def scope(name: str = "") -> Iterator[None]:
    """
    End the debugging of this thread when a block ends.

    It can decorate a function as well.  Breakpoints set by a client are
    cleared, and the thread runs at its own speed again.

    Args:
        name: What the block is called, for whoever reads the code.
    """
    del name
    try:
        yield
    finally:
        release_thread()
