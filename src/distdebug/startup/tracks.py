"""
What was seen of a phase in one log?
"""

from __future__ import annotations

from itertools import islice
from operator import itemgetter

import attrs

from .._lines import LogLine
from .bars import Progress
from .book import Phase


__all__ = ["Track"]

_MOST_BARS = 4096
_MOST_FACTS = 32
_MOST_PARTS = 1 << 16
# Of so many bars, one may go on without a name before it.
_FEW = 64


@attrs.define
class Track:
    """
    One phase, as far as a log was read.

    Times are seconds since the epoch; *begun* and *touched* count what was
    seen, so they tell the order also where no times are.
    """

    phase: Phase
    begun: int | None = None
    touched: int = 0
    begun_at: float | None = None
    last_at: float | None = None
    ended_at: float | None = None
    is_ended: bool = False
    has_failed: bool = False
    is_deduplicated: bool = False
    line: LogLine | None = None
    bars: dict[tuple[object, str, str], Progress] = attrs.field(factory=dict)
    parts: set[str] = attrs.field(factory=set)
    more_parts: int = 0
    of: float | None = None
    step: Progress | None = None
    first_step: tuple[float, float] | None = None
    last_step: tuple[float, float] | None = None
    facts: dict[str, str] = attrs.field(factory=dict)

    def touch(self, order: int, time: float | None, line: LogLine) -> None:
        """
        It goes on.
        """
        if self.begun is None:
            self.begun, self.begun_at = order, time
        self.touched, self.line = order, line
        self.last_at = self.last_at if time is None else time

    def end(self, time: float | None) -> None:
        """
        It is over.
        """
        self.is_ended, self.ended_at = True, time

    def reopen(self) -> None:
        """
        It was not over.
        """
        self.is_ended, self.ended_at = False, None

    def repeat(self, time: float | None) -> None:
        """
        It comes again, and counts from the beginning.
        """
        self.reopen()
        self.bars.clear()
        self.step, self.begun_at = None, time

    def add_bar(
        self, who: object, bar: Progress, series: tuple[str, str]
    ) -> None:
        """
        One of its bars moved; the newest comes last.
        """
        key = (who, *series) if who else self._goes_on(bar, series)
        self.bars.pop(key, None)
        if len(self.bars) < _MOST_BARS:
            self.bars[key] = bar

    def _goes_on(
        self, bar: Progress, series: tuple[str, str]
    ) -> tuple[object, str, str]:
        """
        Which bar continues one that nobody signed?

        Ray signs what an actor prints, but only where a line begins.
        """
        same = [
            (key, self.bars[key])
            for key in islice(reversed(self.bars), _FEW)
            if key[1:] == series
        ]
        before = [
            (known.done, key)
            for key, known in same
            if known.total == bar.total and known.done <= bar.done
        ]
        if before:
            return min(before, key=itemgetter(0))[1]
        return same[0][0] if same else (None, *series)

    def add_part(self, part: str, count: int) -> None:
        """
        One of its parts is done, of how many processes ever.
        """
        if len(self.parts) < _MOST_PARTS:
            self.parts.add(part[:80])
        self.more_parts += count - 1

    def counts(self, bar: Progress) -> bool:
        """
        Does a bar without a name count what the others counted?

        Loops over other things, such as evaluation, have another total.
        """
        if self.of is not None:
            return bar.total == self.of

        known = [one for one in self.bars.values() if not one.name]
        if not known or known[-1].total == bar.total:
            return True
        # Something else was counted before.
        told = self.line is not None and "loss" in self.line.text
        if known[-1].is_full and not told:
            self.bars.clear()
            return True
        return False

    def add_step(self, step: Progress, time: float | None) -> None:
        """
        A line tells how far it is.
        """
        self.step = step
        if time is None:
            return

        if self.last_step and step.done < self.last_step[1]:
            self.first_step = None
        self.first_step = self.first_step or (time, step.done)
        self.last_step = (time, step.done)

    def add_facts(self, groups: dict[str, str | None]) -> None:
        """
        What a pattern found.
        """
        for name, value in groups.items():
            if value is None:
                continue
            if name in self.facts or len(self.facts) < _MOST_FACTS:
                self.facts[name] = value.strip()[:200]

    @property
    def done_parts(self) -> int:
        """
        How many of its parts are done.
        """
        return len(self.parts) + self.more_parts

    def progress(self) -> Progress | None:
        """
        How far it is: that of the slowest bar which goes on.
        """
        if self.bars:
            bars = list(self.bars.values())
            # Who began another bar is done with the one before.
            newest = {
                key[:-1]: bar
                for key, bar in self.bars.items()
                if not bar.is_full
            }
            going = list(newest.values())
            # Ray leaves out what other processes printed alike.
            lost = self.is_deduplicated and len(going) < len(bars)
            if going and not lost:
                return min(going, key=lambda bar: bar.percent or 0.0)
            return bars[-1]
        if self.step:
            return self._stepwise(self.step)
        if self.of and (self.done_parts or self.phase.trains):
            done = min(float(self.done_parts), self.of)
            return Progress(done=done, total=self.of)
        return None

    def _stepwise(self, step: Progress) -> Progress:
        total = step.total or self.of
        rate = step.rate
        if self.first_step and self.last_step:
            seconds = self.last_step[0] - self.first_step[0]
            steps = self.last_step[1] - self.first_step[1]
            rate = steps / seconds if seconds > 0 and steps > 0 else rate
        left = None
        if rate and total is not None:
            left = max(total - step.done, 0.0) / rate
        return attrs.evolve(step, total=total, rate=rate, left_s=left)
