"""
What does every judge of this room say of a node?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..findings import Cause, Confidence, Evidence, Finding


class Judged(NamedTuple):
    """
    What is wrong, without where.

    Attributes:
        cause: What is wrong.

        confidence: How sure this is.

        says: One clause about it.

        remedy: What to do about it.

        ranks: Whom it concerns.
    """

    cause: Cause
    confidence: Confidence
    says: str
    remedy: str
    ranks: tuple[int, ...] = ()


def as_finding(judged: Judged, *, host: str, evidence: Evidence) -> Finding:
    """
    Say it of a node.

    Args:
        judged: What is wrong.

        host: The node; ``""`` if there is only one.

        evidence: What was seen.

    Returns:
        The same as a finding.
    """
    return Finding(
        cause=judged.cause,
        ranks=judged.ranks,
        summary=f"{host}: {judged.says}" if host else judged.says,
        confidence=judged.confidence,
        remedy=judged.remedy,
        evidence=(evidence,),
    )


def known_ranks(
    pids: Iterable[int], ranks: Mapping[int, int]
) -> tuple[int, ...]:
    """
    Tell which ranks some processes are, in order.
    """
    return tuple(sorted({ranks[pid] for pid in pids if pid in ranks}))
