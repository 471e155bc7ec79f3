"""
What was found, and what does it rest on?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..._text import clean
from ...diagnosis.seen import seen_by
from ...findings import Diagnosis, Evidence, Finding, meaning_of
from ..paths import short_path
from ..ranks import RankLinks, rank_links
from ..section import Section
from ..words import Piece, as_sentence, cause_words, pieces_of, tone_of


__all__ = ["findings_section"]

_MOST_FINDINGS = 40
_MOST_EVIDENCE = 16
_MOST_QUOTED = 1200


class _Quote(NamedTuple):
    """
    What was seen, and where.
    """

    kind: str
    where: str
    text: str


class _Shown(NamedTuple):
    """
    One finding.
    """

    tone: str
    words: str
    cause: str
    meaning: str
    sentence: str
    confidence: str
    ranks: RankLinks
    facts: tuple[tuple[str, str], ...]
    remedy: tuple[Piece, ...]
    evidence: tuple[_Quote, ...]
    more: int


def findings_section(diagnosis: Diagnosis) -> Section | None:
    """
    What was found, and what does it rest on?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        All findings, the verdict first.
    """
    verdict = diagnosis.verdict
    others = [f for f in diagnosis.findings if f != verdict]
    if not (others or verdict.evidence):
        return None

    given = seen_by(diagnosis).paths
    first = [verdict, *others][:_MOST_FINDINGS]
    return Section(
        name="findings",
        title="Findings",
        summary=_summary(len(others)),
        values={
            "findings": [_shown(f, given) for f in first],
            "culprits": frozenset(verdict.ranks),
            "more": 1 + len(others) - len(first),
        },
    )


def _summary(others: int) -> str:
    if not others:
        return "the evidence for the verdict"

    return f"the verdict and {others:,} more"


def _shown(finding: Finding, given: Sequence[str]) -> _Shown:
    return _Shown(
        tone=tone_of(finding.cause),
        words=cause_words(finding.cause),
        cause=finding.cause.value,
        meaning=meaning_of(finding.cause),
        sentence=as_sentence(finding.summary),
        confidence=finding.confidence,
        ranks=rank_links(finding.ranks),
        facts=tuple(_facts(finding)),
        remedy=pieces_of(as_sentence(finding.remedy or "")),
        evidence=tuple(
            _quote(e, given) for e in finding.evidence[:_MOST_EVIDENCE]
        ),
        more=max(len(finding.evidence) - _MOST_EVIDENCE, 0),
    )


def _facts(finding: Finding) -> list[tuple[str, str]]:
    told = {
        "call": finding.collective,
        "group": finding.group,
        "line": finding.location,
        "on its host": finding.detail_cause,
    }
    return [(k, clean(str(v))) for k, v in told.items() if v is not None]


def _quote(evidence: Evidence, given: Sequence[str]) -> _Quote:
    source = short_path(evidence.source, given) if evidence.source else ""
    places = (source, clean(evidence.location))
    return _Quote(
        kind=clean(evidence.kind),
        where=", ".join(filter(None, places)),
        text=clean(evidence.quote, limit=_MOST_QUOTED),
    )
