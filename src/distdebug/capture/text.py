"""
What is there to show of a capture?

The verdict comes first, then the stacks of everybody as one tree, then what
could not be seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from .._showing import Block, Lines, Table, Tree
from .._text import clean
from ..findings import finding_entries, missing_block
from ..location import user_location
from ..ranks import fold_ranks
from ..stacks.draw import branches
from ..stacks.merge import merge_stacks
from .model import Capture, CaptureStatus, ProcessCapture


__all__ = ["capture_blocks"]

_MOST_ROWS = 32
_MOST_FAILURES = 8
_LONGEST_JOB = 24
# After these others are tried, or what is missing is told anyway.
_QUIET = {"faulthandler", "proc", "py-spy", "py-spy --native", "pystack"}


def capture_blocks(capture: Capture) -> Iterator[Block]:
    """
    What is there to show of a capture?

    Args:
        capture: The capture.

    Returns:
        Verdict, merged stacks, processes, and what is missing.
    """
    if capture.is_blind:
        number = len(capture.processes)
        yield f"no stack could be read of {_count(number)}: see below"
    yield finding_entries(capture.findings)
    yield _headline(capture)
    yield Tree(branches(merge_stacks(capture.stacks)))
    yield _table(capture)
    yield Lines(list(_pauses(capture)))
    yield missing_block(capture.missing)


def _count(number: int) -> str:
    return f"{number} {'process' if number == 1 else 'processes'}"


def _headline(capture: Capture) -> str:
    ranks = {
        p.worker.rank for p in capture.processes if p.worker.rank is not None
    }
    kinds = Counter(p.worker.framework or "?" for p in capture.processes)
    names = ", ".join(f"{n} of {name}" for name, n in kinds.most_common())
    whose = f"; ranks {fold_ranks(ranks)}" if ranks else ""
    when = datetime.fromtimestamp(capture.taken).astimezone()
    watched = (
        f", watched for {capture.seconds:.1f} s"
        if capture.seconds > 0.5
        else ""
    )
    return (
        f"{clean(capture.host)}, {when:%Y-%m-%d %H:%M:%S %Z}: "
        f"{_count(len(capture.processes))} ({names}{whose}){watched}"
    )


def _table(capture: Capture) -> Table:
    jobs = {p.worker.job for p in capture.processes if p.worker.job}
    ranks = {p.worker.pid: p.worker.rank for p in capture.processes}
    head = ["rank", "pid", "role", "state", "capture", "at"]
    rows = [_row(process, ranks) for process in capture.processes]
    if len(jobs) > 1:
        head.append("job")
        rows = [
            (*row, _brief(process.worker.job))
            for row, process in zip(rows, capture.processes, strict=True)
        ]
    return Table(head, rows, _MOST_ROWS, "processes")


def _brief(job: str) -> str:
    # What differs between two runs stands at the end.
    return job if len(job) <= _LONGEST_JOB else f"…{job[1 - _LONGEST_JOB :]}"


def _row(
    process: ProcessCapture, ranks: Mapping[int, int | None]
) -> tuple[object, ...]:
    worker, stacks = process.worker, process.stacks
    main = stacks.main_thread
    where = user_location(main.frames) if main else None
    parent = ranks.get(worker.parent_pid)
    of_parent = "-" if parent is None else f"({parent})"
    return (
        of_parent if worker.rank is None else worker.rank,
        worker.pid,
        worker.role,
        stacks.state,
        process.status,
        where.brief if where else "-",
    )


def _pauses(capture: Capture) -> Iterable[str]:
    """
    Say who was stopped by our tools, and for how long; and what failed.
    """
    tried = [(p, a) for p in capture.processes for a in p.attempts]
    paused = [a.paused_s for _, a in tried if a.paused_s > 0]
    if paused:
        times = "once" if len(paused) == 1 else f"{len(paused)} times"
        yield f"stopped for a moment: {times}, {max(paused):.1f} s at most"
    for process, attempt in tried:
        if attempt.resumed:
            yield (
                f"{attempt.tool} left pid {process.worker.pid} stopped; "
                "it was told to go on (SIGCONT)"
            )
    failed = Counter(
        (a.tool, a.detail or a.status, a.remedy)
        for _, a in tried
        if a.status is not CaptureStatus.OK and a.tool not in _QUIET
    )
    for (tool, detail, remedy), number in failed.most_common(_MOST_FAILURES):
        advice = f" (try: {remedy})" if remedy else ""
        noun = "process" if number == 1 else "processes"
        yield clean(f"{tool}, {number} {noun}: {detail}{advice}", limit=400)
