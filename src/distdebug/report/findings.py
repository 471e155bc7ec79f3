"""
What was found, and what does it rest on?
"""

from __future__ import annotations

import os

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .._text import clean, size_text
from ..diagnosis import Seen, seen_by
from ..findings import Diagnosis, Evidence, Finding, Missing, meaning_of
from .format import (
    Piece,
    RankLinks,
    Section,
    as_sentence,
    cause_words,
    pieces_of,
    rank_links,
    short_path,
    tone_of,
)


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


_MOST_REASONS = 200
_MOST_SOURCES = 20


class _Row(NamedTuple):
    """
    What is missing for the same reason.
    """

    what: str
    reason: str
    number: int
    ranks: RankLinks
    sources: tuple[str, ...]
    more: int


def missing_section(diagnosis: Diagnosis) -> Section | None:
    """
    What could not be looked at, and why?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        The reasons, each once.
    """
    if not diagnosis.missing:
        return None

    by_reason: dict[tuple[str, str], list[Missing]] = {}
    for m in diagnosis.missing:
        by_reason.setdefault((m.what, m.reason), []).append(m)
    given = seen_by(diagnosis).paths
    rows = [
        _row(alike, given)
        for alike in list(by_reason.values())[:_MOST_REASONS]
    ]
    count = len(diagnosis.missing)
    return Section(
        name="missing",
        title="What is missing",
        summary=f"{count:,} {'thing' if count == 1 else 'things'} could not "
        "be looked at",
        values={"rows": rows, "more": len(by_reason) - len(rows)},
        is_open=False,
    )


def _row(alike: list[Missing], given: tuple[str, ...]) -> _Row:
    sources = dict.fromkeys(m.source for m in alike if m.source)
    shown = list(sources)[:_MOST_SOURCES]
    return _Row(
        what=clean(alike[0].what, limit=60),
        reason=as_sentence(alike[0].reason),
        number=len(alike),
        ranks=rank_links(m.rank for m in alike if m.rank is not None),
        sources=tuple(short_path(source, given) for source in shown),
        more=len(sources) - len(shown),
    )


# Of each kind.
_MOST = 400


class _File(NamedTuple):
    """
    One file.
    """

    path: str
    size: str


class _Kind(NamedTuple):
    """
    All files of one kind.
    """

    name: str
    number: int
    size: str
    files: tuple[_File, ...]


def files_section(diagnosis: Diagnosis) -> Section | None:
    """
    Which files was a diagnosis made from?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        The files of each kind, with their sizes as long as they are there.
    """
    seen = seen_by(diagnosis)
    by_kind: dict[str, dict[str, None]] = defaultdict(dict)
    for kind, path in _files(seen):
        by_kind[kind][path] = None
    if not by_kind:
        return None

    count = sum(map(len, by_kind.values()))
    return Section(
        name="files",
        title="Files",
        summary=f"{count:,} {'file' if count == 1 else 'files'}",
        values={
            "kinds": [
                _kind(name, list(paths), seen.paths)
                for name, paths in by_kind.items()
            ]
        },
        is_open=False,
    )


def _files(seen: Seen) -> Iterator[tuple[str, str]]:
    if seen.flight:
        dumps = seen.flight.dumps
        yield from (("dumps", dump.path) for dump in dumps)
        sidecars = dumps.sidecars.values()
        yield from (("side-cars", s.path) for s in sidecars if s.path)
    yield from (("stacks", process.source) for process in seen.stacks)
    for path in seen.logs.files:
        is_facts = os.path.basename(path) == "node.json"  # noqa: PTH119 text
        yield "facts of nodes" if is_facts else "logs", path
    for death in seen.logs.deaths.deaths:
        if death.log:
            yield "logs of Ray", os.fspath(death.log)


def _kind(name: str, paths: list[str], given: tuple[str, ...]) -> _Kind:
    sizes = [_size(path) for path in paths]
    known = [size for size in sizes if size is not None]
    files = tuple(
        _File(short_path(path, given), "" if size is None else size_text(size))
        for path, size in zip(paths[:_MOST], sizes, strict=False)
    )
    return _Kind(name, len(paths), size_text(sum(known)), files)


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116 thousands of them
    except (OSError, ValueError):
        return None
