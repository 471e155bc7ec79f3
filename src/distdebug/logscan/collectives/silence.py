"""
Which ranks of the job say nothing at all?

A line of a small group may not tell how many members it has, nor which ranks
these are.  But whoever holds up the others waits nowhere, so if all but a few
ranks of a job report that they wait, it is one of those few.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from ...findings import Cause
from .verdict import Verdict


__all__ = ["name_silent"]


def name_silent(
    verdicts: Sequence[Verdict], world_size: int | None
) -> list[Verdict]:
    """
    Name those who say nothing, where verdicts leave open who it is.

    Args:
        verdicts: What is wrong in each group of one run, the first to begin
            first.

        world_size: How many ranks the job has, if known.

    Returns:
        The same; in some of them ranks are named.
    """
    silent, speaking = _silent_ranks(verdicts, world_size)
    if not silent:
        return list(verdicts)

    named = [_with_ranks(verdict, silent) for verdict in verdicts]
    if any(x.members or x.cause != Cause.COLLECTIVE_TIMEOUT for x in named):
        return named
    is_sure = len(silent) == 1 < speaking // 3
    first = attrs.evolve(
        named[0],
        cause=Cause.RANK_NOT_ARRIVED,
        ranks=tuple(sorted(silent)),
        confidence="likely" if is_sure else "possible",
        told="of all ranks only "
        + ("this one says" if len(silent) == 1 else "these say")
        + " nothing",
    )
    return [first, *named[1:]]


def _silent_ranks(
    verdicts: Iterable[Verdict], world_size: int | None
) -> tuple[set[int], int]:
    """
    Ranks that say nothing, if these are but few, and how many others there
    are.
    """
    cases = [verdict.case for verdict in verdicts]
    speaking = frozenset[int | None]().union(*(x.heard for x in cases))
    is_folded = any(x.folded for x in cases)
    if world_size is None or None in speaking or is_folded:
        return set(), len(speaking)

    silent = set(range(world_size)) - speaking
    few = 2 * len(silent) <= len(speaking)
    return silent if few else set(), len(speaking)


def _with_ranks(verdict: Verdict, silent: set[int]) -> Verdict:
    """
    Members whose global ranks no line tells are the silent ones, if these are
    as many.
    """
    case = verdict.case
    is_default = case.group is None or case.group.is_default
    unnamed = [x for x in verdict.members if x not in case.ranks]
    if is_default or not unnamed or len(unnamed) != len(silent):
        return verdict
    named = {case.ranks[x] for x in verdict.members if x in case.ranks}
    return attrs.evolve(verdict, ranks=tuple(sorted(named | silent)))
