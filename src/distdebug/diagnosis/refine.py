"""
Which rank is known; why is it there?

The dumps name the rank, the host side of that rank names the reason.  Where
the two contradict each other, both are told.
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
from ..flight_recorder import (
    REMEDIES,
    Dumps,
    Sidecar,
    ended_s,
    failed_in_call,
    lost_peer,
    silent_s,
)
from ..ranks import ranks_text
from ..stacks import ProcessStacks, agree
from ..waits import Wait
from .hosts import (
    ALIVE,
    WAITS,
    HostView,
    diagnose_stacks,
    ended_well,
    find_death,
    quote_error,
)


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


# The outermost one is what the user called.
_CALL = re.compile(
    r"(\w+) \([^()]*(?:distributed_c10d|torch/distributed/device_mesh)\.py:\d+\)"
)
# Calls to one other rank, which Gloo does not record.
_P2P = re.compile(r"i?(send|recv)\w*|batch_isend_irecv")
# What all ranks of a group have to call, and no backend records.
_TOGETHER = {
    "init_device_mesh",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "split_group",
}
_NOT_RECORDED = (
    "see why the other side of this call does not answer; no dump shows it on "
    "Gloo"
)
_OTHER_MOMENTS = (
    "either dump and stack are of different moments (then take both again), or "
    "the rank waits in a call that is not recorded: send and recv on Gloo, or "
    "a key of the store that another rank should set"
)
# So many calls in which ranks wait are told.
_MOST_PARTIES = 3


def cross_waits(
    finding: Finding, views: Mapping[int, HostView], waits: Sequence[Wait]
) -> Finding | None:
    """
    Find ranks that wait for each other in two calls, one of them recorded.

    Args:
        finding: About ranks that never entered a call.

        views: What each rank was doing on its host.

        waits: The stuck calls.

    Returns:
        The finding, which blames the smaller party; ``None`` unless all who
        are missing wait in the same call, which others have to make, too.
    """
    call = _common_call(finding, views)
    wait = call_for(finding.ranks, finding, waits)
    if wait is None or wait.p2p or call not in _TOGETHER:
        return None

    inside = [r for r in wait.waiting if r not in finding.ranks]
    parties = sorted(
        [
            (inside, f"{finding.collective} of group {str(finding.group)!r}"),
            (list(finding.ranks), call),
        ],
        key=lambda party: len(party[0]),
    )
    (few, _), (many, _) = parties
    is_open = len(few) == len(many)
    ranks = tuple(sorted([*few, *many] if is_open else few))
    said = "wait for each other" if is_open else "left the order of the others"
    seen = [views[r] for r in (few[0], many[0]) if r in views]
    return attrs.evolve(
        finding,
        cause=Cause.GROUP_ORDER_DEADLOCK,
        ranks=ranks,
        confidence="possible" if is_open else "likely",
        summary=f"{ranks_text(ranks)} {said}: "
        + ", ".join(
            f"{ranks_text(who)} in {what}"
            + _place(views[r] for r in who if r in views)
            for who, what in parties
        ),
        location=seen[0].location,
        evidence=(*(e for v in seen for e in v.evidence), *finding.evidence),
        remedy=f"look for a branch that leaves out {call} or {wait.op}, or "
        "makes them in another order, on some ranks only",
    )


def _common_call(finding: Finding, views: Mapping[int, HostView]) -> str:
    """
    The call in which all who are missing wait; ``""`` if there is none.
    """
    seen = [views.get(rank) for rank in finding.ranks]
    calls = {
        _torch_call(v) if v is not None and v.cause in WAITS else ""
        for v in seen
    }
    return calls.pop() if len(calls) == 1 else ""


def wait_elsewhere(
    finding: Finding, seen: Sequence[HostView]
) -> Finding | None:
    """
    Tell of ranks that did not arrive that they wait themselves.

    Args:
        finding: About ranks that never entered a call.

        seen: What they were doing on their hosts, as far as it is known.

    Returns:
        The finding, which is open now; ``None`` if the first of them that was
        seen anywhere waits for nobody.
    """
    first = next((v for v in seen if v.location), None)
    causes = _waits_of(finding)
    if first is None or first.cause not in causes:
        return None

    views = [v for v in seen if v.cause in causes]
    by_call: dict[tuple[str, str], list[HostView]] = {}
    for view in views:
        call = _torch_call(view)
        key = call, "" if call else view.doing
        by_call.setdefault(key, []).append(view)
    parties = list(by_call.items())[:_MOST_PARTIES]
    said = ", ".join(_waiting(*key, alike) for key, alike in parties)
    is_p2p = all(_P2P.fullmatch(call) for call, _ in by_call)
    return attrs.evolve(
        finding,
        confidence="possible",
        summary=f"{finding.summary}; but {said}",
        location=views[0].location,
        evidence=(
            *(e for _, alike in parties for e in alike[0].evidence),
            *finding.evidence,
        ),
        remedy=_NOT_RECORDED if is_p2p else _OTHER_MOMENTS,
    )


def _waits_of(finding: Finding) -> frozenset[Cause]:
    # One that waits for the store is missing; several wait for another one.
    is_alone = len(finding.ranks) == 1
    return frozenset({Cause.COLLECTIVE_WAIT}) if is_alone else WAITS


def _waiting(call: str, doing: str, views: Sequence[HostView]) -> str:
    verb = "is" if len(views) == 1 else "are"
    what = f"waiting in {call}" if call else doing.removeprefix("is ")
    return (
        f"{ranks_text([v.rank for v in views])} {verb} {what}{_place(views)}"
    )


def _torch_call(view: HostView) -> str:
    """
    The function of torch that the user called, and in which a rank waits.
    """
    found = [c for e in view.evidence for c in _CALL.findall(e.quote)]
    return str(found[-1]) if found else ""


def _place(views: Iterable[HostView]) -> str:
    location = next((v.location for v in views if v.location), None)
    return f" at {location.brief}" if location else ""


_LET_GO = (
    "let go of the lock before a call that waits for other ranks, which want "
    "to take it, too"
)
_SEE_WHY = "see why it does not let go of the lock"


def blame_holder(
    finding: Finding, views: Mapping[int, HostView], waits: Sequence[Wait]
) -> Finding | None:
    """
    Name the rank that holds the lock of a file that the others wait for.

    Args:
        finding: About ranks that never entered a call.

        views: What each rank was doing on its host.

        waits: The stuck calls.

    Returns:
        The finding; ``None`` unless one rank holds what all the others wait
        for.
    """
    seen = [views[r] for r in finding.ranks if r in views]
    holders = {v.holder for v in seen if v.holder is not None}
    holder = holders.pop() if len(holders) == 1 else None
    stuck = [v for v in seen if v.holder is not None and v.rank != holder]
    if holder is None or {*finding.ranks} - {holder} != {
        v.rank for v in stuck
    }:
        return None

    verb = "waits" if len(stuck) == 1 else "wait"
    view = views.get(holder, HostView(rank=holder))
    wait = call_for([v.rank for v in stuck], finding, waits)
    is_circle = wait is not None and holder in wait.waiting
    if is_circle:
        doing = f"waits for them in {finding.collective}"
        doing += f" of group {str(finding.group)!r}"
    else:
        doing = view.doing or "does not let go of it"
    return attrs.evolve(
        finding,
        cause=Cause.LOCK_DEADLOCK if is_circle else finding.cause,
        ranks=(holder,),
        summary=f"rank {holder} holds the lock of a file that "
        f"{ranks_text([v.rank for v in stuck])} {verb} for"
        f"{_held_place(stuck[0])}, and {doing}{_held_place(view)}",
        detail_cause=None if is_circle else view.cause,
        location=view.location,
        evidence=(*stuck[0].evidence, *view.evidence, *finding.evidence),
        remedy=_LET_GO if is_circle else view.remedy or _SEE_WHY,
    )


def _held_place(view: HostView) -> str:
    return f" in {view.location.brief}" if view.location else ""


_ENDED_EARLY = (
    "see why these ranks made fewer calls: a batch less, an early return, an "
    "exception that was caught; or why those that wait made one too many"
)
_LATE_AND_WAITING = (Cause.STRAGGLER, Cause.COLLECTIVE_WAIT)
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
