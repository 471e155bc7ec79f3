"""
Why did a job end?
"""

from __future__ import annotations

from collections.abc import Iterable

from .._lines import LogLine
from .._text import clean
from ..findings import Cause, Evidence, Finding
from .model import PhaseReport
from .sentences import ending_text
from .story import Story
from .tracebacks import is_consequence


__all__ = ["ending_finding", "ending_reason"]


def ending_reason(stories: Iterable[Story]) -> LogLine | None:
    """
    Which line tells why a job ended?

    Args:
        stories: What its logs tell.

    Returns:
        The exception of the log that ended first, rather one that follows from
        no other; or else the line that tells the end; ``None`` if there is
        neither.
    """
    ended = sorted(
        (story for story in stories if story.ending or story.reason),
        key=lambda s: float("inf") if s.ended_at is None else s.ended_at,
    )
    lines = [
        *(story.reason for story in ended if story.reason),
        *(story.ending[1] for story in ended if story.ending),
    ]
    return min(lines, key=lambda one: is_consequence(one.text), default=None)


def ending_finding(
    report: PhaseReport, reason: LogLine | None
) -> Finding | None:
    """
    What is wrong if a job failed or was killed?

    Args:
        report: Everything that is known.

        reason: The line that tells why.

    Returns:
        The finding, or ``None`` if it did not, or if another one tells it.
    """
    if report.ended not in {"failed", "killed"}:
        return None
    if any(f.cause is not Cause.LOSS_NOT_FINITE for f in report.findings):
        return None

    evidence: tuple[Evidence, ...] = ()
    rank = None
    if reason is not None:
        # Whose peer is gone has not crashed by itself.
        if reason.origin and not is_consequence(reason.text):
            rank = reason.origin.rank
        evidence = (
            Evidence(
                kind="log",
                source=reason.source,
                location=f"line {reason.number}",
                quote=clean(reason.text),
            ),
        )
    is_killed = report.ended == "killed"
    return Finding(
        cause=Cause.KILLED if is_killed else Cause.RANK_CRASHED,
        ranks=() if rank is None else (rank,),
        summary=ending_text(report, reason).rstrip("."),
        remedy="find out who ended it: the scheduler, a limit, or a person; "
        "the kernel log tells whether memory ran out"
        if is_killed
        else "mend what the exception tells, or look above it in the log",
        confidence="likely",
        evidence=evidence,
    )
