"""
Explain why a job hangs, from the stacks of all its processes.

Most ranks of a hung job are victims: they wait for others.  Ranks that are
somewhere else are reported first.
"""

from __future__ import annotations

import os

from collections.abc import Hashable, Iterable, Sequence

import attrs

from ..findings import Cause, Confidence, Finding
from ..ranks import fold_ranks
from .explain_process import (
    ProcessExplainer,
    find_operation,
    is_p2p_operation,
    is_receiving,
)
from .formats.cuda import add_kernels
from .frame_origin import SourceLines, find_user_frame, to_location
from .jobs import (
    ProcessTree,
    build_process_tree,
    drop_foreign_processes,
    split_jobs,
)
from .merge import group_by_key
from .model import ProcessStacks, ThreadActivity, ThreadStack
from .motion import Motion
from .process_view import (
    ProcessView,
    conjugate,
    describe_views,
    describe_waiting,
    make_evidence,
    make_finding,
    name_processes,
)
from .rules import RuleBook, read_rules


_MOST_PLACES = 4
_MOST_RANKS = 1 << 20

Views = Sequence[ProcessView]


def explain_common_wait(waiting: Views) -> Iterable[Finding]:
    """
    Explain a job in which all ranks wait in a collective or a message.
    """
    absent = _absent_ranks_text([v.process for v in waiting])
    if all(map(is_receiving, waiting)) and len(waiting) > 1:
        summary = (
            f"{describe_views(waiting)}: all wait to receive, and nobody sends"
        )
        changes = {
            "cause": Cause.P2P_DEADLOCK,
            "summary": summary,
            "confidence": "possible",
            "remedy": "compare the order of sends and receives on these "
            "ranks; with NCCL, dumps show which were not matched",
        }
        yield make_finding(waiting, changes=changes)
        return

    # A rank that receives may wait for a pipeline stage that is itself stuck.
    groups = _group_by_location(
        [v for v in waiting if not is_receiving(v)] or waiting
    )
    mismatches = [
        g for g in map(_group_by_location, _group_peers(waiting)) if len(g) > 1
    ]
    if mismatches:
        yield _mismatch_finding(mismatches[0])
        return

    for group in groups:
        tail = f"; {absent}" if absent else _completeness_note(group, waiting)
        yield make_finding(
            group, tail=tail, changes=_wait_summary(group, tail)
        )


def _wait_summary(group: Views, tail: str) -> dict[str, object]:
    op = find_operation(group[0])
    if group[0].cause is not Cause.COLLECTIVE_WAIT or not op:
        return {}
    processes = [v.process for v in group]
    location = group[0].location
    place = f" in {location.brief}" if location else ""
    doing = conjugate(processes, f"is waiting in {op}{place}")
    return {"summary": f"{name_processes(processes)} {doing}{tail}"}


def _completeness_note(group: Views, waiting: Views) -> str:
    sizes = {v.process.world_size for v in waiting}
    if sizes == {len(group)} and len(group) > 1:
        return "; nobody is missing"
    return ""


def _mismatch_finding(groups: Sequence[Views]) -> Finding:
    """
    Report that peers are in different calls, which may or may not be wrong.
    """
    ordered = sorted(groups, key=len)
    total = sum(map(len, ordered))
    has_minority = 2 * len(ordered[0]) < total
    outliers = (
        ordered[0] if has_minority else [v for group in ordered for v in group]
    )
    parts = []
    for group in ordered[::-1][:_MOST_PLACES]:
        processes = [v.process for v in group]
        location = group[0].location
        op = find_operation(group[0]) or "another collective"
        place = f" in {location.brief}" if location else ""
        doing = conjugate(processes, f"is waiting in {op}")
        parts.append(f"{name_processes(processes)} {doing}{place}")
    ops = [find_operation(group[0]) for group in ordered]
    what = "calls" if any(map(is_p2p_operation, ops)) else "collectives"
    changes = {
        "summary": f"ranks are in different {what}: {'; '.join(parts)}",
        "confidence": "possible",
        "location": ordered[0][0].location,
    }
    return make_finding(outliers, changes=changes)


