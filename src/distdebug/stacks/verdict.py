"""
Which process is to blame, and which ones only wait?

What is seen without any stack comes first: the dead and the stopped.  Then
those that hold the lock of the interpreter; then everybody who is not where
the others wait; and only if there is nobody, the wait itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import attrs

from ..findings import Cause, Finding
from ..ranks import fold_ranks
from .family import Family, find_family
from .kernels import with_kernels
from .look import Looker
from .model import ProcessStacks
from .motion import Motion
from .operation import is_receiving, operation_of
from .state import state_view
from .view import ProcessView
from .wording import agree, finding, names_of, say, say_waiting
from .workers import with_workers


__all__ = ["judge", "views_of"]

_WAITS = frozenset({Cause.COLLECTIVE_WAIT, Cause.RENDEZVOUS_WAIT})
_IDLE = frozenset({Cause.IDLE, Cause.EVENT_LOOP_IDLE})
# These say less than any wait.
_VAGUE = frozenset({Cause.PYTHON_LOOP, Cause.NATIVE_SPIN, Cause.UNKNOWN})
_MOST_PLACES = 4

Views = Sequence[ProcessView]


def judge_all(
    processes: Sequence[ProcessStacks], looker: Looker
) -> tuple[Finding, ...]:
    """
    Say what is wrong with each job of a node, those that are stuck first.

    Args:
        processes: All that is known.

        looker: Explains single processes.
    """
    jobs = _by_job(processes)
    found = [
        [_of_job(f, job) for f in judge(members, looker)]
        if len(jobs) > 1
        else judge(members, looker)
        for job, members in jobs.items()
    ]
    harmless = {Cause.PROGRESSING, *_IDLE}
    found.sort(key=lambda fs: not fs or fs[0].cause in harmless)
    return tuple(f for findings in found for f in findings)


def _by_job(
    processes: Iterable[ProcessStacks],
) -> dict[str, list[ProcessStacks]]:
    known = list(processes)
    jobs = {(p.host, p.pid): p.job for p in known}
    by_job: dict[str, list[ProcessStacks]] = {}
    for process in known:
        # Children may have forgotten whose they are.
        job = process.job or jobs.get((process.host, process.parent_pid or 0))
        by_job.setdefault(job or "", []).append(process)
    if len(by_job) == 2 and "" in by_job:
        # Nobody contradicts that it is one job.
        return {"": known}
    return by_job


def _of_job(found: Finding, job: str) -> Finding:
    if not job:
        return found
    return attrs.evolve(found, summary=f"job {job}: {found.summary}")


def judge(
    processes: Sequence[ProcessStacks], looker: Looker
) -> tuple[Finding, ...]:
    """
    Say what is wrong, the verdict first.

    Args:
        processes: All that is known of a job.

        looker: Explains single processes.
    """
    family = find_family(processes)
    gone, views = views_of(family, looker)
    if not gone and (moving := _movement(views)):
        return moving

    waiting = say_waiting(*_where_all_wait(views)) if gone else ""
    first = [
        finding(group, tail=waiting)
        for group in _alike(gone, lambda v: (v.cause, v.doing))
    ]
    living = _of_the_living(views, family, looker)
    # Whoever waits, waits for the dead.
    innocent = {Cause.COLLECTIVE_WAIT, Cause.RENDEZVOUS_WAIT} if gone else ()
    return (*first, *(f for f in living if f.cause not in innocent))


def views_of(
    family: Family, looker: Looker
) -> tuple[list[ProcessView], list[ProcessView]]:
    """
    What is each rank doing, together with its children?

    Args:
        family: All that is known of a job.

        looker: Explains single processes.

    Returns:
        Those that cannot run, and the others.
    """
    gone: list[ProcessView] = []
    views: list[ProcessView] = []
    for process in family.ranks:
        if (state := state_view(process, looker.book)) is not None:
            gone.append(state)
        elif (view := looker.explain(process)) is not None:
            joined = with_workers(view, family, looker)
            views.append(with_kernels(joined, looker.book))
    return gone, views


def _of_the_living(
    views: Views, family: Family, looker: Looker
) -> Iterable[Finding]:
    waiting = [v for v in views if v.cause in _WAITS]
    at_gpu = [v for v in views if v.cause is Cause.GPU_SYNC_WAIT]
    idle = [v for v in views if v.cause in _IDLE]
    known = {*map(id, (*waiting, *at_gpu, *idle))}
    others = [v for v in views if id(v) not in known]
    # A collective of NCCL is waited for at the GPU; so is much else.
    if others and (waiting or len(at_gpu) > len(others)):
        return _of_outliers(others, [*waiting, *at_gpu])
    if others:
        return _of_own_causes([*others, *at_gpu, *idle])
    if waiting and (at_gpu or idle):
        return _of_outliers(at_gpu or idle, waiting)
    if waiting:
        return _of_waits(waiting)
    if at_gpu:
        return _of_own_causes(at_gpu)
    return _of_idle(idle, family, looker)


def _of_outliers(outliers: Views, waiting: Views) -> Iterable[Finding]:
    """
    Blame those that are not where the others wait.
    """
    tail = say_waiting(*_where_all_wait(waiting))
    stuck = [v for v in outliers if v.cause not in _VAGUE]
    for group in _by_importance(outliers):
        unsure = group[0].motion is Motion.MOVING or (
            bool(stuck) and group[0].cause in _VAGUE
        )
        changes = {"confidence": "possible"} if unsure else {}
        yield finding(group, tail=tail, changes=changes)


def _of_own_causes(views: Views) -> Iterable[Finding]:
    """
    Where nobody waits for anybody, everyone has a cause of their own.
    """
    known = [v for v in views if v.cause is not Cause.UNKNOWN] or views
    still = [v for v in known if v.motion is not Motion.MOVING]
    for group in _by_importance(still or known):
        # Who computes, and keeps nobody waiting, may be done in a moment.
        changes = {"confidence": "possible"} if _may_be_busy(group) else {}
        yield finding(group, changes=changes)


def _may_be_busy(group: Views) -> bool:
    return group[0].cause in _VAGUE and group[0].motion is not Motion.STILL


def _of_waits(waiting: Views) -> Iterable[Finding]:
    """
    Everybody waits: in the same call, or in several.
    """
    absent = _absent([v.process for v in waiting])
    if all(map(is_receiving, waiting)) and len(waiting) > 1:
        summary = f"{say(waiting)}: all wait to receive, and nobody sends"
        changes = {
            "cause": Cause.P2P_DEADLOCK,
            "summary": summary,
            "confidence": "possible",
            "remedy": "compare the order of sends and receives on these "
            "ranks; Flight Recorder dumps show which were not matched",
        }
        yield finding(waiting, changes=changes)
        return

    # A rank that receives may wait for a stage that is stuck itself.
    groups = _by_place([v for v in waiting if not is_receiving(v)] or waiting)
    apart = [g for g in map(_by_place, _peers(waiting)) if len(g) > 1]
    if apart:
        yield _mismatch(apart[0])
        return

    for group in groups:
        tail = f"; {absent}" if absent else _all_there(group, waiting)
        yield finding(group, tail=tail, changes=_worded(group, tail))


def _worded(group: Views, tail: str) -> dict[str, object]:
    op = operation_of(group[0])
    if group[0].cause is not Cause.COLLECTIVE_WAIT or not op:
        return {}
    processes = [v.process for v in group]
    where = group[0].location
    place = f" in {where.brief}" if where else ""
    doing = agree(processes, f"is waiting in {op}{place}")
    return {"summary": f"{names_of(processes)} {doing}{tail}"}


def _all_there(group: Views, waiting: Views) -> str:
    sizes = {v.process.world_size for v in waiting}
    if sizes == {len(group)} and len(group) > 1:
        return "; nobody is missing"
    return ""


def _mismatch(groups: Sequence[Views]) -> Finding:
    """
    Say that peers are in different calls, which may or may not be wrong.
    """
    ordered = sorted(groups, key=len)
    total = sum(map(len, ordered))
    is_odd = 2 * len(ordered[0]) < total
    odd = ordered[0] if is_odd else [v for group in ordered for v in group]
    said = []
    for group in ordered[::-1][:_MOST_PLACES]:
        processes = [v.process for v in group]
        where = group[0].location
        op = operation_of(group[0]) or "another collective"
        place = f" in {where.brief}" if where else ""
        doing = agree(processes, f"is waiting in {op}")
        said.append(f"{names_of(processes)} {doing}{place}")
    changes = {
        "summary": f"ranks are in different collectives: {'; '.join(said)}",
        "confidence": "possible",
        "location": ordered[0][0].location,
    }
    return finding(odd, changes=changes)


def _of_idle(idle: Views, family: Family, looker: Looker) -> Iterable[Finding]:
    asking = [
        view
        for server in family.servers
        if (view := looker.explain(server)) is not None
        and view.cause is Cause.FUTURE_WAIT
    ]
    if asking and idle:
        tail = f"; {say(idle)}: a message between them may be lost"
        yield finding(asking, tail=tail, changes={"confidence": "possible"})
        return
    yield from (finding(g) for g in _alike(idle, _key))


def _movement(views: Views) -> tuple[Finding, ...]:
    """
    Say that a job moves, if it does, and who the others wait for.
    """
    busy = [v for v in views if v.cause is not Cause.IDLE]
    waiting = [v for v in busy if v.cause in {*_WAITS, Cause.GPU_SYNC_WAIT}]
    moves = [v for v in waiting or busy if v.motion is Motion.MOVING]
    if not moves or 2 * len(moves) < len(waiting or busy):
        return ()
    if not waiting and len(moves) < len(busy):
        return ()

    slow = [v for v in busy if v not in waiting and _stays(v)]
    slow = slow if waiting else []
    slow = slow if 2 * len(slow) < len(busy) else []
    processes = [v.process for v in views]
    text = f"{names_of(processes)} {agree(processes, 'is moving')}: slow at "
    text += "most, not stuck"
    if slow:
        text += f"; the others wait for {names_of([v.process for v in slow])}"
        place = slow[0].location
        text += f" in {place.brief}" if place else ""
    ranks = tuple(v.process.rank for v in slow if v.process.rank is not None)
    changes = {
        "cause": Cause.PROGRESSING,
        "ranks": ranks,
        "summary": text,
        "confidence": "likely",
        "remedy": "if it is too slow, look at who the others wait for",
    }
    return (finding(slow or moves, changes=changes),)


def _stays(view: ProcessView) -> bool:
    """
    Whether a rank was in the same function at every look.
    """
    activity = view.thread.activity if view.thread else None
    return activity is not None and activity.has_left is False


def _where_all_wait(views: Views) -> tuple[Views, str]:
    waiting = [v for v in views if v.cause in {*_WAITS, Cause.GPU_SYNC_WAIT}]
    groups = sorted(_alike(waiting, operation_of), key=len)
    ops = {operation_of(g[0]) for g in groups}
    return waiting, ops.pop() if len(ops) == 1 else ""


def _by_importance(views: Views) -> list[Views]:
    groups = _alike(views, _key)
    return sorted(groups, key=lambda g: (_weight(g[0]), len(g)))


def _weight(view: ProcessView) -> int:
    if view.cause is Cause.GIL_CONTENTION:
        return 0
    if view.cause in _IDLE:
        return 3
    return 2 if view.cause in _VAGUE else 1


def _key(view: ProcessView) -> Hashable:
    return view.cause, view.doing, view.location


def _by_place(views: Views) -> list[Views]:
    return _alike(views, lambda v: (operation_of(v), v.location))


def _peers(views: Views) -> list[Views]:
    """
    Those that should be in the same call: of stages of a pipeline, each alone.
    """

    def stage(view: ProcessView) -> Hashable:
        return tuple(
            (name, place)
            for name, place in view.process.coordinates
            if name not in {"tp", "sp", "ep"}
        )

    return _alike(views, stage)


def _alike(
    views: Views, key: Callable[[ProcessView], Hashable]
) -> list[Views]:
    groups: dict[Hashable, list[ProcessView]] = {}
    for view in views:
        groups.setdefault(key(view), []).append(view)
    return list(groups.values())


def _absent(processes: Sequence[ProcessStacks]) -> str:
    """
    Say which ranks were not seen, if that is known.
    """
    size = max((p.world_size or 0 for p in processes), default=0)
    seen = {p.rank for p in processes if p.rank is not None}
    if not seen or size > 1 << 20 or len(seen) >= size:
        return ""

    absent = [rank for rank in range(size) if rank not in seen]
    word = "rank" if len(absent) == 1 else "ranks"
    verb = "was" if len(absent) == 1 else "were"
    return f"{word} {fold_ranks(absent)} of {size} {verb} not seen"
