"""
What became of looking into a process?
"""

from __future__ import annotations

import json

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import attrs

from .._io import numbered, write_whole
from .._render import Block, Lines, Shown, Table, Tree
from .._text import clean
from ..findings import Finding, Missing, finding_entries, missing_block
from ..processes import Worker
from ..ranks import fold_ranks
from ..stacks import (
    ProcessStacks,
    branches,
    merge_stacks,
    stacks_to_json,
    stacks_to_text,
)
from ..usercode import user_location


# Whose native stacks to take.
Native = Literal["none", "classes", "all"]


class CaptureStatus(StrEnum):
    """
    How it went, or why it could not go.
    """

    OK = "ok"
    EXITED = "exited"
    ZOMBIE = "zombie"
    STOPPED = "stopped"
    TRACED_BY_OTHER = "traced_by_other"
    UNINTERRUPTIBLE = "uninterruptible"
    OTHER_NAMESPACE = "other_namespace"
    OTHER_USER = "other_user"
    YAMA = "yama"
    NO_CAPABILITY = "no_capability"
    SECCOMP = "seccomp"
    NOT_DUMPABLE = "not_dumpable"
    NOT_PERMITTED = "not_permitted"
    NOT_PYTHON = "not_python"
    UNSUPPORTED_PYTHON = "unsupported_python"
    TOOL_MISSING = "tool_missing"
    TOOL_FAILED = "tool_failed"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"


@attrs.frozen(kw_only=True)
class Attempt:
    """
    One tool, run once on one process.

    Attributes:
        tool: Such as ``"py-spy"``, ``"gdb"``, ``"proc"`` (the kernel alone).

        status: How it went.

        detail: What the tool or the kernel said, in one line, or ``""``.

        remedy: What to do about it, or ``""``.

        seconds: How long it took.

        paused_s: How long it kept the process from running, at most.

        resumed: Whether the process was left stopped by the tool, and had to
            be sent SIGCONT.
    """

    tool: str
    status: CaptureStatus
    detail: str = ""
    remedy: str = ""
    seconds: float = 0.0
    paused_s: float = 0.0
    resumed: bool = False


@attrs.frozen(kw_only=True)
class ProcessCapture(Shown):
    """
    One process, and what could be learned about it.

    Attributes:
        worker: The process.

        status: The most telling fact: ``ok``, or what the state of the process
            is (``zombie``, ``stopped``, …), or why it could not be looked at.
            Stacks may be there all the same.

        stacks: The last that was seen of it.  A process that could not be
            looked at has a state there, but no threads.

        remedy: What to do to see more, or ``""``.

        attempts: What was tried, in order.

        cuda_text: What cuda-gdb printed, or ``""``.
    """

    worker: Worker
    status: CaptureStatus
    stacks: ProcessStacks
    remedy: str = ""
    attempts: tuple[Attempt, ...] = ()
    cuda_text: str = ""

    def missing(self, reason: str) -> Missing:
        """
        Say that something about this process could not be seen or kept.

        Args:
            reason: Why.
        """
        return Missing(
            what="stack",
            reason=reason,
            rank=self.worker.rank,
            source=f"pid {self.worker.pid}",
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data: the process, and what was tried; stacks have their own.
        """
        return _record(self)

    def _blocks_(self) -> Iterable[Block]:
        yield from self.stacks._blocks_()
        told = f"{self.status}: {self.remedy}" if self.remedy else self.status
        yield f"looked at: {told}"


@attrs.frozen(kw_only=True)
class Capture(Shown):
    """
    What every worker of this node was doing.

    Attributes:
        host: Name of the node.

        processes: Every worker, those of ranks first, by rank.

        missing: What could not be seen, and why; ranks that should be on this
            node and were not found are among them.

        seconds: How long the workers were watched.

        taken: When, in seconds since 1970.

        files: What was written.
    """

    host: str
    processes: tuple[ProcessCapture, ...]
    missing: tuple[Missing, ...] = ()
    seconds: float = 0.0
    taken: float = 0.0
    files: tuple[Path, ...] = ()

    @property
    def stacks(self) -> tuple[ProcessStacks, ...]:
        """
        What is known of every process, for ``explain_stacks``.
        """
        return tuple(p.stacks for p in self.processes)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """
        What the stacks of all workers say together, the verdict first.
        """
        from ..stacks import explain_stacks

        return explain_stacks(self.stacks)

    @property
    def is_blind(self) -> bool:
        """
        Whether nothing could be seen, no stack and nothing else that tells.
        """
        is_seen = any(
            thread.frames or thread.native
            for process in self.processes
            for thread in process.stacks.threads
        )
        return not is_seen and not self.findings

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {
            "host": self.host,
            "taken": self.taken,
            "seconds": self.seconds,
            "workers": self.to_records(),
            "findings": [f.to_dict() for f in self.findings],
            "missing": [attrs.asdict(m) for m in self.missing],
            "files": [str(path) for path in self.files],
        }

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per process, for a data frame.
        """
        return [_record(process) for process in self.processes]

    def _blocks_(self) -> Iterable[Block]:

        return capture_blocks(self)


def _record(process: ProcessCapture) -> dict[str, Any]:
    return {
        **process.worker.to_dict(),
        "state": process.stacks.state,
        "status": process.status.value,
        "remedy": process.remedy or None,
        "attempts": [
            {**attrs.asdict(a), "status": a.status.value}
            for a in process.attempts
        ],
    }


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


def make_folder(output_dir: Path, host: str) -> Path:
    """
    Make the folder of this node: before anything is captured, because then
    nobody is stopped for what cannot be kept.

    Args:
        output_dir: The folder for all nodes; it is made if necessary.

        host: Name of this node.

    Returns:
        ``OUTPUT_DIR/HOST``; if that is there already, ``HOST.2``, and so on.

    Raises:
        OSError: It cannot be made.
    """
    output_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in numbered(output_dir / host):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return folder

    raise AssertionError  # the numbers never end


def write_capture(capture: Capture, folder: Path) -> Capture:
    """
    Write what was seen, each file whole or not at all.

    There is ``pyspy_HOST_PID.txt`` and ``.json`` for each process,
    ``cudagdb_HOST_PID.txt`` for each that cuda-gdb looked at, and
    ``workers.json`` about all of them.

    Args:
        capture: What was seen.

        folder: The folder of this node.

    Returns:
        The capture with its files; what could not be written is told in
        ``missing``.
    """
    files: list[Path] = []
    missing = list(capture.missing)
    for process in capture.processes:
        try:
            files += _write_process(process, folder, capture.host)
        except OSError as exc:
            missing.append(process.missing(f"not written: {exc.strerror}"))
    table = json.dumps(capture.to_records(), indent=1)
    try:
        files.append(_write(folder / "workers.json", table))
    except OSError as exc:
        reason = f"not written: {exc.strerror}"
        lost = Missing(what="list of workers", reason=reason)
        missing.append(lost)
    return attrs.evolve(capture, files=tuple(files), missing=tuple(missing))


def _write_process(
    process: ProcessCapture, folder: Path, host: str
) -> Iterator[Path]:
    name = f"{host}_{process.worker.pid}"
    yield _write(folder / f"pyspy_{name}.json", stacks_to_json(process.stacks))
    yield _write(folder / f"pyspy_{name}.txt", stacks_to_text(process.stacks))
    if process.cuda_text:
        yield _write(folder / f"cudagdb_{name}.txt", process.cuda_text)


def _write(path: Path, text: str) -> Path:
    write_whole(path, text.encode("utf-8", "replace"))
    return path
