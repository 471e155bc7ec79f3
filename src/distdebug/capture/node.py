"""
Capture the stacks of all workers of this node, or of one process.

First every worker is sampled several times without being stopped.  Native
stacks and GPU kernels, which stop a process for a moment, are taken only on
request, by one collector per node at a time.
"""

from __future__ import annotations

import os
import socket
import time

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs

from .._io import output_to
from .._proc import map_with_timeout, stop_children
from ..causes import Cause
from ..errors import CaptureError
from ..findings import Missing
from ..processes import (
    ProcessState,
    Worker,
    absent_peers,
    as_patterns,
    find_workers,
    find_workers_by_pid,
)
from ..stacks import (
    ProcessStacks,
    ThreadStack,
    explain_stacks,
    join_threads,
    merge_stacks,
)
from .attach import AttachedStacks, capture_cuda, node_lock, read_native_stacks
from .blockers import explain_state
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


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# The threads only wait for tools.  With more tools than processors, processes
# stay stopped for longer.
_POOL_THREADS = max(4, min(16, os.cpu_count() or 1))


def parallel_map(
    function: Callable[[_Item], _Result],
    items: Iterable[_Item],
    *,
    timeout_s: float,
    late: Callable[[_Item], _Result],
    tell: Callable[[int, int], object] = lambda _done, _total: None,
) -> list[_Result]:
    """
    Call a function that runs tools for each item, in several threads.

    On an interrupt the tools are stopped; nothing waits for them.

    Args:
        timeout_s: Time limit for all items, in seconds.

        late: Returns the result of an item that was not done in time.

        tell: Called with the number of items done, and of all.

    Returns:
        The results, in the order of *items*.

    Raises:
        Exception: The first that *function* raised.
    """
    todo = list(items)
    results: dict[int, _Result] = {}
    answers = map_with_timeout(
        lambda number: function(todo[number]),
        range(len(todo)),
        deadline=time.monotonic() + timeout_s,
        threads=_POOL_THREADS,
        may_block=True,
    )
    with closing(answers):
        try:
            for done, (number, future) in enumerate(answers, 1):
                results[number] = future.result()
                tell(done, len(todo))
        except BaseException:
            stop_children()
            raise
    return [
        results[number] if number in results else late(item)
        for number, item in enumerate(todo)
    ]


def _map_processes(
    function: Callable[[ProcessCapture], ProcessCapture],
    processes: Sequence[ProcessCapture],
    chosen: Collection[int],
    **limits: Any,
) -> list[ProcessCapture]:
    """
    Replace some processes by what a function returns for them.

    Args:
        chosen: PIDs of the processes to call it for.

        limits: As of :func:`parallel_map`.
    """
    todo = [p for p in processes if p.worker.pid in chosen]
    done = parallel_map(function, todo, **limits)
    by_pid = {process.worker.pid: process for process in done}
    return [by_pid.get(p.worker.pid, p) for p in processes]


def _add_attempts(
    process: ProcessCapture, *new: Attempt, **changes: Any
) -> ProcessCapture:
    return attrs.evolve(process, attempts=(*process.attempts, *new), **changes)


_SELF_REPORT_S = 5.0
# Processes in these states cannot report, or have no stacks.
_CANNOT_REPORT = {
    CaptureStatus.EXITED,
    CaptureStatus.ZOMBIE,
    CaptureStatus.STOPPED,
    CaptureStatus.NOT_PYTHON,
}


def _request_missing_stacks(
    processes: Sequence[ProcessCapture], deadline: float
) -> list[ProcessCapture]:
    """
    Request a self-report from processes whose stacks could not be read.
    """
    chosen = {
        p.worker.pid
        for p in processes
        if p.status not in _CANNOT_REPORT
        and not any(t.frames for t in p.stacks.threads)
    }
    timeout_s = min(_seconds_left(deadline), 4 * _SELF_REPORT_S)
    return _map_processes(
        _add_self_report,
        processes,
        chosen,
        timeout_s=timeout_s,
        late=_add_attempts,
    )


