"""
Report of a Flight Recorder analysis, and its filter by rank and group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from ..._render import Block, Shown
from ...causes import Cause
from ...findings import (
    Checked,
    Diagnosis,
    Finding,
    GroupProgress,
    Missing,
    diagnosis_blocks,
)
from ...ranks import RankChoice, ranks_text
from ...waits import Wait
from ..reading.columns import Dumps
from .endings import exit_sidecars, exited_cleanly, sigterm_time_s


@attrs.frozen(kw_only=True, eq=False)
class FlightReport(Shown):
    """
    The result of :func:`analyze_dumps`.

    Attributes:
        findings: All problems, the root cause first; empty if there are none.

        groups: Progress of every process group.

        waits: Every stuck call, with the ranks that wait and those awaited.

        victims: Ranks that only wait for others, ascending.

        missing: Ranks and files that could not be analyzed, with the reason.

        outdated: Ranks whose dump is older than their progress seen by others.

        dumps: The analyzed dumps.

        about: Text of the filter, such as ``" of rank 3"``; ``""`` without
            one.

        alive: Ranks that are known to live, whether or not they left a dump.

        checked: What completes without the root cause; ``None`` if no call is
            stuck.
    """

    findings: tuple[Finding, ...]
    groups: tuple[GroupProgress, ...]
    waits: tuple[Wait, ...]
    victims: tuple[int, ...]
    missing: tuple[Missing, ...]
    outdated: tuple[int, ...]
    dumps: Dumps = attrs.field(repr=False)
    about: str = ""
    alive: frozenset[int] = frozenset()
    checked: Checked | None = None

    @property
    def verdict(self) -> Finding:
        """
        The root cause, or ``healthy``; ``unknown`` without usable dumps.
        """
        if self.findings:
            return self.findings[0]
        if self.dumps.inspector and not len(self.dumps):
            return _not_slow_finding(self.dumps)
        if not _has_records(self.dumps):
            return _no_records_finding(self.dumps)
        return _lost_finding(self) or _healthy_finding(self)

    @property
    def without_dump(self) -> tuple[int, ...]:
        """
        The ranks of the job of which there is no dump, ascending.
        """
        missing = {m.rank for m in self.missing if m.rank is not None}
        return tuple(sorted(missing.difference(self.dumps.ranks)))

    def to_diagnosis(self) -> Diagnosis:
        """
        Return the report in the form that all kinds of evidence share.
        """
        return Diagnosis(
            verdict=self.verdict,
            findings=self.findings,
            victims=self.victims,
            missing=self.missing,
            groups=self.groups,
            checked=self.checked,
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        return self.to_diagnosis().to_dict()

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per finding, for a data frame.
        """
        return self.to_diagnosis().to_records()

    def _blocks_(self) -> Iterable[Block]:
        return diagnosis_blocks(self.to_diagnosis())


def _has_records(dumps: Dumps) -> bool:
    """
    Return whether there are records, or counters that say "all complete".
    """
    if any(len(dump.entries) for dump in dumps):
        return True

    counters = [s for dump in dumps for s in dump.status.values()]
    return (
        bool(counters)
        and not dumps.problems
        and all(s.enqueued == s.completed for s in counters)
    )


def _lost_finding(report: FlightReport) -> Finding | None:
    """
    Return that a few ranks may have died, of which no dump is there.

    Where all others have ended, they had the recorder, too, and wrote nothing.
    Gloo ends the calls of the others, too, when such a rank goes away.
    """
    damaged = {m.rank for m in report.missing if m.source is not None}
    ended = {
        rank
        for rank, sidecar in report.dumps.sidecars.items()
        if exited_cleanly(sidecar)
    }
    lost = set(report.without_dump) - damaged - ended - report.alive
    count = len(report.dumps)
    is_over = lost <= report.dumps.sidecars.keys() and all(
        exit_sidecars(report.dumps, rank) for rank in report.dumps.ranks
    )
    is_few = len(lost) <= count if is_over else 2 * len(lost) < count
    if report.about or not lost or not is_few:
        return None

    rest = ranks_text(report.dumps.ranks)
    return Finding(
        cause=Cause.RANK_CRASHED,
        ranks=tuple(sorted(lost)),
        summary=f"{ranks_text(sorted(lost))} left no dump, and nothing is stuck "
        f"in those of {rest}",
        confidence="possible",
        remedy="see whether these ranks still run: if so, take their dumps, too; "
        "if not, look for their end in the logs of their nodes",
    )


