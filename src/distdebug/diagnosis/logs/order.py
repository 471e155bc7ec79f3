"""
Which of the things that logs tell came first, and which only follow?

Who died, and what brought it down, comes first; then who was missing in a
collective; then what waited in vain; then what is slow, or wrong with a node.
"""

from __future__ import annotations

import os

from collections.abc import Iterable

import attrs

from ...findings import Cause, Finding
from ...logscan.collectives import collective_findings
from ...logscan.model import LogGroup
from ...raylogs.deaths.model import Deaths
from ...raylogs.deaths.report import death_findings
from ...raylogs.driver.model import DriverLog
from ...raylogs.driver.report import driver_findings
from .model import LogEvidence


__all__ = ["is_end", "is_first_cause", "log_findings", "waiting_ranks"]

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
