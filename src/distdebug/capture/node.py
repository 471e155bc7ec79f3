"""
Capture the stacks of all workers of this node, or of one process.

First every worker is sampled several times without being stopped.  Native
stacks and GPU kernels, which stop a process for a moment, are taken only on
request, by one collector per node at a time.
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
    find_workers_by_pid,
    missing_ranks,
)
from ..stacks import ProcessStacks, ThreadStack, join_threads, merge_stacks
from .attach import node_lock, read_native_stacks
from .blockers import explain_state
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
from .sample import Sample, describe_process, take_sample, timed_out_sample
from .self_report import ask_process
from .tool import stop_tools


def summarize_attempts(
    process: ProcessCapture, state: ProcessState | None
) -> ProcessCapture:
    """
    Set the status of a process: its state first, then results of the tools.

    Args:
        state: Last state of the process; None if it could not be read or the
            process has ended, as its last attempt says.
    """
    last = process.attempts[-1]
    blocker = explain_state(state, process.worker.pid) if state else None
    if state is None and last.status is CaptureStatus.EXITED:
        blocker = last.status, last.remedy
    if blocker is not None:
        status, remedy = blocker
        return attrs.evolve(process, status=status, remedy=remedy)

    if any(t.frames or t.native for t in process.stacks.threads):
        return attrs.evolve(process, status=CaptureStatus.OK)

    return attrs.evolve(process, status=last.status, remedy=last.remedy)


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_ResultQueue: TypeAlias = (
    "queue.SimpleQueue[tuple[int, _Result | BaseException]]"
)

# The threads only wait for tools.  With more tools than processors, processes
# stay stopped for longer.
_POOL_THREADS = max(4, min(16, os.cpu_count() or 1))


def parallel_map(
    function: Callable[[_Item], _Result],
    items: Iterable[_Item],
    *,
    timeout_s: float,
    max_threads: int = _POOL_THREADS,
    tell: Callable[[int, int], object] = lambda _done, _total: None,
) -> list[_Result | None]:
    """
    Call a function that runs tools for each item, in several threads.

    On an interrupt the tools are stopped; nothing waits for them.

    Args:
        timeout_s: Time limit for all items, in seconds.

        max_threads: Number of threads.

        tell: Called with the number of items done, and of all.

    Returns:
        The results, in the order of *items*; ``None`` for items that were not
        done in time.

    Raises:
        Exception: The first that *function* raised.
    """
    todo: queue.SimpleQueue[tuple[int, _Item]] = queue.SimpleQueue()
    for pair in enumerate(items):
        todo.put(pair)
    results: list[_Result | None] = [None] * todo.qsize()
    done: _ResultQueue[_Result] = queue.SimpleQueue()
    has_threads = _start_threads(
        partial(_work, function, todo, done), min(max_threads, len(results))
    )
    try:
        if not has_threads:
            _work(function, todo, done)
        _collect_results(done, results, time.monotonic() + timeout_s, tell)
    except BaseException:
        _drain(todo)
        stop_tools()
        raise

    _drain(todo)
    return results


def _start_threads(work: Callable[[], object], number: int) -> bool:
    """
    Start threads; return whether at least one runs, as a full node has none.
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
    function: Callable[[_Item], _Result],
    todo: queue.SimpleQueue[tuple[int, _Item]],
    done: _ResultQueue[_Result],
) -> None:
    with suppress(queue.Empty):
        while True:
            number, item = todo.get_nowait()
            try:
                done.put((number, function(item)))
            except BaseException as exc:  # noqa: BLE001 _collect_results raises it
                done.put((number, exc))


