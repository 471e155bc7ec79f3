"""
Analyze Flight Recorder dumps and explain each root cause as a finding.
"""

from __future__ import annotations

import os

from collections.abc import Iterable, Sequence
from itertools import chain

from ...causes import Cause
from ...findings import (
    Checked,
    CollectiveRef,
    Confidence,
    Evidence,
    Finding,
    GroupProgress,
    GroupRef,
    Missing,
)
from ...ranks import RankChoice, ranks_text
from ...waits import Wait, waiting_text
from ..read import read_dumps
from ..reading.columns import ISSUED, Dumps
from .delays import find_delays, inspector_notes
from .endings import cut_at_sigterm
from .job import Job
from .mismatch import (
    Mismatch,
    Repair,
    find_mismatches,
    find_pair_mismatches,
)
from .report import FlightReport, filter_report
from .root_causes import Root, find_late_arrivals, find_roots, is_left_behind
from .stuck import (
    StuckCall,
    find_outdated,
    find_standing,
    find_stuck_calls,
    is_longest_wait,
    is_normal_wait,
    longest_wait_ns,
    record_evidence,
)


_UNKNOWN_REMEDY = "take the dumps of all ranks again, at the same time"
# Operations with a root rank, which dumps do not record.
_ROOTED_OPS = {"broadcast", "gather", "reduce", "scatter"}
_ROOT_RANK_REMEDY = (
    "compare src or dst of this call on these ranks with that of the others: "
    "a rank that passes another one waits for data that no rank sends; if they "
    "are equal, check the network between these ranks"
)
_LATE_REMEDY = (
    "see what these ranks did before this call, and what held them up; if it "
    "may take so long, raise the timeout of the group"
)
_THREADS_REMEDY = (
    "two threads made these calls, and nothing fixes their order: make all "
    "calls of a group in one thread, or give each thread a group of its own"
)
_OFF_BY_ONE_TEXTS = {
    Cause.SKIPPED_COLLECTIVE: "skipped a call",
    Cause.EXTRA_COLLECTIVE: "made one call too many",
}


def explain_root(job: Job, root: Root) -> Finding:
    """
    Return the finding for one root cause of the waits.
    """
    first = root.calls[0]
    late = _late_summary(root)
    return Finding(
        cause=root.cause,
        ranks=root.ranks,
        summary=late or _root_summary(root),
        confidence=_root_confidence(root, job),
        remedy=_LATE_REMEDY if late else _root_remedy(root),
        group=first.process_group.ref,
        collective=first.ref,
        waiting=_waiting_ranks(root),
        waited_s=_waited_s(root),
        evidence=tuple(_root_evidence(job, root)),
    )


def _root_summary(root: Root) -> str:
    ranks = ranks_text(root.ranks)
    first = root.calls[0]
    call = str(first)
    also_missing = sorted({*first.missing}.difference(root.ranks))
    also_text = (
        f"; {ranks_text(also_missing)} left no dump" if also_missing else ""
    )
    cycle = ", ".join(
        f"{ranks_text(sorted(c.waiting))} in {c}" for c in root.calls[:4]
    )
    verb, them = ("is", "it") if len(root.ranks) == 1 else ("are", "them")
    texts = {
        Cause.RANK_NOT_ARRIVED: f"{_absent_text(root)}; "
        f"{_wait_text(root)}{also_text}",
        Cause.RANK_CRASHED: f"{ranks} left no dump; "
        f"{_wait_text(root, f' for {them} in {call}')}",
        Cause.SKIPPED_COLLECTIVE: f"{ranks} skipped {call}; "
        f"{_wait_text(root)}: {cycle}",
        Cause.GROUP_ORDER_DEADLOCK: f"{ranks} left the order of the others: "
        f"{cycle}"
        if root.is_guess or len(root.ranks) == 1
        else f"{ranks} wait for each other: {cycle}",
        Cause.P2P_DEADLOCK: f"{ranks} wait for each other: {cycle}",
        Cause.RANK_NOT_STARTED: f"{ranks} enqueued {call}, but the GPU never "
        f"started it; {_wait_text(root, ' in it')}",
        Cause.RANK_BLOCKED_IN_LAUNCH: f"{ranks} {verb} stuck launching {call}",
        Cause.COLLECTIVE_STUCK_IN_FLIGHT: f"{ranks} entered {call}, which "
        f"completed for its other members, and {verb} stuck in it"
        if is_left_behind(first)
        else f"all {len(first.waiting)} members entered {call}, and it does "
        "not complete",
        Cause.UNKNOWN: f"it is unclear which rank holds up {call}: the dumps of "
        f"{ranks} do not show how far they got",
    }
    return texts[root.cause]


