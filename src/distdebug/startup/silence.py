"""
For how long has a log been silent?
"""

from __future__ import annotations

from collections.abc import Iterable

from .story import Story


__all__ = ["silence_of"]

# Clocks differ, and writers keep some lines back.
_JITTER = 120.0
_ZONE_STEP = 900.0
_FARTHEST_ZONE = 14 * 3600.0


def silence_of(stories: Iterable[Story], now: float | None) -> float | None:
    """
    For how many seconds did none of these logs say anything?

    The times in the text are believed, but for those that cannot be: of a
    clock in another zone, or of lines that tell none while the file was
    written further.

    Args:
        stories: What the logs tell.

        now: The time, in seconds since the epoch.

    Returns:
        The seconds, or ``None`` if that cannot be known.
    """
    if now is None:
        return None

    last = [_last_written(story, now) for story in stories]
    known = [time for time in last if time is not None]
    return max(now - max(known), 0.0) if known else None


def _last_written(story: Story, now: float) -> float | None:
    written = story.mtime
    if written is not None and written > now + _JITTER:
        written = None  # a copy that is younger than the moment in question
    told = story.time
    if told is None:
        return written
    if written is None:
        return told if told <= now + _JITTER else None
    if told > now + _JITTER or told > written + _JITTER:
        return written
    if _is_zone(written - told):
        return written
    # A bar moves and tells no time; a whole line would have told its own.
    return told if story.last_is_timed else max(written, told)


def _is_zone(seconds: float) -> bool:
    """
    Do two clocks show the same moment in different zones?
    """
    steps = round(seconds / _ZONE_STEP)
    return (
        steps >= 1
        and abs(seconds - steps * _ZONE_STEP) <= _JITTER / 2
        and seconds <= _FARTHEST_ZONE
    )
