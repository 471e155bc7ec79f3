"""
Which rank is known; why is it there?

The dumps name the rank, the host side of that rank names the reason.  Where
the two contradict each other, both are told.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ..findings import Cause, Diagnosis, Evidence, Finding
from ..flight_recorder.analysis.streams import failed_in_call
from ..flight_recorder.columns import Dumps
from ..ranks import fold_ranks
from .hosts import HostView


__all__ = ["refine"]

_DOING = {
    Cause.DATALOADER_WAIT: "it is waiting for data",
    Cause.SLEEPING: "it is sleeping",
    Cause.IO_WAIT: "it is blocked in I/O",
    Cause.LOCK_DEADLOCK: "it is waiting for a lock",
    Cause.QUEUE_WAIT: "it is waiting for a queue",
    Cause.FUTURE_WAIT: "it is waiting for a future",
    Cause.SUBPROCESS_WAIT: "it is waiting for a subprocess",
    Cause.IMPORT_LOCK: "it is importing a module",
    Cause.CHECKPOINTING: "it is writing a checkpoint",
    Cause.COMPILING: "it is compiling",
    Cause.GPU_SYNC_WAIT: "it is waiting for its GPU",
    Cause.RENDEZVOUS_WAIT: "it is waiting in the rendezvous",
    Cause.PYTHON_LOOP: "it is running Python code",
}
_ABSENT = {Cause.RANK_NOT_ARRIVED, Cause.RANK_CRASHED}


def refine(
    diagnosis: Diagnosis, views: Mapping[int, HostView], dumps: Dumps
) -> Diagnosis:
    """
    Add what the host side of the culprits tells.

    Args:
        diagnosis: What follows from the dumps alone.

        views: What each rank was doing on its host.

        dumps: What was analyzed.
    """
    findings = [_with_host(f, views) for f in diagnosis.findings]
    died = _died(views, dumps)
    if died is not None and not _explains(findings, died):
        findings.insert(0, died)

    return attrs.evolve(
        diagnosis,
        verdict=findings[0] if findings else diagnosis.verdict,
        findings=tuple(findings),
        victims=tuple(
            r
            for r in diagnosis.victims
            if not findings or r not in findings[0].ranks
        ),
    )


def _died(views: Mapping[int, HostView], dumps: Dumps) -> Finding | None:
    """
    Ranks that an exception ended, which no failing collective caused.
    """
    died = [
        v for v in views.values() if v.error and not failed_in_call(v.error)
    ]
    if not died:
        return None

    first = min(died, key=lambda v: dumps.sidecars[v.rank].written)
    place = f" at {first.location}" if first.location else ""
    return Finding(
        cause=Cause.RANK_CRASHED,
        ranks=(first.rank,),
        summary=f"rank {first.rank} died of {first.error}{place}",
        confidence="certain",
        remedy="mend the exception; the other ranks only lost their peer",
        location=first.location,
        evidence=tuple(_side(v) for v in died[:4]),
    )


def _explains(findings: list[Finding], died: Finding) -> bool:
    """
    Put the exception into the finding that it explains, if there is one.
    """
    for i, f in enumerate(findings):
        if f.cause in _ABSENT and set(died.ranks) <= set(f.ranks):
            wait = f.summary.partition("(")[2].rstrip(")")
            findings[i] = attrs.evolve(
                died,
                group=f.group,
                collective=f.collective,
                summary=died.summary + (f" ({wait})" if wait else ""),
                evidence=(*died.evidence, *f.evidence),
            )
            findings.insert(0, findings.pop(i))
            return True

    return False


def _side(view: HostView) -> Evidence:
    return Evidence(
        kind="sidecar",
        source="",
        location=f"rank {view.rank}",
        quote=view.error,
    )


def _with_host(finding: Finding, views: Mapping[int, HostView]) -> Finding:
    seen = [views[r] for r in finding.ranks if r in views]
    if finding.cause not in _ABSENT or not seen:
        return _with_line(finding, seen)

    gone = [v.rank for v in seen if v.has_exited]
    if gone:
        return attrs.evolve(
            finding,
            summary=f"{finding.summary}; rank {fold_ranks(gone)} had ended "
            "without an error",
        )

    first = next((v for v in seen if v.cause or v.location), None)
    if first is None or finding.cause is Cause.RANK_CRASHED:
        return finding

    if first.cause is Cause.COLLECTIVE_WAIT:
        return _contradicted(finding, first)

    doing = _DOING.get(first.cause, "it is") if first.cause else "it is"
    return attrs.evolve(
        finding,
        summary=f"{finding.summary}: {doing} in {first.location}",
        detail_cause=first.cause,
        location=first.location,
        evidence=(*_evidence(first), *finding.evidence),
    )


def _with_line(finding: Finding, seen: list[HostView]) -> Finding:
    """
    Add the line at which a culprit that did arrive stands.
    """
    view = next((v for v in seen if v.location), None)
    if view is None or finding.location is not None:
        return finding

    return attrs.evolve(
        finding,
        location=view.location,
        evidence=(*finding.evidence, *_evidence(view)),
    )


def _contradicted(finding: Finding, view: HostView) -> Finding:
    return attrs.evolve(
        finding,
        confidence="possible",
        summary=f"{finding.summary}; but the stack of rank {view.rank} "
        f"waits in a collective at {view.location}",
        location=view.location,
        evidence=(*_evidence(view), *finding.evidence),
        remedy="dump and stack are of different moments: take both again",
    )


def _evidence(view: HostView) -> tuple[Evidence, ...]:
    return (view.evidence,) if view.evidence else ()
