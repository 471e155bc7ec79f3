"""
How is what was found in logs shown on a terminal?
"""

from __future__ import annotations

from .._text import clean, text_table
from ..findings.text import finding_lines, missing_lines
from ..ranks import fold_ranks
from .model import Hit, LogGroup, ScanReport


__all__ = ["report_text"]

_MOST_ROWS = 24
_MOST_FINDINGS = 3


def report_text(report: ScanReport) -> str:
    """
    Write what was found as text: the first cause, then a table of all.

    Args:
        report: What was found.
    """
    parts = [
        "\n".join(finding_lines(x)) for x in report.findings[:_MOST_FINDINGS]
    ]
    if not parts:
        parts = ["nothing went wrong, as far as these logs tell"]
    groups = sorted(
        [*report.groups, *(trace.group for trace in report.tracebacks)],
        key=lambda group: group.priority,
    )
    if groups:
        parts.append(_table(groups))
    if len(groups) > _MOST_ROWS:
        parts.append(f"… and {len(groups) - _MOST_ROWS} more")
    if report.harmless:
        parts.append(_harmless(report))
    if report.missing:
        parts.append("\n".join(missing_lines(report.missing)))
    size = report.bytes_read / 1e6
    parts.append(f"read: {report.files:,} files, {size:,.1f} MB")
    return "\n\n".join(parts)


def _table(groups: list[LogGroup]) -> str:
    rows = [
        (
            group.rule,
            f"{group.count}{'+' if group.is_more else ''}",
            fold_ranks(group.ranks) or "-",
            _where(group.first),
            clean(group.first.text, limit=60),
        )
        for group in groups[:_MOST_ROWS]
    ]
    return text_table(("what", "lines", "ranks", "first", "text"), rows)


def _where(hit: Hit) -> str:
    return f"{hit.source.rpartition('/')[2]}, {hit.location}"


def _harmless(report: ScanReport) -> str:
    told = (f"{name} ({count})" for name, count in report.harmless.items())
    return f"harmless: {', '.join(told)}"
