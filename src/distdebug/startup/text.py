"""
How is a report about phases shown?
"""

from __future__ import annotations

from .._text import clean, text_table, time_text
from .model import PhaseReport, PhaseState


__all__ = ["report_text"]


def report_text(report: PhaseReport) -> str:
    """
    Show a report.

    Args:
        report: The report.

    Returns:
        The verdict, the phases, and what is wrong.
    """
    lines = [report.verdict]
    rows = [_row(phase) for phase in report.phases]
    if rows:
        lines += ["", text_table(("phase", "state", "progress", "took"), rows)]
    for finding in report.findings:
        lines += ["", f"{finding.cause}: {clean(finding.summary, limit=500)}"]
        if finding.remedy:
            lines.append(f"  try: {clean(finding.remedy, limit=500)}")
    lines += [f"harmless: {clean(one.summary)}" for one in report.harmless]
    if report.last_line:
        lines += ["", f"last line: {clean(report.last_line.text)}"]
    return "\n".join(lines)


def _row(phase: PhaseState) -> tuple[str, str, str, str]:
    took = ""
    if phase.begun_at is not None and phase.ended_at is not None:
        took = time_text(max(phase.ended_at - phase.begun_at, 0.0))
    progress = str(phase.progress) if phase.progress else ""
    if not progress and phase.of:
        progress = f"{phase.parts} of {phase.of}"
    return f"{phase.framework}: {phase.name}", phase.state, progress, took
