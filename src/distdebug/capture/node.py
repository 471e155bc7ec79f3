"""
What is every worker of this node doing right now?

First everybody is looked at several times without being stopped.  Only if it
is asked for, some or all are then looked into with tools that do stop them for
a moment, one collector per node at a time.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

import attrs

from .._io import output_to
from ..errors import CaptureError
from ..findings import Missing
from ..processes import (
    ProcessState,
    Worker,
    find_workers,
    missing_ranks,
    workers_of,
)
from ..stacks import ProcessStacks, ThreadStack, join_threads, merge_stacks
from .attach import capture_native, node_lock
from .blockers import status_of_state
from .cuda import capture_cuda
from .model import (
    Attempt,
    Capture,
    CaptureStatus,
    Native,
    ProcessCapture,
    make_folder,
    write_capture,
)
from .sample import Look, describe_process, no_look, take_look
from .self_report import ask_process
from .tool import stop_tools


def judge(
    process: ProcessCapture, state: ProcessState | None
) -> ProcessCapture:
    """
    Sum up the attempts: the state of the process comes before what tools say.

    Args:
        process: What was tried.

        state: What the kernel told last; ``None`` if it told nothing, or the
            process is gone, which the last attempt tells.
    """
    last = process.attempts[-1]
    told = status_of_state(state, process.worker.pid) if state else None
    if state is None and last.status is CaptureStatus.EXITED:
        told = last.status, last.remedy
    if told is not None:
        status, remedy = told
        return attrs.evolve(process, status=status, remedy=remedy)

    if any(t.frames or t.native for t in process.stacks.threads):
        return attrs.evolve(process, status=CaptureStatus.OK)

    return attrs.evolve(process, status=last.status, remedy=last.remedy)


_In = TypeVar("_In")
_Out = TypeVar("_Out")
_Done: TypeAlias = "queue.SimpleQueue[tuple[int, _Out | BaseException]]"

# Threads only wait for tools.  More tools than processors lengthen the pauses
# of those that stop a process.
_AT_ONCE = max(4, min(16, os.cpu_count() or 1))


def each(
    function: Callable[[_In], _Out],
    items: Iterable[_In],
    *,
    timeout_s: float,
    at_once: int = _AT_ONCE,
    tell: Callable[[int, int], object] = lambda _done, _total: None,
) -> list[_Out | None]:
    """
    Call a function that runs tools for each item.

    If the caller is interrupted, the tools are stopped, not waited for.

    Args:
        function: What to call.

        items: What to call it with.

        timeout_s: After how many seconds to go on without the rest.

        at_once: How many at the same time.

        tell: Called with how many of how many are done.

    Returns:
        The results, in the order of *items*; ``None`` where there is none yet.

    Raises:
        Exception: The first that *function* raised.
    """
    todo: queue.SimpleQueue[tuple[int, _In]] = queue.SimpleQueue()
    for pair in enumerate(items):
        todo.put(pair)
    results: list[_Out | None] = [None] * todo.qsize()
    done: _Done[_Out] = queue.SimpleQueue()
    is_helped = _start(
        partial(_work, function, todo, done), min(at_once, len(results))
    )
    try:
        if not is_helped:
            _work(function, todo, done)
        _gather(done, results, time.monotonic() + timeout_s, tell)
    except BaseException:
        _drain(todo)
        stop_tools()
        raise

    _drain(todo)
    return results


def _start(work: Callable[[], object], number: int) -> bool:
    """
    Start threads; on a node that is full there may be none to be had.
    """
    for count in range(number):
        try:
            threading.Thread(
                target=work, name="distdebug capture", daemon=True
            ).start()
        except RuntimeError:
            return count > 0
    return True


def _work(
    function: Callable[[_In], _Out],
    todo: queue.SimpleQueue[tuple[int, _In]],
    done: _Done[_Out],
) -> None:
    with suppress(queue.Empty):
        while True:
            number, item = todo.get_nowait()
            try:
                done.put((number, function(item)))
            except BaseException as exc:  # noqa: BLE001 is raised elsewhere
                done.put((number, exc))


def _gather(
    done: _Done[_Out],
    results: list[_Out | None],
    deadline: float,
    tell: Callable[[int, int], object],
) -> None:
    for count in range(1, len(results) + 1):
        try:
            left_s = max(deadline - time.monotonic(), 0)
            number, result = done.get(timeout=left_s)
        except queue.Empty:
            return
        if isinstance(result, BaseException):
            raise result
        results[number] = result
        tell(count, len(results))


def _drain(todo: queue.SimpleQueue[tuple[int, _In]]) -> None:
    with suppress(queue.Empty):
        while True:
            todo.get_nowait()


_ANSWER_S = 5.0
# They cannot answer, or there is nothing to be told.
_IN_VAIN = {
    CaptureStatus.EXITED,
    CaptureStatus.ZOMBIE,
    CaptureStatus.STOPPED,
    CaptureStatus.NOT_PYTHON,
}


def ask_unseen(
    processes: Sequence[ProcessCapture], deadline: float
) -> list[ProcessCapture]:
    """
    Ask those for their stacks that could not be looked into.

    Args:
        processes: All processes, as far as they were seen.

        deadline: When to be done, by the monotonic clock.

    Returns:
        All processes.
    """
    unseen = [p for p in processes if _is_worth_asking(p)]
    left_s = max(deadline - time.monotonic(), 0.1)
    answers = each(_ask, unseen, timeout_s=min(left_s, 4 * _ANSWER_S))
    by_pid = {
        before.worker.pid: after or before
        for before, after in zip(unseen, answers, strict=True)
    }
    return [by_pid.get(p.worker.pid, p) for p in processes]


def _is_worth_asking(process: ProcessCapture) -> bool:
    is_seen = any(t.frames for t in process.stacks.threads)
    return not is_seen and process.status not in _IN_VAIN


def _ask(process: ProcessCapture) -> ProcessCapture:
    worker = process.worker
    threads, attempt = ask_process(
        worker.pid, timeout_s=_ANSWER_S, start_ticks=worker.start_ticks
    )
    answered = {t.thread_id: t for t in threads}
    known = [
        _with_frames(thread, answered.pop(thread.thread_id, None))
        for thread in process.stacks.threads
    ]
    both = (*process.attempts, attempt)
    if not threads:
        return attrs.evolve(process, attempts=both)

    stacks = attrs.evolve(
        process.stacks,
        source=attempt.tool,
        threads=(*known, *answered.values()),
    )
    status = process.status
    if status is not CaptureStatus.UNINTERRUPTIBLE:
        status = CaptureStatus.OK
    return attrs.evolve(process, status=status, stacks=stacks, attempts=both)


def _with_frames(
    thread: ThreadStack, answer: ThreadStack | None
) -> ThreadStack:
    if answer is None:
        return thread

    return attrs.evolve(
        thread,
        name=answer.name or thread.name,
        frames=answer.frames,
        owns_gil=answer.owns_gil,
    )


Tell = Callable[[str, int, int], object]

_MOST_CHOSEN = 8
# A tool takes 60 seconds at most, which the guard adds its share to.
_TOOL_S = 60.0
_LOCK_S = 5.0
# For tools that are being killed.
_GRACE_S = 3.0


def look_deeper(
    processes: Sequence[ProcessCapture],
    *,
    native: str,
    cuda: bool,
    deadline: float,
    tell: Tell,
) -> Sequence[ProcessCapture]:
    """
    Add native stacks and GPU kernels, as far as they are asked for.

    Args:
        processes: What was seen without stopping anybody.

        native: ``"none"``, ``"classes"``, or ``"all"``.

        cuda: Whether every process is looked into with cuda-gdb.

        deadline: When to be done, by the monotonic clock.

        tell: Called with the stage, and how many of how many are done.

    Returns:
        All processes.  If another collector is at work, nothing is added but
        that.
    """
    chosen = _chosen(processes, native)
    stages = [_Stage("native stacks", _with_native, chosen)] if chosen else []
    if cuda:
        everybody = {p.worker.pid for p in processes}
        stages.append(_Stage("cuda-gdb", _with_cuda, everybody))
    if not stages:
        return processes

    try:
        with node_lock(_LOCK_S):
            for stage in stages:
                processes = _run(stage, processes, deadline, tell)
    except CaptureError as exc:
        # What was seen without stopping anybody is still worth a lot.
        processes = [_refused(p, exc) for p in processes]
    return processes


@attrs.frozen
class _Stage:
    name: str
    look: Callable[[ProcessCapture, float], ProcessCapture]
    pids: set[int]


def _run(
    stage: _Stage,
    processes: Sequence[ProcessCapture],
    deadline: float,
    tell: Tell,
) -> Sequence[ProcessCapture]:
    def one(process: ProcessCapture) -> ProcessCapture | None:
        left_s = min(deadline - time.monotonic(), _TOOL_S)
        return stage.look(process, left_s) if left_s > 0 else None

    todo = [p for p in processes if p.worker.pid in stage.pids]
    done = each(
        one,
        todo,
        timeout_s=max(deadline - time.monotonic(), 0) + _GRACE_S,
        tell=lambda n, total: tell(stage.name, n, total),
    )
    by_pid = {
        process.worker.pid: new or _too_late(process, stage.name)
        for process, new in zip(todo, done, strict=True)
    }
    return [by_pid.get(p.worker.pid, p) for p in processes]


def _too_late(process: ProcessCapture, stage: str) -> ProcessCapture:
    attempt = Attempt(
        tool=stage,
        status=CaptureStatus.TIMED_OUT,
        detail="the time for all processes of this node was over",
        remedy="allow more time, or name fewer processes",
    )
    return attrs.evolve(process, attempts=(*process.attempts, attempt))


def _refused(process: ProcessCapture, exc: CaptureError) -> ProcessCapture:
    attempt = Attempt(
        tool="lock",
        status=CaptureStatus.SKIPPED,
        detail=str(exc),
        remedy=exc.remedy or "",
    )
    return attrs.evolve(process, attempts=(*process.attempts, attempt))


def _with_native(process: ProcessCapture, timeout_s: float) -> ProcessCapture:
    threads, attempts = capture_native(
        process.worker.pid,
        timeout_s=timeout_s,
        start_ticks=process.worker.start_ticks,
    )
    return attrs.evolve(
        process,
        stacks=_join(process.stacks, threads),
        attempts=(*process.attempts, *attempts),
    )


def _with_cuda(process: ProcessCapture, timeout_s: float) -> ProcessCapture:
    found = capture_cuda(
        process.worker.pid,
        timeout_s=timeout_s,
        start_ticks=process.worker.start_ticks,
    )
    stacks = _join(process.stacks, found.threads)
    return attrs.evolve(
        process,
        stacks=attrs.evolve(stacks, kernels=found.kernels),
        attempts=(*process.attempts, *found.attempts),
        cuda_text=found.text,
    )


def _join(
    stacks: ProcessStacks, native: Iterable[ThreadStack]
) -> ProcessStacks:
    return attrs.evolve(stacks, threads=join_threads(stacks.threads, native))


def _chosen(processes: Sequence[ProcessCapture], native: str) -> set[int]:
    """
    One process of each class, and everybody who stands apart.
    """
    if native == "none":
        return set()
    if native == "all":
        return {p.worker.pid for p in processes}

    tree = merge_stacks(p.stacks for p in processes)
    apart = [member for c in tree.outliers() for member in c.members]
    one_each = [c.members[0] for c in reversed(tree.classes)]
    chosen = [*dict.fromkeys([*one_each, *apart])][:_MOST_CHOSEN]
    return {tree.processes[member].pid for member in chosen}


# What py-spy needs, a hundred times over.
_LOOK_S = 10.0


def capture_node(  # noqa: PLR0913 each can be left out
    output_dir: str | os.PathLike[str] | None = None,
    *,
    pids: Iterable[int] | None = None,
    patterns: Iterable[str] = (),
    native: Native = "none",
    cuda: bool = False,
    looks: int = 3,
    interval_s: float = 1.0,
    timeout_s: float = 180.0,
    tell: Tell = lambda _stage, _done, _total: None,
) -> Capture:
    """
    Find out what every worker of this node is doing.

    Args:
        output_dir: Where to write ``HOST/pyspy_HOST_PID.txt`` and the other
            files of a bundle; by default nothing is written.

        pids: Which processes; by default the workers that
            :func:`~distdebug.processes.find.find_workers` finds.

        patterns: Regular expressions for the command lines of workers, if
            *pids* is not given.

        native: Whether to take native stacks too, which stops a process for a
            moment: of ``"none"``, of one process of each class and all
            outliers (``"classes"``), or of ``"all"``.

        cuda: Whether to attach cuda-gdb to every process, which stops it for
            seconds.

        looks: How often to look at each process, at least once.  From two
            looks on it is known who moves.

        interval_s: The time between two looks, in seconds.

        timeout_s: How long everything may take, in seconds.

        tell: Called with the stage, and how many of how many are done.

    Returns:
        What could be seen, and what not, and why.

    Raises:
        OutputError: The output folder cannot be made.
    """
    host, deadline = socket.gethostname(), time.monotonic() + timeout_s
    folder = None
    if output_dir is not None:
        with output_to(output_dir):
            folder = make_folder(Path(output_dir), host)
    patterns = tuple(patterns)
    workers = _workers(pids, patterns)
    start = time.monotonic()
    seen = _look(workers, looks, interval_s, deadline, tell)
    watched_s = time.monotonic() - start

    processes = _describe(workers, seen, host, deadline)
    processes = ask_unseen(processes, deadline)
    processes = look_deeper(
        processes, native=native, cuda=cuda, deadline=deadline, tell=tell
    )
    capture = Capture(
        host=host,
        processes=tuple(sorted(processes, key=_order)),
        missing=(
            *_unseen(processes),
            *_not_there(workers, pids, patterns),
            *_cut_short(seen.values(), looks),
        ),
        seconds=watched_s,
        taken=time.time(),
    )
    return capture if folder is None else write_capture(capture, folder)


def capture_process(  # noqa: PLR0913 each can be left out
    pid: int,
    *,
    native: bool = False,
    cuda: bool = False,
    looks: int = 1,
    interval_s: float = 1.0,
    timeout_s: float = 60.0,
) -> ProcessCapture:
    """
    Find out what one process is doing.

    Args:
        pid: A process of this node.

        native: Whether to take native stacks too, which stops it for a
            moment.

        cuda: Whether to attach cuda-gdb, which stops it for seconds.

        looks: How often to look, at least once.

        interval_s: The time between two looks, in seconds.

        timeout_s: How long everything may take, in seconds.

    Returns:
        What could be seen, also of a process that has ended.
    """
    (process,) = capture_node(
        pids=[pid],
        native="all" if native else "none",
        cuda=cuda,
        looks=looks,
        interval_s=interval_s,
        timeout_s=timeout_s,
    ).processes
    return process


def _workers(
    pids: Iterable[int] | None, patterns: Iterable[str]
) -> Sequence[Worker]:
    if pids is None:
        return find_workers(patterns)

    asked = tuple(dict.fromkeys(pids))
    known = {worker.pid: worker for worker in workers_of(asked)}
    return [known.get(pid) or _nobody(pid) for pid in asked]


def _nobody(pid: int) -> Worker:
    return Worker(
        pid=pid, start_ticks=0, parent_pid=0, uid=0, title="", framework=""
    )


def _look(
    workers: Sequence[Worker],
    looks: int,
    interval_s: float,
    deadline: float,
    tell: Tell,
) -> dict[int, list[Look]]:
    seen: dict[int, list[Look]] = {w.pid: [] for w in workers}
    # Where nobody is, there is nothing to wait for.
    for number in range(max(looks, 1) if workers else 0):
        if number and deadline - time.monotonic() < interval_s:
            break
        if number:
            time.sleep(interval_s)
        stage = f"look {number + 1} of {looks}"
        for worker, look in zip(
            workers,
            _look_once(workers, deadline, partial(tell, stage)),
            strict=True,
        ):
            seen[worker.pid].append(look)

    return seen


def _look_once(
    workers: Sequence[Worker],
    deadline: float,
    tell: Callable[[int, int], object],
) -> Iterable[Look]:
    limit_s = max(min(_LOOK_S, deadline - time.monotonic()), 0.1)
    taken = each(
        partial(take_look, timeout_s=limit_s),
        workers,
        timeout_s=limit_s + _GRACE_S,
        tell=tell,
    )
    return [look or no_look() for look in taken]


def _describe(
    workers: Sequence[Worker],
    seen: Mapping[int, list[Look]],
    host: str,
    deadline: float,
) -> Sequence[ProcessCapture]:
    # The kernel is asked once more, and it may not answer this time.
    limit_s = max(min(_LOOK_S, deadline - time.monotonic()), 0.1) + _GRACE_S
    described = each(
        lambda w: _process(w, seen[w.pid], host), workers, timeout_s=limit_s
    )
    return [
        process or _process(worker, [no_look()], host)
        for worker, process in zip(workers, described, strict=True)
    ]


def _process(
    worker: Worker, looks: Sequence[Look], host: str
) -> ProcessCapture:
    stacks = describe_process(worker, looks, host=host)
    attempts = tuple(look.attempt for look in looks)
    return judge(
        ProcessCapture(
            worker=worker,
            status=CaptureStatus.OK,
            stacks=stacks,
            attempts=attempts,
        ),
        looks[-1].state,
    )


def _order(process: ProcessCapture) -> tuple[bool, int, int]:
    rank = process.worker.rank
    return rank is None, rank or 0, process.worker.pid


def _unseen(processes: Iterable[ProcessCapture]) -> Iterable[Missing]:
    for process in processes:
        if not any(t.frames or t.native for t in process.stacks.threads):
            yield process.missing(_reason(process))


def _reason(process: ProcessCapture) -> str:
    # Others may have been tried after the one that tells why.
    telling = [a for a in process.attempts if a.status is process.status]
    last = (telling or process.attempts)[-1]
    reason = last.detail or f"the process: {process.status}"
    return f"{reason} (try: {process.remedy})" if process.remedy else reason


def _cut_short(
    seen: Collection[Sequence[Look]], looks: int
) -> Iterable[Missing]:
    done = max(map(len, seen), default=looks)
    if done < looks:
        yield Missing(
            what="look",
            reason=f"only {done} of {looks} looks were taken: the time was "
            "over, so who moves and who does not is less sure",
        )


def _not_there(
    workers: Sequence[Worker],
    pids: Iterable[int] | None,
    patterns: Sequence[str],
) -> Iterable[Missing]:
    # Who names processes did not ask for others.
    if pids is not None or patterns:
        return

    for rank in missing_ranks(workers):
        yield Missing(
            what="worker",
            reason="no process of this rank was found on this node",
            rank=rank,
        )