def _group_by_location(views: Views) -> Sequence[Views]:
    return group_by_key(views, lambda v: (find_operation(v), v.location))


def _group_peers(views: Views) -> Sequence[Views]:
    """
    Group ranks that should be in the same call: one group per pipeline stage.
    """

    def stage(view: ProcessView) -> Hashable:
        return tuple(
            (name, place)
            for name, place in view.process.coordinates
            if name not in {"tp", "sp", "ep"}
        )

    return group_by_key(views, stage)


def _absent_ranks_text(processes: Sequence[ProcessStacks]) -> str:
    """
    Name the ranks without a stack, if the world size is known.
    """
    size = max((p.world_size or 0 for p in processes), default=0)
    ranks = {p.rank for p in processes if p.rank is not None}
    if not ranks or size > _MOST_RANKS or len(ranks) >= size:
        return ""

    absent = [rank for rank in range(size) if rank not in ranks]
    word = "rank" if len(absent) == 1 else "ranks"
    verb = "was" if len(absent) == 1 else "were"
    return f"{word} {fold_ranks(absent)} of {size} {verb} not seen"


_WAITS_FOR_PEERS = frozenset(
    {Cause.COLLECTIVE_WAIT, Cause.RENDEZVOUS_WAIT, Cause.GPU_SYNC_WAIT}
)


def explain_progress(views: Views) -> tuple[Finding, ...]:
    """
    Report that a job makes progress, and the ranks that the others wait for.

    Returns:
        One finding, or none if the job does not move.
    """
    busy = [v for v in views if v.cause is not Cause.IDLE]
    waiting = [v for v in busy if v.cause in _WAITS_FOR_PEERS]
    moves = [v for v in waiting or busy if v.motion is Motion.MOVING]
    if not moves or 2 * len(moves) < len(waiting or busy):
        return ()
    if not waiting and len(moves) < len(busy):
        return ()

    slow = [v for v in busy if v not in waiting and _stays_in_function(v)]
    slow = slow if waiting else []
    slow = slow if 2 * len(slow) < len(busy) else []
    processes = [v.process for v in views]
    text = (
        f"{name_processes(processes)} "
        f"{conjugate(processes, 'is moving')}: slow at "
    )
    text += "most, not stuck"
    if slow:
        text += (
            "; the others wait for "
            f"{name_processes([v.process for v in slow])}"
        )
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
    return (make_finding(slow or moves, changes=changes),)


def _stays_in_function(view: ProcessView) -> bool:
    """
    Return whether a rank was in the same function in every sample.
    """
    activity = view.thread.activity if view.thread else None
    return activity is not None and activity.has_left is False


# How long a busy disk may take.
_SHORT_WAIT_S = 1.0
_LONG_WAIT_S = 10.0


def explain_state(
    process: ProcessStacks, book: RuleBook
) -> ProcessView | None:
    """
    Explain a process that is dead, stopped, or blocked in the kernel.

    Args:
        book: Provides the texts and remedies of causes.

    Returns:
        ``None`` if the process is none of these.
    """
    found = _state_cause(process)
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
        location=to_location(find_user_frame(thread.frames))
        if thread
        else None,
        confidence=confidence,
        remedy=book.remedy.get(cause, ""),
    )


def note_ended_main_thread(
    process: ProcessStacks, view: ProcessView | None, book: RuleBook
) -> ProcessView | None:
    """
    Add a note that the main thread has ended while other threads live.

    Args:
        view: The explanation by its threads; ``None`` if there is none.

        book: Provides the texts and remedies of causes.
    """
    if process.state != "Z" or not _has_live_thread(process.threads):
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


def _state_cause(
    process: ProcessStacks,
) -> tuple[Cause, str, Confidence] | None:
    tracer = process.tracer_pid
    if process.state == "Z" and not _has_live_thread(process.threads):
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
        return _uninterruptible_cause(main)
    return None


def _has_live_thread(threads: Iterable[ThreadStack]) -> bool:
    # The main thread may end before the others.
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


