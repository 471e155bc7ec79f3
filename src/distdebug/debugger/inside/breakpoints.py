"""
Does a rank stop at this line?

A rank that nobody can reach must not hold the others, so a breakpoint stops
only where the debugger is armed, or where a person sits at the terminal.
"""

from __future__ import annotations

import bdb
import functools
import inspect
import itertools
import sys
import threading
import traceback

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Self

from ..._rank_syntax import read_selection
from ...identity import current_identity
from ..protocol import is_selected
from .arming import is_to_stop, ready_to_stop
from .frames import place_of, place_text
from .prompt import current_prompt, release_thread
from .settings import describe_process, is_off, pause_limit_s, say, say_once
from .stops import is_unanswered, open_stop


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
