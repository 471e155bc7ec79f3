"""
Is a job healthy if nothing on record is stuck?

Gloo records no send, no receive, and no monitored barrier.  Who waits there
shows on the host alone, and who fails there tells it by an exception.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Mapping, Sequence

import attrs

from ..findings import (
    Cause,
    CollectiveRef,
    Diagnosis,
    Finding,
    GroupRef,
    Missing,
)
from ..flight_recorder.analysis.analyze import REMEDIES
from ..flight_recorder.analysis.progress import (
    ended_s,
    failed_in_call,
    lost_peer,
)
from ..flight_recorder.analysis.stuck import silent_s
from ..flight_recorder.columns import Dumps
from ..flight_recorder.sidecar import Sidecar
from ..ranks import ranks_text
from ..stacks.model import ProcessStacks
from ..waits import Wait
from .hosts import ALIVE, WAITS, HostView, diagnose_stacks, quote_error


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


_TIMED_OUT = re.compile(r"tim(ed|e)[ -]?out", re.IGNORECASE)
# So many lines at which ranks failed are told.
_MOST_PLACES = 3


def look_again(
    diagnosis: Diagnosis,
    views: Mapping[int, HostView],
    dumps: Dumps,
    stacks: Sequence[ProcessStacks],
) -> Diagnosis:
    """
    Look again at a job of which nothing on record is stuck.

    Args:
        diagnosis: What its dumps tell: that it is healthy, or slow.

        views: What each rank was doing on its host.

        dumps: What the ranks recorded.

        stacks: All processes that were looked at.

    Returns:
        The diagnosis of calls that failed, or that ranks wait in, without
        being on record; the same if there are none.
    """
    failed = _find_failed(views, dumps)
    if failed is not None:
        failed = _without_lost(failed, views, dumps, diagnosis.missing)
        more = (f for f in diagnosis.findings if not f.cause.is_fine)
        return attrs.evolve(
            diagnosis, verdict=failed, findings=(failed, *more)
        )

    seconds = silent_s(dumps)
    if not seconds:
        return diagnosis

    is_waiting = any(v.cause in WAITS for v in views.values())
    return explain_silence(
        diagnosis, dumps, stacks, seconds=seconds, is_waiting=is_waiting
    )


def _find_failed(
    views: Mapping[int, HostView], dumps: Dumps
) -> Finding | None:
    """
    Find the calls that failed although no dump shows them.

    Args:
        views: What each rank was doing on its host.

        dumps: Its side-cars tell of exceptions.

    Returns:
        The finding, whose ranks are those that did not fail, if they are the
        fewer; ``None`` if no call failed.
    """
    known = dumps.sidecars.values()
    is_ended = ended_s(dumps) is not None
    failed = [
        s
        for s in known
        if failed_in_call(s.error) and not (is_ended and lost_peer(s.error))
    ]
    if not failed:
        return None

    others = tuple(sorted(s.rank for s in known if not s.error))
    suspects = others if 2 * len(others) < len(known) else ()
    text = (
        f"{ranks_text(sorted(s.rank for s in failed))} failed in calls that "
        f"no dump shows ({failed[0].error}){_places(failed, views)}"
    )
    if suspects:
        text += f"; {ranks_text(suspects)} did not"
    view = next((views[r] for r in suspects if r in views), None)
    if view is not None and view.location is not None:
        doing = view.doing or "was"
        text += f": rank {view.rank} {doing} in {view.location.brief}"
    return Finding(
        cause=_cause_of(failed),
        ranks=suspects,
        summary=text,
        confidence="possible",
        remedy="see what the ranks that did not fail were doing meanwhile"
        if others
        else "compare the lines at which they failed: each send needs its "
        "receive, and a key of the store somebody who sets it",
        location=view.location if view else None,
        evidence=(
            *(view.evidence if view else ()),
            *map(quote_error, failed[:4]),
        ),
    )


def _without_lost(
    finding: Finding,
    views: Mapping[int, HostView],
    dumps: Dumps,
    missing: Iterable[Missing],
) -> Finding:
    """
    Name the ranks without a dump, if all others failed by losing a rank.

    Who fails by itself leaves a dump and says why; who is killed does not.
    """
    # A file that is there and damaged has a source.
    lost = sorted(
        m.rank
        for m in missing
        if m.what == "dump" and m.rank is not None and m.source is None
    )
    there = [views[r] for r in lost if r in views]
    told = [s for s in dumps.sidecars.values() if s.rank not in lost]
    if (
        not (lost and told)
        or any(v.state in ALIVE or v.has_exited or v.error for v in there)
        or not all(lost_peer(s.error) for s in told)
    ):
        return finding

    verb = "it" if len(lost) == 1 else "them"
    return attrs.evolve(
        finding,
        cause=Cause.RANK_CRASHED,
        ranks=tuple(lost),
        summary=f"{ranks_text(lost)} left no dump, and all others lost "
        f"{verb}: {finding.summary}",
        confidence="likely",
        location=None,
        remedy=REMEDIES[Cause.RANK_CRASHED],
    )


def _cause_of(failed: Sequence[Sidecar]) -> Cause:
    if any(_TIMED_OUT.search(s.error) for s in failed):
        return Cause.COLLECTIVE_TIMEOUT
    if all(lost_peer(s.error) for s in failed):
        return Cause.NETWORK_FAILURE
    return Cause.UNKNOWN


def _places(failed: Sequence[Sidecar], views: Mapping[int, HostView]) -> str:
    """
    The lines of the user at which they failed.
    """
    ranks: dict[str, list[int]] = {}
    for rank in sorted(s.rank for s in failed):
        location = views[rank].location if rank in views else None
        if location is not None:
            ranks.setdefault(location.brief, []).append(rank)
    if not ranks:
        return ""

    told = list(ranks.items())[:_MOST_PLACES]
    return " at " + ", ".join(
        where if len(ranks) == 1 else f"{where} ({ranks_text(who)})"
        for where, who in told
    )


def without_waiting(
    finding: Finding, views: Mapping[int, HostView], waits: Sequence[Wait]
) -> Finding:
    """
    Of ranks that did not arrive, leave out those that only wait elsewhere.

    Args:
        finding: Any finding; only of ranks that did not arrive one is changed.

        views: What each rank was doing on its host.

        waits: The stuck calls.

    Returns:
        The finding about those that wait for nobody, and a call that waits
        for them; unchanged if all or none of them wait.
    """
    if finding.cause is not Cause.RANK_NOT_ARRIVED:
        return finding

    waiting = [
        r
        for r in finding.ranks
        if r in views and views[r].cause is Cause.COLLECTIVE_WAIT
    ]
    left = tuple(r for r in finding.ranks if r not in waiting)
    if not waiting or not left:
        return finding

    verb = "waits" if len(waiting) == 1 else "wait"
    tail = f"({ranks_text(waiting)} {verb} elsewhere, not on record)"
    call = call_for(left, finding, waits)
    if call is None:
        return attrs.evolve(
            finding,
            ranks=left,
            confidence="likely",
            summary=f"{ranks_text(left)} entered no call {tail}",
        )

    group = GroupRef(
        name=call.group,
        desc=call.desc,
        ranks=tuple(sorted({*call.waiting, *call.awaited})),
    )
    ref = CollectiveRef(op=call.op, seq=call.seq, p2p=call.p2p)
    return attrs.evolve(
        finding,
        ranks=left,
        confidence="likely",
        group=group,
        collective=ref,
        summary=f"{ranks_text(left)} never entered {ref} of group "
        f"{str(group)!r} {tail}",
    )


def call_for(
    ranks: Sequence[int], finding: Finding, waits: Sequence[Wait]
) -> Wait | None:
    """
    Find a stuck call that waits for some of these ranks.

    Args:
        ranks: Global ranks.

        finding: What is told of them; its own call comes first.

        waits: The stuck calls.

    Returns:
        The call; ``None`` if none waits for them.
    """
    theirs = [w for w in waits if not set(ranks).isdisjoint(w.awaited)]
    return min(theirs, key=lambda w: not is_about(finding, w), default=None)


def is_about(finding: Finding, wait: Wait) -> bool:
    """
    Whether a finding tells of this call.

    Args:
        finding: Any finding.

        wait: A stuck call.
    """
    return (wait.group, wait.seq) == (
        finding.group and finding.group.name,
        finding.collective and finding.collective.seq,
    )
