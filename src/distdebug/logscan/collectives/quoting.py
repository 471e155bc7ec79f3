"""
How are lines quoted, and those named who say them?
"""

from __future__ import annotations

from collections.abc import Iterable

from ...findings import Cause, CollectiveRef, Confidence, Evidence, Finding
from ...ranks import ranks_text
from .model import GlooError, LogRecord, StoreTimeout


__all__ = [
    "evidence_of",
    "nccl_finding",
    "ranks_of",
    "who_waited",
    "within",
]

_MOST_EVIDENCE = 6


def evidence_of(records: Iterable[LogRecord]) -> tuple[Evidence, ...]:
    """
    Quote lines.

    Args:
        records: What stands in them.
    """
    found = dict.fromkeys(
        Evidence(
            kind="log",
            source=record.source,
            location=f"line {record.line}",
            quote=record.quote,
        )
        for record in records
    )
    return tuple(found)[:_MOST_EVIDENCE]


def nccl_finding(  # noqa: PLR0913 all of a finding
    cause: Cause,
    summary: str,
    evidence: Iterable[LogRecord],
    remedy: str,
    *,
    ranks: Iterable[int] = (),
    confidence: Confidence = "likely",
    collective: CollectiveRef | None = None,
) -> Finding:
    """
    Put what NCCL says into a finding.

    Args:
        cause: What is wrong.

        summary: The same as a sentence.

        evidence: The lines that show it.

        remedy: What to do about it.

        ranks: Those at fault.

        confidence: How sure that is.

        collective: The call for which others wait.
    """
    return Finding(
        cause=cause,
        ranks=tuple(sorted(set(ranks))),
        summary=summary,
        confidence=confidence,
        remedy=remedy,
        collective=collective,
        evidence=evidence_of(evidence),
    )


def ranks_of(records: Iterable[LogRecord]) -> tuple[int, ...]:
    """
    Which global ranks say this?

    Args:
        records: What they say.
    """
    return tuple(sorted({x.rank for x in records if x.rank is not None}))


def who_waited(records: Iterable[LogRecord]) -> str:
    """
    Name those who say this.

    Args:
        records: What they say.
    """
    ranks = ranks_of(records)
    return ranks_text(ranks) if ranks else "a process"


def within(records: Iterable[StoreTimeout | GlooError]) -> str:
    """
    Tell for how long they waited, such as ``" within 30 s"``.

    Args:
        records: What they say.

    Returns:
        The text; empty if no line tells.
    """
    spent = next((x.timeout for x in records if x.timeout), None)
    return f" within {spent:.0f} s" if spent else ""
