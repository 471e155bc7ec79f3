"""
What is a job doing that has long recorded no call, if nothing is stuck?
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..findings import Cause, Diagnosis
from ..flight_recorder.columns import Dumps
from ..stacks.model import ProcessStacks
from .from_stacks import diagnose_stacks


__all__ = ["explain_silence"]

# What healthy jobs do between two calls, and sometimes for long.
_PAUSES = frozenset(
    {
        Cause.CHECKPOINTING,
        Cause.COMPILING,
        Cause.GPU_SYNC_WAIT,
        Cause.NATIVE_SPIN,
        Cause.PYTHON_LOOP,
        Cause.SLEEPING,
    }
)


def explain_silence(
    diagnosis: Diagnosis,
    dumps: Dumps,
    stacks: Sequence[ProcessStacks],
    *,
    seconds: float,
    is_waiting: bool,
) -> Diagnosis:
    """
    Have stacks tell what a job does that is silent.

    Args:
        diagnosis: What its dumps tell: that it is healthy, or slow.

        dumps: What the ranks recorded.

        stacks: All processes that were looked at.

        seconds: For how long no call was recorded.

        is_waiting: Whether any rank is seen to wait for others.

    Returns:
        The diagnosis of what the stacks show, if healthy jobs do not do so for
        long; otherwise the same, which is only possible.
    """
    told = f"no call is on record for {seconds:.0f} s, longer than ever before"
    seen = diagnose_stacks(_of_ranks(dumps, stacks))
    verdict = seen.verdict
    is_hung = verdict.confidence != "possible" and verdict.cause not in _PAUSES
    if verdict.cause.is_fine or not seen.findings:
        return _perhaps(diagnosis, told)
    if not (is_hung or is_waiting):
        return _perhaps(diagnosis, f"{told}: {verdict.summary}")

    verdict = attrs.evolve(
        verdict,
        summary=f"{verdict.summary}; {told}",
        # If nobody waits for others, this may be a long pause, too.
        confidence=verdict.confidence if is_waiting else "possible",
    )
    return attrs.evolve(
        diagnosis,
        verdict=verdict,
        findings=(verdict, *seen.findings[1:]),
        victims=seen.victims,
    )


def _perhaps(diagnosis: Diagnosis, told: str) -> Diagnosis:
    """
    Have the job be healthy, which is only possible.
    """
    healthy = attrs.evolve(
        diagnosis.verdict,
        summary=f"{diagnosis.verdict.summary}; but {told}",
        confidence="possible",
        remedy="if it hangs, look at its stacks (distdebug stacks): not "
        "all calls are recorded on Gloo",
    )
    return attrs.evolve(diagnosis, verdict=healthy)


def _of_ranks(
    dumps: Dumps, stacks: Sequence[ProcessStacks]
) -> Sequence[ProcessStacks]:
    """
    The ranks and their children, where side-cars tell which these are.
    """
    pids = {(s.host, s.pid) for s in dumps.sidecars.values()}
    own = [
        p
        for p in stacks
        if not pids.isdisjoint({(p.host, p.pid), (p.host, p.parent_pid)})
    ]
    return own or stacks
