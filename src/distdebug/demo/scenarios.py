"""
What is planted, and what must the diagnosis say?
"""

from __future__ import annotations

import attrs

from ..findings import Cause, Diagnosis


__all__ = ["SCENARIOS", "Scenario"]


@attrs.frozen
class Scenario:
    """
    One program of :mod:`distdebug.demo.programs`, and what is wrong with it.

    Attributes:
        name: Its name, and that of the program.

        planted: What is wrong, as one sentence.

        cause: What the verdict has to be.

        ranks: The ranks that it has to name; -1 is the last one.

        detail: Why the rank did not arrive, if the verdict has to know.
    """

    name: str
    planted: str
    cause: Cause
    ranks: tuple[int, ...] = ()
    detail: Cause | None = None

    def culprits(self, world_size: int) -> tuple[int, ...]:
        """
        The ranks that are at fault in a job of this size.
        """
        return tuple(sorted(rank % world_size for rank in self.ranks))

    def is_found_by(self, diagnosis: Diagnosis, world_size: int) -> bool:
        """
        Whether a diagnosis names what was planted.
        """
        verdict = diagnosis.verdict
        return (
            verdict.cause is self.cause
            and verdict.ranks == self.culprits(world_size)
            and self.detail in {None, verdict.detail_cause}
        )


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "dataloader",
            "the data loader of the last rank never gets its fifth shard",
            Cause.RANK_NOT_ARRIVED,
            (-1,),
            Cause.DATALOADER_WAIT,
        ),
        Scenario(
            "cascade",
            "rank 1 waits for a lock; most others wait for ranks that wait",
            Cause.RANK_NOT_ARRIVED,
            (1,),
            Cause.LOCK_DEADLOCK,
        ),
        Scenario(
            "mismatch",
            "rank 2 reduces a tensor that is larger than the others'",
            Cause.SIZE_MISMATCH,
            (2,),
        ),
        Scenario(
            "skip",
            "rank 2 leaves out one all_reduce",
            Cause.SKIPPED_COLLECTIVE,
            (2,),
        ),
        Scenario(
            "extra",
            "rank 0 does one all_reduce that the others do not",
            Cause.EXTRA_COLLECTIVE,
            (0,),
        ),
        Scenario(
            "order",
            "the last rank enters its two groups in another order",
            Cause.GROUP_ORDER_DEADLOCK,
            (-1,),
        ),
        Scenario(
            "crash",
            "rank 2 is killed and leaves no dump",
            Cause.RANK_CRASHED,
            (2,),
        ),
        Scenario(
            "straggler",
            "rank 1 is slower than the others in every step",
            Cause.STRAGGLER,
            (1,),
        ),
        Scenario("healthy", "nothing is wrong", Cause.HEALTHY),
    )
}
