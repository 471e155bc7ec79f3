"""
Is this still moving, compared with how it moved so far?

A job that takes a step every second is stuck after a minute without one; a
job that writes a checkpoint for ten minutes now and then is not.  So how long
to wait is learned from the job itself.
"""

from __future__ import annotations

from collections import deque

from .given import a_number


__all__ = ["ProgressSensor"]

_MEMORY = 1000


class ProgressSensor:
    """
    Tells from a value that should change whether it changes often enough.

    It has neither a clock nor a source: whoever looks tells it the time and
    what was seen.  The limit is the longest recent time between two changes,
    times *factor*, and never below *floor_s*.

    Args:
        floor_s: How many seconds without change are fine for any job.

        factor: How many times as long as ever before a change may take.

        start_s: How many seconds the first change may take, because a job
            that starts compiles, connects, and loads.

    Raises:
        ConfigError: *floor_s* is below 0.1, *factor* is below 1, *start_s* is
            negative, or one of them is no number, or a million and more.
    """

    def __init__(
        self,
        *,
        floor_s: float = 60.0,
        factor: float = 5.0,
        start_s: float = 600.0,
    ) -> None:
        self._floor_s = a_number(floor_s, "floor_s", least=0.1)
        self._factor = a_number(factor, "factor", least=1, unit="")
        self._start_s = a_number(start_s, "start_s", least=0)
        self._value: object = None
        self._since: float | None = None
        self._has_changed = False
        self._gaps: deque[float] = deque(maxlen=_MEMORY)

    @property
    def limit_s(self) -> float:
        """
        How many seconds may pass without a change, as far as is known now.
        """
        learned = max(self._gaps, default=0.0) * self._factor
        limit = max(self._floor_s, learned)
        return limit if self._has_changed else max(limit, self._start_s)

    def saw(self, now: float, value: object, *, learns: bool = True) -> None:
        """
        Take note of what is there now.

        Args:
            now: The time in seconds, of any clock that does not go back.

            value: Anything that is equal to the last value if nothing moved;
                ``None`` if it could not be seen, which tells nothing.

            learns: Whether, if it moves, the time until then counts as one
                that is fine.
        """
        if value is None:
            return

        if self._since is None:
            self._since = now
        elif value != self._value:
            # What came before the first change is a start, not a step.
            if self._has_changed and learns:
                self._gaps.append(now - self._since)
            self._since = now
            self._has_changed = True
        self._value = value

    def excuse(self, value: object) -> None:
        """
        Take note of a change that is not the job's own.

        To look into a process can make it move; that is no progress.

        Args:
            value: What is there now; ``None`` if it could not be seen.
        """
        if value is not None and self._since is not None:
            self._value = value

    def stalled_s(self, now: float) -> float:
        """
        Tell for how long nothing changed.

        Args:
            now: The time in seconds, of the clock of :meth:`saw`.

        Returns:
            Seconds since the last change, or since the first value; 0 if
            there never was one.
        """
        return 0.0 if self._since is None else max(0.0, now - self._since)

    def is_hung(self, now: float) -> bool:
        """
        Tell whether nothing changed for longer than the limit.

        Args:
            now: The time in seconds, of the clock of :meth:`saw`.

        Returns:
            Whether it is stuck.  ``False`` again as soon as it moves, and as
            long as nothing was ever seen.
        """
        return self.stalled_s(now) > self.limit_s
