"""
Order findings from logs, and join them to those from dumps and stacks.

Dumps name the rank the others wait for; logs say why it is missing.
"""

from __future__ import annotations

import os

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from .. import logs, ray
from ..causes import Cause
from ..findings import Diagnosis, Finding, Link, Missing
from ..ranks import ranks_text
from .log_evidence import LogEvidence


if TYPE_CHECKING:
    from ..logs import LogGroup, PhaseReport


_MIN_CONSEQUENCE_PRIORITY = 3


def log_findings(evidence: LogEvidence) -> tuple[Finding, ...]:
    """
    Order all findings from logs and node facts, without repeats.

    Returns:
        The findings, root causes first.
    """
    deaths = [
        *ray.death_findings(evidence.deaths),
        *_driver_failures(evidence),
    ]
    sure = [f for f in deaths if _is_sure(f) and not f.cause.is_consequence]
    scanned = [
        f
        for f in evidence.scan.findings
        if not _repeats_known_death(f, evidence)
    ]
    kills = [f for f in _own_kills(scanned, evidence) if f.ranks]
    collectives = _collective_findings(evidence, scanned, kills)
    firsts = [f for f in scanned if is_first_cause(f, evidence)]
    limits = [f for f in firsts if _is_time_limit(f, evidence)]
    # What Slurm then does is told with signals, too.
    after = limits + [f for f in firsts if limits and f.cause.is_kill]
    nodes = [f for f in evidence.nodes if not f.cause.is_fine]
    first = [
        *(f for f in evidence.raylets if _is_sure(f)),
        *(f for f in sure if f.cause is not Cause.ACTOR_DIED),
        # The others noticed that a rank made another call, or that its node
        # cannot be reached, and raised.
        *(
            f
            for f in collectives
            if _is_sure(f)
            and f.ranks
            and (f.cause.is_mismatch or f.cause is Cause.NETWORK_MISCONFIGURED)
        ),
        # What an actor printed says more than that it died.
        *sorted(
            (f for f in firsts if f not in after),
            # No process dies of it.
            key=lambda f: f.cause is Cause.LOSS_NOT_FINITE,
        ),
        # A job that hangs ends when its time is up.
        *(_lasting_hangs(collectives, evidence) if limits else ()),
        *after,
        *(*sure, *kills),
        *(f for f in collectives if not f.cause.is_consequence),
        *(f for f in nodes if _is_sure(f)),
    ]
    then = (*evidence.raylets, *deaths, *collectives, *scanned)
    # The scan covers the errors of phases.
    of_phase = evidence.phase.findings if evidence.phase else ()
    silent = {Cause.START_UP_STALLED, Cause.UNKNOWN}
    stalls = (f for f in of_phase if f.cause in silent)
    ordered = [*_deduplicate([*first, *then, *stalls, *nodes])]
    return tuple(_mark_consequences(ordered, first, evidence))


def _is_time_limit(finding: Finding, evidence: LogEvidence) -> bool:
    group = _group_of(finding, evidence)
    return group is not None and group.rule == "time limit of Slurm"


def _lasting_hangs(
    collectives: Iterable[Finding], evidence: LogEvidence
) -> list[Finding]:
    """
    Return the calls that timed out, unless the job went on afterwards.
    """
    went_on = any(
        group.is_survived and group.cause in _TIMEOUT_CAUSES
        for group in evidence.groups.values()
    )
    return [
        f
        for f in collectives
        if _is_sure(f) and f.cause in _TIMEOUT_CAUSES and not went_on
    ]


def _own_kills(
    findings: Iterable[Finding], evidence: LogEvidence
) -> list[Finding]:
    """
    Return the findings about processes that surely were killed themselves.
    """
    return [f for f in findings if f.cause.is_kill and is_own_end(f, evidence)]


def _collective_findings(
    evidence: LogEvidence,
    scanned: Iterable[Finding],
    kills: Iterable[Finding],
) -> list[Finding]:
    """
    Return what watchdogs, NCCL, and Gloo say.

    That a rank left, as it was not heard to complain, is a guess; a launcher, or
    the rank itself, may have said who ended.
    """
    ended = {
        rank
        for f in scanned
        if f.cause.ends_process and is_first_cause(f, evidence)
        for rank in f.ranks
    }
    return [
        f
        for f in (
            *logs.collective_findings(evidence.collectives),
            *logs.ras_findings(evidence.ras),
        )
        if f.cause is not Cause.RANK_CRASHED
        or not f.ranks
        or not (kills or ended.issuperset(f.ranks))
    ]