_MOST_ABSENT_CALLS = 3


def _absent_text(root: Root) -> str:
    """
    Say which ranks never entered which call: groups may miss ranks of their own.
    """
    calls: dict[int, StuckCall] = {}
    for call in root.calls:
        for rank in call.absent:
            calls.setdefault(rank, call)
    missed: dict[str, list[int]] = {}
    for rank in root.ranks:
        call = calls.get(rank, root.calls[0])
        missed.setdefault(call.awaited_text, []).append(rank)
    parts = [
        f"{ranks_text(ranks)} never entered {call}"
        for call, ranks in [*missed.items()][:_MOST_ABSENT_CALLS]
    ]
    more = len(missed) - len(parts)
    parts += [f"others never entered {more} other calls"] if more else []
    return ", and ".join(parts)


def _late_summary(root: Root) -> str:
    """
    Return the summary for ranks that arrived too late; ``""`` if none.
    """
    first = root.calls[0]
    is_inside = first.waiting.keys() >= {*root.ranks}
    if root.cause is not Cause.RANK_NOT_ARRIVED or not is_inside:
        return ""

    seconds = min(find_late_arrivals(first).values(), default=0.0)
    on_time = sorted(first.waiting.keys() - {*root.ranks})
    return (
        f"{ranks_text(root.ranks)} entered {first} "
        f"{seconds:.0f} s after {ranks_text(on_time)}, after the "
        "timeout"
    )


def _root_remedy(root: Root) -> str | None:
    first = root.calls[0]
    is_in_flight = root.cause is Cause.COLLECTIVE_STUCK_IN_FLIGHT
    if is_in_flight and is_left_behind(first) and first.ref.op in _ROOTED_OPS:
        return _ROOT_RANK_REMEDY
    return (
        _UNKNOWN_REMEDY if root.cause is Cause.UNKNOWN else root.cause.remedy
    )


def _waiting_ranks(root: Root) -> tuple[int, ...]:
    return tuple(sorted({r for call in root.calls for r in call.waiting}))


def _waited_s(root: Root) -> float | None:
    """
    Return for how many seconds ranks have waited, if for at least one.
    """
    seconds = longest_wait_ns(root.calls) / 1e9
    return round(seconds, 3) if seconds >= 1 else None


def _wait_text(root: Root, where: str = "") -> str:
    return waiting_text(len(_waiting_ranks(root)), _waited_s(root), where)


_Records = list[tuple[int, int]]


def _root_records(job: Job, root: Root) -> tuple[_Records, _Records]:
    """
    Return the records of calls that wait, and the last ones of the ranks.
    """
    waiting = [call.first_record for call in root.calls[:4]]
    dumps = [job.dumps.by_rank.get(rank) for rank in root.ranks[:4]]
    last = [
        (dump.rank, int(dump.entries.record_id.argmax()))
        for dump in dumps
        if dump is not None and len(dump.entries)
    ]
    return waiting, last


def _root_evidence(job: Job, root: Root) -> Iterable[Evidence]:
    waiting, last = _root_records(job, root)
    for rank, row in waiting:
        yield record_evidence(job, rank, row)
    for rank, row in last:
        if (rank, row) not in waiting:
            yield record_evidence(job, rank, row, what="last: ")


