"""
What is wrong in one group?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

import attrs

from ...findings import Cause, Confidence
from .case import Case
from .model import LogRecord, WorkTimeout


__all__ = ["Verdict", "collectives_of", "verdict_of"]

_MOST_EVIDENCE = 6


@attrs.frozen(kw_only=True)
class Verdict:
    """
    What is wrong in one group of one run.

    Attributes:
        case: The group.

        cause: What is wrong.

        members: Those at fault, as ranks within the group.

        ranks: Those at fault, as global ranks, where these are not those of
            *members*.

        waiting: Those that wait, as ranks within the group.

        op: The operation they wait in; ``""`` if unknown.

        seq: Its number; ``None`` if unknown.

        is_p2p: Whether it is between two ranks.

        confidence: How sure that is.

        told: What it is seen by, as a clause.

        evidence: The lines that show it.
    """

    case: Case
    cause: Cause
    members: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    op: str = ""
    seq: int | None = None
    is_p2p: bool = False
    confidence: Confidence = "likely"
    told: str = ""
    evidence: tuple[LogRecord, ...] = ()


def collectives_of(case: Case) -> dict[int, WorkTimeout]:
    """
    Who waits in calls of the whole group, whose numbers can be compared?

    Args:
        case: The group.

    Returns:
        Calls by rank within the group.
    """
    return {
        member: timeout
        for member, timeout in case.timeouts.items()
        if timeout.seq is not None and not timeout.is_p2p
    }


def _first(case: Case) -> WorkTimeout | None:
    """
    The call that most wait in.
    """
    calls = collectives_of(case) or case.timeouts
    counts = Counter((x.seq, x.op) for x in calls.values() if x.op)
    if not counts:
        return None
    (common, _) = counts.most_common(1)[0]
    return next(x for x in calls.values() if (x.seq, x.op) == common)


def verdict_of(  # noqa: PLR0913 all of a verdict
    case: Case,
    cause: Cause,
    members: Iterable[int],
    confidence: Confidence,
    told: str,
    *,
    call: WorkTimeout | None = None,
    evidence: Iterable[LogRecord] = (),
) -> Verdict:
    """
    Make a verdict, with what follows from the group.

    Args:
        case: The group.

        cause: What is wrong.

        members: Those at fault.

        confidence: How sure that is, if the group is told.

        told: What it is seen by.

        call: What the others wait in; by default what most wait in.

        evidence: Lines to show besides that of the call.
    """
    blamed = tuple(sorted(members))
    call = call or _first(case)
    waiting = tuple(sorted(set(case.timeouts) - set(blamed)))
    shown: list[LogRecord] = [call] if call else []
    shown += islice((x for x in evidence if x is not call), _MOST_EVIDENCE)
    return Verdict(
        case=case,
        cause=cause,
        members=blamed,
        waiting=waiting,
        op=call.op if call else "",
        seq=call.seq if call else None,
        is_p2p=call.is_p2p if call else False,
        # Who is compared to whom is a guess without a group.
        confidence="possible" if case.group is None else confidence,
        told=told,
        evidence=tuple(shown[:_MOST_EVIDENCE]),
    )
