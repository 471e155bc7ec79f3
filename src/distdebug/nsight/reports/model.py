"""
What is known of the reports of nsys that workers left?
"""

from __future__ import annotations

import time

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from ..._showing import Block, Lines, Shown, Table
from ...findings import Missing
from ..options.steps import StepRange


__all__ = ["Collected", "NsysReport", "NsysReports"]

_MIB = 1 << 20
_MOST_ROWS = 100


@attrs.frozen(kw_only=True)
class NsysReport:
    """
    One report, and whose it is.

    Attributes:
        path: The file.

        worker: The name of the worker, out of the file's; ``""`` if that has
            another form.

        pid: The number of its process, on its node.

        node: The node, as far as the folders tell; else ``""``.

        session: The session of Ray, or ``""``.

        step_range: The steps that were captured, if the name tells.

        part: Which capture of the process it is, if there are several.

        size: How large it is, in bytes.

        modified: When it was last written, in seconds since the epoch.

        actor: The class of the Ray actor, if it is known.

        rank: Its global rank, if it is known.

        logs: The logs of the same worker.

        is_raw: Whether it was never turned into a report, because nsys found
            no importer.
    """

    path: str
    worker: str
    pid: int | None
    node: str = ""
    session: str = ""
    step_range: StepRange | None = None
    part: int | None = None
    size: int = 0
    modified: float = 0.0
    actor: str | None = None
    rank: int | None = None
    logs: tuple[str, ...] = ()
    is_raw: bool = False

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        steps = None if self.step_range is None else str(self.step_range)
        plain = attrs.asdict(self, recurse=False)
        return {**plain, "step_range": steps, "logs": list(self.logs)}


@attrs.frozen(kw_only=True)
class NsysReports(Shown):
    """
    All reports that were found.

    Attributes:
        reports: In the order of nodes, workers, and processes.

        missing: What could not be looked at, and why.
    """

    reports: tuple[NsysReport, ...] = ()
    missing: tuple[Missing, ...] = ()

    def __iter__(self) -> Iterator[NsysReport]:
        return iter(self.reports)

    def __len__(self) -> int:
        return len(self.reports)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {
            "reports": self.to_records(),
            "missing": [attrs.asdict(m) for m in self.missing],
        }

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per report, for a data frame.
        """
        return [report.to_dict() for report in self.reports]

    def _blocks_(self) -> Iterable[Block]:
        rows = [_row(report) for report in self.reports]
        yield Table(_HEADERS, rows, _MOST_ROWS) if rows else "no report"
        raw = sum(report.is_raw for report in self.reports)
        if raw:
            yield f"{raw} raw: see 'distdebug nsight doctor'"


_HEADERS = (
    *("node", "worker", "pid", "rank", "actor", "steps"),
    *("MiB", "written", "report"),
)


def _row(report: NsysReport) -> tuple[object, ...]:
    shown = (report.pid, report.rank, report.actor, report.step_range)
    pid, rank, actor, steps = ("" if x is None else x for x in shown)
    written = time.strftime(
        "%Y-%m-%d %H:%M:%S", time.localtime(report.modified)
    )
    size = f"{report.size / _MIB:.1f}"
    head = (report.node, report.worker, pid, rank, actor, steps)
    return (*head, size, written, report.path)


@attrs.frozen(kw_only=True)
class Collected(Shown):
    """
    What came of copying reports.

    Attributes:
        copied: The copies that were made now.

        present: Those that were there already.

        left: Reports that are still being written; collect again later.

        missing: What could not be copied, and why.
    """

    copied: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {
            "copied": list(self.copied),
            "present": list(self.present),
            "left": list(self.left),
            "missing": [attrs.asdict(m) for m in self.missing],
        }

    def _blocks_(self) -> Iterable[Block]:
        lines = [
            f"{len(self.copied)} copied, {len(self.present)} there already"
        ]
        lines += [f"  still being written: {path}" for path in self.left]
        lines += [f"  {m.source}: {m.reason}" for m in self.missing]
        yield Lines(lines, _MOST_ROWS)
