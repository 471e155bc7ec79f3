"""
What is known of one group in one run of the job?
"""

from __future__ import annotations

import attrs

from .model import DesyncReport, LogGroup, WorkStatus, WorkTimeout


__all__ = ["Case", "Run"]

# The number of the restart, and of the part in time.
Run = tuple[int, int]


@attrs.frozen(kw_only=True)
class Case:
    """
    What is known of one group in one run of the job.

    Attributes:
        run: Which run, as number of the restart and of the part in time.

        group: The group; ``None`` if it is not told.

        size: How many members it has, if known.

        timeouts: By rank within the group, the first call that did not end.

        statuses: By rank within the group, how far it came.

        desyncs: What torch itself says.

        ranks: Global ranks by rank within the group, as far as known or as
            follows from those of the neighbors.

        heard: Global ranks that say something here; ``None`` stands for those
            that are not known.

        is_mixed: Whether these lines are of several groups, which cannot be
            told apart.

        folded: How many further lines Ray did not show.
    """

    run: Run
    group: LogGroup | None
    size: int | None
    timeouts: dict[int, WorkTimeout]
    statuses: dict[int, WorkStatus]
    desyncs: tuple[DesyncReport, ...] = ()
    ranks: dict[int, int]
    heard: frozenset[int | None] = frozenset()
    is_mixed: bool = False
    folded: int = 0

    @property
    def begin(self) -> float | None:
        """
        When the first of its calls was made, by what the time-outs tell.
        """
        return min(
            (
                x.time - (x.ran or 0)
                for x in self.timeouts.values()
                if x.time is not None
            ),
            default=None,
        )