def _uninterruptible_cause(
    main: ThreadStack | None,
) -> tuple[Cause, str, Confidence] | None:
    """
    Return the cause if a process is in the kernel longer than a disk needs.
    """
    doing = ""
    call = main.system_call if main is not None else None
    if call is not None and call.name != "running":
        doing = f"cannot be interrupted while it waits in the kernel: {call}"
    activity = main.activity if main is not None else None
    idle_s = main.idle_s if main is not None else None
    if activity is not None and _has_run(activity):
        return None
    is_short = activity is None or activity.seconds < _SHORT_WAIT_S
    if idle_s is not None and idle_s < _SHORT_WAIT_S and is_short:
        return None
    if activity is not None or (idle_s is not None and idle_s > _LONG_WAIT_S):
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
_IDLE_OR_UNKNOWN = frozenset(
    {Cause.IDLE, Cause.EVENT_LOOP_IDLE, Cause.UNKNOWN}
)


def add_worker_activity(
    view: ProcessView, tree: ProcessTree, explainer: ProcessExplainer
) -> ProcessView:
    """
    Add what the child processes of a waiting rank do.

    Args:
        view: The explanation of the rank.

        tree: The processes of the job.

        explainer: Explains single processes.

    Returns:
        The same view; if the rank waits for a child that is busy or dead, with
        the activity of that child.
    """
    if view.cause not in _WAITS_FOR_CHILDREN:
        return view

    is_loader = view.cause is Cause.DATALOADER_WAIT
    children = [
        child
        for child in tree.children_of(view.process)[:_MOST_WORKERS]
        if child.role != "compile"
        and (child.role != "child" or not is_loader or child.threads)
    ]
    child_views = [
        found
        for child in children
        if (
            found := explain_state(child, explainer.book)
            or explainer.explain(child)
        )
    ]
    busy = [v for v in child_views if v.cause not in _IDLE_OR_UNKNOWN]
    if busy:
        return _add_worker(view, busy)
    if is_loader and child_views:
        many = (
            "worker is"
            if len(child_views) == 1
            else f"{len(child_views)} workers are"
        )
        return attrs.evolve(view, note=f"although its {many} idle")

    return view


def _add_worker(view: ProcessView, busy: Sequence[ProcessView]) -> ProcessView:
    worst = min(busy, key=_worker_priority)
    evidence = make_evidence(worst.process, worst.thread, worst.frame)
    view = attrs.evolve(view, evidence=(*view.evidence, evidence))
    place = f" in {worst.location.brief}" if worst.location else ""
    number = worst.process.pid
    if view.cause is not Cause.DATALOADER_WAIT or worst.location is None:
        kind = "worker" if view.cause is Cause.DATALOADER_WAIT else "child"
        activity = f"{kind}, process {number}, {worst.doing}{place}"
        return attrs.evolve(view, note=f"{view.note} (its {activity})".strip())

    # The worker's line is the one that the user can change.
    at = f" in {view.location.brief}" if view.location else ""
    waits = f"{view.doing}{at}"
    return attrs.evolve(
        view,
        doing=f"{waits}: its worker, process {number}, {worst.doing}",
        doing_of_many=f"{waits}: a worker of each {worst.doing}",
        location=worst.location,
        note=worst.note,
    )


def _worker_priority(view: ProcessView) -> tuple[bool, bool, int]:
    cannot_run = view.cause in {
        Cause.DEAD,
        Cause.STOPPED,
        Cause.UNINTERRUPTIBLE,
    }
    is_vague = view.cause in {Cause.PYTHON_LOOP, Cause.NATIVE_SPIN}
    return not cannot_run, is_vague, view.process.pid


_COLLECTIVE_WAITS = frozenset({Cause.COLLECTIVE_WAIT, Cause.RENDEZVOUS_WAIT})
_IDLE_CAUSES = frozenset({Cause.IDLE, Cause.EVENT_LOOP_IDLE})
# These causes are less specific than any wait.
_VAGUE_CAUSES = frozenset(
    {Cause.PYTHON_LOOP, Cause.NATIVE_SPIN, Cause.UNKNOWN}
)


