"""
How is something logged by whoever must go on, whatever happens to the log?

Where the log of a job goes may be closed, or a pipe that nobody reads.
"""

from __future__ import annotations

import logging
import threading

from contextlib import suppress
from functools import partial

from .._in_time import in_time


__all__ = ["is_the_end", "say"]

_logger = logging.getLogger("distdebug")
_PATIENCE_S = 2.0


def say(
    level: int, text: str, *args: object, error: BaseException | None = None
) -> None:
    """
    Log something; on a thread that is not the main one, in bounded time.

    Args:
        level: How bad it is, as *logging* counts.

        text: What to say, with a ``%s`` for each of *args*.

        args: What to fill in.

        error: Of what to show the traceback.
    """
    log = partial(_logger.log, level, text, *args, exc_info=error)
    if threading.current_thread() is threading.main_thread():
        with suppress(Exception):
            log()
    elif _logger.isEnabledFor(level):
        with suppress(BaseException):
            in_time(log, _PATIENCE_S)


def is_the_end(error: BaseException) -> bool:
    """
    Tell whether an exception is meant to end the program.

    Args:
        error: What was caught.

    Returns:
        Whether it is Ctrl-C, or a wish to exit, on the main thread.  On any
        other, it is a mistake like others, and ends nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and not isinstance(error, Exception)
