"""
Which process is to blame, and which ones only wait?

What is seen without any stack comes first: the dead and the stopped.  Then
those that hold the lock of the interpreter; then everybody who is not where
the others wait; and only if there is nobody, the wait itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from ..findings import Cause, Finding
from .alike import group_alike
from .common_wait import judge_common_wait
from .family import Family, find_family
from .kernels import with_kernels
from .look import Looker
from .model import ProcessStacks
from .motion import Motion
from .operation import operation_of
from .progress import judge_progress
from .state import outlived_view, state_view
from .view import ProcessView
from .wording import finding, say, say_waiting
from .workers import with_workers


__all__ = ["judge", "views_of"]

_WAITS = frozenset({Cause.COLLECTIVE_WAIT, Cause.RENDEZVOUS_WAIT})
_IDLE = frozenset({Cause.IDLE, Cause.EVENT_LOOP_IDLE})
# These say less than any wait.
_VAGUE = frozenset({Cause.PYTHON_LOOP, Cause.NATIVE_SPIN, Cause.UNKNOWN})
_MOST_PLACES = 4

Views = Sequence[ProcessView]


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
    if not gone and (moving := judge_progress(views)):
        return moving

    waiting = say_waiting(*_where_all_wait(views)) if gone else ""
    first = [
        finding(group, tail=waiting)
        for group in group_alike(gone, lambda v: (v.cause, v.doing))
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
            continue
        view = looker.explain(process)
        view = outlived_view(process, view, looker.book)
        if view is not None:
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
        return judge_common_wait(waiting)
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
    yield from (finding(g) for g in group_alike(idle, _key))


def _where_all_wait(views: Views) -> tuple[Views, str]:
    waiting = [v for v in views if v.cause in {*_WAITS, Cause.GPU_SYNC_WAIT}]
    groups = sorted(group_alike(waiting, operation_of), key=len)
    ops = {operation_of(g[0]) for g in groups}
    return waiting, ops.pop() if len(ops) == 1 else ""


def _by_importance(views: Views) -> list[Views]:
    groups = group_alike(views, _key)
    return sorted(groups, key=lambda g: (_weight(g[0]), len(g)))


def _weight(view: ProcessView) -> int:
    if view.cause is Cause.GIL_CONTENTION:
        return 0
    if view.cause in _IDLE:
        return 3
    return 2 if view.cause in _VAGUE else 1


def _key(view: ProcessView) -> Hashable:
    return view.cause, view.doing_of_many or view.doing, view.location
