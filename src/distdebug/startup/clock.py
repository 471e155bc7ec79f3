"""
When was a line printed that tells no time?
"""

from __future__ import annotations

from collections import deque

import attrs

from .._lines import LogLine, parse_time
from .bars import Progress


__all__ = ["Clock"]

_MOST_UNREAD = 400
_MOST_BARS = 4096


@attrs.define
class Clock:
    """
    The time in a log, as far as it was read.

    Looking for times takes longer than all else, so lines are only looked at
    once somebody asks.

    Attributes:
        now: The time by which years are chosen where none are told.

        time: The newest time, in seconds since the epoch.

        is_told: Whether the line that was asked for last told its own.
    """

    now: float | None = None
    time: float | None = None
    is_told: bool = False
    _asked: LogLine | None = None
    _unread: deque[str] = attrs.field(
        factory=lambda: deque(maxlen=_MOST_UNREAD)
    )
    _anchors: dict[tuple[object, str], tuple[float, float]] = attrs.field(
        factory=dict
    )

    def add(self, raw: str) -> None:
        """
        A line was read.
        """
        self._unread.append(raw)

    def of_line(self, line: LogLine) -> float | None:
        """
        When was the line printed that was read last?
        """
        if line is self._asked:
            return self.time
        self._asked = line
        time = parse_time(line.text, now=self.now)
        if time is None and self._unread:
            # Before what a launcher wrote.
            time = parse_time(self._unread.pop(), now=self.now)
        self.is_told = time is not None
        while time is None and self._unread:
            time = parse_time(self._unread.pop(), now=self.now)
        self._unread.clear()
        if time is not None and (self.is_told or time > (self.time or 0.0)):
            self.time = time
        return self.time

    def of_bar(self, line: LogLine, name: str, bar: Progress) -> float | None:
        """
        The same for a bar: it tells for how long it has run.
        """
        time = self.of_line(line)
        if time is None or bar.elapsed_s is None:
            return time

        key = (line.origin, name)
        began, elapsed = self._anchors.get(key, (0.0, float("inf")))
        if bar.elapsed_s < elapsed:
            began = time - bar.elapsed_s
        if key in self._anchors or len(self._anchors) < _MOST_BARS:
            self._anchors[key] = (began, bar.elapsed_s)
            self.time = max(time, began + bar.elapsed_s)
        return self.time
