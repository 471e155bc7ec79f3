"""
Explain why a job hangs, from the stacks of all its processes.

Most ranks of a hung job are victims: they wait for others.  Ranks that are
somewhere else are reported first.
"""

from __future__ import annotations

import os

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

import attrs

from .._lazy import late_pattern
from ..causes import Cause, Trait
from ..findings import Finding
from ..processes import ENDED_STATES
from ..ranks import ranks_text
from ..usercode import (
    find_fork,
    is_user_frame,
    to_location,
)
from .explain_process import (
    ProcessExplainer,
    find_operation,
    is_p2p_operation,
    is_receiving,
    is_sending,
)
from .jobs import (
    ProcessTree,
    build_process_tree,
    drop_foreign_processes,
    split_jobs,
)
from .merge import group_by_key
from .model import (
    ProcessStacks,
    StackFrame,
    ThreadStack,
)
from .motion import Motion, wakes_per_s
from .parse import StackSources, as_stacks
from .process_view import (
    LOOK_AGAIN,
    NO_THREAD,
    ProcessView,
    blocked_text,
    describe_doing,
    describe_views,
    known_wait_s,
    make_finding,
    name_processes,
    wait_duration,
)
from .rules import read_rules


_MOST_PLACES = 4
_MOST_RANKS = 1 << 20

Views = Sequence[ProcessView]


def explain_common_wait(waiting: Views) -> Iterable[Finding]:
    """
    Explain a job in which all ranks wait in a collective or a message.
    """
    # Those who meet, or wait for a key of the store, are in no call of others.
    meeting = [v for v in waiting if v.cause is Cause.RENDEZVOUS_WAIT]
    calling = [v for v in waiting if v.cause is not Cause.RENDEZVOUS_WAIT]
    if meeting and calling:
        yield from _outlier_findings(meeting, calling)
        return

    absent = _absent_ranks_text([v.process for v in waiting])
    if text := _one_way_text(waiting):
        yield make_finding(
            waiting,
            cause=Cause.P2P_DEADLOCK,
            summary=f"{describe_views(waiting)}: {text}",
            confidence="possible",
            remedy="compare the order of sends and receives on these ranks; "
            "with NCCL, dumps show which were not matched",
        )
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

    if len(groups) == 1 and not absent:
        by_caller = sorted(group_by_key(groups[0], _user_frames), key=len)
        if len(by_caller) > 1:
            yield _other_caller_finding(by_caller)
            return
    for group in groups:
        yield _wait_finding(group, waiting, absent)


def _one_way_text(waiting: Views) -> str:
    """
    Return what several ranks do who all send, or all receive; else ``""``.
    """
    if len(waiting) < 2:
        return ""
    if all(map(is_receiving, waiting)):
        return "all wait to receive, and none sends"
    if all(map(is_sending, waiting)):
        return "all wait to send, and none receives"
    return ""


def _user_frames(view: ProcessView) -> tuple[StackFrame, ...]:
    return tuple(filter(is_user_frame, view.thread.frames))


def _other_caller_finding(groups: Sequence[Views]) -> Finding:
    """
    Report that ranks came to one line by different calls.

    Args:
        groups: The ranks by the lines that led there, fewest first.
    """
    few, many = groups[0], groups[-1]
    odd = few if len(few) < len(many) else [v for g in groups for v in g]
    paths = [_user_frames(group[0]) for group in groups[:_MOST_PLACES]]
    # The innermost frames in which they differ; a shorter path may have none.
    differing = (row for row in zip_longest(*paths) if len({*row}) > 1)
    places = [to_location(frame) for frame in next(differing)]
    callers = ", ".join(
        f"{name_processes(group)} by {place.brief}"
        for group, place in zip(groups, places, strict=False)
        if place is not None
    )
    everyone = [v for group in groups for v in group]
    text = _wait_text(everyone)
    return make_finding(
        odd,
        cause=Cause.TYPE_MISMATCH,
        summary=f"{text}, but came there by different calls: {callers}",
        confidence="possible",
        location=places[0],
        remedy="see why these ranks call it from another line: a branch, a loop "
        "that ends earlier, or groups that are used in another order",
    )


