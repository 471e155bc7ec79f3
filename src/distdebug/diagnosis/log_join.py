"""
What do logs add to what dumps and stacks say?

Dumps say who is waited for; logs say what became of it.
"""

from __future__ import annotations

import os

from collections.abc import Collection, Iterable, Sequence

import attrs

from ..findings import Cause, Diagnosis, Finding, Missing
from ..logs import LogGroup, PhaseReport, collective_findings
from ..ranks import ranks_text
from ..ray import Deaths, DriverLog, death_findings, driver_findings
from .hosts import WAITS
from .log_evidence import LogEvidence


# Nobody waits in vain but for somebody else.
_FOLLOWS = frozenset(
    {Cause.COLLECTIVE_TIMEOUT, Cause.RENDEZVOUS_TIMEOUT, Cause.NETWORK_FAILURE}
)
_LEAST_OF_FOLLOWERS = 3
_LAST_WORDS = frozenset(
    {Cause.NATIVE_CRASH, Cause.RANK_CRASHED, Cause.KILLED, Cause.ACTOR_DIED}
)


def log_findings(evidence: LogEvidence) -> tuple[Finding, ...]:
    """
    Put what logs tell into one order, and each thing once.

    Args:
        evidence: What they tell.

    Returns:
        The findings, the first cause first.
    """
    deaths = [*death_findings(evidence.deaths), *_told_by_drivers(evidence)]
    scanned = [
        f for f in evidence.scan.findings if not _is_of_dead(f, evidence)
    ]
    collectives = collective_findings(evidence.collectives)
    nodes = [f for f in evidence.nodes if not f.cause.is_fine]
    # That an actor died tells less than what it printed.
    vague = {*_FOLLOWS, Cause.ACTOR_DIED}
    first = [
        *(f for f in evidence.raylets if _is_sure(f)),
        *(f for f in deaths if _is_sure(f) and f.cause not in vague),
        *(f for f in scanned if is_first_cause(f, evidence)),
        *(f for f in deaths if _is_sure(f) and f.cause not in _FOLLOWS),
        *(f for f in collectives if f.cause not in _FOLLOWS),
        *(f for f in nodes if _is_sure(f)),
    ]
    then = [
        *evidence.raylets,
        *deaths,
        *collectives,
        *scanned,
        *_stalls(evidence),
        *nodes,
    ]
    return tuple(_once([*first, *then]))


def is_first_cause(finding: Finding, evidence: LogEvidence) -> bool:
    """
    Tell whether something is sure, and follows from nothing else.

    Args:
        finding: What logs tell.

        evidence: All that they tell.

    Returns:
        Whether it may be the cause of the rest.
    """
    return _is_sure(finding) and not _follows(finding, evidence)


def is_end(finding: Finding, evidence: LogEvidence) -> bool:
    """
    Tell whether something tells surely how a process itself ended.

    Args:
        finding: What logs tell.

        evidence: All that they tell.

    Returns:
        Whether it does; what a launcher did to the others tells nothing.
    """
    group = _group_of(finding, evidence)
    is_own = group is None or group.priority <= _LEAST_OF_FOLLOWERS
    return _is_sure(finding) and is_own and finding.cause not in _FOLLOWS


def _is_sure(finding: Finding) -> bool:
    return finding.confidence != "possible"


def _told_by_drivers(evidence: LogEvidence) -> Iterable[Finding]:
    for driver in evidence.drivers:
        yield from driver_findings(_without_known(driver, evidence.deaths))


def _stalls(evidence: LogEvidence) -> Iterable[Finding]:
    """
    What takes too long in a start-up; of errors the scan knows more.
    """
    found = evidence.phase.findings if evidence.phase else ()
    return (f for f in found if f.cause is Cause.START_UP_STALLED)


