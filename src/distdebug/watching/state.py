"""
Count the steps and hangs of a watch, for whatever exports them as metrics.
"""

from __future__ import annotations

import time

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..identity import current_identity
from .hang import Hang
from .loop import step_count


class Metric(NamedTuple):
    """
    A metric of a watch.

    Attributes:
        name: Its name, without suffix.

        about: What it is, in a sentence.

        values: Labels and value of each series.

        is_counter: Whether it only grows.
    """

    name: str
    about: str
    values: Sequence[tuple[dict[str, str], float]]
    is_counter: bool = True


class WatchState:
    """
    What a watch has seen so far: steps, the last progress, hangs by cause.
    """

    def __init__(self) -> None:
        rank = current_identity().rank
        self.rank = "" if rank is None else str(rank)
        self._progress_s = time.time()
        self._steps = 0
        self._hangs: Counter[str] = Counter()
        self._value: object = None

    def metrics(self) -> Iterator[Metric]:
        """
        Return all metrics, as they are now.
        """
        own = {"rank": self.rank}
        # Beside a job, no steps are known.
        steps = [(own, self._steps)] if self._steps else []
        yield Metric("distdebug_steps", "Finished steps.", steps)
        yield Metric(
            "distdebug_last_progress_timestamp_seconds",
            "When something last moved, in seconds since the epoch.",
            [(own, self._progress_s)],
            is_counter=False,
        )
        yield Metric(
            "distdebug_hangs",
            "Times that no progress was diagnosed, by cause.",
            [({**own, "cause": x}, n) for x, n in [*self._hangs.items()]],
        )

    def observe(self, value: object) -> object:
        """
        Note whether something has moved, and export it.

        Args:
            value: Changes as long as there is progress; ``None`` if unknown.

        Returns:
            The same value.
        """
        if value is not None and value != self._value:
            self._value = value
            self._progress_s = time.time()
        self._steps = step_count() or 0
        self.export()
        return value

    def on_hang(self, hang: Hang) -> None:
        """
        Count a hang; to be passed to a watch.
        """
        self._hangs[hang.cause.value] += 1
        self.export()

    def export(self) -> None:
        """
        Write what has changed, where nobody comes to read it.
        """

    def close(self) -> None:
        """
        Export for the last time, and free what is used for it.
        """
