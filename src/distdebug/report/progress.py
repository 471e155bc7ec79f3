"""
Build the sections on progress of process groups and start-up phases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .._text import clean, count_text, time_text
from ..diagnosis import inputs_of
from ..findings import Diagnosis, GroupProgress, group_sort_key
from ..logs import PhaseReport, PhaseState
from .format import (
    Section,
    as_sentence,
    moment_text,
    rank_links,
)


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
    rows = [_group_row(alike) for alike in _fold_alike(ordered)]
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


def _fold_alike(
    groups: Iterable[GroupProgress],
) -> list[list[GroupProgress]]:
    """
    Fold groups with equal progress, except stuck ones.
    """
    alike: dict[tuple[object, ...], list[GroupProgress]] = defaultdict(list)
    for g in groups:
        identity = (g.name, g.ranks) if g.waiting or g.absent else ()
        key = (g.desc, len(g.ranks), g.last_completed, g.furthest, identity)
        alike[key].append(g)
    return list(alike.values())


def _group_row(alike: Sequence[GroupProgress]) -> dict[str, Any]:
    first = alike[0]
    folded = rank_links(
        {r for g in alike for r in g.ranks}, max_listed=0
    ).folded
    return {
        "name": clean(first.name, limit=60),
        "desc": clean(first.desc, limit=60),
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


_MAX_PHASES = 60
_MAX_FACTS = 6
_MIN_BAR_PERCENT = 0.4


class _PhaseBar(NamedTuple):
    """
    Position of a phase in the time span, in percent.
    """

    start: float
    width: float


def phase_section(diagnosis: Diagnosis) -> Section | None:
    """
    Return the section on start-up phases, if a log shows any.
    """
    report = inputs_of(diagnosis).logs.phase
    if report is None or all(p.state == "not begun" for p in report.phases):
        return None

    begun = [p for p in report.phases if p.state != "not begun"]
    rest = [p for p in report.phases if p.state == "not begun"]
    return Section(
        name="phase",
        title="Start-up",
        summary=clean(report.verdict),
        values={
            "rows": list(_phase_rows(report, begun[:_MAX_PHASES])),
            "rest": [clean(p.title or p.name, limit=60) for p in rest],
            "framework": clean(report.title or report.framework or ""),
            "attempt": report.attempt,
            "last": _last_line(report),
            "harmless": [
                (clean(h.summary), as_sentence(h.why), h.count)
                for h in report.harmless
            ],
        },
        # Fold it if the job trains already.
        is_open=report.current is None or not report.current.trains,
    )


def _last_line(report: PhaseReport) -> tuple[str, str]:
    line = report.last_line
    return (
        "" if line is None else clean(line.text, limit=400),
        moment_text(report.last_time),
    )


def _phase_rows(
    report: PhaseReport, phases: Iterable[PhaseState]
) -> Iterable[dict[str, Any]]:
    phases = list(phases)
    begin, end = _time_span(report, phases)
    for phase in phases:
        is_current = phase is report.current
        over = phase.ended_at or (end if is_current else phase.last_at)
        took = (
            None
            if phase.begun_at is None or over is None
            else max(over - phase.begun_at, 0.0)
        )
        yield {
            "title": clean(phase.title or phase.name, limit=80),
            "what": as_sentence(phase.what),
            "framework": clean(phase.framework, limit=40),
            "state": phase.state,
            "is_current": is_current,
            "is_part": bool(phase.part_of),
            "begun": moment_text(phase.begun_at),
            "took": "" if took is None else time_text(took),
            "typical": ""
            if phase.typical_s is None
            else time_text(phase.typical_s),
            "progress": _phase_progress(phase),
            "bar": _phase_bar(phase.begun_at, took, begin, end),
        }


def _time_span(
    report: PhaseReport, phases: Iterable[PhaseState]
) -> tuple[float, float]:
    moments = [
        moment
        for p in phases
        for moment in (p.begun_at, p.ended_at, p.last_at)
        if moment is not None
    ]
    if report.last_time is not None:
        moments.append(report.last_time)
    return (min(moments), max(moments)) if moments else (0.0, 0.0)


def _phase_bar(
    start: float | None, took: float | None, begin: float, end: float
) -> _PhaseBar | None:
    whole = end - begin
    if start is None or took is None or whole <= 0:
        return None

    width = max(100 * min(took, end - start) / whole, _MIN_BAR_PERCENT)
    return _PhaseBar(min(100 * (start - begin) / whole, 100 - width), width)


def _phase_progress(phase: PhaseState) -> str:
    parts = []
    if phase.progress:
        parts.append(str(phase.progress))
    elif phase.of:
        parts.append(f"{phase.parts} of {phase.of}")
    parts += [f"{k} {v}" for k, v in list(phase.facts.items())[:_MAX_FACTS]]
    return clean(", ".join(parts))
