"""
What do the dumps of a job say is wrong with it?
"""

from __future__ import annotations

import os

from collections.abc import Iterable, Sequence

import attrs

from ...findings import (
    Cause,
    Confidence,
    Diagnosis,
    Finding,
    GroupProgress,
    Missing,
)
from ...waits import Wait
from ..columns import Dumps
from ..read import read_dumps
from .freshness import are_fresh
from .job import Job, survey
from .mismatch import find_mismatch
from .pairs import find_pair_mismatches
from .roots import Root, find_roots
from .stragglers import find_stragglers
from .stuck import StuckCall, find_outdated, find_stuck_calls, link
from .wording import (
    collective_of,
    explain_mismatch,
    explain_root,
    ranks_text,
    victims_of,
)


__all__ = ["FlightReport", "analyze_dumps"]

_IMPORTANCE = [
    Cause.TYPE_MISMATCH,
    Cause.SIZE_MISMATCH,
    Cause.DTYPE_MISMATCH,
    Cause.SKIPPED_COLLECTIVE,
    Cause.EXTRA_COLLECTIVE,
    Cause.P2P_DEADLOCK,
    Cause.GROUP_ORDER_DEADLOCK,
    Cause.RANK_NOT_ARRIVED,
    Cause.RANK_BLOCKED_IN_LAUNCH,
    Cause.RANK_NOT_STARTED,
    Cause.RANK_CRASHED,
    Cause.COLLECTIVE_STUCK_IN_FLIGHT,
    Cause.UNKNOWN,
    Cause.STRAGGLER,
]