def _wait_finding(group: Views, waiting: Views, absent: str) -> Finding:
    tail = f"; {absent}" if absent else ""
    sizes = {v.process.world_size for v in waiting}
    if not absent and sizes == {len(group)} and len(group) > 1:
        tail = "; no rank is missing"
    changes = {}
    if group[0].cause is Cause.COLLECTIVE_WAIT:
        changes["summary"] = f"{_wait_text(group)}{tail}"
    return make_finding(group, tail=tail, **changes)


def _wait_text(group: Views, unknown: str = "") -> str:
    operation = find_operation(group[0]) or unknown
    if not operation:
        return describe_views(group)
    doing = f"is waiting in {operation}{group[0].place}"
    return describe_doing(group, doing)


def _mismatch_finding(groups: Sequence[Views]) -> Finding:
    """
    Report that peers are in different calls, which may or may not be wrong.
    """
    ordered = sorted(groups, key=len)
    everyone = [v for group in ordered for v in group]
    ops = [find_operation(group[0]) for group in ordered]
    has_p2p = any(map(is_p2p_operation, ops))
    # Few exchange messages while many wait: those few may be at fault or not.
    has_minority = 2 * len(ordered[0]) < len(everyone) and not has_p2p
    outliers = ordered[0] if has_minority else everyone
    parts = [
        _wait_text(g, unknown="another collective")
        for g in ordered[::-1][:_MOST_PLACES]
    ]
    what = "calls" if has_p2p else "collectives"
    is_odd = not has_p2p and len({*filter(None, ops)}) > 1
    fork = _fork_text(ordered[0][0], ordered[-1][0])
    return make_finding(
        outliers,
        cause=Cause.TYPE_MISMATCH if is_odd else outliers[0].cause,
        summary=f"ranks are in different {what}: {'; '.join(parts)}",
        confidence="possible",
        location=ordered[0][0].location,
        **({"remedy": fork} if fork else {}),
    )


def _fork_text(view: ProcessView, other: ProcessView) -> str:
    """
    Return the advice to look at the line at which two stacks part.
    """
    fork = find_fork(view.thread.frames, other.thread.frames)
    if fork is None or not is_user_frame(fork[0]):
        return ""
    who, whom = name_processes([view]), name_processes([other])
    file = fork[0].filename.replace("\\", "/").rpartition("/")[2]
    return (
        f"they part in {fork[0].name} ({file}): {who} at line {fork[0].line}, "
        f"{whom} at line {fork[1].line}; see which branch, or which number of "
        "iterations, differs between them"
    )


def _group_by_location(views: Views) -> Sequence[Views]:
    return group_by_key(views, lambda v: (find_operation(v), v.location))


_WITHIN_STAGE = frozenset({"tp", "sp", "ep"})


def _group_peers(views: Views) -> Sequence[Views]:
    """
    Group ranks that should be in the same call: one group per pipeline stage.
    """
    return group_by_key(
        views,
        lambda v: tuple(
            x for x in v.process.coordinates if x[0] not in _WITHIN_STAGE
        ),
    )


def _absent_ranks_text(processes: Sequence[ProcessStacks]) -> str:
    """
    Name the ranks without a stack, if the world size is known.
    """
    size = max((p.world_size or 0 for p in processes), default=0)
    ranks = {p.rank for p in processes if p.rank is not None}
    if not ranks or size > _MOST_RANKS or len(ranks) >= size:
        return ""

    absent = [rank for rank in range(size) if rank not in ranks]
    verb = "was" if len(absent) == 1 else "were"
    return f"{ranks_text(absent)} of {size} {verb} not seen"


