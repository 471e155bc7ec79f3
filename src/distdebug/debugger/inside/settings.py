"""
Is the debugger switched on here, and how long may it hold a rank?

``DISTDEBUG=0`` switches everything off; any other value that is not empty arms
a process at its first breakpoint.  ``DISTDEBUG_LIMIT`` is the limit of a pause
in seconds.
"""

from __future__ import annotations

import logging
import math
import os

from contextlib import suppress


__all__ = ["DEFAULT_LIMIT_S", "is_off", "is_wanted", "pause_limit_s", "say"]

DEFAULT_LIMIT_S = 30 * 60.0

_logger = logging.getLogger("distdebug")


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


def pause_limit_s(wanted: float | None = None) -> float:
    """
    How long may a pause last, if nobody asks for more?

    Args:
        wanted: What the caller asked for, in seconds.

    Returns:
        That, or ``DISTDEBUG_LIMIT``, or 30 minutes.  It is always finite.
    """
    for value in (wanted, os.environ.get("DISTDEBUG_LIMIT")):
        with suppress(ValueError, TypeError):
            seconds = float(value)  # type: ignore[arg-type]
            if seconds > 0 and math.isfinite(seconds):
                return seconds

    return DEFAULT_LIMIT_S


def say(text: str, *args: object) -> None:
    """
    Log something that whoever reads the log of the job should know.

    Args:
        text: What to say, with a ``%s`` for each of *args*.

        args: What to fill in.
    """
    with suppress(Exception):
        _logger.warning(text, *args)
