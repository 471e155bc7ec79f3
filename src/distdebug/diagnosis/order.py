"""
Join findings from logs with the diagnosis from dumps and stacks.

Dumps name the rank the others wait for; logs say why it is missing.
"""

from __future__ import annotations

import os

from collections.abc import Collection, Iterable, Sequence

import attrs

from ..findings import Cause, Diagnosis, Finding, Missing
from ..logs import LogGroup, PhaseReport, collective_findings
from ..ranks import ranks_text
from ..ray import Deaths, DriverLog, death_findings, driver_findings
from .log_evidence import LogEvidence
from .rank_state import WAIT_CAUSES


# Failures that follow from the failure of another rank.
_CONSEQUENCE_CAUSES = frozenset(
    {Cause.COLLECTIVE_TIMEOUT, Cause.RENDEZVOUS_TIMEOUT, Cause.NETWORK_FAILURE}
)
_MIN_CONSEQUENCE_PRIORITY = 3
_DEATH_CAUSES = frozenset(
    {Cause.NATIVE_CRASH, Cause.RANK_CRASHED, Cause.KILLED, Cause.ACTOR_DIED}
)


def log_findings(evidence: LogEvidence) -> tuple[Finding, ...]:
    """
    Order all findings from logs and node facts, without repeats.

    Returns:
        The findings, root causes first.
    """
    deaths = [
        *death_findings(evidence.deaths),
        *_find_driver_failures(evidence),
    ]
    scanned = [
        f
        for f in evidence.scan.findings
        if not _repeats_known_death(f, evidence)
    ]
    collectives = collective_findings(evidence.collectives)
    nodes = [f for f in evidence.nodes if not f.cause.is_fine]
    # What an actor printed says more than that it died.
    vague = {*_CONSEQUENCE_CAUSES, Cause.ACTOR_DIED}
    first = [
        *(f for f in evidence.raylets if _is_sure(f)),
        *(f for f in deaths if _is_sure(f) and f.cause not in vague),
        *(f for f in scanned if is_first_cause(f, evidence)),
        *(
            f
            for f in deaths
            if _is_sure(f) and f.cause not in _CONSEQUENCE_CAUSES
        ),
        *(f for f in collectives if f.cause not in _CONSEQUENCE_CAUSES),
        *(f for f in nodes if _is_sure(f)),
    ]
    then = [
        *evidence.raylets,
        *deaths,
        *collectives,
        *scanned,
        *_start_up_stalls(evidence),
        *nodes,
    ]
    return tuple(_deduplicate([*first, *then]))


def is_first_cause(finding: Finding, evidence: LogEvidence) -> bool:
    """
    Return whether a finding is sure and not a consequence of another.
    """
    return _is_sure(finding) and not _is_consequence(finding, evidence)


def is_own_end(finding: Finding, evidence: LogEvidence) -> bool:
    """
    Return whether a finding surely shows how a process itself ended.

    False for what a launcher did to the other ranks.
    """
    group = _group_of(finding, evidence)
    is_own = group is None or group.priority <= _MIN_CONSEQUENCE_PRIORITY
    return (
        _is_sure(finding)
        and is_own
        and finding.cause not in _CONSEQUENCE_CAUSES
    )


def _is_sure(finding: Finding) -> bool:
    return finding.confidence != "possible"


def _find_driver_failures(evidence: LogEvidence) -> Iterable[Finding]:
    for driver in evidence.drivers:
        yield from driver_findings(_drop_known_deaths(driver, evidence.deaths))


def _start_up_stalls(evidence: LogEvidence) -> Iterable[Finding]:
    """
    Return the stalls of the start-up; the scan covers its errors.
    """
    found = evidence.phase.findings if evidence.phase else ()
    return (f for f in found if f.cause is Cause.START_UP_STALLED)


