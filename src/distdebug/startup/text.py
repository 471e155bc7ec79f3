"""
What is there to show of phases?
"""

from __future__ import annotations

from collections.abc import Iterator

from .._showing import Block, Entries, Entry, Lines, Table
from .._text import clean, time_text
from ..findings import Finding
from .model import PhaseReport, PhaseState


__all__ = ["report_blocks"]


def report_blocks(report: PhaseReport) -> Iterator[Block]:
    """
    What is there to show of phases?

    Args:
        report: The report.

    Returns:
        The verdict, the phases, and what is wrong.
    """
    yield Entries([Entry(report.verdict)])
    rows = [_row(phase) for phase in report.phases]
    if rows:
        yield Table(("phase", "state", "progress", "took"), rows, len(rows))
    told = [_entry(finding) for finding in report.findings]
    yield Entries(told, len(told))
    harmless = [f"harmless: {clean(x.summary)}" for x in report.harmless]
    yield Lines(harmless, len(harmless))
    if report.last_line:
        yield f"last line: {clean(report.last_line.text)}"


def _entry(finding: Finding) -> Entry:
    facts = [("try", finding.remedy)] if finding.remedy else []
    return Entry(f"{finding.cause}: {finding.summary}", facts)


def _row(phase: PhaseState) -> tuple[str, str, str, str]:
    took = ""
    if phase.begun_at is not None and phase.ended_at is not None:
        took = time_text(max(phase.ended_at - phase.begun_at, 0.0))
    progress = str(phase.progress) if phase.progress else ""
    if not progress and phase.of:
        progress = f"{phase.parts} of {phase.of}"
    return f"{phase.framework}: {phase.name}", phase.state, progress, took
