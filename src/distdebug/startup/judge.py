"""
Is it normal to be in this phase for so long?
"""

from __future__ import annotations

from typing import get_args

import attrs

from .._lines import LogLine
from .._text import clean, time_text
from ..findings import Cause, Confidence, Evidence, Finding
from .book import Phase
from .endings import ending_finding
from .model import PhaseReport, PhaseState
from .sentences import (
    ending_text,
    is_between,
    place_text,
    ready_text,
    state_text,
)


__all__ = ["judge"]

_SLOW_STEPS = 10.0
# What is said of a phase that ended when nothing followed.
_AFTER = 600.0


def judge(
    report: PhaseReport,
    phases: dict[tuple[str, str], Phase],
    reason: LogLine | None = None,
) -> PhaseReport:
    """
    Say in one sentence how it stands, and what is wrong.

    Args:
        report: Everything that is known.

        phases: The rules of its phases, by framework and name.

        reason: The line that tells why the job ended.

    Returns:
        The same with a verdict, which begins with the worst that was found.
    """
    state = report.current
    if report.ended or state is None:
        return _judge_end(report, reason)
    if state.state == "done" and phases[state.framework, state.name].serves:
        return attrs.evolve(
            report,
            is_normal=not report.findings,
            verdict=_worst_first(report, ready_text(report, state)),
        )

    focus = _focus(report, state, phases)
    finding = (
        _failed(state, phases[state.framework, state.name])
        if state.state == "failed"
        else _stall(report, focus) or _too_long(report, state, phases)
    )
    findings = (*report.findings, *([finding] if finding else []))
    known = report.silent_s is not None
    return attrs.evolve(
        report,
        findings=findings,
        is_normal=False if findings else True if known else None,
        verdict=_worst_first(
            report,
            f"{finding.summary}."
            if finding
            else state_text(report, focus.text, focus.limit),
        ),
    )


def _judge_end(report: PhaseReport, reason: LogLine | None) -> PhaseReport:
    finding = ending_finding(report, reason)
    findings = (*report.findings, *([finding] if finding else []))
    verdict = ending_text(report, reason)
    if report.ended not in {"failed", "killed"}:
        verdict = _worst_first(report, verdict)
    return attrs.evolve(
        report,
        findings=findings,
        is_normal=False if findings else True if report.ended else None,
        verdict=verdict,
    )


def _worst_first(report: PhaseReport, text: str) -> str:
    """
    Begin with what the log complains of, and then tell where the job is.
    """
    order = get_args(Confidence)
    worst = min(
        report.findings, key=lambda f: order.index(f.confidence), default=None
    )
    return text if worst is None else f"{worst.summary}. Phase: {text}"


@attrs.frozen
class _Focus:
    """
    What the job is busy with, where that is, and how long it may be silent.
    """

    state: PhaseState
    phase: Phase
    text: str
    limit: float


def _focus(
    report: PhaseReport,
    state: PhaseState,
    phases: dict[tuple[str, str], Phase],
) -> _Focus:
    whole = phases[state.framework, state.name]
    inner = report.inner
    if inner is None:
        return _Focus(
            state, whole, place_text(state, whole), _limit(state, whole)
        )

    phase = phases[inner.framework, inner.name]
    text, limit = place_text(inner, phase), _limit(inner, phase)
    if inner.part_of:
        text = f"{place_text(state, whole)}; now {text}"
        # Slow steps have slow parts.
        limit = max(limit, _limit(state, whole))
    return _Focus(inner, phase, text, limit)


def _limit(state: PhaseState, phase: Phase) -> float:
    """
    For how many seconds it may be silent.
    """
    progress = state.progress
    if state.state == "done":
        return max(phase.then_silent_s, _AFTER)
    if phase.then and progress and progress.is_full:
        return phase.then_silent_s
    if phase.trains and progress and progress.rate:
        return max(phase.silent_s, _SLOW_STEPS / progress.rate)
    return phase.silent_s


def _stall(report: PhaseReport, focus: _Focus) -> Finding | None:
    silent = report.silent_s
    if silent is None or silent < focus.limit:
        return None

    phase = focus.phase
    reason, remedy = phase.reason, phase.remedy
    if is_between(focus.state, phase):
        reason = phase.then_reason or reason
        remedy = phase.then_remedy or remedy
    return _finding(
        f"{focus.text}: nothing was printed for {time_text(silent)}",
        reason,
        remedy,
        focus.state,
        "likely" if silent >= 2 * focus.limit else "possible",
    )


def _too_long(
    report: PhaseReport,
    state: PhaseState,
    phases: dict[tuple[str, str], Phase],
) -> Finding | None:
    phase = phases[state.framework, state.name]
    if phase.trains or state.state == "done":
        return None

    seconds = _took(report, state)
    if seconds is None or seconds < phase.alarming_s:
        return None
    usual = time_text(phase.typical_s)
    return _finding(
        f"{place_text(state, phase)}: it takes {time_text(seconds)} already, "
        f"and usually {usual}",
        phase.reason,
        phase.remedy,
        state,
        "possible",
    )


def _took(report: PhaseReport, state: PhaseState) -> float | None:
    """
    For how long it goes on, by the clock of the log.
    """
    told = [
        float(x) for x in [state.facts.get("elapsed", "")] if x.isdecimal()
    ]
    last = report.last_time
    if state.begun_at is not None and last is not None:
        told.append(last - state.begun_at + (report.silent_s or 0.0))
    return max(told, default=None)


def _failed(state: PhaseState, phase: Phase) -> Finding:
    return _finding(
        f"{place_text(state, phase)}: it failed",
        phase.reason,
        phase.remedy,
        state,
        "certain",
    )


def _finding(
    summary: str,
    reason: str,
    remedy: str,
    state: PhaseState,
    confidence: Confidence,
) -> Finding:
    line = state.line
    evidence = (
        (
            Evidence(
                kind="log",
                source=line.source,
                location=f"line {line.number}",
                quote=clean(line.text),
            ),
        )
        if line
        else ()
    )
    return Finding(
        cause=Cause.START_UP_STALLED,
        ranks=(),
        summary=f"{summary}; likely {reason}" if reason else summary,
        remedy=remedy or None,
        confidence=confidence,
        evidence=evidence,
    )