def waiting_ranks(evidence: LogEvidence, verdict: Finding) -> tuple[int, ...]:
    """
    Return the ranks that only waited, by the lines of watchdogs.

    Args:
        evidence: Results from logs.

        verdict: Its ranks are at fault, and left out.

    Returns:
        Global ranks, ascending.
    """
    ranks = {
        timeout.rank
        for timeout in evidence.collectives.timeouts
        if timeout.rank is not None
    }
    return tuple(sorted(ranks.difference(verdict.ranks)))


def _drop_known_deaths(driver: DriverLog, deaths: Deaths) -> DriverLog:
    """
    Drop failures of processes whose deaths the cluster reports.
    """
    pids = {death.pid for death in deaths.unintended}
    failures = (
        x
        for x in driver.failures
        if x.kind == "task_error" or x.pid not in pids
    )
    return attrs.evolve(driver, failures=tuple(failures))


def _repeats_known_death(finding: Finding, evidence: LogEvidence) -> bool:
    """
    Return whether all lines come from processes with a reported death.
    """
    dead = evidence.deaths.unintended
    logs = {os.fspath(death.log) for death in dead if death.log}
    pids = {death.pid for death in dead}
    group = _group_of(finding, evidence)
    if finding.cause not in _DEATH_CAUSES or group is None:
        return False

    is_own = bool(group.files) and logs.issuperset(group.files)
    group_pids = {origin.pid for origin in group.origins}
    return is_own or (bool(group_pids) and pids.issuperset(group_pids))


def _is_consequence(finding: Finding, evidence: LogEvidence) -> bool:
    group = _group_of(finding, evidence)
    if group is None:
        return finding.cause in _CONSEQUENCE_CAUSES
    # A broken link is a cause; a closed connection is a consequence.
    if finding.cause is Cause.NETWORK_FAILURE:
        return group.priority > 1
    return (
        group.priority >= _MIN_CONSEQUENCE_PRIORITY
        or finding.cause in _CONSEQUENCE_CAUSES
    )


def _group_of(finding: Finding, evidence: LogEvidence) -> LogGroup | None:
    quoted = ((e.source, e.location) for e in finding.evidence[:1])
    return next((evidence.groups.get(place) for place in quoted), None)


def _deduplicate(findings: Iterable[Finding]) -> Iterable[Finding]:
    """
    Drop findings that repeat, or quote a line an earlier one quotes.
    """
    yielded: set[int] = set()
    lines: set[tuple[str, str]] = set()
    for finding in findings:
        own = [(e.source, e.location) for e in finding.evidence]
        if id(finding) not in yielded and not lines.intersection(own[:1]):
            yield finding
        yielded.add(id(finding))
        lines.update(own)


_ABSENT_CAUSES = frozenset({Cause.RANK_NOT_ARRIVED, Cause.RANK_CRASHED})
# Causes that end or block a process.
_FATAL_CAUSES = frozenset(
    {
        *(Cause.HOST_OUT_OF_MEMORY, Cause.GPU_OUT_OF_MEMORY, Cause.GPU_FAULT),
        *(Cause.ACTOR_DIED, Cause.NATIVE_CRASH, Cause.KILLED),
        *(Cause.RANK_CRASHED, Cause.DISK_FULL, Cause.NODE_MISCONFIGURED),
        *(Cause.NETWORK_FAILURE, Cause.NETWORK_MISCONFIGURED, Cause.IO_WAIT),
        *(Cause.SIZE_MISMATCH, Cause.TYPE_MISMATCH),
    }
)
_KILL_CAUSES = frozenset({Cause.KILLED, Cause.ACTOR_DIED})
# Verdicts that do not say why a job failed.
_OPEN_CAUSES = frozenset({Cause.UNKNOWN, Cause.STRAGGLER})
# Verdicts by stacks that a timeout in the logs replaces.
_UNEXPLAINED_CAUSES = WAIT_CAUSES | _OPEN_CAUSES
# Causes that ranks suffer because of another rank.
_VICTIM_CAUSES = WAIT_CAUSES | {
    Cause.COLLECTIVE_TIMEOUT,
    Cause.NETWORK_FAILURE,
}
# Causes of ranks that made different calls.
_MISMATCH_CAUSES = frozenset(
    {
        *(Cause.TYPE_MISMATCH, Cause.SIZE_MISMATCH, Cause.DTYPE_MISMATCH),
        *(Cause.SKIPPED_COLLECTIVE, Cause.EXTRA_COLLECTIVE),
    }
)
_TIMEOUT_CAUSES = frozenset(
    {
        *(Cause.RANK_NOT_ARRIVED, Cause.COLLECTIVE_TIMEOUT),
        Cause.RENDEZVOUS_TIMEOUT,
    }
)
# First words to put in lower case; names of actors keep theirs.
_CAPITALS = ("Rank ", "Ranks ", "A ", "An ", "The ", "Node ", "Worker ")
_NOTHING_SUSPICIOUS = Finding(
    cause=Cause.UNKNOWN,
    ranks=(),
    summary="the logs tell of nothing wrong",
    confidence="possible",
    remedy="a job that hangs prints nothing: look at its stacks while it does "
    "(distdebug stacks), or enable the Flight Recorder",
)