@attrs.frozen(kw_only=True, eq=False)
class FlightReport:
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
    """

    findings: tuple[Finding, ...]
    groups: tuple[GroupProgress, ...]
    waits: tuple[Wait, ...]
    victims: tuple[int, ...]
    missing: tuple[Missing, ...]
    outdated: tuple[int, ...]
    dumps: Dumps = attrs.field(repr=False)

    @property
    def verdict(self) -> Finding:
        """
        The root cause, or ``healthy``.
        """
        return self.findings[0] if self.findings else _healthy(self)

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

    def __str__(self) -> str:
        return str(self.to_diagnosis())


def analyze_dumps(
    dumps_or_path: Dumps | str | os.PathLike[str],
    *,
    ranks: Iterable[int] | None = None,
    groups: Iterable[str] | None = None,
) -> FlightReport:
    """
    Find out which rank is stuck, in which collective, and whose fault it is.

    All dumps are always analyzed: an answer drawn from some of the ranks would
    blame those left out.  The filters choose what the report is about.

    Args:
        dumps_or_path: What :func:`read_dumps` returned, or what to give to it.

        ranks: Report only what concerns one of these ranks.

        groups: Report only what concerns one of these process groups, by name
            or description.

    Returns:
        The report; it prints itself.

    Raises:
        NoDumpsError: There are no dumps.
    """
    dumps = (
        dumps_or_path
        if isinstance(dumps_or_path, Dumps)
        else read_dumps(dumps_or_path)
    )
    return _select(_analyze(survey(dumps)), ranks, groups)


def _analyze(job: Job) -> FlightReport:
    calls = find_stuck_calls(job.states, job.channels, job.dumps)
    if are_fresh(calls, job.dumps):
        calls = []
    edges = link(calls)
    outdated = find_outdated(job.states, job.channels, job.dumps)
    roots = find_roots(calls, job.states, job.dumps)
    victims = {root: sorted(victims_of(root, calls, edges)) for root in roots}
    found = [
        (explain_root(job, r, calls, _confidence(r, calls, victims[r], job)))
        for r in roots
    ]
    findings = _rank_findings(job, found, calls)
    blamed = set(findings[0].ranks) if findings else set()
    return FlightReport(
        findings=tuple(findings or find_stragglers(job)),
        groups=tuple(_progress(job, calls)),
        waits=tuple(_waits(job, calls)),
        victims=tuple(sorted({r for c in calls for r in c.waiting} - blamed)),
        missing=tuple(_missing(job)),
        outdated=tuple(sorted(outdated)),
        dumps=job.dumps,
    )


def _confidence(
    root: Root, calls: Sequence[StuckCall], victims: Sequence[int], job: Job
) -> Confidence:
    if root.cause in {Cause.COLLECTIVE_STUCK_IN_FLIGHT, Cause.UNKNOWN}:
        return "possible"

    is_known = all(
        job.membership.groups[calls[i].group].is_known and not calls[i].unknown
        for i in root.calls
    )
    everyone = len(victims) + len(root.ranks) >= len(job.dumps)
    if root.cause is Cause.RANK_CRASHED or not is_known:
        return "likely"

    return "certain" if everyone else "likely"


def _rank_findings(
    job: Job, from_waits: list[Finding], calls: Sequence[StuckCall]
) -> list[Finding]:
    """
    Order all findings: what went wrong first explains what came after.
    """
    differ = [
        m
        for i, state in enumerate(job.states)
        if len(state.suspects)
        and (
            m := find_mismatch(i, state, job.dumps, job.signatures, job.stream)
        )
    ]
    differ.sort(key=lambda m: _created(job, m.rows[0]))
    stuck_in = {c.group for c in calls}
    # A difference that the job outlived does not explain why it is stuck.
    mismatches = [
        explain_mismatch(job, m)
        for m in differ
        if not stuck_in or m.group in stuck_in
    ]
    outlived = [
        explain_mismatch(job, m)
        for m in differ
        if stuck_in and m.group not in stuck_in
    ]
    mismatches += find_pair_mismatches(job, calls)
    # Once out of step, a group is stuck for no other reason.
    explained = {f.group for f in mismatches}
    waits = sorted(
        (f for f in from_waits if f.group not in explained),
        key=lambda f: _IMPORTANCE.index(f.cause),
    )
    return [*mismatches, *waits, *outlived]


def _created(job: Job, place: tuple[int, int]) -> int:
    rank, row = place
    return int(job.dumps[rank].entries.created_ns[row])


def _progress(job: Job, calls: Sequence[StuckCall]) -> Iterable[GroupProgress]:
    stuck = {c.group: c for c in calls if not c.p2p}
    for i, state in enumerate(job.states):
        positions = state.positions.values()
        if not any(p.last for p in positions):
            continue
        call = stuck.get(i)
        yield GroupProgress(
            name=state.group.name,
            desc=state.group.desc,
            ranks=state.group.ref.ranks,
            last_completed=max(p.done for p in positions),
            furthest=max(p.last for p in positions),
            waiting=tuple(sorted(call.waiting)) if call else (),
            absent=call.awaited if call else (),
        )


def _waits(job: Job, calls: Sequence[StuckCall]) -> Iterable[Wait]:
    for call in calls:
        yield Wait(
            group=job.membership.groups[call.group].name,
            op=collective_of(job, call).op,
            seq=call.seq,
            p2p=call.p2p,
            waiting=tuple(sorted(call.waiting)),
            awaited=call.awaited,
            since_ns=min(
                int(job.dumps[r].entries.created_ns[row])
                for r, row in call.waiting.items()
            ),
        )


def _missing(job: Job) -> Iterable[Missing]:
    yield from job.dumps.problems
    told = {p.rank for p in job.dumps.problems if p.what == "dump"}
    for rank in range(job.membership.world_size):
        if rank not in job.dumps.by_rank and rank not in told:
            yield Missing(what="dump", rank=rank, reason="there is no dump")


def _select(
    report: FlightReport,
    ranks: Iterable[int] | None,
    groups: Iterable[str] | None,
) -> FlightReport:
    if ranks is None and groups is None:
        return report

    wanted = None if ranks is None else set(ranks)
    names = None if groups is None else set(groups)

    def has_group(name: str, desc: str) -> bool:
        return names is None or not names.isdisjoint({name, desc})

    def has_rank(concerned: Iterable[int]) -> bool:
        return wanted is None or not wanted.isdisjoint(concerned)

    return attrs.evolve(
        report,
        findings=tuple(
            f
            for f in report.findings
            if has_rank({*f.ranks, *(f.group.ranks if f.group else ())})
            and (f.group is None or has_group(f.group.name, f.group.desc))
        ),
        groups=tuple(
            g
            for g in report.groups
            if has_rank(g.ranks) and has_group(g.name, g.desc)
        ),
        victims=tuple(r for r in report.victims if has_rank([r])),
    )


def _healthy(report: FlightReport) -> Finding:
    return Finding(
        cause=Cause.HEALTHY,
        ranks=(),
        summary=f"nothing is stuck in the dumps of "
        f"{ranks_text(report.dumps.ranks)}",
        confidence="likely",
    )