def waiting_ranks(evidence: LogEvidence, verdict: Finding) -> tuple[int, ...]:
    """
    Tell who merely waited, as the lines of watchdogs say.

    Args:
        evidence: What logs tell.

        verdict: Who is at fault.

    Returns:
        Global ranks, ascending.
    """
    ranks = {
        timeout.rank
        for timeout in evidence.collectives.timeouts
        if timeout.rank is not None
    }
    return tuple(sorted(ranks.difference(verdict.ranks)))


def _without_known(driver: DriverLog, deaths: Deaths) -> DriverLog:
    """
    What a driver tells but for deaths that the cluster itself tells.
    """
    pids = {death.pid for death in deaths.unintended}
    failures = (
        x
        for x in driver.failures
        if x.kind == "task_error" or x.pid not in pids
    )
    return attrs.evolve(driver, failures=tuple(failures))


def _is_of_dead(finding: Finding, evidence: LogEvidence) -> bool:
    """
    Whether lines are the last words of somebody whose death is told.
    """
    dead = evidence.deaths.unintended
    logs = {os.fspath(death.log) for death in dead if death.log}
    pids = {death.pid for death in dead}
    group = _group_of(finding, evidence)
    if finding.cause not in _LAST_WORDS or group is None:
        return False

    is_own = bool(group.files) and logs.issuperset(group.files)
    told = {origin.pid for origin in group.origins}
    return is_own or (bool(told) and pids.issuperset(told))


def _follows(finding: Finding, evidence: LogEvidence) -> bool:
    group = _group_of(finding, evidence)
    if group is None:
        return finding.cause in _FOLLOWS
    # A link that broke is a cause, a connection that was closed is none.
    if finding.cause is Cause.NETWORK_FAILURE:
        return group.priority > 1
    return group.priority >= _LEAST_OF_FOLLOWERS or finding.cause in _FOLLOWS


def _group_of(finding: Finding, evidence: LogEvidence) -> LogGroup | None:
    quoted = ((e.source, e.location) for e in finding.evidence[:1])
    return next((evidence.groups.get(place) for place in quoted), None)


def _once(findings: Iterable[Finding]) -> Iterable[Finding]:
    """
    Leave out what was told, or tells of a line that an earlier one told of.
    """
    told: set[int] = set()
    lines: set[tuple[str, str]] = set()
    for finding in findings:
        own = [(e.source, e.location) for e in finding.evidence]
        if id(finding) not in told and not lines.intersection(own[:1]):
            yield finding
        told.add(id(finding))
        lines.update(own)


_ABSENT = frozenset({Cause.RANK_NOT_ARRIVED, Cause.RANK_CRASHED})
# These end a process, or keep it from going on.
_FATAL = frozenset(
    {
        *(Cause.HOST_OUT_OF_MEMORY, Cause.GPU_OUT_OF_MEMORY, Cause.GPU_FAULT),
        *(Cause.ACTOR_DIED, Cause.NATIVE_CRASH, Cause.KILLED),
        *(Cause.RANK_CRASHED, Cause.DISK_FULL, Cause.NODE_MISCONFIGURED),
        *(Cause.NETWORK_FAILURE, Cause.NETWORK_MISCONFIGURED, Cause.IO_WAIT),
        *(Cause.SIZE_MISMATCH, Cause.TYPE_MISMATCH),
    }
)
_ENDS = frozenset({Cause.KILLED, Cause.ACTOR_DIED})
# Verdicts that leave open why a job failed.
_OPEN = frozenset({Cause.UNKNOWN, Cause.STRAGGLER})
# Where a process waited that is dead by now, and what its log says of that.
_VAIN = WAITS | _OPEN
# What ranks suffer because of another one.
_SUFFERED = WAITS | {Cause.COLLECTIVE_TIMEOUT, Cause.NETWORK_FAILURE}
# Ranks did not make the same call.
_DIFFER = frozenset(
    {
        *(Cause.TYPE_MISMATCH, Cause.SIZE_MISMATCH, Cause.DTYPE_MISMATCH),
        *(Cause.SKIPPED_COLLECTIVE, Cause.EXTRA_COLLECTIVE),
    }
)
_TIMED_OUT = frozenset(
    {
        *(Cause.RANK_NOT_ARRIVED, Cause.COLLECTIVE_TIMEOUT),
        Cause.RENDEZVOUS_TIMEOUT,
    }
)
# Names of actors stay as they are.
_CAPITALS = ("Rank ", "Ranks ", "A ", "An ", "The ", "Node ", "Worker ")
_QUIET = Finding(
    cause=Cause.UNKNOWN,
    ranks=(),
    summary="the logs tell of nothing wrong",
    confidence="possible",
    remedy="a job that hangs prints nothing: look at its stacks while it does "
    "(distdebug stacks), or enable the Flight Recorder",
)


