"""
Build the sections on findings, process groups, missing evidence, and input files.
"""

from __future__ import annotations

import os

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from .._text import clean, count_text, size_text
from ..diagnosis import DiagnosisInputs, inputs_of
from ..findings import (
    Diagnosis,
    Evidence,
    Finding,
    GroupProgress,
    Missing,
    costly,
    described,
    group_sort_key,
)
from ..stacks import group_by_key
from .format import (
    Section,
    as_sentence,
    cause_title,
    cause_tone,
    rank_links,
    short_path,
    split_commands,
)


_MAX_FINDINGS = 40
_MAX_EVIDENCE = 16
_MAX_QUOTE = 1200


def findings_section(diagnosis: Diagnosis) -> Section | None:
    """
    Return the section with all findings, the verdict first.
    """
    verdict = diagnosis.verdict
    others = [f for f in diagnosis.findings if f != verdict]
    if not (others or verdict.evidence):
        return None

    input_paths = inputs_of(diagnosis).paths
    first = [verdict, *others][:_MAX_FINDINGS]
    return Section(
        name="findings",
        title="Findings",
        summary=_summary(len(others)),
        values={
            "findings": [_finding_entry(f, input_paths) for f in first],
            "culprits": frozenset(verdict.ranks),
            "more": 1 + len(others) - len(first),
        },
    )


def _summary(others: int) -> str:
    if not others:
        return "the evidence for the verdict"

    return f"the verdict and {others:,} more"


def describe_finding(finding: Finding) -> dict[str, Any]:
    """
    Return the template variables of a finding, without its evidence.
    """
    facts = {
        "call": finding.collective,
        "group": finding.group,
        "line": finding.location,
    }
    return {
        "tone": cause_tone(finding.cause),
        "words": cause_title(finding.cause),
        "cause": finding.cause.value,
        "meaning": finding.cause.meaning,
        "sentence": as_sentence(finding.summary),
        "ranks": rank_links(finding.ranks),
        "facts": [(k, clean(str(v))) for k, v in facts.items() if v],
        "remedy": split_commands(as_sentence(finding.remedy or "")),
    }


def _finding_entry(
    finding: Finding, input_paths: Sequence[str]
) -> dict[str, Any]:
    entry = describe_finding(finding)
    if finding.detail_cause is not None:
        entry["facts"].append(("on its host", str(finding.detail_cause)))
    return {
        **entry,
        "confidence": finding.confidence,
        "evidence": tuple(
            _quote(e, input_paths) for e in finding.evidence[:_MAX_EVIDENCE]
        ),
        "more": max(len(finding.evidence) - _MAX_EVIDENCE, 0),
    }


def _quote(evidence: Evidence, input_paths: Sequence[str]) -> dict[str, Any]:
    source = (
        short_path(evidence.source, input_paths) if evidence.source else ""
    )
    parts = (source, clean(evidence.location))
    return {
        "kind": clean(evidence.kind),
        "where": ", ".join(filter(None, parts)),
        "text": clean(evidence.quote, limit=_MAX_QUOTE),
    }


_MAX_SHOWN = 24
_MAX_ROWS = 600


def progress_section(diagnosis: Diagnosis) -> Section | None:
    """
    Return the section on process groups, sorted as in the text output.
    """
    groups = diagnosis.groups
    if not groups:
        return None

    ordered = sorted(groups, key=group_sort_key(diagnosis))
    # Groups with equal progress share a row, except stuck ones.
    rows = [_group_row(alike) for alike in group_by_key(ordered, _group_key)]
    stuck = sum(bool(g.waiting or g.absent) for g in groups)
    known = count_text(len(groups), "group")
    return Section(
        name="progress",
        title="Progress of process groups",
        summary=f"{stuck:,} of {known} stuck"
        if stuck
        else f"{known}, none stuck",
        values={
            "rows": rows[:_MAX_SHOWN],
            "others": rows[_MAX_SHOWN:_MAX_ROWS],
            "more": max(len(rows) - _MAX_ROWS, 0),
            "culprits": frozenset(diagnosis.verdict.ranks),
        },
    )


def _group_key(group: GroupProgress) -> tuple[object, ...]:
    is_stuck = group.waiting or group.absent
    name = (group.name, group.ranks) if is_stuck else ()
    progress = group.last_completed, group.furthest
    return group.desc, len(group.ranks), *progress, name


def _group_row(alike: Sequence[GroupProgress]) -> dict[str, Any]:
    first = alike[0]
    folded = rank_links(
        {r for g in alike for r in g.ranks}, max_listed=0
    ).folded
    return {
        "name": clean(first.name, limit=60),
        "desc": clean(described(first.desc), limit=60),
        "number": len(alike),
        "size": len(first.ranks),
        "ranks": folded,
        "completed": first.last_completed,
        "furthest": first.furthest,
        "waiting": rank_links(first.waiting, max_listed=4),
        "absent": rank_links(first.absent, max_listed=4),
        "shares": _member_shares(first),
    }