def explain_progress(views: Views) -> tuple[Finding, ...]:
    """
    Report that a job makes progress, and the ranks that the others wait for.

    Returns:
        One finding, or none if the job does not move.
    """
    busy = [v for v in views if v.cause is not Cause.IDLE]
    waiting = [v for v in busy if _may_wait_for_peers(v)]
    moves = [v for v in waiting or busy if v.motion is Motion.MOVING]
    if not moves or 2 * len(moves) < len(waiting or busy):
        return ()
    if not waiting and len(moves) < len(busy):
        return ()

    slow = [v for v in busy if v not in waiting and _has_stayed(v.thread)]
    if not waiting or 2 * len(slow) >= len(busy):
        slow = []
    doing = describe_doing(views, "is making progress")
    text = f"{doing}: slow at most, not stuck"
    if slow:
        who = name_processes(slow)
        text += f"; the others wait for {who}{slow[0].place}"
    finding = make_finding(
        slow or moves,
        cause=Cause.PROGRESSING,
        ranks=tuple(r for v in slow if (r := v.process.rank) is not None),
        summary=text,
        # Two looks show where ranks were, and not for how long.
        confidence="possible" if slow else "likely",
        remedy="if it is too slow, look for longer (distdebug stacks --seconds "
        "20), or record: dumps show who the others wait for, and what it costs",
    )
    return (finding,)


def _has_stayed(thread: ThreadStack) -> bool:
    """
    Return whether a thread was in the same function in every sample.
    """
    return thread.activity is not None and thread.activity.has_left is False


_MOST_WORKERS = 64


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
    if Trait.CHILD_WAIT not in view.cause.traits:
        return view

    is_loader = view.cause is Cause.DATALOADER_WAIT
    children = (
        explainer.explain_state(child) or explainer.explain(child)
        for child in tree.children_of(view.process)[:_MOST_WORKERS]
        if child.role != "compile"
        and (child.role != "child" or not is_loader or child.threads)
    )
    # One without a stack is not known to be idle, but may have died.
    known = [
        v
        for v in children
        if v is not None
        and (v.cause is not Cause.UNKNOWN or v.thread is not NO_THREAD)
    ]
    busy = [
        v
        for v in known
        if not v.cause.is_idle and v.cause is not Cause.UNKNOWN
    ]
    if busy:
        view = _add_worker(view, busy)
        works = any(
            v.cause is Cause.PROGRESSING or v.motion is Motion.MOVING
            for v in busy
        )
        if works and not is_loader:
            view = attrs.evolve(view, motion=Motion.MOVING)
    elif is_loader and known:
        many = "worker is" if len(known) == 1 else f"{len(known)} workers are"
        view = attrs.evolve(view, note=f"although its {many} idle")
    return view


def _add_worker(view: ProcessView, busy: Sequence[ProcessView]) -> ProcessView:
    worst = min(busy, key=_worker_priority)
    number = worst.process.pid
    if view.cause is not Cause.DATALOADER_WAIT or worst.location is None:
        kind = "worker" if view.cause is Cause.DATALOADER_WAIT else "child"
        text = f"its {kind}, process {number}, {worst.doing}{worst.place}"
        text += blocked_text(worst.activity)
        return view.with_note(text, worst.stack)

    # The worker's line is the one that the user can change.
    waits = f"{view.doing}{view.place}"
    return attrs.evolve(
        view,
        doing=f"{waits}: its worker, process {number}, {worst.doing}",
        doing_of_many=f"{waits}: a worker of each {worst.doing}",
        location=worst.location,
        note=worst.note,
        blocked_in=worst.blocked_in,
        evidence=(*view.evidence, worst.stack),
    )


def _worker_priority(view: ProcessView) -> tuple[bool, bool, int]:
    causes = {Cause.DEAD, Cause.STOPPED, Cause.UNINTERRUPTIBLE}
    is_vague = view.cause.is_computing
    return view.cause not in causes, is_vague, view.process.pid


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

    waiting = _describe_waiting(views) if blocked else ""
    first = [
        make_finding(group, tail=waiting)
        for group in group_by_key(blocked, lambda v: (v.cause, v.doing))
    ]
    first += _gone_findings(views)
    running = _running_findings(views, map(explainer.explain, tree.servers))
    # Ranks in a collective wait for the ranks that cannot run.
    return (
        *first,
        *(f for f in running if not (first and f.cause.is_peer_wait)),
    )


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
    ranks: dict[tuple[str | None, int | None], int | None] = {
        (p.host, p.pid): p.rank for p in tree.ranks
    }
    was_ended = all(p.state in ENDED_STATES for p in tree.ranks)
    for process in tree.ranks:
        # Whoever ends a job while it is looked at is not why it hung.
        has_stack = was_ended and any(t.frames for t in process.threads)
        state = explainer.explain_state(process)
        if state and not has_stack:
            blocked.append(_name_holder(state, ranks))
            continue
        view = explainer.explain(process)
        if view is not None:
            joined = add_worker_activity(view, tree, explainer)
            views.append(_name_holder(joined, ranks))
    return blocked, views


