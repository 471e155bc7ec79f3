"""
When is a lack of progress news?

A stall is told once, again only after it was over, never often, and not
forever: whoever is told takes a snapshot, and snapshots fill disks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from .progress import ProgressSensor


__all__ = ["ProgressAlarm"]


@attrs.define(kw_only=True)
class ProgressAlarm:
    """
    Watches several things that should move, each by its own sensor.

    Attributes:
        new_sensor: Makes the sensor of a thing that is new.

        pause_s: How many seconds to be silent after some news; what stalls
            meanwhile, and does not recover, is told then.

        most: How often to tell news at all.
    """

    new_sensor: Callable[[], ProgressSensor] = ProgressSensor
    pause_s: float = 300.0
    most: int = 10
    _sensors: dict[str, ProgressSensor] = attrs.field(init=False, factory=dict)
    _told: set[str] = attrs.field(init=False, factory=set)
    _last: frozenset[str] = attrs.field(init=False, default=frozenset())
    _silent_until: float = attrs.field(init=False, default=float("-inf"))

    def saw(self, now: float, values: Mapping[str, object]) -> None:
        """
        Take note of what is there now.

        Args:
            now: The time in seconds, of a clock that does not go back.

            values: What each thing shows, by name.  What is not in it any more
                is forgotten.
        """
        self._sensors = {
            name: self._sensors.get(name) or self.new_sensor()
            for name in values
        }
        for name, value in values.items():
            # A hang that was mended must not count as a pause that is fine.
            learns = name not in self._told
            self._sensors[name].saw(now, value, learns=learns)

    def excuse(self, values: Mapping[str, object]) -> None:
        """
        Take note of changes that are not the job's own.

        Args:
            values: What each thing shows now, by name.
        """
        for name, value in values.items():
            if name in self._sensors:
                self._sensors[name].excuse(value)

    def news(self, now: float) -> tuple[tuple[str, float], ...]:
        """
        Tell what is stuck, and was not told yet.

        Args:
            now: The time in seconds, of the clock of :meth:`saw`.

        Returns:
            Names, and for how many seconds they did not move; longest first.
        """
        self._last = frozenset()
        stuck = {
            name: sensor.stalled_s(now)
            for name, sensor in self._sensors.items()
            if sensor.is_hung(now)
        }
        self._told &= stuck.keys()
        fresh = stuck.keys() - self._told
        if not fresh or not self.most or now < self._silent_until:
            return ()

        self._told |= fresh
        self._last = frozenset(fresh)
        self._silent_until = now + self.pause_s
        self.most -= 1
        return tuple(
            sorted(((x, stuck[x]) for x in fresh), key=lambda x: (-x[1], x[0]))
        )

    def withdraw(self, until: float, *, is_free: bool = True) -> None:
        """
        Take the last news back, because nothing was wrong.

        Args:
            until: When to tell it again if nothing has moved by then, on the
                clock of :meth:`saw`.

            is_free: Whether it does not count as told.
        """
        if self._last:
            self._told -= self._last
            self._last = frozenset()
            self._silent_until = until
            self.most += is_free