def explain_job(
    processes: Sequence[ProcessStacks], explainer: ProcessExplainer
) -> tuple[Finding, ...]:
    """
    Find the causes of a hang in one job, the verdict first.

    Args:
        processes: All known processes of the job.

        explainer: Explains single processes.
    """
    tree = build_process_tree(processes)
    blocked, views = view_ranks(tree, explainer)
    if not blocked and (progress := explain_progress(views)):
        return progress

    waiting = describe_waiting(*_common_operation(views)) if blocked else ""
    first = [
        make_finding(group, tail=waiting)
        for group in group_by_key(blocked, lambda v: (v.cause, v.doing))
    ]
    running = _running_findings(views, tree, explainer)
    # Ranks in a collective wait for the ranks that cannot run.
    victims = {Cause.COLLECTIVE_WAIT, Cause.RENDEZVOUS_WAIT} if blocked else ()
    return (*first, *(f for f in running if f.cause not in victims))


def view_ranks(
    tree: ProcessTree, explainer: ProcessExplainer
) -> tuple[list[ProcessView], list[ProcessView]]:
    """
    Explain each rank together with its child processes.

    Args:
        tree: The processes of the job.

        explainer: Explains single processes.

    Returns:
        The ranks that cannot run (dead, stopped, or blocked in the kernel),
        and the others.
    """
    blocked: list[ProcessView] = []
    views: list[ProcessView] = []
    for process in tree.ranks:
        if (state := explain_state(process, explainer.book)) is not None:
            blocked.append(state)
            continue
        view = explainer.explain(process)
        view = note_ended_main_thread(process, view, explainer.book)
        if view is not None:
            joined = add_worker_activity(view, tree, explainer)
            views.append(add_kernels(joined, explainer.book))
    return blocked, views


def _running_findings(
    views: Views, tree: ProcessTree, explainer: ProcessExplainer
) -> Iterable[Finding]:
    waiting = [v for v in views if v.cause in _COLLECTIVE_WAITS]
    at_gpu = [v for v in views if v.cause is Cause.GPU_SYNC_WAIT]
    idle = [v for v in views if v.cause in _IDLE_CAUSES]
    known = {*map(id, (*waiting, *at_gpu, *idle))}
    others = [v for v in views if id(v) not in known]
    # A wait for the GPU may be an NCCL collective, or any other kernel.
    if others and (waiting or len(at_gpu) > len(others)):
        return _outlier_findings(others, [*waiting, *at_gpu])
    if others:
        return _independent_findings([*others, *at_gpu, *idle])
    if waiting and (at_gpu or idle):
        return _outlier_findings(at_gpu or idle, waiting)
    if waiting:
        return explain_common_wait(waiting)
    if at_gpu:
        return _independent_findings(at_gpu)
    return _idle_findings(idle, tree, explainer)


def _outlier_findings(outliers: Views, waiting: Views) -> Iterable[Finding]:
    """
    Report the ranks that are not where the others wait.
    """
    tail = describe_waiting(*_common_operation(waiting))
    stuck = [v for v in outliers if v.cause not in _VAGUE_CAUSES]
    for group in _sort_by_importance(outliers):
        is_uncertain = group[0].motion is Motion.MOVING or (
            bool(stuck) and group[0].cause in _VAGUE_CAUSES
        )
        changes = {"confidence": "possible"} if is_uncertain else {}
        yield make_finding(group, tail=tail, changes=changes)


def _independent_findings(views: Views) -> Iterable[Finding]:
    """
    Report each cause on its own, where no rank waits for another.
    """
    known = [v for v in views if v.cause is not Cause.UNKNOWN] or views
    still = [v for v in known if v.motion is not Motion.MOVING]
    for group in _sort_by_importance(still or known):
        # A rank that computes and blocks no other may finish soon.
        changes = (
            {"confidence": "possible"} if _may_be_computing(group) else {}
        )
        yield make_finding(group, changes=changes)


