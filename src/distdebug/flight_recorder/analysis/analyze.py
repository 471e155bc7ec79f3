"""
What do the dumps of a job say is wrong with it?
"""

from __future__ import annotations

import os

from collections.abc import Iterable, Sequence

from ...findings import (
    Cause,
    Confidence,
    Finding,
    GroupProgress,
    Missing,
)
from ...waits import Wait
from ..columns import Dumps
from ..read import read_dumps
from .evidence import collective_of
from .freshness import are_fresh, is_unprecedented
from .job import Job, survey
from .mismatch import find_mismatches
from .pairs import find_pair_mismatches
from .report import FlightReport, select
from .roots import Root, find_roots
from .stragglers import find_stragglers
from .stuck import StuckCall, find_outdated, find_stuck_calls, since_ns
from .wording import explain_mismatch, explain_root


__all__ = ["analyze_dumps"]

# Of the causes that follow from waits, the most telling one first.
_IMPORTANCE = [
    Cause.P2P_DEADLOCK,
    Cause.SKIPPED_COLLECTIVE,
    Cause.GROUP_ORDER_DEADLOCK,
    Cause.RANK_NOT_ARRIVED,
    Cause.RANK_BLOCKED_IN_LAUNCH,
    Cause.RANK_NOT_STARTED,
    Cause.RANK_CRASHED,
    Cause.COLLECTIVE_STUCK_IN_FLIGHT,
    Cause.UNKNOWN,
]


def analyze_dumps(
    dumps_or_path: Dumps | str | os.PathLike[str],
    *,
    ranks: Iterable[int] | None = None,
    groups: Iterable[str] | None = None,
) -> FlightReport:
    """
    Find out which rank is stuck, in which collective, and whose fault it is.

    All dumps are always analyzed: an answer drawn from some of the ranks would
    blame those left out.  The filters choose what the report is about; what
    holds up the chosen ranks and groups is part of it, wherever it is.

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
    return select(_analyze(survey(dumps)), ranks, groups)


def _analyze(job: Job) -> FlightReport:
    outdated = find_outdated(job.states, job.channels, job.dumps)
    calls = find_stuck_calls(job.states, job.channels, job.dumps, outdated)
    if are_fresh(calls, job.dumps):
        calls = []
    findings = _find(job, calls) or find_stragglers(job)
    blamed = set(findings[0].ranks) if findings else set()
    return FlightReport(
        findings=tuple(findings),
        groups=tuple(_progress(job, calls)),
        waits=tuple(_waits(job, calls)),
        victims=tuple(sorted({r for c in calls for r in c.waiting} - blamed)),
        missing=tuple(_missing(job)),
        outdated=tuple(sorted(outdated)),
        dumps=job.dumps,
    )


def _find(job: Job, calls: Sequence[StuckCall]) -> list[Finding]:
    """
    Order all findings: what went wrong first explains what came after.
    """
    differing, outlived = _mismatches(job, {c.group for c in calls})
    differing += find_pair_mismatches(job, calls)
    # Once out of step, a group is stuck for no other reason.
    explained = {f.group for f in differing}
    waits = [
        explain_root(job, r, calls, _confidence(r, calls, job))
        for r in find_roots(calls, job)
    ]
    waits = [f for f in waits if f.group not in explained]
    waits.sort(key=lambda f: _IMPORTANCE.index(f.cause))
    return [*differing, *waits, *outlived]


def _mismatches(
    job: Job, stuck: set[int]
) -> tuple[list[Finding], list[Finding]]:
    """
    Find the calls in which ranks differ, oldest first.

    Returns:
        Those that explain why the job is stuck, and those that it outlived.
    """
    found = find_mismatches(job)
    found.sort(key=lambda m: _created(job, m.rows[0]))
    differing: list[Finding] = []
    outlived: list[Finding] = []
    for m in found:
        side = differing if not stuck or m.group in stuck else outlived
        side.append(explain_mismatch(job, m))

    return differing, outlived


def _confidence(
    root: Root, calls: Sequence[StuckCall], job: Job
) -> Confidence:
    if root.cause in {Cause.COLLECTIVE_STUCK_IN_FLIGHT, Cause.UNKNOWN}:
        return "possible"

    is_known = all(
        job.membership.groups[calls[i].group].is_known and not calls[i].unknown
        for i in root.calls
    )
    if root.cause is Cause.RANK_CRASHED or root.is_guess or not is_known:
        return "likely"

    shown = [calls[i] for i in root.calls]
    if not is_unprecedented(shown, job.dumps):
        return "possible"

    explains_all = len(root.victims) + len(root.ranks) >= len(job.dumps)
    # Who left no dump may be missing as well.
    lost = {r for call in shown for r in call.missing}.difference(root.ranks)
    return "certain" if explains_all and not lost else "likely"


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
            since_ns=since_ns(call, job.dumps),
            desc=job.membership.groups[call.group].desc,
        )


def _missing(job: Job) -> Iterable[Missing]:
    yield from job.dumps.problems
    told = {p.rank for p in job.dumps.problems if p.what == "dump"}
    # Only who may be a member: one damaged number is no million of ranks.
    for rank in job.membership.world:
        if rank not in job.dumps.by_rank and rank not in told:
            yield Missing(what="dump", rank=rank, reason="there is no dump")
