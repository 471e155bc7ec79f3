"""
What do the dumps of a job say is wrong with it?
"""

from __future__ import annotations

import os

from collections.abc import Iterable, Sequence

from ...findings import (
    Cause,
    CollectiveRef,
    Confidence,
    Evidence,
    Finding,
    GroupProgress,
    GroupRef,
    Missing,
)
from ...ranks import ranks_text
from ...waits import Wait
from ..read import read_dumps
from ..reading.columns import Dumps
from .job import Job, survey
from .mismatch import Mismatch, find_mismatches, find_pair_mismatches
from .report import FlightReport, select
from .roots import Root, arrived_late, find_roots, is_left_behind
from .stragglers import find_stragglers
from .stuck import (
    StuckCall,
    are_fresh,
    awaited_text,
    call_text,
    collective_of,
    find_outdated,
    find_stuck_calls,
    is_unprecedented,
    record_evidence,
    since_ns,
    waited_ns,
)


#: What to do next, by the cause.
REMEDIES = {
    Cause.RANK_NOT_ARRIVED: "look at the Python stack there: the rank is busy, "
    "or stuck, outside of any collective",
    Cause.RANK_CRASHED: "look for the exit of these ranks in the logs of "
    "their nodes (out of memory, signal, node lost)",
    Cause.RANK_NOT_STARTED: "look at what runs on the GPUs of these ranks: "
    "an earlier kernel does not finish",
    Cause.RANK_BLOCKED_IN_LAUNCH: "take native stacks of these ranks "
    "(py-spy dump --native): the launch does not return",
    Cause.COLLECTIVE_STUCK_IN_FLIGHT: "everyone arrived: check the network "
    "between these ranks, and on GPUs their health (Xid) and the NCCL logs",
    Cause.GROUP_ORDER_DEADLOCK: "call the collectives of these groups in the "
    "same order on all ranks",
    Cause.P2P_DEADLOCK: "let one side of each pair send first, or use "
    "batch_isend_irecv",
    Cause.TYPE_MISMATCH: "make all ranks of the group call the same operation; "
    "or find the call that was left out or made once too often before",
    Cause.SIZE_MISMATCH: "make all ranks of the group pass the same sizes; or "
    "find the call that was left out or made once too often before",
    Cause.DTYPE_MISMATCH: "make all ranks of the group pass the same dtype",
    Cause.SKIPPED_COLLECTIVE: "look for a branch that leaves the call out, or "
    "a loop that ends earlier, on these ranks only",
    Cause.EXTRA_COLLECTIVE: "look for a branch that makes the call on these "
    "ranks only",
    Cause.UNKNOWN: "take the dumps of all ranks again, at the same time",
}

# One rank sends to all others, or gets from them: which one, no dump tells.
_ROOTED = {"broadcast", "gather", "reduce", "scatter"}
_OTHER_ROOT = (
    "compare src or dst of this call on these ranks with that of the others: "
    "a rank that passes another one waits for data that nobody sends; if they "
    "are equal, check the network between these ranks"
)
_TOO_LATE = (
    "see what these ranks did before this call, and what held them up; if it "
    "may take so long, raise the time-out of the group"
)
_THREADS = (
    "two threads made these calls, and nothing fixes their order: make all "
    "calls of a group in one thread, or give each thread a group of its own"
)
_SLIP = {
    Cause.SKIPPED_COLLECTIVE: "skipped a call",
    Cause.EXTRA_COLLECTIVE: "made one call too many",
}


def explain_root(
    job: Job,
    root: Root,
    calls: Sequence[StuckCall],
    confidence: Confidence,
) -> Finding:
    """
    Put into words where the waiting begins.

    Args:
        job: What is known about the job.

        root: Where it begins.

        calls: All stuck calls.

        confidence: How sure it is.

    Returns:
        The finding, with the records that show it.
    """
    first = calls[root.calls[0]]
    late = _late(job, root, first)
    return Finding(
        cause=root.cause,
        ranks=root.ranks,
        summary=late or _summary(job, root, calls),
        confidence=confidence,
        remedy=_TOO_LATE if late else _remedy(job, root, first),
        group=job.membership.groups[first.group].ref,
        collective=collective_of(job, first),
        evidence=tuple(_evidence(job, root, calls)),
    )