def _may_be_computing(group: Views) -> bool:
    return (
        group[0].cause in _VAGUE_CAUSES and group[0].motion is not Motion.STILL
    )


def _idle_findings(
    idle: Views, tree: ProcessTree, explainer: ProcessExplainer
) -> Iterable[Finding]:
    asking = [
        view
        for server in tree.servers
        if (view := explainer.explain(server)) is not None
        and view.cause is Cause.FUTURE_WAIT
    ]
    if asking and idle:
        tail = f"; {describe_views(idle)}: a message between them may be lost"
        yield make_finding(
            asking, tail=tail, changes={"confidence": "possible"}
        )
        return
    yield from (make_finding(g) for g in group_by_key(idle, _group_key))


def _common_operation(views: Views) -> tuple[Views, str]:
    waiting = [
        v
        for v in views
        if v.cause in {*_COLLECTIVE_WAITS, Cause.GPU_SYNC_WAIT}
    ]
    groups = sorted(group_by_key(waiting, find_operation), key=len)
    ops = {find_operation(g[0]) for g in groups}
    return waiting, ops.pop() if len(ops) == 1 else ""


def _sort_by_importance(views: Views) -> list[Views]:
    groups = group_by_key(views, _group_key)
    return sorted(groups, key=lambda g: (_importance(g[0]), len(g)))


def _importance(view: ProcessView) -> int:
    if view.cause is Cause.GIL_CONTENTION:
        return 0
    if view.cause in _IDLE_CAUSES:
        return 3
    return 2 if view.cause in _VAGUE_CAUSES else 1


def _group_key(view: ProcessView) -> Hashable:
    return view.cause, view.doing_of_many or view.doing, view.location


# A job with one of these causes is reported after a stuck job.
_HARMLESS_CAUSES = frozenset(
    {Cause.PROGRESSING, Cause.IDLE, Cause.EVENT_LOOP_IDLE}
)


def explain_stacks(
    stacks: Iterable[ProcessStacks],
    *,
    rules: Iterable[str | os.PathLike[str]] = (),
) -> tuple[Finding, ...]:
    """
    Explain why a job does not progress, and at which line.

    Processes that do the same at the same line are one finding.  Those that
    wait in a collective are victims and left out, unless there are no others.
    Child processes are reported with their parents.

    Args:
        stacks: Processes of one or several jobs; each job is explained on its
            own, if the processes can be attributed.

        rules: Files with rules that are tried before the built-in ones.

    Returns:
        The findings, the verdict first; empty if no stack explains anything.

    Raises:
        RulesError: A file of rules cannot be used.
    """
    explainer = ProcessExplainer(read_rules(rules), SourceLines())
    known = drop_foreign_processes(stacks)
    jobs = split_jobs(known)
    if len(jobs.keys() - {""}) < 2:
        return explain_job(known, explainer)

    found = [
        [_prefix_job(f, job) for f in explain_job(members, explainer)]
        for job, members in jobs.items()
    ]
    found.sort(key=lambda fs: not fs or fs[0].cause in _HARMLESS_CAUSES)
    return tuple(f for findings in found for f in findings)


def explain_ranks(
    stacks: Iterable[ProcessStacks],
    *,
    rules: Iterable[str | os.PathLike[str]] = (),
) -> tuple[ProcessView, ...]:
    """
    Explain what each rank does, whether it is a culprit or a victim.

    Args:
        stacks: Processes of one job.

        rules: Files with rules that are tried before the built-in ones.

    Returns:
        A view for each process that is not a child, with the activity of its
        children.  A process without a stack whose state is normal has none.

    Raises:
        RulesError: A file of rules cannot be used.
    """
    known = tuple(stacks)
    if not known and not rules:  # reading the built-in rules is slow
        return ()

    explainer = ProcessExplainer(read_rules(rules), SourceLines())
    blocked, running = view_ranks(build_process_tree(known), explainer)
    return (*blocked, *running)


def _prefix_job(found: Finding, job: str) -> Finding:
    if not job:
        return found

    return attrs.evolve(found, summary=f"job {job}: {found.summary}")
