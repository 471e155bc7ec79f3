"""
Results of capturing stacks: capture status, attempts, processes, the node.
"""

from __future__ import annotations

import json

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import attrs

from .._io import make_private_folder, numbered, write_whole
from .._render import Block, Lines, Shown, Table, Tree, as_plain
from .._text import clean, count_text
from ..findings import Finding, Missing, finding_entries, missing_block
from ..processes import Worker
from ..ranks import fold_ranks
from ..stacks import (
    ProcessStacks,
    merge_stacks,
    stacks_to_json,
    stacks_to_text,
    to_branches,
)
from ..usercode import user_location


# Processes to take native stacks of.
Native = Literal["none", "classes", "all"]


class CaptureStatus(StrEnum):
    """
    Status of a capture: success, or why it failed.
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

    @property
    def is_denied(self) -> bool:
        """
        Return whether the kernel, or a container, does not let us trace it.
        """
        return self in _DENIED


_DENIED = frozenset(
    {
        *(CaptureStatus.OTHER_NAMESPACE, CaptureStatus.OTHER_USER),
        *(CaptureStatus.YAMA, CaptureStatus.NO_CAPABILITY),
        *(CaptureStatus.SECCOMP, CaptureStatus.NOT_DUMPABLE),
        CaptureStatus.NOT_PERMITTED,
    }
)


@attrs.frozen(kw_only=True)
class Attempt:
    """
    One run of a tool on a process.

    Attributes:
        tool: Such as ``"py-spy"``, ``"gdb"``, ``"proc"`` (the kernel alone).

        status: How it went.

        detail: Message of the tool or the kernel in one line, or ``""``.

        remedy: What to do about it, or ``""``.

        seconds: How long it took.

        paused_s: How long it kept the process from running, at most.

        resumed: Whether the tool left the process stopped, and SIGCONT was
            sent.
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
    Stacks and status of one process.

    Attributes:
        worker: The process.

        status: ``ok``, the state of the process (``zombie``, ``stopped``, …),
            or why it could not be captured.  There may be stacks whatever the
            status.

        stacks: Its most recent stacks.  If it could not be captured, they have
            a state, but no threads.

        remedy: What to do to capture more, or ``""``.

        attempts: What was tried, in order.

        cuda_text: Output of cuda-gdb, or ``""``.
    """

    worker: Worker
    status: CaptureStatus
    stacks: ProcessStacks
    remedy: str = ""
    attempts: tuple[Attempt, ...] = ()
    cuda_text: str = ""

    def missing(self, reason: str) -> Missing:
        """
        Return a note that something of this process could not be captured.
        """
        return Missing(
            what="stack",
            reason=reason,
            rank=self.worker.rank,
            source=f"pid {self.worker.pid}",
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Return the process and its attempts as plain data, without stacks.
        """
        return {
            **self.worker.to_dict(),
            "state": self.stacks.state,
            "status": self.status.value,
            "remedy": self.remedy or None,
            "attempts": [as_plain(attempt) for attempt in self.attempts],
        }

    def _blocks_(self) -> Iterable[Block]:
        yield from self.stacks._blocks_()
        remedy = f": {self.remedy}" if self.remedy else ""
        yield f"looked at: {self.status}{remedy}"