def _summary(job: Job, root: Root, calls: Sequence[StuckCall]) -> str:
    who = ranks_text(root.ranks)
    first = calls[root.calls[0]]
    what = call_text(job, first)
    waiting = len({r for i in root.calls for r in calls[i].waiting})
    wait = f"{waiting} rank{'s wait' if waiting != 1 else ' waits'}"
    wait += _since(job, [calls[i] for i in root.calls])
    lost = sorted({*first.missing}.difference(root.ranks))
    also = f"; {ranks_text(lost)} left no dump" if lost else ""
    circle = _circle(job, root, calls)
    verb, them = ("is", "it") if len(root.ranks) == 1 else ("are", "them")
    in_flight = (
        f"{who} entered {what}, which completed for its other members, and "
        f"{verb} stuck in it"
        if is_left_behind(first, job.states)
        else f"all {len(first.waiting)} members entered {what}, and it does "
        "not complete"
    )
    texts = {
        Cause.RANK_NOT_ARRIVED: f"{who} never entered "
        f"{awaited_text(job, first)} ({wait}{also})",
        Cause.RANK_CRASHED: f"{who} left no dump; {wait} for {them} in {what}",
        Cause.SKIPPED_COLLECTIVE: f"{who} skipped {what} ({wait}): {circle}",
        Cause.GROUP_ORDER_DEADLOCK: f"{who} left the order of the others: "
        f"{circle}"
        if root.is_guess or len(root.ranks) == 1
        else f"{who} wait for each other: {circle}",
        Cause.P2P_DEADLOCK: f"{who} wait for each other: {circle}",
        Cause.RANK_NOT_STARTED: f"{who} enqueued {what}, but the GPU never "
        f"started it ({wait} in it)",
        Cause.RANK_BLOCKED_IN_LAUNCH: f"{who} {verb} stuck inside the launch "
        f"of {what}",
        Cause.COLLECTIVE_STUCK_IN_FLIGHT: in_flight,
        Cause.UNKNOWN: f"it cannot be told who holds up {what}: the dumps of "
        f"{who} do not show how far they got",
    }
    return texts[root.cause]


def _late(job: Job, root: Root, first: StuckCall) -> str:
    """
    Say that ranks came after the time-out, if that is it.
    """
    is_inside = first.waiting.keys() >= {*root.ranks}
    if root.cause is not Cause.RANK_NOT_ARRIVED or not is_inside:
        return ""

    seconds = min(arrived_late(first, job.dumps).values(), default=0.0)
    early = sorted(first.waiting.keys() - {*root.ranks})
    return (
        f"{ranks_text(root.ranks)} entered {call_text(job, first)} "
        f"{seconds:.0f} s after {ranks_text(early)}, when the time-out was "
        "over"
    )


def _remedy(job: Job, root: Root, first: StuckCall) -> str | None:
    is_left = (
        root.cause is Cause.COLLECTIVE_STUCK_IN_FLIGHT
        and is_left_behind(first, job.states)
    )
    if is_left and collective_of(job, first).op in _ROOTED:
        return _OTHER_ROOT
    return REMEDIES.get(root.cause)


def _since(job: Job, calls: Sequence[StuckCall]) -> str:
    """
    For how long they have waited, if that is known and worth telling.
    """
    waited = (waited_ns(calls, job.dumps) or 0) / 1e9
    if waited < 1:
        return ""

    return (
        f" for {waited:.0f} s"
        if waited < 120
        else f" for {waited / 60:.0f} min"
    )


def _circle(job: Job, root: Root, calls: Sequence[StuckCall]) -> str:
    return ", ".join(
        f"{ranks_text(sorted(calls[i].waiting))} in {call_text(job, calls[i])}"
        for i in root.calls[:4]
    )


def _evidence(
    job: Job, root: Root, calls: Sequence[StuckCall]
) -> Iterable[Evidence]:
    waiting = [next(iter(calls[i].waiting.items())) for i in root.calls[:4]]
    dumps = [job.dumps.by_rank.get(rank) for rank in root.ranks[:4]]
    last = [
        (dump.rank, int(dump.entries.record_id.argmax()))
        for dump in dumps
        if dump is not None and len(dump.entries)
    ]
    job.read_stacks([*waiting, *last])
    for rank, row in waiting:
        yield record_evidence(job, rank, row)
    for rank, row in last:
        if (rank, row) not in waiting:
            yield record_evidence(job, rank, row, what="last on record: ")


def explain_mismatch(job: Job, found: Mismatch) -> Finding:
    """
    Put into words who called something else.

    Args:
        job: What is known about the job.

        found: The first call that differs.

    Returns:
        The finding, with one record of each kind.
    """
    group = job.membership.groups[found.group].ref
    return Finding(
        cause=found.cause,
        ranks=found.culprits,
        summary=_mismatch_summary(found, group),
        confidence=found.confidence,
        remedy=_THREADS if found.in_threads else REMEDIES.get(found.cause),
        group=group,
        collective=CollectiveRef(op=found.expected.op, seq=found.seq),
        location=found.location,
        evidence=tuple(
            record_evidence(job, rank, row) for rank, row in found.rows
        ),
    )


def _mismatch_summary(found: Mismatch, group: GroupRef) -> str:
    who = ranks_text(found.culprits)
    where = f"call #{found.seq} of group {str(group)!r}"
    if found.confidence == "possible":
        return (
            f"{who} do not agree on {where}: {found.theirs} against "
            f"{found.expected}; it cannot be told who is wrong"
        )

    theirs, expected = str(found.theirs), str(found.expected)
    if found.location:
        theirs += f" at {found.location.brief}"
    if found.elsewhere:
        expected += f" at {found.elsewhere.brief}"
    slip = _SLIP.get(found.cause)
    if slip is not None:
        verb = "is" if len(found.culprits) == 1 else "are"
        if found.cause is Cause.SKIPPED_COLLECTIVE and found.skipped > 1:
            slip = f"skipped {found.skipped} calls"
        return (
            f"{who} {slip}, and from {where} on {verb} out of step: {theirs} "
            f"meets {expected} of the others"
        )
    return (
        f"{who} called {theirs} as {where}, where the others called {expected}"
    )


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
