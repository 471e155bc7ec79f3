"""
Build the sections on logs: deaths, errors, watchdog lines; start-up phases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .._text import clean, count_text, size_text, time_text
from ..diagnosis import LogEvidence, inputs_of
from ..findings import Diagnosis
from ..logs import (
    CollectiveLogs,
    LogGroup,
    LogRecord,
    PhaseReport,
    PhaseState,
    PyError,
    ScanReport,
    TraceGroup,
)
from ..ray import Death, Deaths, DriverLog
from .format import (
    Section,
    as_sentence,
    cause_title,
    moment_text,
    rank_links,
    short_path,
)


_MAX_DEATHS = 100
_MAX_LAST_LINES = 12


def collect_deaths(
    deaths: Deaths, input_paths: Sequence[str]
) -> tuple[list[dict[str, Any]], int]:
    """
    Return the unintended deaths in a Ray cluster.

    Returns:
        The entries in the order of time, and the number left out.
    """
    # Always show the first death, even if it is beyond the limit.
    ordered = sorted(deaths.unintended, key=lambda death: not death.is_first)
    shown = sorted(ordered[:_MAX_DEATHS], key=lambda death: death.time or 0.0)
    entries = [_death_entry(death, input_paths) for death in shown]
    return entries, len(ordered) - len(shown)


def collect_failures(
    drivers: Iterable[DriverLog], input_paths: Sequence[str]
) -> tuple[list[dict[str, Any]], int]:
    """
    Return the failed calls that drivers report.

    Returns:
        The entries in the order of lines, and the number left out.
    """
    found = [
        {
            "mark": "ended the driver" if failure.ended_driver else "",
            "when": "",
            "who": clean(failure.label, limit=100),
            "ranks": rank_links(
                () if failure.rank is None else [failure.rank]
            ),
            "how": clean(
                f"{failure.error} {failure.message}".strip() or failure.kind
            ),
            "where": f"{short_path(driver.path, input_paths)}, line {failure.line}",
            "lines": (clean(failure.quote, limit=400),)
            if failure.quote
            else (),
        }
        for driver in drivers
        for failure in driver.failures
        if not failure.is_intended
    ]
    return found[:_MAX_DEATHS], max(len(found) - _MAX_DEATHS, 0)


def _death_entry(death: Death, input_paths: Sequence[str]) -> dict[str, Any]:
    mark = "first" if death.is_first else ""
    return {
        "mark": "follows" if death.is_collateral else mark,
        "when": moment_text(death.time),
        "who": clean(death.label, limit=100),
        "ranks": rank_links(() if death.rank is None else [death.rank]),
        "how": _death_text(death),
        "where": short_path(str(death.log), input_paths) if death.log else "",
        "lines": tuple(
            clean(line, limit=400)
            for line in death.last_lines[-_MAX_LAST_LINES:]
        ),
    }


def _death_text(death: Death) -> str:
    ended = str(death).removeprefix(f"{death.label}: ")
    parts = [ended, death.signal or "", death.error or ""]
    return clean(", ".join(filter(None, parts)))


_MAX_EXCERPTS = 120
_MAX_LINE = 600
_MAX_FRAMES = 12
_MAX_ERRORS = 4


def collect_excerpts(
    scan: ScanReport, input_paths: Sequence[str]
) -> tuple[list[dict[str, Any]], int]:
    """
    Return the error lines of a log scan.

    Returns:
        The entries, fatal ones first, and the number left out.
    """
    found: list[tuple[LogGroup, TraceGroup | None]] = [
        *((trace.group, trace) for trace in scan.tracebacks),
        *((group, None) for group in scan.groups),
    ]
    found.sort(key=lambda pair: (pair[0].priority, pair[0].first.time or 0.0))
    shown = [
        _build_excerpt(*pair, input_paths) for pair in found[:_MAX_EXCERPTS]
    ]
    return shown, len(found) - len(shown)


def _build_excerpt(
    group: LogGroup, trace: TraceGroup | None, input_paths: Sequence[str]
) -> dict[str, Any]:
    first = group.first
    source = short_path(first.source, input_paths) if first.source else ""
    return {
        "words": cause_title(group.cause),
        "priority": group.priority,
        "number": f"{group.count:,}{'+' if group.is_more else ''}",
        "where": f"{source}, {first.location}" if source else "",
        "when": moment_text(first.time),
        "who": clean(first.origin.name, limit=60) if first.origin else "",
        "ranks": rank_links(group.ranks),
        "text": clean(first.text, limit=_MAX_LINE),
        "trace": tuple(_trace_lines(trace.errors)) if trace else (),
        "is_survived": group.is_survived,
    }


def _trace_lines(errors: Iterable[PyError]) -> Iterable[str]:
    for error in list(errors)[:_MAX_ERRORS]:
        left = len(error.frames) - _MAX_FRAMES
        if left > 0:
            yield f"  … {left} more"
        for frame in error.frames[-_MAX_FRAMES:]:
            yield f"  {clean(str(frame), limit=300)}"
        yield clean(str(error), limit=_MAX_LINE)


_MAX_STATEMENTS = 200
_MAX_QUOTE = 500
# Most informative first, with the text to show.
_RECORD_KINDS = (
    ("timeouts", "calls that did not end in time"),
    ("desyncs", "who lags behind, as torch says"),
    ("mismatches", "calls that differ"),
    ("heartbeats", "watchdogs that did not move"),
    ("barriers", "barriers that failed"),
    ("gloo", "calls over Gloo that failed"),
    ("stores", "processes that did not find each other"),
    ("statuses", "how far ranks had come"),
    ("dump_signals", "which ranks were asked for a dump"),
    ("notes", "notes of NCCL"),
)


def collect_statements(
    logs: CollectiveLogs, input_paths: Sequence[str]
) -> tuple[list[dict[str, Any]], int]:
    """
    Return what watchdogs and NCCL printed about collectives.

    Returns:
        The first line of each kind and group, with all its ranks; and the
        number left out.
    """
    alike: dict[tuple[str, str, str], list[LogRecord]] = defaultdict(list)
    for name, kind in _RECORD_KINDS:
        for record in getattr(logs, name):
            group = str(record.group or "")
            alike[kind, group, _record_call(record)].append(record)
    shown = [
        _build_statement(kind, group, records, input_paths)
        for (kind, group, _), records in list(alike.items())[:_MAX_STATEMENTS]
    ]
    return shown, len(alike) - len(shown)


def _record_call(record: LogRecord) -> str:
    """
    Return the call that a line names; else the kind of the record.
    """
    op, seq = getattr(record, "op", ""), getattr(record, "seq", None)
    return f"{op} {seq}" if op else type(record).__name__


def _build_statement(
    kind: str,
    group: str,
    records: Sequence[LogRecord],
    input_paths: Sequence[str],
) -> dict[str, Any]:
    first = records[0]
    source = short_path(first.source, input_paths) if first.source else ""
    return {
        "kind": kind,
        "group": clean(group, limit=60),
        "ranks": rank_links(r.rank for r in records if r.rank is not None),
        "number": sum(record.count for record in records),
        "where": f"{source}, line {first.line}" if source else "",
        "text": clean(first.quote, limit=_MAX_QUOTE),
    }


def logs_section(diagnosis: Diagnosis) -> Section | None:
    """
    Return the section with errors, watchdog messages, and deaths.
    """
    inputs = inputs_of(diagnosis)
    logs, input_paths = inputs.logs, inputs.paths
    values: dict[str, Any] = {}
    for name, (shown, more) in {
        "deaths": collect_deaths(logs.deaths, input_paths),
        "failures": collect_failures(logs.drivers, input_paths),
        "excerpts": collect_excerpts(logs.scan, input_paths),
        "statements": collect_statements(logs.collectives, input_paths),
    }.items():
        values |= {name: shown, f"more_{name}": more}
    if not any(values.values()):
        return None

    values["read"] = _scanned_text(logs)
    values["harmless"] = sum(logs.scan.harmless.values())
    return Section(
        name="logs", title="Logs", summary=_summary(values), values=values
    )


def _scanned_text(logs: LogEvidence) -> str:
    files = logs.scan.files
    if not files:
        return ""

    return f"{count_text(files, 'file')}, {size_text(logs.scan.bytes_read)}"


def _summary(values: dict[str, Any]) -> str:
    counts = {
        "death": len(values["deaths"]) + values["more_deaths"],
        "failed call": len(values["failures"]) + values["more_failures"],
        "kind of error": len(values["excerpts"]) + values["more_excerpts"],
        "statement of watchdogs": len(values["statements"])
        + values["more_statements"],
    }
    return ", ".join(count_text(n, noun) for noun, n in counts.items() if n)


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
