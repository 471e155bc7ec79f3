"""
Which rank is known; why is it there?

The dumps name the rank, the host side of that rank names the reason.  Where
the two contradict each other, both are told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from ..findings import Cause, Diagnosis, Finding
from ..flight_recorder.columns import Dumps
from ..ranks import ranks_text
from ..stacks.wording import agree
from ..waits import Wait
from .deaths import find_death
from .elsewhere import cross_waits, wait_elsewhere
from .held import blame_holder
from .hosts import ALIVE, HostView, ended_well
from .unrecorded import is_about, without_waiting


__all__ = ["refine"]

_ENDED_EARLY = (
    "see why these ranks made fewer calls: a batch less, an early return, an "
    "exception that was caught; or why those that wait made one too many"
)
_LATE_AND_WAITING = (Cause.STRAGGLER, Cause.COLLECTIVE_WAIT)
# So many things that ranks do are told.
_MOST_PARTIES = 3
_ABSENT = {Cause.RANK_NOT_ARRIVED, Cause.RANK_CRASHED}
# What is wrong with a job even if it comes to its end.
_LASTING = {
    Cause.STRAGGLER,
    Cause.TYPE_MISMATCH,
    Cause.SIZE_MISMATCH,
    Cause.DTYPE_MISMATCH,
}


def refine(
    diagnosis: Diagnosis,
    views: Mapping[int, HostView],
    dumps: Dumps,
    waits: Sequence[Wait] = (),
) -> Diagnosis:
    """
    Add what the host side of the culprits tells.

    Args:
        diagnosis: What follows from the dumps alone.

        views: What each rank was doing on its host.

        dumps: What was analyzed.

        waits: The stuck calls.

    Returns:
        The refined diagnosis.
    """
    if ended_well(dumps) and not any(v.state for v in views.values()):
        diagnosis = _after_the_end(diagnosis, dumps)
    findings = [_look_at(f, views, waits) for f in diagnosis.findings]
    died = find_death(views, dumps)
    if died is not None:
        findings = _put_first(died, findings)

    return attrs.evolve(
        diagnosis,
        verdict=findings[0] if findings else diagnosis.verdict,
        findings=tuple(findings),
        victims=_victims(diagnosis, findings, views),
    )


def _look_at(
    finding: Finding, views: Mapping[int, HostView], waits: Sequence[Wait]
) -> Finding:
    if finding.cause is Cause.RANK_NOT_ARRIVED:
        if _came_late(finding, waits):
            return finding
        crossed = cross_waits(finding, views, waits)
        if crossed is not None:
            return crossed
        held = blame_holder(finding, views, waits)
        if held is not None:
            return held

    return _with_host(without_waiting(finding, views, waits), views)


def _came_late(finding: Finding, waits: Sequence[Wait]) -> bool:
    """
    Whether they are in the call by now: then nothing else holds them up.
    """
    return any(
        is_about(finding, w) and {*finding.ranks} <= {*w.waiting}
        for w in waits
    )


def _victims(
    diagnosis: Diagnosis,
    findings: Sequence[Finding],
    views: Mapping[int, HostView],
) -> tuple[int, ...]:
    if not findings:
        return diagnosis.victims

    victims = set(diagnosis.victims)
    victims.update(
        v.rank for v in views.values() if v.holder in findings[0].ranks
    )
    if findings[0].cause is Cause.GROUP_ORDER_DEADLOCK:
        # Who was blamed by the dumps may only wait, and be one of them.
        victims.update(diagnosis.verdict.ranks)
    return tuple(sorted(victims.difference(findings[0].ranks)))


def _after_the_end(diagnosis: Diagnosis, dumps: Dumps) -> Diagnosis:
    """
    Forget the waits of a job that has ended well since.
    """
    findings = tuple(f for f in diagnosis.findings if f.cause in _LASTING)
    healthy = Finding(
        cause=Cause.HEALTHY,
        ranks=(),
        summary="the job ended without an error on "
        f"{ranks_text(dumps.sidecars)}",
        # An exit status is not on record.
        confidence="likely",
    )
    return attrs.evolve(
        diagnosis,
        verdict=findings[0] if findings else healthy,
        findings=findings,
        victims=(),
        missing=tuple(m for m in diagnosis.missing if m.source is not None),
        groups=tuple(
            attrs.evolve(g, waiting=(), absent=()) for g in diagnosis.groups
        ),
    )


def _put_first(died: Finding, findings: list[Finding]) -> list[Finding]:
    """
    Let the death of a rank explain why others wait for it.
    """
    explained = [
        f
        for f in findings
        if f.cause in _ABSENT and set(died.ranks) <= set(f.ranks)
    ]
    if not explained:
        return [died, *findings]

    f = explained[0]
    died = attrs.evolve(
        died,
        group=f.group,
        collective=f.collective,
        summary=f"{died.summary}; the others wait for it in "
        f"{f.collective} of group {str(f.group)!r}",
        evidence=(*died.evidence, *f.evidence),
    )
    return [died, *(f for f in findings if f.ranks != died.ranks)]


def _with_host(finding: Finding, views: Mapping[int, HostView]) -> Finding:
    seen = [views[r] for r in finding.ranks if r in views]
    if finding.cause not in _ABSENT or not seen:
        return _with_line(finding, seen)

    gone = [v.rank for v in seen if v.has_exited]
    if gone:
        return _with_gone(finding, gone)

    if finding.cause is Cause.RANK_CRASHED:
        return _if_alive(finding, seen)

    first = next((v for v in seen if v.location), None)
    if first is None:
        return finding

    contradicted = wait_elsewhere(finding, seen)
    if contradicted is not None:
        return contradicted

    who = "it" if len(finding.ranks) == 1 else f"rank {first.rank}"
    doing = first.doing or "is"
    return attrs.evolve(
        finding,
        summary=f"{finding.summary}: {who} {doing} in {_brief(first)}"
        + _of_others(first, seen),
        remedy=first.remedy or "see why it does not get past that line",
        detail_cause=first.cause,
        location=first.location,
        evidence=(*first.evidence, *finding.evidence),
    )


def _of_others(first: HostView, seen: Sequence[HostView]) -> str:
    """
    What the others do, if that is something else.
    """
    parties: dict[tuple[str, str], list[int]] = {}
    for view in seen:
        doing = view.doing or "is"
        if view.location and (view.doing, view.location) != (
            first.doing,
            first.location,
        ):
            parties.setdefault((doing, _brief(view)), []).append(view.rank)
    return "".join(
        f"; {ranks_text(who)} {agree(who, doing)} in {place}"
        for (doing, place), who in list(parties.items())[:_MOST_PARTIES]
    )


def _with_gone(finding: Finding, gone: Sequence[int]) -> Finding:
    """
    Who ended without an error did not crash, but left the others alone.
    """
    summary = (
        f"{finding.summary}; {ranks_text(gone)} had ended without an error"
    )
    if len(gone) < len(finding.ranks):
        return attrs.evolve(finding, summary=summary)

    is_few = finding.group is not None and 2 * len(gone) < len(
        finding.group.ranks
    )
    return attrs.evolve(
        finding,
        cause=Cause.RANK_NOT_ARRIVED,
        # Rather one makes a call too many than all others one too few.
        confidence=finding.confidence if is_few else "possible",
        summary=summary,
        remedy=_ENDED_EARLY,
    )


def _with_line(finding: Finding, seen: list[HostView]) -> Finding:
    """
    Add the line at which a culprit that did arrive stands.
    """
    view = next((v for v in seen if v.location), None)
    if view is None or finding.location is not None:
        return finding
    # Who is late now and then waits like all others most of the time.
    if (finding.cause, view.cause) == _LATE_AND_WAITING:
        return finding

    return attrs.evolve(
        finding,
        location=view.location,
        evidence=(*finding.evidence, *view.evidence),
    )


def _brief(view: HostView) -> str:
    return view.location.brief if view.location else "unknown code"


def _if_alive(finding: Finding, seen: list[HostView]) -> Finding:
    """
    A rank that gave no dump may only be unable to: look at its process.
    """
    alive = [v for v in seen if v.state in ALIVE]
    if not alive:
        return finding

    stopped = [v for v in alive if v.state == "stopped"]
    named = stopped or alive
    ranks = tuple(v.rank for v in named)
    others = [r for r in finding.ranks if r not in ranks]
    verb = "is" if len(ranks) == 1 else "are"
    nor = f" (nor did {ranks_text(others)})" if others else ""
    first = next((v for v in named if v.location), named[0])
    doing = f"; rank {first.rank} {first.doing}" if first.doing else ""
    place = f" in {_brief(first)}" if doing and first.location else ""
    return attrs.evolve(
        finding,
        cause=Cause.STOPPED if stopped else Cause.RANK_NOT_ARRIVED,
        ranks=ranks,
        confidence="likely",
        summary=f"{ranks_text(ranks)} {verb} "
        f"{'stopped' if stopped else 'alive'}, and gave no dump{nor}"
        f"{'' if stopped else doing + place}; "
        f"{finding.summary.partition('; ')[2]}",
        detail_cause=None if stopped else first.cause,
        location=first.location,
        evidence=(*first.evidence, *finding.evidence),
        remedy=_remedy(first, is_stopped=bool(stopped)),
    )


def _remedy(view: HostView, *, is_stopped: bool) -> str:
    if is_stopped:
        return "let it go on (kill -CONT), or find who stopped it"
    if view.location:
        return view.remedy or "see why it does not get past that line"

    return "take its stacks: it could not answer when it was asked for a dump"
