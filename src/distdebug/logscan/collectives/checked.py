"""
Whom do torch's own checks blame?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...findings import Cause, CollectiveRef, Confidence, Finding
from ...ranks import ranks_text
from .logs import CollectiveLogs
from .model import BarrierFailure, FingerPrint, FingerPrintMismatch, LogRecord
from .quoting import evidence_of
from .remedies import REMEDIES


__all__ = ["explain_checks"]

# What may differ, the most telling first.
_ASPECTS: tuple[tuple[Cause, Callable[[FingerPrint], str]], ...] = (
    (Cause.TYPE_MISMATCH, lambda x: x.op),
    (Cause.SKIPPED_COLLECTIVE, lambda x: f"{x.op} #{x.seq}"),
    (Cause.SIZE_MISMATCH, lambda x: f"{x.op} of {x.shape}"),
    (Cause.DTYPE_MISMATCH, lambda x: f"{x.op} of {x.dtype}"),
)


def explain_checks(logs: CollectiveLogs) -> list[Finding]:
    """
    Who called something else, and who did not come, as torch found itself?

    Args:
        logs: What was read.

    Returns:
        One finding per call that differs, and per barrier that failed.
    """
    mismatches: dict[tuple[int, int], list[FingerPrintMismatch]] = defaultdict(
        list
    )
    for record in logs.mismatches:
        mismatches[record.attempt, record.own.seq].append(record)
    findings = [_mismatch(found) for found in mismatches.values()][:1]
    barriers: dict[int, list[BarrierFailure]] = defaultdict(list)
    for barrier in logs.barriers:
        barriers[barrier.attempt].append(barrier)
    findings += [
        _barrier(failures)
        for failures in barriers.values()
        if any(x.absent for x in failures)
    ]
    return findings


def _mismatch(found: Sequence[FingerPrintMismatch]) -> Finding:
    prints = _prints(found)
    cause, kinds = _kinds(prints)
    right, wrong = kinds[0][1], [r for _, ranks in kinds[1:] for r in ranks]
    # With one complaint, only two of perhaps many ranks are known.
    is_tie = len(kinds) > 1 and len(right) == len(kinds[1][1])
    confidence: Confidence = "possible" if is_tie else "certain"
    ranks = tuple(sorted(prints if is_tie else wrong))
    own = prints[right[0]]
    theirs = " and ".join(dict.fromkeys(kind for kind, _ in kinds[1:]))
    who = ranks_text(ranks) + _inside(found)
    return Finding(
        cause=cause,
        ranks=ranks if _is_world(found) else (),
        summary=f"{who} called {theirs} where the others called "
        f"{kinds[0][0]} (call #{own.seq})"
        if not is_tie
        else f"ranks do not agree on call #{own.seq}: "
        f"{_parties(kinds)}; it cannot be told who is wrong",
        confidence=confidence,
        remedy=REMEDIES[cause],
        collective=CollectiveRef(op=own.op, seq=own.seq),
        evidence=evidence_of(found),
    )


def _parties(kinds: Iterable[tuple[str, Sequence[int]]]) -> str:
    return ", ".join(f"{ranks_text(ranks)} {kind}" for kind, ranks in kinds)


def _prints(
    found: Iterable[FingerPrintMismatch],
) -> dict[int, FingerPrint]:
    """
    What each rank called; its own word goes before that of another.
    """
    prints: dict[int, FingerPrint] = {}
    for record in found:
        prints[record.own.rank] = record.own
    for record in found:
        prints.setdefault(record.other.rank, record.other)
    return prints


def _kinds(
    prints: Mapping[int, FingerPrint],
) -> tuple[Cause, list[tuple[str, list[int]]]]:
    """
    The first thing in which they differ, and the ranks by it, most first.
    """
    # What another rank tells is wrong if the lengths of the calls differ.
    is_sure = all(x.is_own or x.seq or x.shape for x in prints.values())
    own = {x.op for x in prints.values() if x.is_own}
    if not is_sure and len(own) < 2:
        shapes = {
            r: f"{x.op} of {x.shape}" if x.is_own else "something else"
            for r, x in prints.items()
        }
        return Cause.TYPE_MISMATCH, _by_value(shapes)

    for cause, show in _ASPECTS:
        kinds = _by_value({r: show(x) for r, x in prints.items()})
        if len(kinds) > 1:
            return cause, kinds
    same = _by_value({r: x.op for r, x in prints.items()})
    return Cause.TYPE_MISMATCH, [*same, ("something else", [])]


def _by_value(values: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items()):
        found[value].append(rank)
    return sorted(found.items(), key=lambda kind: -len(kind[1]))


def _barrier(failures: Sequence[BarrierFailure]) -> Finding:
    absent = {rank for x in failures for rank in x.absent}
    came = {
        x.group_rank
        for x in failures
        if not x.absent and x.group_rank is not None
    }
    absent -= came
    timeout = next((x.timeout for x in failures if x.timeout), None)
    spent = f" within {timeout:.0f} s" if timeout else ""
    ranks = tuple(sorted(absent))
    who = ranks_text(ranks) + _inside(failures) if ranks else "a rank"
    return Finding(
        cause=Cause.RANK_NOT_ARRIVED,
        ranks=ranks if _is_world(failures) else (),
        summary=f"{who} did not come to a monitored barrier{spent}",
        confidence="certain" if ranks else "possible",
        remedy=REMEDIES[Cause.RANK_NOT_ARRIVED],
        evidence=evidence_of(
            [x for x in failures if x.absent]
            + [x for x in failures if not x.absent]
        ),
    )


def _is_world(records: Sequence[LogRecord]) -> bool:
    """
    Whether ranks within the group are the global ones, as far as lines tell.
    """
    return all(
        x.rank == x.group_rank
        for x in records
        if x.rank is not None and x.group_rank is not None
    )


def _inside(records: Sequence[LogRecord]) -> str:
    return "" if _is_world(records) else " of the group"
