"""
How is a time written?
"""

from __future__ import annotations

from datetime import UTC, datetime


__all__ = ["clock"]


def clock(seconds: float | None) -> str:
    """
    How is a time written for people?

    Args:
        seconds: Since the epoch.

    Returns:
        Such as ``"2026-02-20 02:03:57"`` in UTC; ``""`` if it is unknown.
    """
    if seconds is None:
        return ""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return ""

    return f"{moment:%Y-%m-%d %H:%M:%S}"
