"""
Whose are the lines that tell no rank, as other lines of the same log tell?
"""

from __future__ import annotations

from collections.abc import Sequence

from ..findings import Cause
from .gather import Tally


__all__ = ["lent_ranks"]

# Launchers say who ended first, not why.
_LAUNCHERS = frozenset(
    {
        "MPI reports a failed process",
        "killed",
        "task ended by Slurm",
        "torchrun reports a failed worker",
    }
)
_DEADLY = frozenset(
    {
        Cause.DISK_FULL,
        Cause.GPU_FAULT,
        Cause.GPU_OUT_OF_MEMORY,
        Cause.HOST_OUT_OF_MEMORY,
        Cause.IO_WAIT,
        Cause.KILLED,
        Cause.NATIVE_CRASH,
        Cause.NODE_MISCONFIGURED,
        Cause.RANK_CRASHED,
    }
)
_HEAVY = 3


def lent_ranks(tallies: Sequence[Tally]) -> dict[int, set[int]]:
    """
    Find ranks for what tells none.

    An assertion of a GPU program stands before the traceback of its rank; and
    where a single process failed, the launcher says which.

    Args:
        tallies: What went wrong, the most important first.

    Returns:
        Global ranks, by the ``id`` of the tally.
    """
    lent: dict[int, set[int]] = {}
    for tally in tallies:
        if tally.shape or _is_told(tally):
            continue
        for other in tallies:
            is_same = other.rule is tally.rule
            if is_same and other.ranks and _share_file(tally, other):
                lent[id(tally)] = set(other.ranks)
                break
    first = _blamed_first(tallies)
    if first is not None and id(tallies[0]) not in lent:
        lent[id(tallies[0])] = set(first.ranks)
    return lent


def _blamed_first(tallies: Sequence[Tally]) -> Tally | None:
    """
    What names the only rank that can be meant by what matters most.
    """
    if not tallies:
        return None

    top = tallies[0]
    rivals = [t for t in tallies[1:] if t.rule.priority < _HEAVY]
    is_alone = top.count == 1 and not any(map(_is_told, (top, *rivals)))
    if not is_alone or top.rule.cause not in _DEADLY:
        return None

    launchers = [
        t
        for t in tallies
        if t.rule.name in _LAUNCHERS and t.ranks and _share_file(t, top)
    ]
    first = min(launchers, key=lambda t: t.first.offset, default=None)
    return first if first is not None and len(first.ranks) == 1 else None


def _is_told(tally: Tally) -> bool:
    return bool(tally.ranks or tally.locals)


def _share_file(one: Tally, other: Tally) -> bool:
    return not one.files.keys().isdisjoint(other.files)
