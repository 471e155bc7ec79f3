"""
What is there to show of logs that were searched?
"""

from __future__ import annotations

from collections.abc import Iterator

from .._showing import Block, Table
from .._text import clean
from ..findings import finding_entries, missing_block
from ..ranks import fold_ranks
from .model import Hit, LogGroup, ScanReport


__all__ = ["report_blocks"]


def report_blocks(report: ScanReport) -> Iterator[Block]:
    """
    What is there to show of logs that were searched?

    Args:
        report: What was found.

    Returns:
        The first cause, then a table of all.
    """
    yield finding_entries(report.findings)
    if not report.findings:
        yield "nothing went wrong, as far as these logs tell"
    groups = sorted(
        [*report.groups, *(trace.group for trace in report.tracebacks)],
        key=lambda group: group.priority,
    )
    if groups:
        yield _table(groups)
    if report.harmless:
        yield _harmless(report)
    yield missing_block(report.missing)
    size = report.bytes_read / 1e6
    yield f"read: {report.files:,} files, {size:,.1f} MB"


def _table(groups: list[LogGroup]) -> Table:
    rows = [
        (
            group.rule,
            f"{group.count}{'+' if group.is_more else ''}",
            fold_ranks(group.ranks) or "-",
            _where(group.first),
            clean(group.first.text, limit=60),
        )
        for group in groups
    ]
    return Table(("what", "lines", "ranks", "first", "text"), rows, more="")


def _where(hit: Hit) -> str:
    return f"{hit.source.rpartition('/')[2]}, {hit.location}"


def _harmless(report: ScanReport) -> str:
    told = (f"{name} ({count})" for name, count in report.harmless.items())
    return f"harmless: {', '.join(told)}"