def diagnose_logs(logs: LogEvidence) -> Diagnosis:
    """
    Diagnose a job by logs alone.
    """
    findings = log_findings(logs)
    verdict = (
        findings[0] if findings else _verdict_without_findings(logs.phase)
    )
    no_dumps = Missing(
        what="dump",
        reason="there are no Flight Recorder dumps and no stacks, only logs",
    )
    return Diagnosis(
        verdict=verdict,
        findings=findings,
        victims=waiting_ranks(logs, verdict),
        missing=(no_dumps, *logs.missing),
    )


def _verdict_without_findings(phase: PhaseReport | None) -> Finding:
    if phase is None or phase.current is None:
        return _NOTHING_SUSPICIOUS

    summary_text = f"{_NOTHING_SUSPICIOUS.summary}: {phase.verdict}"
    if phase.ended != "completed":
        return attrs.evolve(_NOTHING_SUSPICIOUS, summary=summary_text)

    return attrs.evolve(
        _NOTHING_SUSPICIOUS,
        cause=Cause.HEALTHY,
        summary=summary_text,
        confidence="likely",
        remedy=None,
    )


def join_logs(
    diagnosis: Diagnosis,
    logs: LogEvidence,
    *,
    alive: Collection[int] = (),
    has_exited_cleanly: bool = False,
) -> Diagnosis:
    """
    Add findings from logs to a diagnosis by dumps or stacks.

    Args:
        diagnosis: Diagnosis by dumps and stacks.

        logs: Results from logs.

        alive: Ranks that were alive after the logs were written.

        has_exited_cleanly: Whether all ranks ended without an error.

    Returns:
        The joined diagnosis.  If ranks are absent, it adds why.  If dumps and
        stacks do not explain the failure, the logs do.
    """
    base = diagnosis.verdict
    missing = (*diagnosis.missing, *logs.missing)
    diagnosis = attrs.evolve(diagnosis, missing=missing)
    findings = log_findings(logs)
    if not findings:
        return diagnosis

    first = tuple(f for f in findings if is_first_cause(f, logs))
    fatal = [
        f
        for f in first
        if f.cause in _FATAL_CAUSES and not _is_alive(f, alive)
    ]
    kills = [
        f for f in findings if f.cause in _KILL_CAUSES and is_own_end(f, logs)
    ]
    if base.cause in _ABSENT_CAUSES and base.detail_cause is None:
        known = [*fatal, *kills, *_exit_reports(base, findings)]
        cause, is_sure = _find_end(base, known)
        if cause is not None:
            verdict = _explain_absence(base, cause, is_sure=is_sure)
            return _replace_verdict(diagnosis, verdict, first, cause)

    if has_exited_cleanly:
        fatal = []
    reason = None if alive else _find_reason(base, findings, fatal, kills)
    if reason is not None:
        verdict = _add_wait_location(reason, base)
        return _replace_verdict(diagnosis, verdict, findings, reason)

    if base.cause not in _OPEN_CAUSES and not base.cause.is_fine:
        # The reason is known, so skip consequences.
        news = (f for f in first if not _is_covered(f, base))
        return attrs.evolve(diagnosis, findings=(*diagnosis.findings, *news))

    if fatal:
        return _replace_verdict(diagnosis, fatal[0], findings, fatal[0])

    return attrs.evolve(diagnosis, findings=(*diagnosis.findings, *findings))