def explain_mismatch(job: Job, found: Mismatch) -> Finding:
    """
    Return the finding for the first call in which the ranks of a group differ.
    """
    group = job.groups[found.group].ref
    return Finding(
        cause=found.cause,
        ranks=found.culprits,
        summary=_mismatch_summary(found, group),
        confidence=found.confidence,
        remedy=_THREADS_REMEDY if found.in_threads else found.cause.remedy,
        group=group,
        collective=CollectiveRef(op=found.expected.op, seq=found.seq),
        location=found.location,
        evidence=tuple(
            record_evidence(job, rank, row) for rank, row in found.rows
        ),
    )


def _mismatch_summary(found: Mismatch, group: GroupRef) -> str:
    ranks = ranks_text(found.culprits)
    where = f"call #{found.seq} of group {str(group)!r}"
    if found.confidence == "possible":
        return (
            f"{ranks} do not agree on {where}: {found.theirs} against "
            f"{found.expected}; it is unclear which side is wrong"
        )

    theirs, expected = str(found.theirs), str(found.expected)
    if found.location:
        theirs += f" at {found.location.brief}"
    if found.elsewhere:
        expected += f" at {found.elsewhere.brief}"
    slip = _OFF_BY_ONE_TEXTS.get(found.cause)
    if slip is not None:
        verb = "is" if len(found.culprits) == 1 else "are"
        if found.cause is Cause.SKIPPED_COLLECTIVE and found.skipped > 1:
            slip = f"skipped {found.skipped} calls"
        return (
            f"{ranks} {slip}, and from {where} on {verb} out of step: "
            f"{theirs} meets {expected} of the others"
        )
    return (
        f"{ranks} called {theirs} as {where}, where the others called "
        f"{expected}"
    )