def diagnose_logs(logs: LogEvidence) -> Diagnosis:
    """
    Diagnose by logs alone.

    Args:
        logs: What they tell.

    Returns:
        The diagnosis.
    """
    findings = log_findings(logs)
    verdict = findings[0] if findings else _nothing_wrong(logs.phase)
    lost = Missing(
        what="dump",
        reason="there are no Flight Recorder dumps and no stacks, only logs",
    )
    return Diagnosis(
        verdict=verdict,
        findings=findings,
        victims=waiting_ranks(logs, verdict),
        missing=(lost, *logs.missing),
    )


def _nothing_wrong(phase: PhaseReport | None) -> Finding:
    if phase is None or phase.current is None:
        return _QUIET

    told = f"{_QUIET.summary}: {phase.verdict}"
    if phase.ended != "completed":
        return attrs.evolve(_QUIET, summary=told)

    return attrs.evolve(
        _QUIET,
        cause=Cause.HEALTHY,
        summary=told,
        confidence="likely",
        remedy=None,
    )


def join_logs(
    diagnosis: Diagnosis,
    logs: LogEvidence,
    *,
    alive: Collection[int] = (),
    has_ended_well: bool = False,
) -> Diagnosis:
    """
    Add what logs tell to a diagnosis by dumps or stacks.

    Args:
        diagnosis: What dumps and stacks say.

        logs: What logs tell.

        alive: Ranks that were seen to run, after whatever the logs tell.

        has_ended_well: Whether all ranks are known to have ended well.

    Returns:
        The joined diagnosis.  A rank that is waited for is told with what
        became of it; a job of which dumps and stacks tell nothing, by its logs.
    """
    told = diagnosis.verdict
    missing = (*diagnosis.missing, *logs.missing)
    diagnosis = attrs.evolve(diagnosis, missing=missing)
    findings = log_findings(logs)
    if not findings:
        return diagnosis

    first = tuple(f for f in findings if is_first_cause(f, logs))
    fatal = [f for f in first if f.cause in _FATAL and not _lives(f, alive)]
    ends = [f for f in findings if f.cause in _ENDS and is_end(f, logs)]
    if told.cause in _ABSENT and told.detail_cause is None:
        known = [*fatal, *ends, *_reports(told, findings)]
        cause, is_sure = _end_of(told, known)
        if cause is not None:
            verdict = _explained(told, cause, is_sure=is_sure)
            return _with_verdict(diagnosis, verdict, first, cause)

    if has_ended_well:
        fatal = []
    why = None if alive else _reason(told, findings, fatal, ends)
    if why is not None:
        verdict = _with_places(why, told)
        return _with_verdict(diagnosis, verdict, findings, why)

    if told.cause not in _OPEN and not told.cause.is_fine:
        # What followed is no news where the reason is known.
        news = (f for f in first if not _is_known(f, told))
        return attrs.evolve(diagnosis, findings=(*diagnosis.findings, *news))

    if fatal:
        return _with_verdict(diagnosis, fatal[0], findings, fatal[0])

    return attrs.evolve(diagnosis, findings=(*diagnosis.findings, *findings))


