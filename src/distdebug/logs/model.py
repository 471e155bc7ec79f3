"""
What was found in logs?
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from .._render import Block, Shown, Table
from .._text import clean
from ..findings import (
    Cause,
    Finding,
    Missing,
    as_plain,
    finding_entries,
    missing_block,
)
from ..ranks import fold_ranks
from .lines import Origin
from .tracebacks import PyError


@attrs.frozen(kw_only=True)
class Hit:
    """
    One line that tells of something.

    Attributes:
        text: The line, without colors and prefixes of launchers.

        source: The file.

        line: The number of the line in it, from 1; 0 if only the end of the
            file was read.

        offset: Where the line begins in it, in bytes.

        time: When it was printed, in seconds since the epoch, as it or a line
            shortly before tells.

        origin: Who printed it, if a prefix tells.

        rank: The global rank that it is about.

        local_rank: The rank on its node, if only that is told.
    """

    text: str
    source: str
    line: int = 0
    offset: int = 0
    time: float | None = None
    origin: Origin | None = None
    rank: int | None = None
    local_rank: int | None = None

    @property
    def location(self) -> str:
        """
        Where it stands in the file.
        """
        return f"line {self.line}" if self.line else f"byte {self.offset}"


@attrs.frozen(kw_only=True)
class LogGroup:
    """
    Lines that tell of the same.

    Attributes:
        rule: The name of the rule that they fit.

        key: What tells them apart from other lines of the rule, such as the
            number of an Xid.

        cause: What is wrong.

        priority: That of the rule, from 1, what brings a job down, to 5.

        count: How many lines there are …

        is_more: … at least: where a rule fits very many lines of a file, the
            rest is not counted.

        first: The first of them; by time where all of them have one, else in
            the order of the files.

        last: The last of them.

        files: The files they are in; at most 100.

        ranks: The global ranks that they are about, ascending.

        origins: Who printed them; at most 100.

        is_survived: Whether the job went on afterwards; its priority is the
            least, then.
    """

    rule: str
    key: str = ""
    cause: Cause
    priority: int
    count: int
    is_more: bool = False
    first: Hit
    last: Hit
    files: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    origins: tuple[Origin, ...] = ()
    is_survived: bool = False


@attrs.frozen(kw_only=True)
class TraceGroup:
    """
    Tracebacks of one shape: the same exceptions, by way of the same functions.

    Attributes:
        errors: The exceptions of the first of them, in the order in which
            they were raised.

        group: What they have in common with other groups of lines; its rule
            is the one that fits the exception.
    """

    errors: tuple[PyError, ...]
    group: LogGroup

    @property
    def count(self) -> int:
        """
        How many there are.
        """
        return self.group.count

    @property
    def ranks(self) -> tuple[int, ...]:
        """
        The global ranks that raised it, ascending.
        """
        return self.group.ranks

    @property
    def root(self) -> PyError | None:
        """
        The first exception that is not about another one.
        """
        own = (error for error in self.errors if not error.is_wrapper)
        return next(own, self.errors[-1] if self.errors else None)


@attrs.frozen(kw_only=True)
class ScanReport(Shown):
    """
    What went wrong, as some logs tell.

    Attributes:
        findings: What is concluded, the most important first: what brings a
            job down before what follows from it, and the earlier before the
            later.

        groups: All that was found, but for tracebacks, in the same order.

        tracebacks: The tracebacks, by shape, in the same order.

        harmless: How many lines only look bad, by the name of the rule.

        missing: What was not looked at, and why.

        files: How many files were read.

        bytes_read: How many bytes of them.
    """

    findings: tuple[Finding, ...] = ()
    groups: tuple[LogGroup, ...] = ()
    tracebacks: tuple[TraceGroup, ...] = ()
    harmless: Mapping[str, int] = attrs.field(factory=dict)
    missing: tuple[Missing, ...] = ()
    files: int = 0
    bytes_read: int = 0

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return {
            "findings": [finding.to_dict() for finding in self.findings],
            "groups": [as_plain(group) for group in self.groups],
            "tracebacks": [as_plain(group) for group in self.tracebacks],
            "harmless": dict(self.harmless),
            "missing": [as_plain(missing) for missing in self.missing],
            "files": self.files,
            "bytes_read": self.bytes_read,
        }

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per finding, for a data frame.
        """
        return [finding.to_dict() for finding in self.findings]

    def _blocks_(self) -> Iterable[Block]:

        return report_blocks(self)


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
