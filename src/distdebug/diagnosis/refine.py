"""
Refine findings from dumps by what each rank does on its host.

Dumps name the rank at fault; its stacks and sidecar give the reason.  If the
two contradict each other, the finding reports both.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Sequence
from operator import attrgetter

import attrs

from .._lazy import late_pattern
from ..causes import Cause
from ..findings import CollectiveRef, Diagnosis, Finding, GroupRef, Missing
from ..flight_recorder import (
    Dumps,
    Sidecar,
    count_pauses,
    is_collective_error,
    sigterm_time_s,
)
from ..ranks import ranks_text
from ..stacks import (
    LOOK_AGAIN,
    blocked_text,
    conjugate,
    group_by_key,
)
from ..waits import Wait, waiting_text
from .rank_state import (
    ALIVE_STATES,
    HostView,
    HostViews,
    all_exited_cleanly,
    explain_silence,
    find_first_crash,
    is_peer_lost_error,
    quote_error,
)


_TIMEOUT_TEXT = late_pattern(r"tim(ed|e)[ -]?out", re.IGNORECASE)
# At most this many locations of failed ranks are listed.
_MAX_LOCATIONS = 3


def recheck_running_job(diagnosis: Diagnosis, views: HostViews) -> Diagnosis:
    """
    Check a job without a stuck recorded call for unrecorded failures.

    Args:
        diagnosis: By the dumps: healthy, or slow.

        views: State of each rank on its host.

    Returns:
        The diagnosis of calls that failed, or that ranks wait in, without a
        record; unchanged if there are none.
    """
    failed = _find_failed_calls(views)
    if failed is not None:
        failed = _blame_lost_ranks(failed, views, diagnosis.missing)
        more = (f for f in diagnosis.findings if not f.cause.is_fine)
        return attrs.evolve(
            diagnosis, verdict=failed, findings=(failed, *more)
        )

    return explain_silence(diagnosis, views)


def _find_failed_calls(views: HostViews) -> Finding | None:
    """
    Find failed calls that no dump shows.

    Returns the finding; its ranks are those that did not fail, if they are the
    minority.
    """
    dumps = views.flight.dumps
    known = dumps.sidecars.values()
    is_ended = sigterm_time_s(dumps) is not None
    failed = [
        s
        for s in known
        if is_collective_error(s.error)
        and not (is_ended and is_peer_lost_error(s.error))
    ]
    if not failed:
        return None

    others = tuple(sorted(s.rank for s in known if not s.error))
    suspects = others if 2 * len(others) < len(known) else ()
    text = (
        f"{ranks_text(sorted(s.rank for s in failed))} failed in calls that "
        f"no dump shows ({failed[0].error}){_failure_locations(failed, views)}"
    )
    if suspects:
        text += f"; {ranks_text(suspects)} did not"
    view = next((views[r] for r in suspects if r in views), None)
    if view is not None and view.location is not None:
        doing = view.doing or "was"
        text += f": rank {view.rank} {doing} in {view.location.brief}"
    return Finding(
        cause=_failure_cause(failed),
        ranks=suspects,
        summary=text,
        confidence="possible",
        remedy="see what the ranks that did not fail were doing meanwhile"
        if others
        else "compare the lines at which they failed: each send needs its "
        "receive, and each key of the store a rank that sets it",
        location=view.location if view else None,
        evidence=(
            *(view.evidence if view else ()),
            *map(quote_error, failed[:4]),
        ),
    )


def _blame_lost_ranks(
    finding: Finding, views: HostViews, missing: Iterable[Missing]
) -> Finding:
    """
    Blame the ranks without a dump if all others lost a peer.

    A rank that fails leaves a dump and a reason; a killed one leaves none.
    """
    # A damaged dump has a source; a lost one has none.
    lost = sorted(
        m.rank
        for m in missing
        if m.what == "dump" and m.rank is not None and m.source is None
    )
    lost_views = [views[r] for r in lost]
    sidecars = views.flight.dumps.sidecars.values()
    others = [s for s in sidecars if s.rank not in lost]
    if (
        not (lost and others)
        or any(
            v.state in ALIVE_STATES or v.has_exited_cleanly or v.error
            for v in lost_views
        )
        or not all(is_peer_lost_error(s.error) for s in others)
    ):
        return finding

    verb = "it" if len(lost) == 1 else "them"
    blamed = attrs.evolve(
        finding,
        cause=Cause.RANK_CRASHED,
        ranks=tuple(lost),
        summary=f"{ranks_text(lost)} left no dump, and all others lost {verb}",
        confidence="likely",
        location=None,
        remedy=Cause.RANK_CRASHED.remedy,
    )
    return blamed.with_clause("and", finding)


def _failure_cause(failed: Sequence[Sidecar]) -> Cause:
    if any(_TIMEOUT_TEXT.search(s.error) for s in failed):
        return Cause.COLLECTIVE_TIMEOUT
    if all(is_peer_lost_error(s.error) for s in failed):
        return Cause.NETWORK_FAILURE
    return Cause.UNKNOWN


def _failure_locations(failed: Sequence[Sidecar], views: HostViews) -> str:
    """
    Return the lines of user code at which ranks failed.
    """
    known = [views[r] for r in sorted(s.rank for s in failed)]
    groups = group_by_key(filter(_get_place, known), _get_place)
    places = [
        group[0].place
        if len(groups) == 1
        else f"{group[0].place} ({_names(group)})"
        for group in groups[:_MAX_LOCATIONS]
    ]
    return f" at {', '.join(places)}" if places else ""


_get_place = attrgetter("place")


def _names(views: Iterable[HostView]) -> str:
    return ranks_text(v.rank for v in views)


def drop_waiting_ranks(finding: Finding, views: HostViews) -> Finding:
    """
    Drop ranks from an absence finding that wait in another call.

    Args:
        finding: Changed only if its cause is a rank that did not arrive.

        views: State of each rank on its host.

    Returns:
        The finding about the ranks that do not wait, and a call that waits for
        them; unchanged if all or none of them wait.
    """
    if finding.cause is not Cause.RANK_NOT_ARRIVED:
        return finding

    waiting = [
        r for r in finding.ranks if views[r].cause is Cause.COLLECTIVE_WAIT
    ]
    left = tuple(r for r in finding.ranks if r not in waiting)
    if not waiting or not left:
        return finding

    verb = "waits" if len(waiting) == 1 else "wait"
    tail = f"({ranks_text(waiting)} {verb} elsewhere, not on record)"
    call = find_awaiting_call(left, finding, views)
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


def find_awaiting_call(
    ranks: Sequence[int], finding: Finding, views: HostViews
) -> Wait | None:
    """
    Find a stuck call that waits for some of these ranks.

    Args:
        ranks: Global ranks.

        finding: The call of this finding is preferred.

        views: State of each rank on its host, with the stuck calls.

    Returns:
        The call; ``None`` if none waits for them.
    """
    waits = views.flight.waits
    theirs = [w for w in waits if not set(ranks).isdisjoint(w.awaited)]
    return min(theirs, key=lambda w: not is_about(finding, w), default=None)


def is_about(finding: Finding, wait: Wait) -> bool:
    """
    Return whether a finding is about this stuck call.
    """
    return (wait.group, wait.seq) == (
        finding.group and finding.group.name,
        finding.collective and finding.collective.seq,
    )


# Calls to one other rank, which Gloo does not record.
_P2P = late_pattern(r"i?(send|recv)\w*|batch_isend_irecv")
# Calls that all ranks of a group must make, and no backend records.
_COLLECTIVE_CALLS = {
    "init_device_mesh",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "split_group",
}
_UNRECORDED_REMEDY = (
    "see why the other side of this call does not answer; no dump shows it on "
    "Gloo"
)
_CONTRADICTION_REMEDY = (
    "either dump and stack are of different moments (then take both again), or "
    "the rank waits in a call that is not recorded: send and recv on Gloo, or "
    "a key of the store that another rank should set"
)
# At most this many calls with waiting ranks are listed.
_MAX_PARTIES = 3


def find_cross_wait(finding: Finding, views: HostViews) -> Finding | None:
    """
    Find ranks that wait for each other in two calls, one recorded.

    Args:
        finding: About ranks that never entered a call.

        views: State of each rank on its host.

    Returns:
        The finding, which blames the smaller party; ``None`` unless all absent
        ranks wait in the same unrecorded collective call.
    """
    call = _common_call(finding, views)
    wait = find_awaiting_call(finding.ranks, finding, views)
    if wait is None or wait.p2p or call not in _COLLECTIVE_CALLS:
        return None

    parties = [
        (
            [r for r in wait.waiting if r not in finding.ranks],
            _call_text(finding),
        ),
        (list(finding.ranks), call),
    ]
    few, many = sorted((members for members, _ in parties), key=len)
    is_open = len(few) == len(many)
    ranks = tuple(sorted([*few, *many] if is_open else few))
    rank_views = [views[r] for r in (few[0], many[0]) if r in views]
    return attrs.evolve(
        finding,
        cause=Cause.TYPE_MISMATCH,
        ranks=ranks,
        confidence="possible" if is_open else "likely",
        summary=_parties_text(parties, views),
        location=rank_views[0].location,
        evidence=(
            *(e for v in rank_views for e in v.evidence),
            *finding.evidence,
        ),
        remedy=f"look for a branch that leaves out {call} or {wait.op}, or "
        "makes them in another order, on some ranks only",
    )


def _parties_text(
    parties: Iterable[tuple[Sequence[int], str]], views: HostViews
) -> str:
    """
    Return where each party waits, the smaller one first.
    """
    return ", while ".join(
        f"{ranks_text(ranks)} {'are' if len(ranks) > 1 else 'is'} in {call}"
        + _at_location(views[r] for r in ranks)
        for ranks, call in sorted(parties, key=lambda party: len(party[0]))
    )


def _common_call(finding: Finding, views: HostViews) -> str:
    """
    Return the one call in which all absent ranks wait; empty if there is none.
    """
    known = [views[rank] for rank in finding.ranks]
    calls = {v.torch_call if v.is_peer_wait else "" for v in known}
    return calls.pop() if len(calls) == 1 else ""


def note_waits_elsewhere(
    finding: Finding, rank_views: Sequence[HostView]
) -> Finding | None:
    """
    Note on an absence finding that its ranks wait themselves.

    Args:
        finding: About ranks that never entered a call.

        rank_views: Known states of these ranks.

    Returns:
        The finding, now only possible; ``None`` if the first rank with a known
        location does not wait.
    """
    first = next((v for v in rank_views if v.location), None)
    views = [v for v in rank_views if _is_contradicted(finding, v)]
    if first not in views:
        return None

    # Ranks in one call may be in different functions of torch.
    groups = group_by_key(views, lambda v: v.torch_call or (v.doing,))
    parties = groups[:_MAX_PARTIES]
    is_p2p = all(_P2P.fullmatch(group[0].torch_call) for group in groups)
    return finding.with_clause(
        "but",
        ", ".join(map(_describe_wait, parties)),
        confidence="possible",
        location=views[0].location,
        evidence=[e for group in parties for e in group[0].evidence],
        remedy=_UNRECORDED_REMEDY if is_p2p else _CONTRADICTION_REMEDY,
    )


def _is_contradicted(finding: Finding, view: HostView) -> bool:
    # A single absent rank in a store wait is still absent; several absent
    # ranks in it wait for another one.
    if len(finding.ranks) == 1:
        return view.cause is Cause.COLLECTIVE_WAIT
    return view.is_peer_wait


def _describe_wait(views: Sequence[HostView]) -> str:
    first, verb = views[0], "is" if len(views) == 1 else "are"
    call, doing = first.torch_call, first.doing.removeprefix("is ")
    what = f"waiting in {call}" if call else doing
    return f"{_names(views)} {verb} {what}{_at_location(views)}"


def _at_location(views: Iterable[HostView]) -> str:
    place = next(filter(None, map(_get_place, views)), "")
    return f" at {place}" if place else ""


_RELEASE_LOCK = (
    "let go of the lock before a call that waits for other ranks, which want "
    "to take it, too"
)
_CHECK_LOCK_HOLDER = "see why it does not let go of the lock"


def blame_lock_holder(finding: Finding, views: HostViews) -> Finding | None:
    """
    Blame the rank that holds the file lock the others wait for.

    Args:
        finding: About ranks that never entered a call.

        views: State of each rank on its host.

    Returns:
        The finding; ``None`` unless one rank holds the lock all others wait
        for.
    """
    blocked = [
        views[r] for r in finding.ranks if views[r].lock_holder is not None
    ]
    lock_holder = blocked[0].lock_holder if blocked else None
    stuck = [v for v in blocked if v.rank != lock_holder]
    others = {*finding.ranks} - {lock_holder}
    if (
        lock_holder is None
        or not stuck  # it waits for another lock of its own process
        or {v.lock_holder for v in blocked} != {lock_holder}
        or {v.rank for v in stuck} != others
    ):
        return None

    verb = "waits" if len(stuck) == 1 else "wait"
    view = views[lock_holder]
    wait = find_awaiting_call([v.rank for v in stuck], finding, views)
    is_circle = wait is not None and lock_holder in wait.waiting
    if is_circle:
        doing = f"waits for them in {_call_text(finding)}"
    else:
        doing = view.doing or "does not let go of it"
    return attrs.evolve(
        finding,
        cause=Cause.LOCK_DEADLOCK if is_circle else finding.cause,
        ranks=(lock_holder,),
        summary=f"rank {lock_holder} holds the lock of a file that "
        f"{_names(stuck)} {verb} for"
        f"{_in_location(stuck[0])}, and {doing}{_in_location(view)}",
        detail_cause=None if is_circle else view.cause,
        location=view.location,
        evidence=(*stuck[0].evidence, *view.evidence, *finding.evidence),
        remedy=_RELEASE_LOCK
        if is_circle
        else view.remedy or _CHECK_LOCK_HOLDER,
    )


def _in_location(view: HostView) -> str:
    return f" in {view.place}" if view.place else ""


_ENDED_EARLY_REMEDY = (
    "see why these ranks made fewer calls: a batch less, an early return, an "
    "exception that was caught; or why those that wait made one too many"
)
_LATE_THEN_WAITING = (Cause.STRAGGLER, Cause.COLLECTIVE_WAIT)


def refine(diagnosis: Diagnosis, views: HostViews) -> Diagnosis:
    """
    Add to each finding what its ranks do on their hosts.

    Args:
        diagnosis: By the dumps alone.

        views: State of each rank on its host.
    """
    dumps = views.flight.dumps
    if all_exited_cleanly(dumps) and not any(v.state for v in views.values()):
        diagnosis = _drop_finished_waits(diagnosis, dumps)
    findings = [_refine_finding(f, views) for f in diagnosis.findings]
    findings.sort(key=lambda f: f.cause.is_fine)
    crash = find_first_crash(views)
    if crash is not None:
        findings = _put_crash_first(crash, findings)

    return attrs.evolve(
        diagnosis,
        verdict=findings[0] if findings else diagnosis.verdict,
        findings=tuple(findings),
        victims=_find_victims(diagnosis, findings, views),
    )


def _refine_finding(finding: Finding, views: HostViews) -> Finding:
    if finding.cause is Cause.RANK_NOT_ARRIVED:
        if _has_arrived_since(finding, views.flight.waits):
            return finding
        for explain in (find_cross_wait, blame_lock_holder):
            if (found := explain(finding, views)) is not None:
                return found

    left = drop_waiting_ranks(finding, views)
    return _note_slow_ranks(_add_host_reason(left, views), views)


def _has_arrived_since(finding: Finding, waits: Sequence[Wait]) -> bool:
    """
    Return whether the absent ranks are in the call by now.
    """
    return any(
        is_about(finding, w) and {*finding.ranks} <= {*w.waiting}
        for w in waits
    )


def _find_victims(
    diagnosis: Diagnosis,
    findings: Sequence[Finding],
    views: HostViews,
) -> tuple[int, ...]:
    if not findings:
        return diagnosis.victims

    victims = set(diagnosis.victims)
    victims.update(
        v.rank for v in views.values() if v.lock_holder in findings[0].ranks
    )
    if findings[0].cause is Cause.TYPE_MISMATCH:
        # The ranks that the dumps blame may be victims.
        victims.update(diagnosis.verdict.ranks)
    return tuple(sorted(victims.difference(findings[0].ranks)))


def _drop_finished_waits(diagnosis: Diagnosis, dumps: Dumps) -> Diagnosis:
    """
    Drop the waits of a job that exited cleanly since.
    """
    findings = tuple(
        f
        for f in diagnosis.findings
        # These count even if the job ended without an error.
        if f.cause.is_mismatch or f.cause.is_lag
    )
    healthy = Finding(
        cause=Cause.HEALTHY,
        ranks=(),
        summary="the job ended without an error on "
        f"{ranks_text(dumps.sidecars)}",
        # Sidecars do not record the exit code.
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


def _put_crash_first(crash: Finding, findings: list[Finding]) -> list[Finding]:
    """
    Put the crash of a rank first, as the reason why others wait for it.
    """
    explained = [
        f
        for f in findings
        if f.cause.is_absence and set(crash.ranks) <= set(f.ranks)
    ]
    if not explained:
        return [crash, *findings]

    f = explained[0]
    crash = crash.with_clause(
        "and",
        f"the others wait for it in {_call_text(f)}",
        group=f.group,
        collective=f.collective,
        behind=f.evidence,
    )
    return [crash, *(f for f in findings if f.ranks != crash.ranks)]


def _add_host_reason(finding: Finding, views: HostViews) -> Finding:
    rank_views = [views[r] for r in finding.ranks]
    if not finding.cause.is_absence:
        return _add_location(finding, rank_views)

    exited = [v.rank for v in rank_views if v.has_exited_cleanly]
    if exited:
        return _note_clean_exits(finding, exited)

    if finding.cause is Cause.RANK_CRASHED:
        return _check_alive(finding, rank_views)

    first = next((v for v in rank_views if v.location), None)
    if first is None:
        return finding

    contradicted = note_waits_elsewhere(finding, rank_views)
    if contradicted is not None:
        return contradicted

    doing = first.doing or "is"
    return finding.with_clause(
        "doing",
        f"rank {first.rank} {doing} in {first.place}"
        f"{blocked_text(first.activity)}{_describe_others(first, rank_views)}",
        activity=first.activity if first.doing else None,
        remedy=first.remedy or "see why it does not get past that line",
        detail_cause=first.cause,
        location=first.location,
        evidence=first.evidence,
    )


# What ends by itself, sooner or later.
_MAY_END = frozenset(
    {
        *(Cause.CHECKPOINTING, Cause.COMPILING, Cause.DATALOADER_WAIT),
        *(Cause.FUTURE_WAIT, Cause.IO_WAIT, Cause.NATIVE_SPIN),
        *(Cause.PYTHON_LOOP, Cause.SLEEPING, Cause.SUBPROCESS_WAIT),
    }
)


def _note_slow_ranks(finding: Finding, views: HostViews) -> Finding:
    """
    Take absent ranks for slow if they seem to work, or were as late before.
    """
    absent = [views[r] for r in finding.ranks]
    waited_s = finding.waited_s
    if finding.cause is not Cause.RANK_NOT_ARRIVED or not absent:
        return finding

    may_end = (v.state == "running" and v.cause in _MAY_END for v in absent)
    before = 0
    if waited_s is not None and all(may_end):
        dumps = views.flight.dumps
        before = count_pauses(dumps, finding.waiting, waited_s)
    if before:
        often = "once" if before == 1 else f"{before:,} times"
        finding = finding.with_clause(
            "but",
            f"the others have been as long without a call {often} before",
        )
    works = (
        v.cause is Cause.PROGRESSING
        or (v.process is not None and v.process.may_work(waited_s))
        for v in absent
    )
    if not (before or all(works)):
        return finding
    return attrs.evolve(
        finding,
        cause=Cause.PROGRESSING,
        confidence="possible",
        remedy=LOOK_AGAIN,
    )


def _describe_others(first: HostView, rank_views: Sequence[HostView]) -> str:
    """
    Describe the other ranks where they do something else.
    """
    others = (
        v
        for v in rank_views
        if v.place and (v.doing, v.location) != (first.doing, first.location)
    )
    groups = group_by_key(others, lambda v: (v.doing, v.place))
    return "".join(
        f"; {_names(group)} {conjugate(group, group[0].doing or 'is')} in "
        f"{group[0].place}"
        for group in groups[:_MAX_PARTIES]
    )


def _note_clean_exits(finding: Finding, exited: Sequence[int]) -> Finding:
    """
    Note that absent ranks ended without an error, and did not crash.
    """
    finding = finding.with_clause(
        "and", f"{ranks_text(exited)} had ended without an error"
    )
    if len(exited) < len(finding.ranks):
        return finding

    is_few = finding.group is not None and 2 * len(exited) < len(
        finding.group.ranks
    )
    return attrs.evolve(
        finding,
        cause=Cause.RANK_NOT_ARRIVED,
        # If most ranks exited, the waiting ranks more likely made a call too
        # many.
        confidence=finding.confidence if is_few else "possible",
        remedy=_ENDED_EARLY_REMEDY,
    )


def _add_location(finding: Finding, rank_views: list[HostView]) -> Finding:
    """
    Add the code location of a rank at fault that did arrive.
    """
    view = next((v for v in rank_views if v.location), None)
    # Of a straggler, dumps show only which call it enters late.
    is_known = finding.location and not finding.cause.is_lag
    if view is None or is_known:
        return finding
    # A rank that is late now and then mostly waits like all others.
    if (finding.cause, view.cause) == _LATE_THEN_WAITING:
        return finding

    return attrs.evolve(
        finding,
        location=view.location,
        evidence=(*finding.evidence, *view.evidence),
    )


def _check_alive(finding: Finding, rank_views: list[HostView]) -> Finding:
    """
    Change a crash to an absence if the process of the rank is alive.
    """
    alive = [v for v in rank_views if v.state in ALIVE_STATES]
    if not alive:
        return finding

    stopped = [v for v in alive if v.state == "stopped"]
    named = stopped or alive
    ranks = tuple(v.rank for v in named)
    others = [r for r in finding.ranks if r not in ranks]
    verb = "is" if len(ranks) == 1 else "are"
    rest = f" (nor did {ranks_text(others)})" if others else ""
    first = next((v for v in named if v.location), named[0])
    doing = f"; rank {first.rank} {first.doing}" if first.doing else ""
    if doing and first.location:
        doing += f" in {first.place}{blocked_text(first.activity)}"
    waits = _waits_text(finding, "it" if len(ranks) == 1 else "them")
    return attrs.evolve(
        finding,
        cause=Cause.STOPPED if stopped else Cause.RANK_NOT_ARRIVED,
        ranks=ranks,
        confidence="likely",
        summary=f"{ranks_text(ranks)} {verb} "
        f"{'stopped' if stopped else 'alive'}, and gave no dump{rest}"
        f"{'' if stopped else doing}{waits}",
        detail_cause=None if stopped else first.cause,
        location=first.location,
        evidence=(*first.evidence, *finding.evidence),
        remedy=_alive_remedy(first, is_stopped=bool(stopped)),
    )


def _waits_text(finding: Finding, them: str) -> str:
    """
    Say who waits for the ranks of a finding, after a semicolon; ``""`` if none do.
    """
    if not finding.waiting:
        return ""
    where = f" for {them} in {_call_text(finding)}"
    text = waiting_text(len(finding.waiting), finding.waited_s, where)
    return f"; {text}"


def _call_text(finding: Finding) -> str:
    return f"{finding.collective} of group {str(finding.group)!r}"


def _alive_remedy(view: HostView, *, is_stopped: bool) -> str:
    if is_stopped:
        return "let it go on (kill -CONT), or find who stopped it"
    if view.location:
        return view.remedy or "see why it does not get past that line"

    return "take its stacks: it could not answer when it was asked for a dump"
