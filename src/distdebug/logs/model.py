"""
Data model and display of a log scan: hits, groups, tracebacks, report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from .._render import Block, Shown, Table
from .._text import clean
from ..causes import Cause
from ..findings import Finding, Missing, finding_entries, missing_block
from ..ranks import fold_ranks
from .lines import Origin
from .tracebacks import PyError, find_root_error


@attrs.frozen(kw_only=True)
class Hit:
    """
    One log line that matches a rule.

    Attributes:
        text: The line, without colors and prefixes of launchers.

        source: The path of the file.

        line: The number of the line in the file, from 1; 0 if only the end of
            the file was read.

        offset: The byte offset of the line in the file.

        time: The time of the line, or of one shortly before, in seconds since
            the epoch.

        origin: The process that printed it, if a prefix shows it.

        rank: The global rank that it is about.

        local_rank: The rank on its node, if only that is known.
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
        Return the place in the file, such as ``line 17`` or ``byte 4096``.
        """
        return f"line {self.line}" if self.line else f"byte {self.offset}"


@attrs.frozen(kw_only=True)
class LogGroup:
    """
    Lines that match the same rule with the same key.

    Attributes:
        rule: The name of the rule.

        key: What distinguishes them from other lines of the rule, such as the
            number of an Xid.

        cause: The cause.

        priority: Severity: 1 = ends a job … 5 = may mean nothing.

        count: The number of lines.

        is_more: Whether *count* is a lower bound: where a rule matches very
            many lines of a file, the rest is not counted.

        first: The first of them; by time where all of them have one, else in
            the order of the files.

        last: The last of them.

        files: The files they are in; at most 100.

        ranks: The global ranks that they are about, ascending.

        origins: The processes that printed them; at most 100.

        is_survived: Whether the job went on afterwards; its priority is then
            5.
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
    Tracebacks of one shape: the same exceptions, raised in the same functions.

    Attributes:
        errors: The exceptions of the first traceback, in the order in which
            they were raised.

        group: The count, ranks, and files; its rule is the one that matches
            the exception.
    """

    errors: tuple[PyError, ...]
    group: LogGroup

    @property
    def count(self) -> int:
        """
        Return the number of tracebacks.
        """
        return self.group.count

    @property
    def ranks(self) -> tuple[int, ...]:
        """
        Return the global ranks that raised it, ascending.
        """
        return self.group.ranks

    @property
    def root(self) -> PyError | None:
        """
        Return the first exception that is no wrapper of another one.
        """
        return find_root_error(self.errors)


@attrs.frozen(kw_only=True)
class ScanReport(Shown):
    """
    The result of a scan of logs.

    Attributes:
        findings: The findings, the most important first: what ends a job
            before its consequences, and the earlier before the later.

        groups: All groups except tracebacks, in the same order.

        tracebacks: The tracebacks, by shape, in the same order.

        harmless: The number of lines that only look bad, by the name of the
            rule.

        missing: What was not read, and why.

        files: The number of files that were read.

        bytes_read: The number of bytes that were read.
    """

    findings: tuple[Finding, ...] = ()
    groups: tuple[LogGroup, ...] = ()
    tracebacks: tuple[TraceGroup, ...] = ()
    harmless: Mapping[str, int] = attrs.field(factory=dict)
    missing: tuple[Missing, ...] = ()
    files: int = 0
    bytes_read: int = 0

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per finding, for a data frame.
        """
        return [finding.to_dict() for finding in self.findings]

    def _blocks_(self) -> Iterator[Block]:

        yield finding_entries(self.findings)
        if not self.findings:
            yield "nothing suspicious in these logs"
        groups = sorted(
            [*self.groups, *(trace.group for trace in self.tracebacks)],
            key=lambda group: group.priority,
        )
        if groups:
            yield _groups_table(groups)
        if self.harmless:
            counts = (f"{name} ({x})" for name, x in self.harmless.items())
            yield f"harmless: {', '.join(counts)}"
        yield missing_block(self.missing)
        size = self.bytes_read / 1e6
        yield f"read: {self.files:,} files, {size:,.1f} MB"


def _groups_table(groups: list[LogGroup]) -> Table:
    rows = [
        (
            group.rule,
            f"{group.count}{'+' if group.is_more else ''}",
            fold_ranks(group.ranks) or "-",
            f"{group.first.source.rpartition('/')[2]}, {group.first.location}",
            clean(group.first.text, limit=60),
        )
        for group in groups
    ]
    return Table(("what", "lines", "ranks", "first", "text"), rows, more="")