def _mark_consequences(
    ordered: Sequence[Finding], first: Iterable[Finding], evidence: LogEvidence
) -> Iterable[Finding]:
    roots = {*map(id, first), *map(id, ordered[:1])}
    for finding in ordered:
        follows = id(finding) not in roots
        yield (
            attrs.evolve(finding, is_consequence=True)
            if follows and _is_consequence(finding, evidence)
            else finding
        )


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
    return _is_sure(finding) and is_own and not finding.cause.is_consequence


def _is_sure(finding: Finding) -> bool:
    return finding.confidence != "possible"


def _driver_failures(evidence: LogEvidence) -> Iterable[Finding]:
    """
    Return what drivers printed, without deaths that the cluster reports.
    """
    pids = {death.pid for death in evidence.deaths.unintended}
    for driver in evidence.drivers:
        failures = (
            x
            for x in driver.failures
            if x.kind == "task_error" or x.pid not in pids
        )
        new = attrs.evolve(driver, failures=tuple(failures))
        yield from ray.driver_findings(new)


def _repeats_known_death(finding: Finding, evidence: LogEvidence) -> bool:
    """
    Return whether all lines come from processes with a reported death.
    """
    dead = evidence.deaths.unintended
    death_logs = {os.fspath(death.log) for death in dead if death.log}
    pids = {death.pid for death in dead}
    group = _group_of(finding, evidence)
    if not finding.cause.is_death or group is None:
        return False

    is_own = bool(group.files) and death_logs.issuperset(group.files)
    group_pids = {origin.pid for origin in group.origins}
    return is_own or (bool(group_pids) and pids.issuperset(group_pids))