def _seconds_left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.1)


def _add_self_report(process: ProcessCapture) -> ProcessCapture:
    worker = process.worker
    threads, attempt = ask_process(
        worker.pid, timeout_s=_SELF_REPORT_S, start_ticks=worker.start_ticks
    )
    if not threads:
        return _add_attempts(process, attempt)

    answered = {t.thread_id: t for t in threads}
    merged = [
        _merge_frames(thread, answered.pop(thread.thread_id, None))
        for thread in process.stacks.threads
    ]
    stacks = attrs.evolve(
        process.stacks,
        source=attempt.tool,
        threads=(*merged, *answered.values()),
    )
    status = process.status
    if status is not CaptureStatus.UNINTERRUPTIBLE:
        status = CaptureStatus.OK
    return _add_attempts(process, attempt, status=status, stacks=stacks)


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


def _attach_tools(
    processes: Sequence[ProcessCapture],
    native: Native,
    cuda: bool,  # noqa: FBT001 as the caller has it
    deadline: float,
    tell: ProgressCallback,
) -> Sequence[ProcessCapture]:
    """
    Add native stacks and GPU kernels, as far as requested.

    If another collector is at work, only an attempt that says so is added.
    """
    chosen = _select_processes(processes, native)
    if not (chosen or (cuda and processes)):
        return processes

    run_stage = partial(_run_stage, deadline=deadline, tell=tell)
    try:
        with node_lock(_LOCK_S):
            processes = run_stage(
                "native stacks", read_native_stacks, processes, chosen
            )
            if cuda:
                every = {p.worker.pid for p in processes}
                processes = run_stage(
                    "cuda-gdb", capture_cuda, processes, every
                )
    except CaptureError as exc:
        # The samples taken before are still useful.
        attempt = Attempt(
            tool="lock",
            status=CaptureStatus.SKIPPED,
            detail=str(exc),
            remedy=exc.remedy or "",
        )
        processes = [_add_attempts(p, attempt) for p in processes]
    return processes


def _run_stage(  # noqa: PLR0913 each stage has its own
    name: str,
    capture: Callable[..., AttachedStacks],
    processes: Sequence[ProcessCapture],
    chosen: Collection[int],
    *,
    deadline: float,
    tell: ProgressCallback,
) -> Sequence[ProcessCapture]:
    attempt = Attempt(
        tool=name,
        status=CaptureStatus.TIMED_OUT,
        detail="the time for all processes of this node was over",
        remedy="allow more time, or name fewer processes",
    )

    def late(process: ProcessCapture) -> ProcessCapture:
        return _add_attempts(process, attempt)

    def add(process: ProcessCapture) -> ProcessCapture:
        left_s = min(deadline - time.monotonic(), _TOOL_TIMEOUT_S)
        if left_s <= 0:
            return late(process)

        worker, stacks = process.worker, process.stacks
        found = capture(
            worker.pid, timeout_s=left_s, start_ticks=worker.start_ticks
        )
        threads = join_threads(stacks.threads, found.threads)
        kernels = (*stacks.kernels, *found.kernels)
        return _add_attempts(
            process,
            *found.attempts,
            stacks=attrs.evolve(stacks, threads=threads, kernels=kernels),
            cuda_text=process.cuda_text + found.cuda_text,
        )

    return _map_processes(
        add,
        processes,
        chosen,
        timeout_s=max(deadline - time.monotonic(), 0) + _GRACE_S,
        late=late,
        tell=partial(tell, name),
    )