def _member_shares(group: GroupProgress) -> tuple[tuple[str, float], ...]:
    absent = len(set(group.absent))
    waiting = len(set(group.waiting).difference(group.absent))
    fine = max(len(group.ranks) - absent - waiting, 0)
    whole = absent + waiting + fine or 1
    # Finished members first, as in any progress bar.
    counts = (("fine", fine), ("waiting", waiting), ("absent", absent))
    return tuple((kind, 100 * n / whole) for kind, n in counts if n)


_MAX_COSTS = 100


def costs_section(diagnosis: Diagnosis) -> Section | None:
    """
    Return the section on slow ranks, and on what they cost the others.
    """
    slow = costly(diagnosis.findings)
    rows = [
        {
            "ranks": rank_links(finding.ranks),
            "cost": cost,
            "place": finding.location.brief if finding.location else "",
            "shares": (
                ("absent", 100 * cost.share),
                ("fine", 100 * (1 - cost.share)),
            ),
        }
        for finding in slow[:_MAX_COSTS]
        if (cost := finding.cost)
    ]
    if not rows:
        return None
    total = sum(finding.cost.share for finding in slow if finding.cost)
    return Section(
        name="costs",
        title="Who the others wait for",
        summary=f"{total:.0%} of the time",
        values={"rows": rows, "more": max(len(slow) - _MAX_COSTS, 0)},
    )


_MAX_REASONS = 200
_MAX_SOURCES = 20


def missing_section(diagnosis: Diagnosis) -> Section | None:
    """
    Return the section on missing evidence, each reason once.
    """
    if not diagnosis.missing:
        return None

    by_reason = group_by_key(diagnosis.missing, lambda m: (m.what, m.reason))
    input_paths = inputs_of(diagnosis).paths
    rows = [
        _missing_row(alike, input_paths) for alike in by_reason[:_MAX_REASONS]
    ]
    count = len(diagnosis.missing)
    return Section(
        name="missing",
        title="What is missing",
        summary=f"{count_text(count, 'thing')} could not be inspected",
        values={"rows": rows, "more": len(by_reason) - len(rows)},
        is_open=False,
    )


def _missing_row(
    alike: list[Missing], input_paths: tuple[str, ...]
) -> dict[str, Any]:
    sources = dict.fromkeys(m.source for m in alike if m.source)
    shown = list(sources)[:_MAX_SOURCES]
    return {
        "what": clean(alike[0].what, limit=60),
        "reason": as_sentence(alike[0].reason),
        "number": len(alike),
        "ranks": rank_links(m.rank for m in alike if m.rank is not None),
        "sources": tuple(short_path(source, input_paths) for source in shown),
        "more": len(sources) - len(shown),
    }


# Limit per kind.
_MAX_FILES = 400


def files_section(diagnosis: Diagnosis) -> Section | None:
    """
    Return the section with the input files of each kind, and their sizes.
    """
    inputs = inputs_of(diagnosis)
    by_kind: dict[str, dict[str, None]] = defaultdict(dict)
    for kind, path in _list_files(inputs):
        by_kind[kind][path] = None
    if not by_kind:
        return None

    count = sum(map(len, by_kind.values()))
    return Section(
        name="files",
        title="Files",
        summary=count_text(count, "file"),
        values={
            "kinds": [
                _file_kind(name, list(paths), inputs.paths)
                for name, paths in by_kind.items()
            ]
        },
        is_open=False,
    )


def _list_files(inputs: DiagnosisInputs) -> Iterator[tuple[str, str]]:
    if inputs.flight:
        dumps = inputs.flight.dumps
        yield from (("dumps", dump.path) for dump in dumps)
        sidecars = dumps.sidecars.values()
        yield from (("side-cars", s.path) for s in sidecars if s.path)
    yield from (("stacks", process.source) for process in inputs.stacks)
    for path in inputs.logs.files:
        is_facts = os.path.basename(path) == "node.json"  # noqa: PTH119 text
        yield "facts of nodes" if is_facts else "logs", path
    for death in inputs.logs.deaths.deaths:
        if death.log:
            yield "logs of Ray", os.fspath(death.log)


def _file_kind(
    name: str, paths: list[str], input_paths: tuple[str, ...]
) -> dict[str, Any]:
    sizes = [_size(path) for path in paths]
    known = [size for size in sizes if size is not None]
    files = tuple(
        {
            "path": short_path(path, input_paths),
            "size": "" if size is None else size_text(size),
        }
        for path, size in zip(paths[:_MAX_FILES], sizes, strict=False)
    )
    return {
        "name": name,
        "number": len(paths),
        "size": size_text(sum(known)),
        "files": files,
    }


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116 thousands of them
    except (OSError, ValueError):
        return None