def _name_holder(
    view: ProcessView,
    ranks: Mapping[tuple[str | None, int | None], int | None],
) -> ProcessView:
    """
    Name the rank that holds the lock which a rank waits for.
    """
    own, call = view.thread.system_call, view.blocked_in
    host = view.process.host
    holder = ranks.get((host, own.holder)) if own else None
    rank = ranks.get((host, call.holder)) if call else None
    if holder is None and rank is None:
        return view
    if call is not None and rank is not None:
        held = f"held by rank {rank} (process {call.holder})"
        note = ", ".join(filter(None, (held, call.note)))
        call = attrs.evolve(call, holder=None, note=note)
    return attrs.evolve(view, blocked_in=call, lock_holder=holder)


def _running_findings(
    views: Views, servers: Iterable[ProcessView | None]
) -> Iterable[Finding]:
    """
    Report what keeps ranks that can run.

    Args:
        servers: What the processes do that hand work to ranks.
    """
    waiting = [v for v in views if v.cause.is_peer_wait]
    at_gpu = [v for v in views if v.cause is Cause.GPU_SYNC_WAIT]
    idle = [v for v in views if v.cause.is_idle]
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
    return _idle_findings(idle, servers)


def _outlier_findings(outliers: Views, waiting: Views) -> Iterable[Finding]:
    """
    Report the ranks that are not where the others wait.
    """
    tail = _describe_waiting(waiting)
    stuck = [v for v in outliers if v.cause not in _VAGUE_CAUSES]
    waited_s = known_wait_s(waiting)
    has_call = any(v.cause is Cause.COLLECTIVE_WAIT for v in waiting)
    for group in _sort_by_importance(outliers):
        is_slow = group[0].cause is Cause.PROGRESSING
        is_uncertain = (group[0].motion is Motion.MOVING and not is_slow) or (
            bool(stuck) and group[0].cause in _VAGUE_CAUSES
        )
        changes: dict[str, object] = {}
        if is_uncertain:
            changes["confidence"] = "possible"
        if all(v.may_work(waited_s) for v in group):
            changes["cause"] = Cause.PROGRESSING
            changes["remedy"] = LOOK_AGAIN
        if group[0].cause is Cause.UNKNOWN and has_call:
            changes["cause"] = Cause.RANK_NOT_ARRIVED
            changes["confidence"] = "possible"
        yield make_finding(group, tail=tail, **changes)


def _gone_findings(views: Views) -> Iterator[Finding]:
    """
    Blame ranks of this node that have ended, unless a rank works.
    """
    gone = sorted({r for v in views for r in v.process.absent_peers})
    if not gone or any(map(_is_busy, views)):
        return

    verb = "has no process" if len(gone) == 1 else "have no processes"
    groups = _sort_by_importance(views)[::-1][:_MOST_PLACES]
    waits = "; ".join(map(_wait_text, groups))
    yield make_finding(
        views,
        cause=Cause.DEAD,
        ranks=tuple(gone),
        summary=f"{ranks_text(gone)} {verb} on this node any more; {waits}",
        confidence="likely",
        remedy="see how they ended: an early return or an exception that was "
        "caught leaves no error in the logs",
        location=None,
        activity=None,
    )


def _is_busy(view: ProcessView) -> bool:
    return view.cause.is_computing or view.cause.is_slow or view.cause.is_fine


# A thread that sleeps again and again does something in between.
_NAPS_PER_S = 0.3


