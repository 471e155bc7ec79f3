"""
What is every worker of this node doing right now?

First everybody is looked at several times without being stopped.  Only if it
is asked for, some or all are then looked into with tools that do stop them for
a moment, one collector per node at a time.
"""

from __future__ import annotations

import os
import socket
import time

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from pathlib import Path

from .._files import output_to
from ..findings import Missing
from ..processes.find import find_workers, missing_ranks, workers_of
from ..processes.model import Worker
from .deep import look_deeper
from .fallback import ask_unseen
from .files import make_folder, write_capture
from .looks import Look, describe_process, no_look, take_look
from .model import Capture, CaptureStatus, Native, ProcessCapture
from .outcome import judge
from .pool import each


__all__ = ["capture_node", "capture_process"]

Tell = Callable[[str, int, int], object]

# What py-spy needs, a hundred times over.
_LOOK_S = 10.0
# For tools that are being killed.
_GRACE_S = 3.0


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
