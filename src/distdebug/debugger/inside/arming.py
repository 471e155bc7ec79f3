"""
Public functions for the job: arm, disarm, set_trace, post_mortem, and scope.
"""

from __future__ import annotations

import atexit
import bdb
import functools
import inspect
import itertools
import os
import sys
import threading
import traceback

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

from ..._rank_syntax import parse_selection
from ...errors import DebuggerError
from ...identity import current_identity
from ..protocol import is_selected, job_folder, make_folder, socket_path
from .agent import (
    OwnSocket,
    cancel_interrupt,
    finish_answers,
    forget_clients,
    listen,
    serve,
)
from .frames import frame_place, place_text
from .prompt import current_prompt, release_thread
from .settings import (
    describe_process,
    is_disabled,
    is_enabled,
    is_post_mortem_enabled,
    log_warning,
    log_warning_once,
    pause_limit_s,
    set_labels,
)
from .stops import (
    Stop,
    after_fork,
    close_stops,
    has_pause_timed_out,
    raise_timeouts,
    restore_timeouts,
)


# The wait for answers in progress; a thread may be scheduled late where many
# processes share a core.
_EXIT_WAIT_S = 5.0


class _Armed(NamedTuple):
    path: Path
    listener: OwnSocket
    pid: int


_armed: list[_Armed] = []
# The folder passed to arm(); empty if arm() was not called.
_requested_folder: list[str | os.PathLike[str] | None] = []
# A signal or log handler may reach a breakpoint while the lock is held.
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

    A thread listens on a Unix socket.  Nothing else changes until a client
    sends a request.  Causes outside the program never raise: the log then says
    why this rank cannot be debugged.

    Args:
        dir: The folder of the sockets, on a local file system; by default
            ``DISTDEBUG_DIR``, or one in ``/tmp`` named after the user and the
            job.

        labels: How clients address this process, instead of by the values of
            its launcher: *group*, *rank*, *world_size*, and *coords*, the
            index in each dimension of a mesh by name.

        mesh: Size of each dimension of the mesh, outermost first; the
            coordinates then follow from the rank.

        collective_timeout: The minimum timeout of collectives from now on, in
            seconds, so that the other ranks wait for a stopped one.

        post_mortem: Whether to stop where an exception would end the program;
            ``DISTDEBUG_POST_MORTEM=1`` does the same.

        breakpoints: Whether to take over ``breakpoint()``, also from a
            launcher such as Ray or Monarch.  Otherwise ``PYTHONBREAKPOINT``
            decides.

    Returns:
        The socket; ``None`` if the debugger is disabled or cannot listen.

    Raises:
        ValueError: A label is invalid.
    """
    if is_disabled():
        return None

    set_labels(labels, mesh)
    pause_limit_s()  # logs an invalid limit now, not at the first stop
    if collective_timeout is not None:
        raise_timeouts(collective_timeout)
    if post_mortem or is_post_mortem_enabled():
        examine_crashes()
    if breakpoints:
        sys.breakpointhook = set_trace
    with _lock:
        _requested_folder[:] = [dir]
        problem = "" if is_armed() else _arm(dir)
        path = None if problem else _armed[0].path
    if problem:
        log_warning_once(problem)
    return path


def _arm(chosen: str | os.PathLike[str] | None) -> str:
    """
    Start to listen; return the problem if that fails.
    """
    try:
        folder = Path(chosen).absolute() if chosen else job_folder()
        _listen_in_folder(folder)
    # An invalid path is a ValueError; too many threads are a RuntimeError.
    except (DebuggerError, OSError, ValueError, RuntimeError) as exc:
        remedy = (
            getattr(exc, "remedy", "")
            or "name a folder in DISTDEBUG_DIR that can be made on this node"
        )
        return f"this rank cannot be debugged: {exc}; {remedy}"

    return ""


def _listen_in_folder(folder: Path) -> None:
    make_folder(folder)
    path = socket_path(folder, describe_process()["rank"])
    listener = OwnSocket(listen(path))
    # Set before clients are served, so that disarm() closes the socket even if
    # Ctrl-C interrupts this function.
    _armed[:] = [_Armed(path, listener, os.getpid())]
    try:
        serve(listener, folder)
    except BaseException:
        _close(_armed.pop())
        listener.close()
        raise


def is_armed() -> bool:
    """
    Return whether this process itself listens.
    """
    return bool(_armed) and _armed[0].pid == os.getpid()


def prepare_to_stop() -> bool:
    """
    Arm this process if needed; return whether a client can reach it.
    """
    with _lock:
        was_armed = is_armed()
        problem = _rearm() if was_armed else ""
    if problem:
        log_warning_once(problem)
    if was_armed:
        return not problem
    return (
        is_stop_requested()
        and arm(dir=_requested_folder[0] if _requested_folder else None)
        is not None
    )


def is_stop_requested() -> bool:
    """
    Return whether this process should stop at breakpoints.

    True if the user enabled the debugger, or if this process, or the parent
    that forked it, was armed.
    """
    return is_enabled() or bool(_requested_folder)


def _rearm() -> str:
    """
    Listen again if the folder was removed, or the socket closed.
    """
    armed = _armed[0]
    has_socket = os.path.exists(armed.path)  # noqa: PTH110 Path.exists may raise
    if has_socket and armed.listener.is_intact():
        return ""

    _close(_armed.pop())
    return _arm(armed.path.parent)


def disarm() -> None:
    """
    Undo :func:`arm`: close the socket, and restore the collective timeouts.
    """
    restore_timeouts()
    with _lock:
        _requested_folder.clear()
        while _armed:
            _close(_armed.pop())


def _close(armed: _Armed) -> None:
    if armed.pid == os.getpid():
        with suppress(OSError):
            armed.path.unlink()
        armed.listener.shut_down()  # its thread closes it
    else:
        armed.listener.close()


def _after_fork_in_child() -> None:
    """
    Leave the socket to the parent: a child arms itself at its first stop.
    """
    global _lock  # noqa: PLW0603 its owner is not in the child
    _lock = threading.RLock()
    after_fork()
    forget_clients()
    # A pending interrupt or step is for the parent.
    cancel_interrupt()
    release_thread()
    while _armed:
        inherited = _armed.pop()
        inherited.listener.close()
        _requested_folder[:] = [inherited.path.parent]


def _at_exit() -> None:
    close_stops()
    finish_answers(_EXIT_WAIT_S)
    disarm()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)


_EXAMINED = "_distdebug_examined"
# The hook of threads that was there before, once crashes are examined.
_hooks: list[Any] = []


class PostMortem:
    """
    Context manager, decorator, and excepthook: see :func:`post_mortem`.

    Args:
        limit: How long to wait for a client, in seconds.
    """

    def __init__(self, limit: float | None = None) -> None:
        self._limit = limit
        self._next_hook = sys.excepthook

    def __reduce__(self) -> tuple[Any, ...]:
        # A function that is pickled by value includes this object.
        return PostMortem, (self._limit,)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        if error is not None:
            _examine(error, self._limit)

    def __call__(self, *args: Any) -> Any:
        """
        Decorate a function; or, with three arguments, act as an excepthook.
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

    ``with post_mortem():`` examines exceptions that leave the block,
    ``@post_mortem()`` those that leave a function or coroutine function, and
    ``sys.excepthook = post_mortem()`` those that end the program.  The
    exception continues afterwards.  ``SystemExit`` and ``KeyboardInterrupt``
    stop nothing.

    Args:
        limit: How long to wait for a client, in seconds; by default
            ``DISTDEBUG_LIMIT``, or 30 minutes.
    """
    return PostMortem(limit)


def examine_crashes() -> None:
    """
    Stop from now on where an exception would end the program or a thread.

    A breakpoint calls this, too: a program that reaches one is being debugged.
    """
    if _hooks:
        return

    _hooks.append(threading.excepthook)
    sys.excepthook = PostMortem()
    threading.excepthook = _thread_hook


def are_crashes_examined() -> bool:
    """
    Return whether this process stops at crashes: on request, or after a stop.
    """
    return bool(_hooks)


def _thread_hook(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        _examine(args.exc_value, None)
    _hooks[0](args)


def _examine(error: BaseException, limit: float | None) -> None:
    if is_disabled() or not isinstance(error, Exception):
        return
    # Skip aborts, and exceptions examined in an inner frame.
    if isinstance(error, bdb.BdbQuit) or getattr(error, _EXAMINED, False):
        return

    with suppress(Exception):
        setattr(error, _EXAMINED, True)
    text = "".join(traceback.format_exception_only(error)).strip()
    if pause_limit_s(limit) == 0:
        return
    if not prepare_to_stop():
        log_warning("not examined: %s; DISTDEBUG=1 stops there", text)
        return

    current_prompt().examine(error, partial(Stop, "post mortem", limit, text))


_pass_counts: dict[tuple[str, int, str], Iterator[int]] = {}


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
    ``breakpoint()`` do so.  If the debugger is not armed and there is no
    terminal, or this rank cannot be stopped, it logs the line and continues.
    After the command ``abort`` it raises ``bdb.BdbQuit`` at the line.

    Example::

        distdebug.set_trace(ranks="ranks(tp=0)", once=True)

    Args:
        frame: Where to stop; by default at the line of the caller.

        ranks: The ranks to stop, as ``"ranks(dp=0, tp=1:)"``, a rank, or
            several; by default every rank that reaches the line.

        cond: Stop only if this is true; may be a function.

        skip: How often to pass this line before the first stop.

        once: Whether to stop only once at this line.

        limit: How long to wait for a client, in seconds; by default
            ``DISTDEBUG_LIMIT``, or 30 minutes.

        header: Text to show to a client that attaches.

    Raises:
        distdebug.errors.RankSyntaxError: *ranks* is no selection.
    """
    if is_disabled():
        return

    # Do not stop evaluations and log handlers that run in our own threads.
    if threading.current_thread().name.startswith("distdebug"):
        return
    try:
        stop_frame: FrameType = frame or sys._getframe(1)  # noqa: SLF001 as breakpoint() does
    except ValueError:  # no caller, as in atexit
        log_warning_once("passed a breakpoint that is in no line")
        return
    if not (cond() if callable(cond) else cond):
        return
    if ranks is not None and not _is_rank_selected(ranks):
        return
    if not _is_due(stop_frame, skip, once=once):
        return

    _stop(stop_frame, limit, header)


