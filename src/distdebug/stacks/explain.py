"""
What do the stacks of a job say together?

Most ranks of a hung job wait for somebody, and are innocent.  Whoever is
somewhere else is looked at first.
"""

from __future__ import annotations

import os

from collections.abc import Hashable, Iterable, Sequence

import attrs

from ..findings import Cause, Confidence, Finding
from ..ranks import fold_ranks
from .formats.cuda import with_kernels
from .jobs import Family, find_family, split_jobs, without_strangers
from .merge import group_alike
from .model import ProcessStacks, ThreadActivity, ThreadStack
from .motion import Motion
from .places import SourceLines, user_frame, where
from .rules import RuleBook, read_rules
from .threads import Looker, is_message, is_receiving, operation_of
from .view import (
    ProcessView,
    agree,
    evidence_of,
    finding,
    names_of,
    say,
    say_waiting,
)


_MOST_PLACES = 4
_MOST_RANKS = 1 << 20

Views = Sequence[ProcessView]


def judge_common_wait(waiting: Views) -> Iterable[Finding]:
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
            "ranks; with NCCL, dumps show which were not matched",
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
    ops = [operation_of(group[0]) for group in ordered]
    what = "calls" if any(map(is_message, ops)) else "collectives"
    changes = {
        "summary": f"ranks are in different {what}: {'; '.join(said)}",
        "confidence": "possible",
        "location": ordered[0][0].location,
    }
    return finding(odd, changes=changes)


def _by_place(views: Views) -> Sequence[Views]:
    return group_alike(views, lambda v: (operation_of(v), v.location))


def _peers(views: Views) -> Sequence[Views]:
    """
    Those that should be in the same call: of stages of a pipeline, each alone.
    """

    def stage(view: ProcessView) -> Hashable:
        return tuple(
            (name, place)
            for name, place in view.process.coordinates
            if name not in {"tp", "sp", "ep"}
        )

    return group_alike(views, stage)


def _absent(processes: Sequence[ProcessStacks]) -> str:
    """
    Say which ranks were not seen, if that is known.
    """
    size = max((p.world_size or 0 for p in processes), default=0)
    seen = {p.rank for p in processes if p.rank is not None}
    if not seen or size > _MOST_RANKS or len(seen) >= size:
        return ""

    absent = [rank for rank in range(size) if rank not in seen]
    word = "rank" if len(absent) == 1 else "ranks"
    verb = "was" if len(absent) == 1 else "were"
    return f"{word} {fold_ranks(absent)} of {size} {verb} not seen"


_FOR_OTHERS = frozenset(
    {Cause.COLLECTIVE_WAIT, Cause.RENDEZVOUS_WAIT, Cause.GPU_SYNC_WAIT}
)


def judge_progress(views: Views) -> tuple[Finding, ...]:
    """
    Say that a job moves, if it does, and who the others wait for.
    """
    busy = [v for v in views if v.cause is not Cause.IDLE]
    waiting = [v for v in busy if v.cause in _FOR_OTHERS]
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


# So long a disk may take, if it is busy.
_SLOW_S = 1.0
_LONG_S = 10.0


def state_view(process: ProcessStacks, book: RuleBook) -> ProcessView | None:
    """
    Tell what the state of a process says about it.

    Args:
        process: The process.

        book: Says what to do about it.

    Returns:
        That it is dead, stopped, or waits in the kernel; ``None`` if it is
        none of these.
    """
    found = _cause(process)
    if found is None:
        return None

    cause, doing, confidence = found
    thread = process.main_thread
    return ProcessView(
        process=process,
        cause=cause,
        doing=doing or book.doing.get(cause, ""),
        thread=thread,
        frame=thread.frames[0] if thread and thread.frames else None,
        location=where(user_frame(thread.frames)) if thread else None,
        confidence=confidence,
        remedy=book.remedy.get(cause, ""),
    )


