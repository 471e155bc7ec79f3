"""
What is the root cause, if there are stacks and no dumps?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from ..findings import Cause, Diagnosis, Finding
from ..stacks.explain import explain_ranks, explain_stacks
from ..stacks.jobs import members_of_job
from ..stacks.model import ProcessStacks


__all__ = ["WAITS", "diagnose_stacks"]

# What ranks are in that merely wait for others.
WAITS = frozenset({Cause.COLLECTIVE_WAIT, Cause.RENDEZVOUS_WAIT})
_UNKNOWN = Finding(
    cause=Cause.UNKNOWN,
    ranks=(),
    summary="the stacks do not tell what the processes wait for",
    confidence="possible",
    remedy="take native stacks too (distdebug stacks --native), and enable "
    "the Flight Recorder",
)


def diagnose_stacks(stacks: Sequence[ProcessStacks]) -> Diagnosis:
    """
    Who stands apart, and what do the others do?

    Args:
        stacks: All processes that were looked at, of any number of jobs.

    Returns:
        The diagnosis; its verdict is ``UNKNOWN`` if stacks tell nothing.
    """
    findings = explain_stacks(stacks)
    verdict = findings[0] if findings else _UNKNOWN
    victims = _victims(members_of_job(verdict, stacks), verdict)
    if len(findings) > 1 and not victims:
        # Nobody is seen to wait for anybody: the first is only a suspect.
        verdict = attrs.evolve(
            verdict,
            confidence="possible",
            remedy="enable the Flight Recorder, and take the dumps of all "
            "ranks: they tell who holds up whom",
        )
        findings = (verdict, *findings[1:])
    return Diagnosis(verdict=verdict, findings=findings, victims=victims)


def _victims(
    stacks: Iterable[ProcessStacks], verdict: Finding
) -> tuple[int, ...]:
    waiting = {
        view.process.rank
        for view in explain_ranks(stacks)
        if view.process.rank is not None and view.cause in WAITS
    }
    return tuple(sorted(waiting.difference(verdict.ranks)))