def _independent_findings(views: Views) -> Iterable[Finding]:
    """
    Report each cause on its own, where no rank waits for another.
    """
    known = [v for v in views if v.cause is not Cause.UNKNOWN] or views
    still = [v for v in known if v.motion is not Motion.MOVING]
    for group in _sort_by_importance(still or known):
        # A rank that computes and blocks no other may finish soon.
        is_vague = group[0].cause in _VAGUE_CAUSES
        is_asleep = group[0].cause is Cause.SLEEPING
        naps = is_asleep and wakes_per_s(group[0].thread) >= _NAPS_PER_S
        may_end = naps or (is_vague and group[0].motion is not Motion.STILL)
        changes = {"confidence": "possible"} if may_end else {}
        yield make_finding(group, **changes)


def _idle_findings(
    idle: Views, servers: Iterable[ProcessView | None]
) -> Iterable[Finding]:
    asking = [v for v in servers if v and v.cause is Cause.FUTURE_WAIT]
    if asking and idle:
        tail = f"; {describe_views(idle)}: a message between them may be lost"
        yield make_finding(asking, tail=tail, confidence="possible")
        return
    yield from (make_finding(g) for g in group_by_key(idle, _group_key))


def _may_wait_for_peers(view: ProcessView) -> bool:
    # A wait for the GPU may be an NCCL collective, or any other kernel.
    return view.cause.is_peer_wait or view.cause is Cause.GPU_SYNC_WAIT


def _describe_waiting(views: Views) -> str:
    """
    Describe the ranks that only wait for others; ``""`` if there are none.
    """
    waiting = [v for v in views if _may_wait_for_peers(v)]
    if not waiting:
        return ""
    ops = {*map(find_operation, waiting)}
    op = ops.pop() if len(ops) == 1 else ""
    doing = f"is waiting in {op}" if op else waiting[0].doing
    return f"; {describe_doing(waiting, doing)}{wait_duration(waiting)}"


def _sort_by_importance(views: Views) -> list[Views]:
    groups = group_by_key(views, _group_key)
    return sorted(groups, key=lambda g: (_importance(g[0]), len(g)))


def _importance(view: ProcessView) -> int:
    if view.cause is Cause.GIL_CONTENTION:
        return 0
    if view.cause.is_idle or view.cause is Cause.PROGRESSING:
        return 3
    return 2 if view.cause in _VAGUE_CAUSES else 1


def _group_key(view: ProcessView) -> Hashable:
    return view.cause, view.doing_of_many or view.doing, view.location


def explain_stacks(
    stacks: StackSources,
    *,
    rules: Iterable[str | os.PathLike[str]] = (),
) -> tuple[Finding, ...]:
    """
    Explain why a job does not progress, and at which line.

    Processes that do the same at the same line are one finding.  Those that
    wait in a collective are victims and left out, unless there are no others.
    Child processes are reported with their parents.

    Example::

        for finding in distdebug.explain_stacks("stacks/"):
            print(finding)

    Args:
        stacks: Processes of one or several jobs, or files, folders, or a
            capture with them; each job is explained on its own, if the
            processes can be attributed.

        rules: Files with rules that are tried before the built-in ones.

    Returns:
        The findings, the verdict first; empty if no stack explains anything.

    Raises:
        RulesError: A file of rules cannot be used.
    """
    explainer = ProcessExplainer(read_rules(rules))
    known = drop_foreign_processes(as_stacks(stacks))
    jobs = split_jobs(known)
    if len(jobs.keys() - {""}) < 2:
        return explain_job(known, explainer)

    found = [
        [_name_job(f, job) for f in explain_job(members, explainer)]
        for job, members in jobs.items()
    ]
    found.sort(key=lambda fs: not fs or fs[0].cause.is_fine)
    return tuple(f for findings in found for f in findings)


# torchrun makes one up where nobody names the job.
_UUID = late_pattern(r"\b([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def _name_job(finding: Finding, job: str) -> Finding:
    name = _UUID.sub(r"\1", job)
    text = f"job {name}: {finding.summary}"
    return attrs.evolve(finding, summary=text) if name else finding


def explain_ranks(
    stacks: StackSources,
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
    known = as_stacks(stacks)
    if not known and not rules:  # reading the built-in rules is slow
        return ()

    explainer = ProcessExplainer(read_rules(rules))
    blocked, running = view_ranks(build_process_tree(known), explainer)
    return (*blocked, *running)