def outlived_view(
    process: ProcessStacks, view: ProcessView | None, book: RuleBook
) -> ProcessView | None:
    """
    Add that the main thread of a process has ended, and others have not.

    Args:
        process: The process.

        view: What its threads tell, if they tell anything.

        book: Says what to do about it.
    """
    if process.state != "Z" or not _has_life(process.threads):
        return view

    if view is None:
        return ProcessView(
            process=process,
            cause=Cause.UNKNOWN,
            doing="has ended its main thread, but not all others",
            remedy=book.remedy.get(Cause.UNKNOWN, ""),
        )
    note = f"{view.note} (its main thread has ended)".strip()
    return attrs.evolve(view, note=note)


def _cause(process: ProcessStacks) -> tuple[Cause, str, Confidence] | None:
    tracer = process.tracer_pid
    if process.state == "Z" and not _has_life(process.threads):
        doing = "has ended, and nobody asked for its exit status (a zombie)"
        return Cause.DEAD, doing, "certain"
    if process.state in {"X", "x"}:
        return Cause.DEAD, "is gone", "certain"
    if process.state == "t" or (process.state == "T" and tracer):
        who = f"process {tracer}, a debugger" if tracer else "a debugger"
        return Cause.STOPPED, f"is stopped by {who}", "certain"
    if process.state == "T":
        return Cause.STOPPED, "is stopped by a signal", "certain"
    main = process.main_thread
    if process.state == "D" or (main is not None and main.state == "D"):
        return _uninterruptible(main)
    return None


def _has_life(threads: Iterable[ThreadStack]) -> bool:
    # The first thread may end before the others do.
    return any(t.state and t.state not in "ZX" for t in threads)


def _has_run(activity: ThreadActivity) -> bool:
    return bool(
        activity.voluntary
        or activity.involuntary
        or activity.cpu_s > 0
        or activity.has_moved
        or activity.has_left
        or activity.has_new_values
    )


def _uninterruptible(
    main: ThreadStack | None,
) -> tuple[Cause, str, Confidence] | None:
    """
    Whether a process is in the kernel for longer than any disk needs.
    """
    doing = ""
    call = main.system_call if main is not None else None
    if call is not None and call.name != "running":
        doing = f"cannot be interrupted while it waits in the kernel: {call}"
    activity = main.activity if main is not None else None
    idle_s = main.idle_s if main is not None else None
    if activity is not None and _has_run(activity):
        return None
    is_short = activity is None or activity.seconds < _SLOW_S
    if idle_s is not None and idle_s < _SLOW_S and is_short:
        return None
    if activity is not None or (idle_s is not None and idle_s > _LONG_S):
        return Cause.UNINTERRUPTIBLE, doing, "certain"
    return Cause.UNINTERRUPTIBLE, doing, "likely"


_MOST_WORKERS = 64
_WAITS_FOR_CHILDREN = frozenset(
    {
        Cause.DATALOADER_WAIT,
        Cause.SUBPROCESS_WAIT,
        Cause.QUEUE_WAIT,
        Cause.FUTURE_WAIT,
    }
)
_IDLE = frozenset({Cause.IDLE, Cause.EVENT_LOOP_IDLE, Cause.UNKNOWN})


def with_workers(
    view: ProcessView, family: Family, looker: Looker
) -> ProcessView:
    """
    Join what a rank waits for with what its children do.

    Args:
        view: What the rank does.

        family: Who is whose child.

        looker: Explains single processes.

    Returns:
        The same view; of a rank that waits for a child that is busy or dead,
        with what that child does.
    """
    if view.cause not in _WAITS_FOR_CHILDREN:
        return view

    is_loader = view.cause is Cause.DATALOADER_WAIT
    children = [
        child
        for child in family.children_of(view.process)[:_MOST_WORKERS]
        if child.role != "compile"
        and (child.role != "child" or not is_loader or child.threads)
    ]
    seen = [
        found
        for child in children
        if (found := state_view(child, looker.book) or looker.explain(child))
    ]
    busy = [v for v in seen if v.cause not in _IDLE]
    if busy:
        return _joined(view, busy)
    if is_loader and seen:
        many = "worker is" if len(seen) == 1 else f"{len(seen)} workers are"
        return attrs.evolve(view, note=f"although its {many} idle")

    return view