def _collect_results(
    done: _ResultQueue[_Result],
    results: list[_Result | None],
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


def _drain(todo: queue.SimpleQueue[tuple[int, _Item]]) -> None:
    with suppress(queue.Empty):
        while True:
            todo.get_nowait()


_SELF_REPORT_S = 5.0
# Processes in these states cannot report, or have no stacks.
_CANNOT_REPORT = {
    CaptureStatus.EXITED,
    CaptureStatus.ZOMBIE,
    CaptureStatus.STOPPED,
    CaptureStatus.NOT_PYTHON,
}


def request_missing_stacks(
    processes: Sequence[ProcessCapture], deadline: float
) -> list[ProcessCapture]:
    """
    Request a self-report from processes whose stacks could not be read.

    Args:
        deadline: Time limit, by the monotonic clock.

    Returns:
        All processes.
    """
    candidates = [p for p in processes if _needs_self_report(p)]
    left_s = max(deadline - time.monotonic(), 0.1)
    answers = parallel_map(
        _add_self_report, candidates, timeout_s=min(left_s, 4 * _SELF_REPORT_S)
    )
    by_pid = {
        before.worker.pid: after or before
        for before, after in zip(candidates, answers, strict=True)
    }
    return [by_pid.get(p.worker.pid, p) for p in processes]


def _needs_self_report(process: ProcessCapture) -> bool:
    has_frames = any(t.frames for t in process.stacks.threads)
    return not has_frames and process.status not in _CANNOT_REPORT


def _add_self_report(process: ProcessCapture) -> ProcessCapture:
    worker = process.worker
    threads, attempt = ask_process(
        worker.pid, timeout_s=_SELF_REPORT_S, start_ticks=worker.start_ticks
    )
    answered = {t.thread_id: t for t in threads}
    threads_before = [
        _merge_frames(thread, answered.pop(thread.thread_id, None))
        for thread in process.stacks.threads
    ]
    all_attempts = (*process.attempts, attempt)
    if not threads:
        return attrs.evolve(process, attempts=all_attempts)

    stacks = attrs.evolve(
        process.stacks,
        source=attempt.tool,
        threads=(*threads_before, *answered.values()),
    )
    status = process.status
    if status is not CaptureStatus.UNINTERRUPTIBLE:
        status = CaptureStatus.OK
    return attrs.evolve(
        process, status=status, stacks=stacks, attempts=all_attempts
    )


def _merge_frames(
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


ProgressCallback = Callable[[str, int, int], object]

_MAX_NATIVE = 8
# Time limit of a tool; the guard needs some seconds more.
_TOOL_TIMEOUT_S = 60.0
_LOCK_S = 5.0
# Time for killing tools.
_GRACE_S = 3.0


def capture_native(
    processes: Sequence[ProcessCapture],
    *,
    native: str,
    cuda: bool,
    deadline: float,
    tell: ProgressCallback,
) -> Sequence[ProcessCapture]:
    """
    Add native stacks and GPU kernels, as far as requested.

    Args:
        processes: Processes with their Python stacks.

        native: ``"none"``, ``"classes"``, or ``"all"``.

        cuda: Whether to run cuda-gdb on every process.

        deadline: Time limit, by the monotonic clock.

        tell: Called with the stage, and the number of processes done, and of
            all.

    Returns:
        All processes.  If another collector is at work, only an attempt that
        says so is added.
    """
    chosen = _select_processes(processes, native)
    stages = [_Stage("native stacks", _add_native, chosen)] if chosen else []
    if cuda:
        all_pids = {p.worker.pid for p in processes}
        stages.append(_Stage("cuda-gdb", _add_cuda, all_pids))
    if not stages:
        return processes

    try:
        with node_lock(_LOCK_S):
            for stage in stages:
                processes = _run_stage(stage, processes, deadline, tell)
    except CaptureError as exc:
        # The samples taken before are still useful.
        processes = [_mark_locked(p, exc) for p in processes]
    return processes


@attrs.frozen
class _Stage:
    name: str
    sample: Callable[[ProcessCapture, float], ProcessCapture]
    pids: set[int]


def _run_stage(
    stage: _Stage,
    processes: Sequence[ProcessCapture],
    deadline: float,
    tell: ProgressCallback,
) -> Sequence[ProcessCapture]:
    def one(process: ProcessCapture) -> ProcessCapture | None:
        left_s = min(deadline - time.monotonic(), _TOOL_TIMEOUT_S)
        return stage.sample(process, left_s) if left_s > 0 else None

    todo = [p for p in processes if p.worker.pid in stage.pids]
    done = parallel_map(
        one,
        todo,
        timeout_s=max(deadline - time.monotonic(), 0) + _GRACE_S,
        tell=lambda n, total: tell(stage.name, n, total),
    )
    by_pid = {
        process.worker.pid: new or _mark_timed_out(process, stage.name)
        for process, new in zip(todo, done, strict=True)
    }
    return [by_pid.get(p.worker.pid, p) for p in processes]


def _mark_timed_out(process: ProcessCapture, stage: str) -> ProcessCapture:
    attempt = Attempt(
        tool=stage,
        status=CaptureStatus.TIMED_OUT,
        detail="the time for all processes of this node was over",
        remedy="allow more time, or name fewer processes",
    )
    return attrs.evolve(process, attempts=(*process.attempts, attempt))


def _mark_locked(process: ProcessCapture, exc: CaptureError) -> ProcessCapture:
    attempt = Attempt(
        tool="lock",
        status=CaptureStatus.SKIPPED,
        detail=str(exc),
        remedy=exc.remedy or "",
    )
    return attrs.evolve(process, attempts=(*process.attempts, attempt))


def _add_native(process: ProcessCapture, timeout_s: float) -> ProcessCapture:
    threads, attempts = read_native_stacks(
        process.worker.pid,
        timeout_s=timeout_s,
        start_ticks=process.worker.start_ticks,
    )
    return attrs.evolve(
        process,
        stacks=_join_native(process.stacks, threads),
        attempts=(*process.attempts, *attempts),
    )


def _add_cuda(process: ProcessCapture, timeout_s: float) -> ProcessCapture:
    found = capture_cuda(
        process.worker.pid,
        timeout_s=timeout_s,
        start_ticks=process.worker.start_ticks,
    )
    stacks = _join_native(process.stacks, found.threads)
    return attrs.evolve(
        process,
        stacks=attrs.evolve(stacks, kernels=found.kernels),
        attempts=(*process.attempts, *found.attempts),
        cuda_text=found.text,
    )


def _join_native(
    stacks: ProcessStacks, native: Iterable[ThreadStack]
) -> ProcessStacks:
    return attrs.evolve(stacks, threads=join_threads(stacks.threads, native))


def _select_processes(
    processes: Sequence[ProcessCapture], native: str
) -> set[int]:
    """
    Return the PIDs of one process of each class, and of all outliers.
    """
    if native == "none":
        return set()
    if native == "all":
        return {p.worker.pid for p in processes}

    tree = merge_stacks(p.stacks for p in processes)
    outlier_members = [member for c in tree.outliers() for member in c.members]
    representatives = [c.members[0] for c in reversed(tree.classes)]
    chosen = [*dict.fromkeys([*representatives, *outlier_members])][
        :_MAX_NATIVE
    ]
    return {tree.processes[member].pid for member in chosen}


# A hundred times as long as py-spy usually takes.
_SAMPLE_TIMEOUT_S = 10.0


def capture_node(  # noqa: PLR0913 each can be left out
    output_dir: str | os.PathLike[str] | None = None,
    *,
    pids: Iterable[int] | None = None,
    patterns: Iterable[str] = (),
    native: Native = "none",
    cuda: bool = False,
    samples: int = 3,
    interval_s: float = 1.0,
    timeout_s: float = 180.0,
    tell: ProgressCallback = lambda _stage, _done, _total: None,
) -> Capture:
    """
    Capture the stacks of every worker of this node.

    Args:
        output_dir: Where to write ``HOST/pyspy_HOST_PID.txt`` and the other
            files of a bundle; by default nothing is written.

        pids: Which processes; by default the workers that
            :func:`~distdebug.processes.find.find_workers` finds.

        patterns: Regular expressions for the command lines of workers; without
            effect if *pids* is given.

        native: Which processes to take native stacks of, which stops each for
            a moment: ``"none"``, one of each class and all outliers
            (``"classes"``), or ``"all"``.

        cuda: Whether to attach cuda-gdb to every process, which stops it for
            seconds.

        samples: How often to sample each process, at least once.  Two samples
            or more show which threads make progress.

        interval_s: Time between two samples, in seconds.

        timeout_s: Time limit for everything, in seconds.

        tell: Called with the stage, and the number of processes done, and of
            all.

    Returns:
        The stacks, and what is missing and why.

    Raises:
        OutputError: The output folder cannot be created.

        PatternError: A pattern is no regular expression.
    """
    host, deadline = socket.gethostname(), time.monotonic() + timeout_s
    folder = None
    if output_dir is not None:
        with output_to(output_dir):
            folder = make_folder(Path(output_dir), host)
    patterns = tuple(patterns)
    workers = _list_workers(pids, patterns)
    start = time.monotonic()
    samples_by_pid = _take_samples(
        workers, samples, interval_s, deadline, tell
    )
    watched_s = time.monotonic() - start

    processes = _describe_all(workers, samples_by_pid, host, deadline)
    processes = request_missing_stacks(processes, deadline)
    processes = capture_native(
        processes, native=native, cuda=cuda, deadline=deadline, tell=tell
    )
    capture = Capture(
        host=host,
        processes=tuple(sorted(processes, key=_sort_key)),
        missing=(
            *_missing_stacks(processes),
            *_missing_workers(workers, pids, patterns),
            *_missing_samples(samples_by_pid.values(), samples),
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
    samples: int = 1,
    interval_s: float = 1.0,
    timeout_s: float = 60.0,
) -> ProcessCapture:
    """
    Capture the stacks of one process.

    Args:
        pid: A process of this node.

        native: Whether to take native stacks too, which stops it for a moment.

        cuda: Whether to attach cuda-gdb, which stops it for seconds.

        samples: How often to sample it, at least once.

        interval_s: Time between two samples, in seconds.

        timeout_s: Time limit for everything, in seconds.

    Returns:
        Its stacks and status, also if it has ended.
    """
    (process,) = capture_node(
        pids=[pid],
        native="all" if native else "none",
        cuda=cuda,
        samples=samples,
        interval_s=interval_s,
        timeout_s=timeout_s,
    ).processes
    return process


def _list_workers(
    pids: Iterable[int] | None, patterns: Iterable[str]
) -> Sequence[Worker]:
    if pids is None:
        return find_workers(patterns)

    requested = tuple(dict.fromkeys(pids))
    known = {worker.pid: worker for worker in find_workers_by_pid(requested)}
    return [known.get(pid) or _unknown_worker(pid) for pid in requested]


def _unknown_worker(pid: int) -> Worker:
    return Worker(
        pid=pid, start_ticks=0, parent_pid=0, uid=0, title="", framework=""
    )


def _take_samples(
    workers: Sequence[Worker],
    samples: int,
    interval_s: float,
    deadline: float,
    tell: ProgressCallback,
) -> dict[int, list[Sample]]:
    by_pid: dict[int, list[Sample]] = {w.pid: [] for w in workers}
    # Without workers, do not wait between samples.
    for number in range(max(samples, 1) if workers else 0):
        if number and deadline - time.monotonic() < interval_s:
            break
        if number:
            time.sleep(interval_s)
        stage = f"look {number + 1} of {samples}"
        for worker, sample in zip(
            workers,
            _sample_all(workers, deadline, partial(tell, stage)),
            strict=True,
        ):
            by_pid[worker.pid].append(sample)

    return by_pid


def _sample_all(
    workers: Sequence[Worker],
    deadline: float,
    tell: Callable[[int, int], object],
) -> Iterable[Sample]:
    limit_s = max(min(_SAMPLE_TIMEOUT_S, deadline - time.monotonic()), 0.1)
    taken = parallel_map(
        partial(take_sample, timeout_s=limit_s),
        workers,
        timeout_s=limit_s + _GRACE_S,
        tell=tell,
    )
    return [sample or timed_out_sample() for sample in taken]


def _describe_all(
    workers: Sequence[Worker],
    samples_by_pid: Mapping[int, list[Sample]],
    host: str,
    deadline: float,
) -> Sequence[ProcessCapture]:
    # This reads /proc again, which may block this time.
    limit_s = (
        max(min(_SAMPLE_TIMEOUT_S, deadline - time.monotonic()), 0.1)
        + _GRACE_S
    )
    described = parallel_map(
        lambda w: _describe_one(w, samples_by_pid[w.pid], host),
        workers,
        timeout_s=limit_s,
    )
    return [
        process or _describe_one(worker, [timed_out_sample()], host)
        for worker, process in zip(workers, described, strict=True)
    ]


def _describe_one(
    worker: Worker, samples: Sequence[Sample], host: str
) -> ProcessCapture:
    stacks = describe_process(worker, samples, host=host)
    attempts = tuple(sample.attempt for sample in samples)
    return summarize_attempts(
        ProcessCapture(
            worker=worker,
            status=CaptureStatus.OK,
            stacks=stacks,
            attempts=attempts,
        ),
        samples[-1].state,
    )


def _sort_key(process: ProcessCapture) -> tuple[bool, int, int]:
    rank = process.worker.rank
    return rank is None, rank or 0, process.worker.pid


def _missing_stacks(processes: Iterable[ProcessCapture]) -> Iterable[Missing]:
    for process in processes:
        if not any(t.frames or t.native for t in process.stacks.threads):
            yield process.missing(_failure_reason(process))


def _failure_reason(process: ProcessCapture) -> str:
    # Later attempts may have failed for another reason.
    decisive = [a for a in process.attempts if a.status is process.status]
    last = (decisive or process.attempts)[-1]
    reason = last.detail or f"the process: {process.status}"
    return f"{reason} (try: {process.remedy})" if process.remedy else reason


def _missing_samples(
    taken: Collection[Sequence[Sample]], samples: int
) -> Iterable[Missing]:
    done = max(map(len, taken), default=samples)
    if done < samples:
        yield Missing(
            what="look",
            reason=f"only {done} of {samples} looks were taken: the time was "
            "over, so who moves and who does not is less sure",
        )


def _missing_workers(
    workers: Sequence[Worker],
    pids: Iterable[int] | None,
    patterns: Sequence[str],
) -> Iterable[Missing]:
    # With PIDs or patterns, other ranks were not requested.
    if pids is not None or patterns:
        return

    for rank in missing_ranks(workers):
        yield Missing(
            what="worker",
            reason="no process of this rank was found on this node",
            rank=rank,
        )