def _reason(
    told: Finding,
    findings: Sequence[Finding],
    fatal: Sequence[Finding],
    ends: Sequence[Finding],
) -> Finding | None:
    """
    What logs tell of why ranks waited, or failed, that are dead by now.
    """
    # Who waits explains nothing; what ended a process does.
    if told.cause in _SUFFERED and fatal:
        return fatal[0]
    if told.cause is Cause.NETWORK_FAILURE:
        return next((f for f in ends if f.ranks), None)
    if told.cause is Cause.COLLECTIVE_TIMEOUT:
        is_new = findings[0].cause is Cause.RANK_NOT_ARRIVED
    else:
        is_new = told.cause in _VAIN and findings[0].cause in _TIMED_OUT
    return findings[0] if is_new else None


def _is_known(finding: Finding, told: Finding) -> bool:
    """
    Whether a log names nobody for what the dumps have named somebody for.
    """
    return {finding.cause, told.cause} <= _DIFFER and not finding.ranks


def _lives(finding: Finding, alive: Collection[int]) -> bool:
    return bool(finding.ranks) and set(finding.ranks) <= set(alive)


def _reports(told: Finding, findings: Iterable[Finding]) -> list[Finding]:
    """
    What launchers tell of ranks that left no word: the exit status at least.
    """
    is_lost = told.cause is Cause.RANK_CRASHED
    return [
        f for f in findings if is_lost and f.cause is told.cause and f.ranks
    ]


def _end_of(
    told: Finding, fatal: Iterable[Finding]
) -> tuple[Finding | None, bool]:
    """
    What became of the ranks that are waited for, and whether that is sure.
    """
    gave_dump = told.cause is Cause.RANK_NOT_ARRIVED
    for finding in fatal:
        # Who gave a dump, and was killed, was so afterwards.
        is_late = gave_dump and finding.cause in _ENDS
        if set(finding.ranks) & set(told.ranks) and not is_late:
            return finding, True
    nameless = (f for f in fatal if not f.ranks and not gave_dump)
    return next(nameless, None), False


def _explained(told: Finding, cause: Finding, *, is_sure: bool) -> Finding:
    """
    Say what became of the ranks that are waited for.
    """
    hedge = "" if is_sure else "perhaps "
    where = (
        f"{ranks_text(cause.ranks)}: "
        if len(told.ranks) > 1 and is_sure
        else ""
    )
    detail = cause.summary.rstrip(".")
    if detail.startswith(_CAPITALS):
        detail = detail[0].lower() + detail[1:]
    return attrs.evolve(
        told,
        summary=f"{told.summary}; {hedge}because {where}{detail}",
        detail_cause=cause.cause,
        location=told.location or cause.location,
        remedy=cause.remedy or told.remedy,
        evidence=(*cause.evidence, *told.evidence),
    )


def _with_places(why: Finding, told: Finding) -> Finding:
    """
    Add to what happened where in their code ranks waited at that time.
    """
    where = told.summary
    if told.cause not in WAITS:
        if told.location is None or not told.ranks:
            return why
        where = f"{ranks_text(told.ranks)} in {told.location.brief}"
    return attrs.evolve(
        why,
        summary=f"{why.summary.rstrip('.')}; {where}",
        location=why.location or told.location,
        evidence=(*why.evidence, *told.evidence),
    )


def _with_verdict(
    diagnosis: Diagnosis,
    verdict: Finding,
    findings: tuple[Finding, ...],
    used: Finding,
) -> Diagnosis:
    others = [f for f in diagnosis.findings if f != diagnosis.verdict]
    more = [f for f in findings if f is not used]
    return attrs.evolve(
        diagnosis,
        verdict=verdict,
        findings=(verdict, *others, *more),
        victims=tuple(r for r in diagnosis.victims if r not in verdict.ranks),
    )