def _joined(view: ProcessView, busy: Sequence[ProcessView]) -> ProcessView:
    worst = min(busy, key=_urgency)
    evidence = evidence_of(worst.process, worst.thread, worst.frame)
    view = attrs.evolve(view, evidence=(*view.evidence, evidence))
    place = f" in {worst.location.brief}" if worst.location else ""
    number = worst.process.pid
    if view.cause is not Cause.DATALOADER_WAIT or worst.location is None:
        kind = "worker" if view.cause is Cause.DATALOADER_WAIT else "child"
        said = f"{kind}, process {number}, {worst.doing}{place}"
        return attrs.evolve(view, note=f"{view.note} (its {said})".strip())

    # The line that a person can do something about is that of the worker.
    at = f" in {view.location.brief}" if view.location else ""
    waits = f"{view.doing}{at}"
    return attrs.evolve(
        view,
        doing=f"{waits}: its worker, process {number}, {worst.doing}",
        doing_of_many=f"{waits}: a worker of each {worst.doing}",
        location=worst.location,
        note=worst.note,
    )


def _urgency(view: ProcessView) -> tuple[bool, bool, int]:
    is_gone = view.cause in {Cause.DEAD, Cause.STOPPED, Cause.UNINTERRUPTIBLE}
    is_vague = view.cause in {Cause.PYTHON_LOOP, Cause.NATIVE_SPIN}
    return not is_gone, is_vague, view.process.pid


_WAITS = frozenset({Cause.COLLECTIVE_WAIT, Cause.RENDEZVOUS_WAIT})
_VERDICT_IDLE = frozenset({Cause.IDLE, Cause.EVENT_LOOP_IDLE})
# These say less than any wait.
_VAGUE = frozenset({Cause.PYTHON_LOOP, Cause.NATIVE_SPIN, Cause.UNKNOWN})


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
    idle = [v for v in views if v.cause in _VERDICT_IDLE]
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
    if view.cause in _VERDICT_IDLE:
        return 3
    return 2 if view.cause in _VAGUE else 1


def _key(view: ProcessView) -> Hashable:
    return view.cause, view.doing_of_many or view.doing, view.location


# A job that is so comes after one that is stuck.
_HARMLESS = frozenset({Cause.PROGRESSING, Cause.IDLE, Cause.EVENT_LOOP_IDLE})


def explain_stacks(
    stacks: Iterable[ProcessStacks],
    *,
    rules: Iterable[str | os.PathLike[str]] = (),
) -> tuple[Finding, ...]:
    """
    Why does this job not go on, and at which line?

    Processes that do the same at the same line are one finding.  Those that
    wait in a collective wait for the others, so they are left out unless
    there are no others; so are children, which are told by their parents.

    Args:
        stacks: Processes; those of several jobs are judged apart, if it is
            known whose they are.

        rules: Files of rules to be tried before our own.

    Returns:
        The findings, the verdict first; nothing if no stack tells anything.

    Raises:
        RulesError: A file of rules cannot be used.
    """
    looker = Looker(read_rules(rules), SourceLines())
    known = without_strangers(stacks)
    jobs = split_jobs(known)
    if len(jobs.keys() - {""}) < 2:
        return judge(known, looker)

    found = [
        [_of_job(f, job) for f in judge(members, looker)]
        for job, members in jobs.items()
    ]
    found.sort(key=lambda fs: not fs or fs[0].cause in _HARMLESS)
    return tuple(f for findings in found for f in findings)


def explain_ranks(
    stacks: Iterable[ProcessStacks],
    *,
    rules: Iterable[str | os.PathLike[str]] = (),
) -> tuple[ProcessView, ...]:
    """
    What is each rank doing, whoever is to blame?

    Args:
        stacks: Processes of one job.

        rules: Files of rules to be tried before our own.

    Returns:
        A view for each process that is nobody's child, joined with what its
        children do.  Those without any stack, and with nothing wrong about
        their state, have none.

    Raises:
        RulesError: A file of rules cannot be used.
    """
    known = tuple(stacks)
    if not known and not rules:  # to read our own takes a while
        return ()

    looker = Looker(read_rules(rules), SourceLines())
    gone, living = views_of(find_family(known), looker)
    return (*gone, *living)


def _of_job(found: Finding, job: str) -> Finding:
    if not job:
        return found

    return attrs.evolve(found, summary=f"job {job}: {found.summary}")
