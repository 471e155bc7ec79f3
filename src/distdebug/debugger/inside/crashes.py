"""
Where did this rank raise, and what did its variables hold?

A rank that fails stops before its process group is torn down, so that it can be
looked at while the others wait.  No breakpoint is needed for that.
"""

from __future__ import annotations

import bdb
import functools
import inspect
import sys
import threading
import traceback

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from .arming import ready_to_stop
from .prompt import current_prompt
from .settings import is_off, pause_limit_s, say
from .stops import open_stop


__all__ = [
    "PostMortem",
    "are_crashes_examined",
    "examine_crashes",
    "post_mortem",
]

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