def _find_reason(
    base: Finding,
    findings: Sequence[Finding],
    fatal: Sequence[Finding],
    kills: Sequence[Finding],
) -> Finding | None:
    """
    Return the finding that explains why ranks waited or failed, if any.
    """
    # A fatal cause explains a wait, not the other way round.
    if base.cause in _VICTIM_CAUSES and fatal:
        return fatal[0]
    if base.cause is Cause.NETWORK_FAILURE:
        return next((f for f in kills if f.ranks), None)
    if base.cause is Cause.COLLECTIVE_TIMEOUT:
        is_new = findings[0].cause is Cause.RANK_NOT_ARRIVED
    else:
        is_new = (
            base.cause in _UNEXPLAINED_CAUSES
            and findings[0].cause in _TIMEOUT_CAUSES
        )
    return findings[0] if is_new else None


def _is_covered(finding: Finding, base: Finding) -> bool:
    """
    Return whether the dumps name ranks for a mismatch and the log does not.
    """
    return {
        finding.cause,
        base.cause,
    } <= _MISMATCH_CAUSES and not finding.ranks


def _is_alive(finding: Finding, alive: Collection[int]) -> bool:
    return bool(finding.ranks) and set(finding.ranks) <= set(alive)


def _exit_reports(base: Finding, findings: Iterable[Finding]) -> list[Finding]:
    """
    Return reports of launchers on ranks without a dump, such as exit codes.
    """
    is_lost = base.cause is Cause.RANK_CRASHED
    return [
        f for f in findings if is_lost and f.cause is base.cause and f.ranks
    ]


def _find_end(
    base: Finding, fatal: Iterable[Finding]
) -> tuple[Finding | None, bool]:
    """
    Return what ended the absent ranks, and whether that is sure.
    """
    gave_dump = base.cause is Cause.RANK_NOT_ARRIVED
    for finding in fatal:
        # A rank that wrote a dump was killed after the hang.
        is_late = gave_dump and finding.cause in _KILL_CAUSES
        if set(finding.ranks) & set(base.ranks) and not is_late:
            return finding, True
    nameless = (f for f in fatal if not f.ranks and not gave_dump)
    return next(nameless, None), False


def _explain_absence(
    base: Finding, cause: Finding, *, is_sure: bool
) -> Finding:
    """
    Add to a verdict why the absent ranks are absent.
    """
    hedge = "" if is_sure else "perhaps "
    where = (
        f"{ranks_text(cause.ranks)}: "
        if len(base.ranks) > 1 and is_sure
        else ""
    )
    detail = cause.summary.rstrip(".")
    if detail.startswith(_CAPITALS):
        detail = detail[0].lower() + detail[1:]
    return attrs.evolve(
        base,
        summary=f"{base.summary}; {hedge}because {where}{detail}",
        detail_cause=cause.cause,
        location=base.location or cause.location,
        remedy=cause.remedy or base.remedy,
        evidence=(*cause.evidence, *base.evidence),
    )


def _add_wait_location(reason: Finding, base: Finding) -> Finding:
    """
    Add to a reason where in their code ranks waited.
    """
    where = base.summary
    if base.cause not in WAIT_CAUSES:
        if base.location is None or not base.ranks:
            return reason
        where = f"{ranks_text(base.ranks)} in {base.location.brief}"
    return attrs.evolve(
        reason,
        summary=f"{reason.summary.rstrip('.')}; {where}",
        location=reason.location or base.location,
        evidence=(*reason.evidence, *base.evidence),
    )


def _replace_verdict(
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