def _stop(
    stop_frame: FrameType, limit: float | None, header: str | None
) -> None:
    place = frame_place(stop_frame)
    if pause_limit_s(limit) == 0:
        log_warning_once(
            f"passed a breakpoint at {place_text(place)}; the limit is 0"
        )
        return
    if not prepare_to_stop():
        if _has_terminal():
            import pdb  # noqa: T100 there is a terminal

            pdb.Pdb().set_trace(stop_frame)
        else:
            _log_passed(place)
        return
    if has_pause_timed_out(place["file"], place["line"]):
        return

    examine_crashes()
    current_prompt().halt(
        stop_frame, partial(Stop, "breakpoint", limit, header)
    )


def _log_passed(place: Mapping[str, Any]) -> None:
    text = f"passed a breakpoint at {place_text(place)}"
    if is_stop_requested():  # the reason is logged already
        log_warning_once(f"{text}; this rank cannot be debugged")
    else:
        log_warning("%s; DISTDEBUG=1 stops there", text)


def _is_rank_selected(ranks: str | int | Iterable[int]) -> bool:
    labels = describe_process()
    if isinstance(ranks, str):
        by_rank, by_dimension = parse_selection(ranks)
    else:
        several = [ranks] if isinstance(ranks, int) else ranks
        by_rank = tuple(range(rank, rank + 1) for rank in several)
        by_dimension = ()
    # A program without a launcher is rank 0.
    rank = labels["rank"] or 0
    return is_selected(by_rank, by_dimension, rank, labels["coords"])


def _is_due(stop_frame: FrameType, skip: int, *, once: bool) -> bool:
    """
    Count the passes of each line, and apply *skip* and *once*.
    """
    if not (skip or once):
        return True

    code = stop_frame.f_code
    line = (code.co_filename, stop_frame.f_lineno, code.co_qualname)
    # No lock: a forked process would wait for it for ever.
    passed = next(_pass_counts.setdefault(line, itertools.count(1)))
    return passed == skip + 1 if once else passed > skip


def _has_terminal() -> bool:
    """
    Return whether this is a single process with a terminal.
    """
    try:
        is_tty = sys.stdin.isatty() and sys.stdout.isatty()
    except (AttributeError, ValueError):
        return False

    return is_tty and (current_identity().world_size or 1) == 1


@contextmanager
def scope(name: str = "") -> Iterator[None]:
    """
    Stop debugging this thread when the block ends.

    It can decorate a function, too.  Breakpoints that a client has set are
    cleared, and the thread runs at full speed again.

    Args:
        name: A name of the block, for readers of the code.
    """
    del name
    try:
        yield
    finally:
        release_thread()
