"""
Is the debugger switched on here, and how long may it hold a rank?

``DISTDEBUG=0`` switches everything off; any other value that is not empty arms
a process at its first breakpoint.  ``DISTDEBUG_LIMIT`` is the limit of a pause
in seconds; with 0, nothing is held unless a client asks for it.
"""

from __future__ import annotations

import logging
import math
import os

from contextlib import suppress

from ..._in_time import in_time


__all__ = [
    "DEFAULT_LIMIT_S",
    "is_off",
    "is_post_mortem_wanted",
    "is_wanted",
    "pause_limit_s",
    "say",
    "say_once",
]

DEFAULT_LIMIT_S = 30 * 60.0
_LONGEST_LIMIT_S = 366 * 86400.0

_LONGEST_SAY_S = 1.0

_logger = logging.getLogger("distdebug")
_said: set[str] = set()


def is_off() -> bool:
    """
    Did the user switch the debugger off?
    """
    return os.environ.get("DISTDEBUG") == "0"


def is_wanted() -> bool:
    """
    Did the user switch the debugger on, without a line of code?
    """
    return os.environ.get("DISTDEBUG", "0") not in {"", "0"}


def is_post_mortem_wanted() -> bool:
    """
    Did the user say, without a line of code, to stop where a rank fails?
    """
    return os.environ.get("DISTDEBUG_POST_MORTEM", "0") not in {"", "0"}


def pause_limit_s(wanted: float | None = None) -> float:
    """
    How long may a pause last, if nobody asks for more?

    Args:
        wanted: What the caller asked for, in seconds.

    Returns:
        That, or ``DISTDEBUG_LIMIT``, or 30 minutes.  It is always finite, and
        0 if nothing is to be held.
    """
    variable = os.environ.get("DISTDEBUG_LIMIT") or None
    for name, value in (("limit", wanted), ("DISTDEBUG_LIMIT", variable)):
        if value is None:
            continue
        with suppress(ValueError, TypeError):
            seconds = float(value)
            if seconds >= 0 and math.isfinite(seconds):
                return min(seconds, _LONGEST_LIMIT_S)
        say_once(f"{name} is no number of seconds: {value!r:.100}")

    return DEFAULT_LIMIT_S


def say(text: str, *args: object) -> None:
    """
    Log something that whoever reads the log of the job should know.

    Args:
        text: What to say, with a ``%s`` for each of *args*.

        args: What to fill in.
    """

    # A thread that is held may hold the lock of a handler.
    def work() -> None:
        with suppress(Exception):
            _logger.warning(text, *args)

    try:
        in_time(work, _LONGEST_SAY_S)
    except TimeoutError:
        pass
    except RuntimeError:  # no more threads
        work()


def say_once(text: str) -> None:
    """
    Log something, unless it has been logged already.

    Args:
        text: What to say.
    """
    if text not in _said:
        _said.add(text)
        say("%s", text)
