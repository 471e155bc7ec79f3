"""
Who calls something else than the others?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ...findings import Cause
from .case import Case
from .model import WorkTimeout
from .verdict import Verdict, collectives_of, verdict_of


__all__ = ["judge_calls"]

# All members pass as many elements.
_EVEN = frozenset(
    {
        *("all_reduce", "broadcast", "reduce", "_all_gather_base"),
        *("_reduce_scatter_base", "barrier"),
    }
)


def judge_calls(case: Case) -> Verdict | None:
    """
    Ranks that wait in the same place, in different calls.

    Args:
        case: What is known of the group.

    Returns:
        The verdict; ``None`` if that is not what happened.
    """
    by_seq: dict[int, dict[int, WorkTimeout]] = defaultdict(dict)
    for member, timeout in collectives_of(case).items():
        by_seq[timeout.seq or 0][member] = timeout
    for seq in sorted(by_seq):
        calls = by_seq[seq]
        kinds = _kinds(calls)
        if len(kinds) > 1:
            return _mismatch(case, calls, kinds)
    return None


def _kinds(
    calls: Mapping[int, WorkTimeout],
) -> list[tuple[tuple[str, int | None], list[int]]]:
    """
    Ranks by what they called, most first.
    """
    found: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    is_told = all(
        call.numel_in is not None for call in calls.values() if call.op
    )
    for member, call in calls.items():
        is_even = is_told and call.op in _EVEN
        if call.op:
            found[call.op, call.numel_in if is_even else None].append(member)
    return sorted(found.items(), key=lambda kind: -len(kind[1]))


def _mismatch(
    case: Case,
    calls: Mapping[int, WorkTimeout],
    kinds: list[tuple[tuple[str, int | None], list[int]]],
) -> Verdict:
    (expected, right), (theirs, wrong) = kinds[:2]
    is_tie = len(right) == len(wrong)
    is_type = expected[0] != theirs[0]
    members = calls if is_tie else {m for _, kind in kinds[1:] for m in kind}
    texts = (
        (theirs[0], expected[0])
        if is_type
        else (f"{theirs[1]} elements", f"{expected[1]} elements")
    )
    return verdict_of(
        case,
        Cause.TYPE_MISMATCH if is_type else Cause.SIZE_MISMATCH,
        members,
        "possible" if is_tie else "likely",
        " against ".join(texts),
        call=calls[right[0]],
        evidence=(calls[wrong[0]],),
    )