def _is_consequence(finding: Finding, evidence: LogEvidence) -> bool:
    group = _group_of(finding, evidence)
    if group is None:
        return finding.cause.is_consequence
    # A broken link is a cause; a closed connection is a consequence.
    if finding.cause is Cause.NETWORK_FAILURE:
        return group.priority > 1
    return (
        group.priority >= _MIN_CONSEQUENCE_PRIORITY
        or finding.cause.is_consequence
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


# Verdicts that do not say why a job failed.
_OPEN_CAUSES = frozenset({Cause.UNKNOWN, *(c for c in Cause if c.is_lag)})
_TIMEOUT_CAUSES = frozenset(
    {
        *(Cause.RANK_NOT_ARRIVED, Cause.COLLECTIVE_TIMEOUT),
        Cause.RENDEZVOUS_TIMEOUT,
    }
)
#: What to do where logs show nothing.
SILENT_REMEDY = (
    "a job that hangs prints nothing: look at its stacks while it does "
    "(distdebug stacks), or enable the Flight Recorder"
)
_NOTHING = "nothing suspicious in the logs"
_NOTHING_SUSPICIOUS = Finding(
    cause=Cause.HEALTHY,
    ranks=(),
    summary=_NOTHING,
    confidence="possible",
    remedy=SILENT_REMEDY,
)


def diagnose_logs(evidence: LogEvidence) -> Diagnosis:
    """
    Diagnose a job by logs alone.
    """
    findings = _join_absence(log_findings(evidence))
    verdict = (
        _verdict_of_phase(evidence.phase, has_findings=bool(findings))
        if not findings or _goes_on(findings, evidence)
        else findings[0]
    )
    # The watchdogs of these ranks only waited.
    timeouts = evidence.collectives.timeouts
    waited = {t.rank for t in timeouts if t.rank is not None}
    no_dumps = Missing(
        what="dump",
        reason="no Flight Recorder dumps and no stacks; this verdict is based on "
        "logs only",
    )
    return Diagnosis(
        verdict=verdict,
        findings=findings,
        victims=tuple(sorted(waited.difference(verdict.ranks))),
        missing=(no_dumps, *evidence.missing),
    )


def _join_absence(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """
    Join what keeps a process waiting to the absence of the rank that it may be.
    """
    first = findings[0] if findings else None
    if first is None or first.cause is not Cause.IO_WAIT:
        return findings

    for absent in findings:
        ranks = set(absent.ranks)
        is_open = absent.cause is Cause.RANK_NOT_ARRIVED and _is_sure(absent)
        if (
            is_open
            and ranks
            and (ranks.issubset(first.ranks) or not first.ranks)
        ):
            link: Link = "because" if first.ranks else "perhaps because"
            joined = _add_detail(absent, link, first)
            more = (f for f in findings if f not in (first, absent))
            return (joined, *more)
    return findings


def _goes_on(findings: Iterable[Finding], evidence: LogEvidence) -> bool:
    """
    Return whether a job works, or is done, and survived all its errors.
    """
    phase = evidence.phase
    groups = [_group_of(finding, evidence) for finding in findings]
    has_survived = all(group and group.is_survived for group in groups)
    if has_survived and (phase is None or _may_go_on(phase)):
        return True
    if phase is None or phase.ended in {"failed", "killed"}:
        return False
    is_done = phase.ended == "completed"
    complete = evidence.complete if is_done else frozenset()
    known = {finding.cause for finding in findings}
    if not (is_done or phase.current) or any(
        finding.cause not in known for finding in phase.findings
    ):
        return False
    for finding in findings:
        group = _group_of(finding, evidence)
        # It is of another attempt, or was seen by another process.
        is_apart = group is None or complete.isdisjoint(group.files)
        if complete and is_apart and not finding.cause.is_lasting:
            continue
        if group is None:
            if _is_sure(finding) or not _has_gone_on(finding, evidence):
                return False
            continue
        # Ranks lose each other while they end, one after the other.
        is_late = is_done and group.priority > _MIN_CONSEQUENCE_PRIORITY
        # A loss that is not a number stays so while the job goes on.
        if not (group.is_survived or (is_late and finding.cause.ends_job)):
            return False
    return True


def _may_go_on(phase: PhaseReport) -> bool:
    """
    Return whether nothing but errors shows that a job ended.

    A server prints the errors of its clients.
    """
    is_open = phase.current is None or phase.current.name == "ready"
    return is_open and phase.ended != "killed"


def _has_gone_on(finding: Finding, evidence: LogEvidence) -> bool:
    """
    Return whether the job survived all errors in the files that it quotes.
    """
    files = {e.source for e in finding.evidence}
    groups = [
        group
        for group in evidence.groups.values()
        if not files.isdisjoint(group.files)
    ]
    return bool(groups) and all(group.is_survived for group in groups)


def _verdict_of_phase(
    phase: PhaseReport | None, *, has_findings: bool
) -> Finding:
    """
    Return the verdict on a job whose logs show no error that it did not survive.
    """
    if phase is None or not (phase.current or phase.ended):
        return _NOTHING_SUSPICIOUS

    summary = (
        "the job survived all errors in its logs" if has_findings else _NOTHING
    )
    # What it survived is in the verdict on the phase.
    more = "" if phase.findings else f": {phase.verdict}"
    verdict = attrs.evolve(_NOTHING_SUSPICIOUS, summary=f"{summary}{more}")
    if phase.ended != "completed":
        return verdict
    return attrs.evolve(verdict, confidence="likely", remedy=None)


def join_logs(
    diagnosis: Diagnosis,
    evidence: LogEvidence,
    *,
    alive: Collection[int] = (),
    has_exited_cleanly: bool = False,
) -> Diagnosis:
    """
    Add findings from logs to a diagnosis by dumps or stacks.

    Args:
        diagnosis: Diagnosis by dumps and stacks.

        evidence: Results from logs.

        alive: Ranks that were alive after the logs were written.

        has_exited_cleanly: Whether all ranks ended without an error.

    Returns:
        The joined diagnosis.  If ranks are absent, it adds why.  If dumps and
        stacks do not explain the failure, the logs do.
    """
    missing = (*diagnosis.missing, *evidence.missing)
    diagnosis = attrs.evolve(diagnosis, missing=missing)
    findings = log_findings(evidence) if evidence.is_any else ()
    if not findings:
        return diagnosis

    base = diagnosis.verdict
    first = tuple(f for f in findings if is_first_cause(f, evidence))
    # A rank that failed can take long to end.
    ending = set(base.ranks) if base.cause.ends_process else set()
    alive = set(alive) - ending
    fatal = [
        f for f in first if _is_fatal(f.cause) and not _is_alive(f, alive)
    ]
    kills = _own_kills(findings, evidence)
    # That it was killed says more than that it left, as others noticed.
    own = [f for f in kills if f.ranks and f.ranks == base.ranks]
    known = [*own, *fatal, *kills, *_exit_reports(base, findings)]
    if explained := _explain_absence(base, known):
        return _replace_verdict(diagnosis, explained[0], first, explained[1])

    if joined := _join_stack(base, findings):
        return _replace_verdict(diagnosis, joined[0], findings, joined[1])

    if has_exited_cleanly:
        fatal, kills = [], []
    reason = None if alive else _find_reason(base, findings, fatal, kills)
    if reason is not None:
        verdict = _add_wait_location(reason, base)
        return _replace_verdict(diagnosis, verdict, findings, reason)

    news = findings
    if base.cause not in _OPEN_CAUSES and not base.cause.is_fine:
        # The reason is known, so skip consequences.
        news = tuple(f for f in first if not _is_covered(f, base))
    elif ends := [*fatal, *(f for f in kills if f.ranks and not alive)]:
        return _replace_verdict(diagnosis, ends[0], findings, ends[0])

    return attrs.evolve(diagnosis, findings=(*diagnosis.findings, *news))


def _join_stack(
    base: Finding, findings: Iterable[Finding]
) -> tuple[Finding, Finding] | None:
    """
    Join a stack that names no rank to the one rank that did not arrive.

    Args:
        base: What the stack shows.

    Returns:
        The verdict, and the finding about the rank; ``None`` if it is open whose
        stack this is.
    """
    is_open = not (base.ranks or base.cause.is_fine or base.cause.is_peer_wait)
    if not is_open or base.location is None or base.cause.ends_process:
        return None
    absent = [f for f in findings if f.cause is Cause.RANK_NOT_ARRIVED]
    if len(absent) != 1 or len(absent[0].ranks) != 1:
        return None
    return _add_detail(absent[0], "doing", base), absent[0]


def _add_detail(absent: Finding, link: Link, detail: Finding) -> Finding:
    return absent.with_clause(
        link,
        detail,
        detail_cause=detail.cause,
        location=detail.location,
        remedy=detail.remedy,
        evidence=detail.evidence[:2],
    )


def _find_reason(
    base: Finding,
    findings: Sequence[Finding],
    fatal: Sequence[Finding],
    kills: Sequence[Finding],
) -> Finding | None:
    """
    Return the finding that explains why ranks waited or failed, if any.
    """
    if base.cause is Cause.NATIVE_CRASH:
        # Its log shows what came first; what aborts has said why before.
        is_open = base.confidence != "certain"
        others = (f for f in findings if is_open and f.cause is not base.cause)
        return next((f for f in (*others, *fatal) if _is_sure(f)), None)
    # A fatal cause explains a wait, not the other way round.
    is_wait = base.cause.is_peer_wait
    if fatal and (is_wait or base.cause.is_consequence):
        return fatal[0]
    if base.cause is Cause.NETWORK_FAILURE:
        return next((f for f in kills if f.ranks), None)
    first = findings[0]
    if base.cause is Cause.COLLECTIVE_TIMEOUT:
        is_new = first.cause is Cause.RANK_NOT_ARRIVED
    else:
        is_open = is_wait or base.cause in _OPEN_CAUSES
        is_new = is_open and first.cause in _TIMEOUT_CAUSES
    return first if is_new else None


def _is_covered(finding: Finding, base: Finding) -> bool:
    """
    Return whether a log repeats other evidence, with less detail.
    """
    if finding.cause is base.cause is Cause.NATIVE_CRASH:
        files = {e.source for e in base.evidence}
        return all(e.source in files for e in finding.evidence)
    # The dumps name ranks for a mismatch, and the log does not.
    return not finding.ranks and all(
        f.cause.is_mismatch or f.cause.is_miscount for f in (finding, base)
    )


def _is_fatal(cause: Cause) -> bool:
    """
    Return whether a cause explains why ranks are gone or wait.
    """
    return cause.ends_process or cause.is_network or cause.is_mismatch


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
        is_late = gave_dump and finding.cause.is_kill
        if set(finding.ranks) & set(base.ranks) and not is_late:
            return finding, True
    nameless = (f for f in fatal if not f.ranks and not gave_dump)
    return next(nameless, None), False


def _explain_absence(
    base: Finding, known: Iterable[Finding]
) -> tuple[Finding, Finding] | None:
    """
    Add to a verdict why the absent ranks are absent.

    Args:
        known: What ended processes.

    Returns:
        The verdict, and the finding that explains it; ``None`` if none does.
    """
    if not base.cause.is_absence:
        return None
    cause, is_sure = _find_end(base, known)
    if cause is None or base.detail_cause not in {None, cause.cause}:
        return None

    is_some = is_sure and len(base.ranks) > 1
    who = f"{ranks_text(cause.ranks)}: " if is_some else ""
    verdict = base.with_clause(
        "because" if is_sure else "perhaps because",
        f"{who}{cause.summary}",
        detail_cause=cause.cause,
        location=base.location or cause.location,
        remedy=cause.remedy or base.remedy,
        evidence=cause.evidence,
        confidence=cause.confidence
        if is_sure and base.confidence == "possible"
        else base.confidence,
    )
    return verdict, cause


def _add_wait_location(reason: Finding, base: Finding) -> Finding:
    """
    Add to a reason where in their code ranks waited.
    """
    where: str | Finding = base
    if not base.cause.is_peer_wait:
        is_own = base.cause is Cause.NATIVE_CRASH
        if base.location is None or not (base.ranks or is_own):
            return reason
        who = ranks_text(base.ranks) if base.ranks else "it was"
        where = f"{who} in {base.location.brief}"
    return reason.with_clause(
        "and",
        where,
        behind=base.evidence,
        location=reason.location or base.location,
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