def _select_processes(
    processes: Sequence[ProcessCapture], native: Native
) -> set[int]:
    """
    Return the PIDs of one process of each class, and of all outliers.
    """
    if native == "none":
        return set()
    if native == "all":
        return {p.worker.pid for p in processes}

    tree = merge_stacks(p.stacks for p in processes)
    chosen = dict.fromkeys(
        [
            *(c.members[0] for c in reversed(tree.classes)),
            *(member for c in tree.outliers() for member in c.members),
        ]
    )
    return {tree.processes[member].pid for member in [*chosen][:_MAX_NATIVE]}


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
    patience_s: float = 0.0,
    timeout_s: float = 180.0,
    tell: ProgressCallback = lambda _stage, _done, _total: None,
) -> Capture:
    """
    Capture the stacks of every worker of this node.

    Example::

        capture = distdebug.capture_node()
        print(capture.findings[0])

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

        patience_s: How much longer to look, in seconds, if what the samples
            show may be slow as well as stuck, such as a loader of data.

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
    patterns = as_patterns(patterns)
    workers = _list_workers(pids, patterns)
    rounds = _take_samples(workers, samples, interval_s, deadline, tell)
    described = _describe_all(workers, rounds, host, deadline)
    has_time = patience_s < _seconds_left(deadline)
    if patience_s and has_time and _may_be_slow(described):
        rounds += _look_on(workers, patience_s, deadline, tell)
        described = _describe_all(workers, rounds, host, deadline)

    reported = _request_missing_stacks(described, deadline)
    processes = _attach_tools(reported, native, cuda, deadline, tell)
    # With PIDs or patterns, other ranks are there, but were not requested.
    is_all = not patterns and pids is None
    absent = _find_absent(workers, is_all=is_all)
    processes = [_note_absent_peers(p, absent) for p in processes]
    capture = Capture(
        host=host,
        processes=tuple(sorted(processes, key=_sort_key)),
        missing=(
            *_missing_stacks(processes),
            *(_missing_ranks(absent) if is_all else ()),
            *_missing_samples(len(rounds) if workers else samples, samples),
        ),
        seconds=rounds[-1][0].when - rounds[0][0].when if workers else 0.0,
        taken=time.time(),
    )
    return capture if folder is None else write_capture(capture, folder)


def check_found(
    captured: Capture, pids: Collection[int] = (), patterns: Iterable[str] = ()
) -> None:
    """
    Raise an error if there was nothing to capture.

    Args:
        pids: The processes that were named.

        patterns: The patterns that were given.

    Raises:
        CaptureError: There is no such process, or no worker.
    """
    if not captured.processes and not captured.missing:
        if texts := " or ".join(map(repr, patterns)):
            msg = f"no command line on this node matches {texts}"
            remedy = "leave --pattern out to see which workers there are"
        else:
            msg = "no worker of a job was found on this node"
            remedy = "name it with --pid, or with --pattern REGEX"
        raise CaptureError(msg, remedy=remedy)
    # The kernel gave nothing about them, not even their start time.
    if pids and not any(p.worker.start_ticks for p in captured.processes):
        numbers = ", ".join(str(p.worker.pid) for p in captured.processes)
        msg = f"no such process: {numbers}"
        raise CaptureError(msg, remedy="see: ps -ef")


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

    unknown = {
        pid: Worker(
            pid=pid, start_ticks=0, parent_pid=0, uid=0, title="", framework=""
        )
        for pid in pids
    }
    known = {worker.pid: worker for worker in find_workers_by_pid(unknown)}
    return tuple((unknown | known).values())


def _take_samples(
    workers: Sequence[Worker],
    samples: int,
    interval_s: float,
    deadline: float,
    tell: ProgressCallback,
) -> list[list[Sample]]:
    """
    Sample all workers again and again; return the samples of each round.
    """
    rounds: list[list[Sample]] = []
    # Without workers, do not wait between samples.
    for number in range(max(samples, 1) if workers else 0):
        if number and deadline - time.monotonic() < interval_s:
            break
        if number:
            time.sleep(interval_s)
        stage = f"look {number + 1} of {samples}"
        rounds.append(_sample_all(workers, deadline, partial(tell, stage)))
    return rounds


# What takes seconds in a healthy job, too.
_SLOW_CAUSES = frozenset(
    {
        *(Cause.DATALOADER_WAIT, Cause.FUTURE_WAIT, Cause.IO_WAIT),
        *(Cause.QUEUE_WAIT, Cause.SLEEPING, Cause.SUBPROCESS_WAIT),
        *(Cause.RANK_NOT_ARRIVED, Cause.UNKNOWN),
    }
)
_MORE_LOOKS = 3
PATIENCE_S = 6.0
"""Seconds to look longer where nobody waits at a terminal (a batch may take them)."""


def _may_be_slow(described: Iterable[ProcessCapture]) -> bool:
    findings = explain_stacks([p.stacks for p in described])
    return bool(findings) and findings[0].cause in _SLOW_CAUSES


def _look_on(
    workers: Sequence[Worker],
    seconds: float,
    deadline: float,
    tell: ProgressCallback,
) -> list[list[Sample]]:
    interval_s = seconds / _MORE_LOOKS
    time.sleep(min(interval_s, _seconds_left(deadline)))
    return _take_samples(workers, _MORE_LOOKS, interval_s, deadline, tell)


def _sample_all(
    workers: Sequence[Worker],
    deadline: float,
    tell: Callable[[int, int], object],
) -> list[Sample]:
    limit_s = min(_SAMPLE_TIMEOUT_S, _seconds_left(deadline))
    return parallel_map(
        partial(take_sample, timeout_s=limit_s),
        workers,
        timeout_s=limit_s + _GRACE_S,
        late=lambda _: timed_out_sample(),
        tell=tell,
    )


def _describe_all(
    workers: Sequence[Worker],
    rounds: Iterable[Iterable[Sample]],
    host: str,
    deadline: float,
) -> Sequence[ProcessCapture]:
    # This reads /proc again, which may block this time.
    return parallel_map(
        lambda item: _describe_one(*item, host),
        zip(workers, zip(*rounds, strict=True), strict=True),
        timeout_s=min(_SAMPLE_TIMEOUT_S, _seconds_left(deadline)) + _GRACE_S,
        late=lambda item: _describe_one(item[0], [timed_out_sample()], host),
    )


def _describe_one(
    worker: Worker, samples: Sequence[Sample], host: str
) -> ProcessCapture:
    stacks = describe_process(worker, samples, host=host)
    attempts = tuple(sample.attempt for sample in samples)
    status, remedy = _summarize(stacks, attempts[-1], samples[-1].state)
    return ProcessCapture(
        worker=worker,
        status=status,
        stacks=stacks,
        remedy=remedy,
        attempts=attempts,
    )


def _summarize(
    stacks: ProcessStacks, last: Attempt, state: ProcessState | None
) -> tuple[CaptureStatus, str]:
    """
    Return status and remedy of a process: its state first, then the tools.

    Args:
        last: Its last attempt.

        state: Its last state; None if it could not be read or the process has
            ended, as *last* says.
    """
    blocker = explain_state(state, stacks.pid) if state else None
    if blocker is not None:
        return blocker
    has_ended = state is None and last.status is CaptureStatus.EXITED
    if not has_ended and any(t.frames or t.native for t in stacks.threads):
        return CaptureStatus.OK, ""
    return last.status, last.remedy


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


def _missing_samples(done: int, samples: int) -> Iterable[Missing]:
    if done < samples:
        yield Missing(
            what="look",
            reason=f"only {done} of {samples} looks were taken: the time was "
            "over, so who moves and who does not is less sure",
        )


def _find_absent(
    workers: Sequence[Worker], *, is_all: bool
) -> Mapping[int, tuple[int, ...]]:
    has_ranks = any(worker.rank is not None for worker in workers)
    return absent_peers(workers if is_all or not has_ranks else find_workers())


def _note_absent_peers(
    process: ProcessCapture, absent: Mapping[int, tuple[int, ...]]
) -> ProcessCapture:
    peers = absent.get(process.worker.pid, ())
    stacks = attrs.evolve(process.stacks, absent_peers=peers)
    return attrs.evolve(process, stacks=stacks)


def _missing_ranks(
    absent: Mapping[int, tuple[int, ...]],
) -> Iterable[Missing]:
    for rank in sorted({rank for ranks in absent.values() for rank in ranks}):
        yield Missing(
            what="worker",
            reason="no process of this rank was found on this node",
            rank=rank,
        )