@attrs.frozen(kw_only=True)
class Capture(Shown):
    """
    Stacks of all workers of a node.

    Attributes:
        host: Name of the node.

        processes: All workers, ranks first, by rank.

        missing: What could not be captured, and why; also ranks that should be
            on this node but were not found.

        seconds: How long the workers were sampled.

        taken: Time of the capture, in seconds since 1970.

        files: Files that were written.
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
        Stacks of every process, as input for ``explain_stacks``.
        """
        return tuple(p.stacks for p in self.processes)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """
        Findings from the stacks of all workers, the verdict first.
        """
        from ..stacks import explain_stacks

        return explain_stacks(self.stacks)

    @property
    def is_blind(self) -> bool:
        """
        Whether there are neither stacks nor findings.
        """
        has_stacks = any(
            thread.frames or thread.native
            for process in self.processes
            for thread in process.stacks.threads
        )
        return not has_stacks and not self.findings

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
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
        Return one plain dictionary per process, for a data frame.
        """
        return [process.to_dict() for process in self.processes]

    def _blocks_(self) -> Iterable[Block]:
        denied = [p for p in self.processes if p.status.is_denied]
        if denied:
            yield Lines([*_denial_lines(denied)])
        elif self.is_blind:
            count = count_text(len(self.processes), "process")
            yield f"no stack could be read of {count}: see below"
        yield finding_entries(self.findings)
        yield _headline(self)
        yield Tree(to_branches(merge_stacks(self.stacks)))
        yield _table(self)
        yield Lines(list(_attempt_notes(self)))
        yield missing_block(self.missing)


_MAX_ROWS = 32
_MAX_FAILURES = 8
_MAX_JOB_CHARS = 24
# Other tools are tried after these, or "missing" reports the failure.
_UNREPORTED_TOOLS = {
    *("faulthandler", "proc", "pystack"),
    *("py-spy", "py-spy --native"),
}


def _denial_lines(denied: Sequence[ProcessCapture]) -> Iterator[str]:
    """
    Yield what is denied, what would allow it, and what works without.
    """
    statuses = sorted({p.status.value for p in denied})
    remedies = dict.fromkeys(p.remedy for p in denied if p.remedy)
    count = count_text(len(denied), "process")
    yield f"tracing is denied, so {count} cannot be read: {', '.join(statuses)}"
    yield from (f"  to allow it: {clean(remedy)}" for remedy in remedies)
    yield (
        "  without it: dumps (distdebug dump DIR) and logs (distdebug diagnose); "
        "a job that called enable_flight_recorder() shows its stacks itself"
    )


def _headline(capture: Capture) -> str:
    ranks = {
        p.worker.rank for p in capture.processes if p.worker.rank is not None
    }
    kinds = Counter(p.worker.framework or "?" for p in capture.processes)
    names = ", ".join(f"{n} of {name}" for name, n in kinds.most_common())
    if ranks:
        names += f"; ranks {fold_ranks(ranks)}"
    when = datetime.fromtimestamp(capture.taken).astimezone()
    text = (
        f"{clean(capture.host)}, {when:%Y-%m-%d %H:%M:%S %Z}: "
        f"{count_text(len(capture.processes), 'process')} ({names})"
    )
    is_short = capture.seconds <= 0.5
    return text if is_short else f"{text}, watched for {capture.seconds:.1f} s"


def _table(capture: Capture) -> Table:
    jobs = {p.worker.job for p in capture.processes if p.worker.job}
    ranks = {p.worker.pid: p.worker.rank for p in capture.processes}
    head = ["rank", "pid", "role", "state", "capture", "at"]
    rows = [_table_row(process, ranks) for process in capture.processes]
    if len(jobs) > 1:
        head.append("job")
        names = [p.worker.job for p in capture.processes]
        # Names of two runs differ at the end.
        most = _MAX_JOB_CHARS
        short = [x if len(x) <= most else f"…{x[1 - most :]}" for x in names]
        rows = [(*row, job) for row, job in zip(rows, short, strict=True)]
    return Table(head, rows, _MAX_ROWS, "processes")


def _table_row(
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


def _attempt_notes(capture: Capture) -> Iterable[str]:
    """
    Yield how long tools stopped processes, and which tools failed.
    """
    tried = [(p, a) for p in capture.processes for a in p.attempts]
    paused = [a.paused_s for _, a in tried if a.paused_s > 0]
    if paused:
        times = "once" if len(paused) == 1 else f"{len(paused)} times"
        yield f"stopped for a moment: {times}, {max(paused):.1f} s at most"
    for process, attempt in tried:
        if attempt.resumed:
            stopped = f"{attempt.tool} left pid {process.worker.pid} stopped"
            yield f"{stopped}; it was resumed (SIGCONT)"
    failed = Counter(
        (a.tool, a.detail or a.status, a.remedy)
        for _, a in tried
        if a.status is not CaptureStatus.OK and a.tool not in _UNREPORTED_TOOLS
    )
    for (tool, detail, remedy), number in failed.most_common(_MAX_FAILURES):
        advice = f" (try: {remedy})" if remedy else ""
        count = count_text(number, "process")
        yield clean(f"{tool}, {count}: {detail}{advice}", limit=400)


def make_folder(output_dir: Path, host: str) -> Path:
    """
    Create the output folder of this node.

    It is created before the capture, so that no process is stopped for stacks
    that cannot be written.

    Args:
        output_dir: The folder for all nodes; it is created if necessary.

    Returns:
        ``OUTPUT_DIR/HOST``; if that exists, ``HOST.2``, and so on.

    Raises:
        OSError: It cannot be created.
    """
    make_private_folder(output_dir)
    for folder in numbered(output_dir / host):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder

    raise AssertionError  # the numbers never end


def write_capture(capture: Capture, folder: Path) -> Capture:
    """
    Write a capture, each file completely or not at all.

    The files are ``pyspy_HOST_PID.txt`` and ``.json`` for each process,
    ``cudagdb_HOST_PID.txt`` for each process with output of cuda-gdb, and
    ``workers.json`` about all of them.

    Args:
        folder: The folder of this node.

    Returns:
        The capture with its files; those that could not be written are in
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
        files.append(_write_text(folder / "workers.json", table))
    except OSError as exc:
        reason = f"not written: {exc.strerror}"
        missing.append(Missing(what="list of workers", reason=reason))
    return attrs.evolve(capture, files=tuple(files), missing=tuple(missing))


def _write_process(
    process: ProcessCapture, folder: Path, host: str
) -> Iterator[Path]:
    name = f"{host}_{process.worker.pid}"
    yield _write_text(
        folder / f"pyspy_{name}.json", stacks_to_json(process.stacks)
    )
    yield _write_text(
        folder / f"pyspy_{name}.txt", stacks_to_text(process.stacks)
    )
    if process.cuda_text:
        yield _write_text(folder / f"cudagdb_{name}.txt", process.cuda_text)


def _write_text(path: Path, text: str) -> Path:
    write_whole(path, text.encode("utf-8", "replace"))
    return path
