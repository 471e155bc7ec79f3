"""
How is a moment written?
"""

from __future__ import annotations

from datetime import UTC, datetime


__all__ = ["moment_text", "span_text"]

# What is beyond is no time, but damage.
_MOST_S = 1 << 33


def moment_text(seconds: float | None) -> str:
    """
    How is a moment written?

    Args:
        seconds: Since the epoch; ``None`` if it is not known.

    Returns:
        Such as ``"2026-07-17 10:12:13 UTC"``, or ``""``.
    """
    if seconds is None or not 0 < seconds < _MOST_S:
        return ""

    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def span_text(first: float, last: float) -> str:
    """
    How is the time between two moments written?

    Args:
        first: The first one, in seconds since the epoch.

        last: The last one.

    Returns:
        Such as ``"2026-07-17 10:12:13 to 10:12:15 UTC"``.
    """
    begin, end = moment_text(first), moment_text(last)
    if begin == end or not (begin and end):
        return begin or end

    day = begin[:11]
    return f"{begin.removesuffix(' UTC')} to {end.removeprefix(day)}"