def _healthy_finding(report: FlightReport) -> Finding:
    without = report.without_dump
    return Finding(
        cause=Cause.HEALTHY,
        ranks=(),
        summary=f"nothing{report.about} is stuck in the dumps of "
        f"{ranks_text(report.dumps.ranks)}"
        + (f"; {ranks_text(without)} left none" if without else "")
        + _sigterm_text(report.dumps),
        confidence="likely",
    )


def _not_slow_finding(dumps: Dumps) -> Finding:
    return Finding(
        cause=Cause.HEALTHY,
        ranks=(),
        summary="no rank is slow in the calls that NCCL Inspector recorded of "
        f"{ranks_text(sorted(dumps.inspector))}; a call that hangs is not "
        "among them",
        confidence="possible",
    )


def _sigterm_text(dumps: Dumps) -> str:
    """
    Return the summary part for ranks ended by SIGTERM; ``""`` if none.
    """
    if sigterm_time_s(dumps) is None:
        return ""

    terminated = [
        rank
        for rank in dumps.sidecars
        if any(s.reason == "SIGTERM" for s in exit_sidecars(dumps, rank))
    ]
    return f"; SIGTERM ended {ranks_text(terminated)}"


def _no_records_finding(dumps: Dumps) -> Finding:
    remedy = "enable the Flight Recorder and take the dumps of all ranks"
    if dumps.sidecars:  # it was enabled
        remedy = (
            "take the dumps while the job hangs (distdebug snapshot), or end "
            "it by SIGTERM: who is killed by SIGKILL writes none"
        )
    return Finding(
        cause=Cause.UNKNOWN,
        ranks=(),
        summary="no rank left a dump that shows what it did",
        confidence="possible",
        remedy=remedy,
    )


def filter_report(
    report: FlightReport,
    ranks: RankChoice | None = None,
    groups: Iterable[str] | None = None,
) -> FlightReport:
    """
    Restrict a report to some ranks or groups, and to what blocks them.

    Args:
        ranks: Global ranks; ``None`` for all.

        groups: Names or descriptions of process groups; ``None`` for all.
    """
    if ranks is None and groups is None:
        return report

    selection = _ReportFilter(
        report.dumps.select_ranks(ranks),
        None if groups is None else frozenset(groups),
    )
    waits = [
        w
        for w in report.waits
        if selection.matches({*w.waiting, *w.awaited}, w.group, w.desc)
    ]
    waiting = {r for w in waits for r in w.waiting}
    return attrs.evolve(
        report,
        findings=tuple(
            f
            for i, f in enumerate(report.findings)
            if (waits and not i) or selection.matches_finding(f)
        ),
        groups=tuple(
            g
            for g in report.groups
            if selection.matches(g.ranks, g.name, g.desc)
        ),
        waits=tuple(waits),
        victims=tuple(
            r
            for r in report.victims
            if r in waiting and selection.matches([r])
        ),
        about=str(selection),
    )


@attrs.frozen
class _ReportFilter:
    """
    Selected ranks and groups; ``None`` for all.
    """

    ranks: frozenset[int] | None
    groups: frozenset[str] | None

    def matches(self, ranks: Iterable[int], *names: str) -> bool:
        """
        Return whether any of *ranks*, and of *names* if any, is selected.
        """
        return (self.ranks is None or not self.ranks.isdisjoint(ranks)) and (
            self.groups is None
            or not names
            or not self.groups.isdisjoint(names)
        )

    def matches_finding(self, f: Finding) -> bool:
        """
        Return whether a rank of a finding, or of its group, is selected.
        """
        if f.group is None:
            return self.matches(f.ranks)

        return self.matches(
            {*f.ranks, *f.group.ranks}, f.group.name, f.group.desc
        )

    def __str__(self) -> str:
        parts = []
        if self.ranks is not None:
            parts.append(ranks_text(sorted(self.ranks)))
        if self.groups is not None:
            parts.append(f"group {', '.join(map(repr, sorted(self.groups)))}")

        return f" of {' and '.join(parts)}"