# Causes that follow from waits, the most specific one first.
_CAUSE_PRIORITY = [
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
    ranks: RankChoice | None = None,
    groups: Iterable[str] | None = None,
) -> FlightReport:
    """
    Analyze Flight Recorder dumps: root cause, stuck collective, and culprits.

    All dumps are always analyzed: with only some of the ranks, the analysis
    would blame the others.  The filters only select what the report contains;
    the root cause for the selection is part of it, on whatever rank it is.

    Example::

        report = distdebug.analyze_dumps("dumps")
        print(report.verdict, report.victims)

    Args:
        dumps_or_path: The result of :func:`read_dumps`, or its argument.

        ranks: Report only findings that concern one of these ranks: numbers,
            or a selection such as ``"ranks(tp=0)"``.

        groups: Report only findings that concern one of these process groups,
            by name or description.

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
    return filter_report(_analyze(Job(cut_at_sigterm(dumps))), ranks, groups)


def _analyze(job: Job) -> FlightReport:
    outdated = find_outdated(job)
    calls = find_stuck_calls(job, outdated)
    if is_normal_wait(calls, job):
        calls = []
    mismatches = find_mismatches(job)
    findings = _collect_findings(job, calls, mismatches) or find_delays(job)
    blamed = set(findings[0].ranks) if findings else set()
    return FlightReport(
        findings=tuple(findings),
        groups=tuple(_group_progress(job, calls)),
        waits=tuple(_collect_waits(calls)),
        victims=tuple(sorted({r for c in calls for r in c.waiting} - blamed)),
        missing=tuple(_collect_missing(job)),
        outdated=tuple(sorted(outdated)),
        dumps=job.dumps,
        checked=_check(job, findings, calls, mismatches),
    )


def _check(
    job: Job,
    findings: Sequence[Finding],
    calls: Sequence[StuckCall],
    mismatches: Iterable[Mismatch],
) -> Checked | None:
    """
    Play the schedule forward without the root cause.
    """
    if not findings:
        return None
    verdict = findings[0]
    cause = verdict.cause
    repairs = (
        m.repair
        for m in mismatches
        if job.groups[m.group].ref == verdict.group and m.cause is cause
    )
    repair = next(repairs, Repair())
    if not (calls or repair.calls):
        return None
    own = {
        i
        for i, call in enumerate(calls)
        if (call.process_group.ref, call.ref)
        == (verdict.group, verdict.collective)
    }
    # What is no wait for a rank ends if its call is made right.
    is_wait = cause.is_absence or cause in _CYCLES
    standing = find_standing(
        calls, verdict.ranks, () if is_wait and verdict.ranks else own
    )
    waiting = {rank for call in standing for rank in call.waiting}
    awaited = {rank for call in standing for rank in call.awaited}
    return Checked(
        ranks=() if cause.is_blameless else verdict.ranks,
        calls=len(calls),
        completed=len(calls) - len(standing),
        awaited=tuple(sorted(awaited - waiting)),
        later=repair.calls,
        agreeing=repair.agreeing,
    )


_CYCLES = frozenset({Cause.GROUP_ORDER_DEADLOCK, Cause.P2P_DEADLOCK})


def _collect_findings(
    job: Job, calls: Sequence[StuckCall], mismatches: Iterable[Mismatch]
) -> list[Finding]:
    """
    Return all findings, the root cause first.
    """
    stuck = {call.group for call in calls}
    blocking: list[Finding] = []
    survived: list[Finding] = []
    for m in sorted(mismatches, key=lambda m: job.created_ns(*m.rows[0])):
        target = blocking if not stuck or m.group in stuck else survived
        target.append(explain_mismatch(job, m))
    blocking += find_pair_mismatches(job, calls)
    # A mismatch explains why its group is stuck.
    explained = {f.group for f in blocking}
    roots = [*find_roots(calls, job)]
    records = (_root_records(job, root) for root in roots)
    job.read_stacks(chain(*chain.from_iterable(records)))
    waits = [explain_root(job, root) for root in roots]
    waits = [f for f in waits if f.group not in explained]
    waits.sort(key=lambda f: _CAUSE_PRIORITY.index(f.cause))
    return [*blocking, *waits, *survived]


def _root_confidence(root: Root, job: Job) -> Confidence:
    if root.cause in {Cause.COLLECTIVE_STUCK_IN_FLIGHT, Cause.UNKNOWN}:
        return "possible"

    is_known = all(
        c.process_group.is_known and not c.unknown for c in root.calls
    )
    if root.cause is Cause.RANK_CRASHED or root.is_guess or not is_known:
        return "likely"

    if not is_longest_wait(root.calls):
        return "possible"

    explains_all = len(root.victims) + len(root.ranks) >= len(job.dumps)
    # Other ranks without a dump may be culprits as well.
    also_missing = {r for c in root.calls for r in c.missing} - {*root.ranks}
    return "certain" if explains_all and not also_missing else "likely"


def _group_progress(
    job: Job, calls: Sequence[StuckCall]
) -> Iterable[GroupProgress]:
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


def _collect_waits(calls: Iterable[StuckCall]) -> Iterable[Wait]:
    for call in calls:
        yield Wait(
            group=call.process_group.name,
            op=call.ref.op,
            seq=call.seq,
            p2p=call.p2p,
            waiting=tuple(sorted(call.waiting)),
            awaited=call.awaited,
            since_ns=call.entered_ns,
            desc=call.process_group.desc,
        )


def _collect_missing(job: Job) -> Iterable[Missing]:
    yield from job.dumps.problems
    reported = {p.rank for p in job.dumps.problems if p.what == "dump"}
    # One damaged rank number must not add a million missing ranks.
    for rank in job.membership.world:
        if rank not in job.dumps.by_rank and rank not in reported:
            yield Missing(what="dump", rank=rank, reason="there is no dump")
    blind = [d.rank for d in job.dumps if (d.entries.state == ISSUED).any()]
    if blind:
        yield Missing(
            what="calls",
            reason=f"the recorder of {ranks_text(blind)} does not see calls "
            "end; those that all ranks entered are taken for complete",
        )
    yield from inspector_notes(job.dumps)
