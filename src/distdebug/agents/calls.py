"""
Call tools in bounded time, so that a server of them stays responsive.
"""

from __future__ import annotations

import asyncio
import functools
import threading

from collections.abc import Callable
from typing import TypeVar

from .._io import confined_walks
from .._proc import start_call
from .._text import clean
from ..errors import DistdebugError


_Answer = TypeVar("_Answer")

_MOST_CALLS = 4
_slots = threading.BoundedSemaphore(_MOST_CALLS)


async def ask_in_time(
    ask: Callable[..., _Answer], timeout_s: float, **arguments: object
) -> _Answer:
    """
    Call a function in a thread, which is abandoned when its time is over.

    At most four calls work at a time, and none follows a link out of the
    folders that it was given.

    Args:
        ask: The function, with its arguments.

        timeout_s: How long it may take, and wait for its turn, in seconds.

    Raises:
        DistdebugError: Its time is over.
    """
    try:
        call = functools.partial(_ask, ask, timeout_s, arguments)
        future = asyncio.wrap_future(start_call(call))
        return await asyncio.wait_for(future, timeout_s)
    except TimeoutError:
        msg = f"this took more than {timeout_s:g} s"
        remedy = (
            "name fewer files, or let the server's owner start it with more "
            "time: distdebug mcp --timeout S"
        )
        raise DistdebugError(msg, remedy=remedy) from None


def _ask(
    ask: Callable[..., _Answer], timeout_s: float, arguments: dict[str, object]
) -> _Answer:
    # Abandoned calls still work, so that the next ones wait.
    if not _slots.acquire(timeout=timeout_s):
        raise TimeoutError
    try:
        with confined_walks():
            return ask(**arguments)
    finally:
        _slots.release()


def error_text(exc: Exception) -> str:
    """
    Return an error and its remedy as text of bounded size.
    """
    lines = (str(exc), *getattr(exc, "__notes__", ()))
    return "\n".join(clean(line, limit=1000) for line in lines)
