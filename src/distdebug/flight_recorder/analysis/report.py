"""
What is the answer about the dumps of a job, as a whole?
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from ..._render import Block, Shown
from ...findings import (
    Cause,
    Diagnosis,
    Finding,
    GroupProgress,
    Missing,
    diagnosis_blocks,
)
from ...ranks import ranks_text
from ...waits import Wait
from ..reading.columns import Dumps
from .progress import ended_s, last_words


@attrs.frozen(kw_only=True, eq=False)
class FlightReport(Shown):
    """
    What the dumps of a job say.

    Attributes:
        findings: What is wrong, the root cause first; empty if nothing is.

        groups: The progress of every process group.

        waits: Every stuck call, with who waits in it and for whom.

        victims: Ranks that merely wait, ascending.

        missing: Ranks and files that could not be looked at, and why.

        outdated: Ranks whose dump is older than what others saw them do.

        dumps: What was analyzed.

        about: What the report is restricted to; ``""`` if to nothing.
    """

    findings: tuple[Finding, ...]
    groups: tuple[GroupProgress, ...]
    waits: tuple[Wait, ...]
    victims: tuple[int, ...]
    missing: tuple[Missing, ...]
    outdated: tuple[int, ...]
    dumps: Dumps = attrs.field(repr=False)
    about: str = ""

    @property
    def verdict(self) -> Finding:
        """
        The root cause, or ``healthy``; ``unknown`` if there is no dump.
        """
        if self.findings:
            return self.findings[0]

        return (
            _healthy(self)
            if _shows_anything(self.dumps)
            else _blind(self.dumps)
        )

    def to_diagnosis(self) -> Diagnosis:
        """
        The same, in the shape that all kinds of evidence share.
        """
        return Diagnosis(
            verdict=self.verdict,
            findings=self.findings,
            victims=self.victims,
            missing=self.missing,
            groups=self.groups,
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return self.to_diagnosis().to_dict()

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per finding, for a data frame.
        """
        return self.to_diagnosis().to_records()

    def _blocks_(self) -> Iterable[Block]:
        return diagnosis_blocks(self.to_diagnosis())


def _shows_anything(dumps: Dumps) -> bool:
    """
    Whether there is a record, or at least counters that say "all is done".
    """
    if any(len(dump.entries) for dump in dumps):
        return True

    counters = [s for dump in dumps for s in dump.status.values()]
    return (
        bool(counters)
        and not dumps.problems
        and all(s.enqueued == s.completed for s in counters)
    )


def _healthy(report: FlightReport) -> Finding:
    lost = {m.rank for m in report.missing if m.rank is not None}
    without = sorted(lost.difference(report.dumps.ranks))
    return Finding(
        cause=Cause.HEALTHY,
        ranks=(),
        summary=f"nothing{report.about} is stuck in the dumps of "
        f"{ranks_text(report.dumps.ranks)}"
        + (f"; {ranks_text(without)} left none" if without else "")
        + _ending(report.dumps),
        confidence="likely",
    )


def _ending(dumps: Dumps) -> str:
    """
    Say by which signal the job was ended, if it was.
    """
    if ended_s(dumps) is None:
        return ""

    told = [
        rank
        for rank in dumps.sidecars
        if any(s.reason == "SIGTERM" for s in last_words(dumps, rank))
    ]
    return f"; SIGTERM ended {ranks_text(told)}"


def _blind(dumps: Dumps) -> Finding:
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


def select(
    report: FlightReport,
    ranks: Iterable[int] | None = None,
    groups: Iterable[str] | None = None,
) -> FlightReport:
    """
    Restrict a report to what concerns some ranks or groups.

    What holds them up concerns them, wherever it is.

    Args:
        report: The whole report.

        ranks: Global ranks; by default all.

        groups: Names or descriptions of process groups; by default all.

    Returns:
        The restricted report.
    """
    if ranks is None and groups is None:
        return report

    chosen = _Selection(
        None if ranks is None else frozenset(ranks),
        None if groups is None else frozenset(groups),
    )
    waits = [
        w
        for w in report.waits
        if chosen.has({*w.waiting, *w.awaited}, w.group, w.desc)
    ]
    waiting = {r for w in waits for r in w.waiting}
    return attrs.evolve(
        report,
        findings=tuple(
            f
            for i, f in enumerate(report.findings)
            if (waits and not i) or chosen.has_finding(f)
        ),
        groups=tuple(
            g for g in report.groups if chosen.has(g.ranks, g.name, g.desc)
        ),
        waits=tuple(waits),
        victims=tuple(
            r for r in report.victims if r in waiting and chosen.has([r])
        ),
        about=str(chosen),
    )


@attrs.frozen
class _Selection:
    """
    What somebody wants to know about; ``None`` stands for everything.
    """

    ranks: frozenset[int] | None
    groups: frozenset[str] | None

    def has(self, ranks: Iterable[int], *names: str) -> bool:
        """
        Whether any of *ranks* and any of *names* is meant; no name fits all.
        """
        return (self.ranks is None or not self.ranks.isdisjoint(ranks)) and (
            self.groups is None
            or not names
            or not self.groups.isdisjoint(names)
        )

    def has_finding(self, f: Finding) -> bool:
        """
        Whether one of its ranks, or one that shares its group, is meant.
        """
        if f.group is None:
            return self.has(f.ranks)

        return self.has({*f.ranks, *f.group.ranks}, f.group.name, f.group.desc)

    def __str__(self) -> str:
        parts = []
        if self.ranks is not None:
            parts.append(ranks_text(sorted(self.ranks)))
        if self.groups is not None:
            parts.append(f"group {', '.join(map(repr, sorted(self.groups)))}")

        return f" of {' and '.join(parts)}"
