"""
Find, match, collect, and summarize the reports of nsys.

A report belongs to the worker with the process ID in its file name.
"""

from __future__ import annotations

import csv
import math
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from .._io import (
    is_file,
    is_there,
    matching,
    open_ordinary,
    output_to,
    resolved,
)
from .._render import Block, Lines, Shown, Table
from .._text import clean
from ..capture import stoppable
from ..errors import NsightError
from ..findings import Missing
from ..processes import list_numbers, read_link, read_proc
from .doctor import find_nsys
from .runtime_env import StepRange, parse_step_range


_MIB = 1 << 20
_MAX_SHOWN_ROWS = 100


@attrs.frozen(kw_only=True)
class NsysReport:
    """
    A report of nsys and its worker.

    Attributes:
        path: The file.

        worker: The worker name in the file name; ``""`` for other names.

        pid: The process ID on its node.

        node: The node, as far as folders name it; else ``""``.

        session: The Ray session, or ``""``.

        step_range: The captured steps, if the file name has them.

        part: The number of the capture, if the process has several.

        size: Bytes.

        modified: Time of the last write, in seconds since the epoch.

        actor: The class of the Ray actor, if known.

        rank: The global rank, if known.

        logs: The log files of the worker.

        is_raw: Whether it is a ``.qdstrm`` file, because nsys found no
            importer.
    """

    path: str
    worker: str
    pid: int | None
    node: str = ""
    session: str = ""
    step_range: StepRange | None = None
    part: int | None = None
    size: int = 0
    modified: float = 0.0
    actor: str | None = None
    rank: int | None = None
    logs: tuple[str, ...] = ()
    is_raw: bool = False

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        steps = None if self.step_range is None else str(self.step_range)
        plain = attrs.asdict(self, recurse=False)
        return {**plain, "step_range": steps, "logs": list(self.logs)}


@attrs.frozen(kw_only=True)
class NsysReports(Shown):
    """
    Reports of nsys.

    Attributes:
        reports: Sorted by node, worker, and process ID.

        missing: What could not be read, and why.
    """

    reports: tuple[NsysReport, ...] = ()
    missing: tuple[Missing, ...] = ()

    def __iter__(self) -> Iterator[NsysReport]:
        return iter(self.reports)

    def __len__(self) -> int:
        return len(self.reports)

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        return {
            "reports": self.to_records(),
            "missing": [attrs.asdict(m) for m in self.missing],
        }

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per report, for a data frame.
        """
        return [report.to_dict() for report in self.reports]

    def _blocks_(self) -> Iterable[Block]:
        rows = [_table_row(report) for report in self.reports]
        yield Table(_HEADERS, rows, _MAX_SHOWN_ROWS) if rows else "no report"
        raw = sum(report.is_raw for report in self.reports)
        if raw:
            yield f"{raw} raw: see 'distdebug nsight doctor'"


_HEADERS = (
    *("node", "worker", "pid", "rank", "actor", "steps"),
    *("MiB", "written", "report"),
)


def _table_row(report: NsysReport) -> tuple[object, ...]:
    shown = (report.pid, report.rank, report.actor, report.step_range)
    pid, rank, actor, steps = ("" if x is None else x for x in shown)
    written = time.strftime(
        "%Y-%m-%d %H:%M:%S", time.localtime(report.modified)
    )
    size = f"{report.size / _MIB:.1f}"
    columns = (report.node, report.worker, pid, rank, actor, steps)
    return (*columns, size, written, report.path)


@attrs.frozen(kw_only=True)
class CollectedReports(Shown):
    """
    The result of `collect_nsys_reports`.

    Attributes:
        copied: New copies.

        present: Copies that existed before.

        left: Reports that are still being written; collect again later.

        missing: What could not be copied, and why.
    """

    copied: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        return {
            "copied": list(self.copied),
            "present": list(self.present),
            "left": list(self.left),
            "missing": [attrs.asdict(m) for m in self.missing],
        }

    def _blocks_(self) -> Iterable[Block]:
        lines = [
            f"{len(self.copied)} copied, {len(self.present)} there already"
        ]
        lines += [f"  still being written: {path}" for path in self.left]
        lines += [f"  {m.source}: {m.reason}" for m in self.missing]
        yield Lines(lines, _MAX_SHOWN_ROWS)


_WRITER_NAMES = (b"nsys", b"QdstrmImporter")


def open_report_files(proc: str = "/proc") -> frozenset[str]:
    """
    Return the paths that nsys and its importer have open on this node.

    Args:
        proc: The path of procfs.
    """
    paths = set()
    for pid in list_numbers(proc):
        name = read_proc(f"{proc}/{pid}/comm") or b""
        if name.startswith(_WRITER_NAMES):
            folder = f"{proc}/{pid}/fd"
            for number in list_numbers(folder):
                paths.add(read_link(f"{folder}/{number}"))
    return frozenset(paths)


_UNCHANGED_S = 3.0
_COPY_BYTES = 1 << 20


def collect_nsys_reports(
    reports: Iterable[NsysReport],
    folder: str | os.PathLike[str],
    *,
    settle_s: float = _UNCHANGED_S,
) -> CollectedReports:
    """
    Copy reports from folders that are lost with their container.

    A report is copied to ``FOLDER/NODE/SESSION/NAME``, and appears there
    complete.  A copy of the same size and time is not made again, so repeated
    calls are cheap and finish interrupted ones.

    Args:
        reports: As `find_nsys_reports` returns them.

        folder: The target folder.

        settle_s: A report counts as complete if it has not changed for so
            long, in seconds.

    Raises:
        OutputError: The folder cannot be created.
    """
    root = Path(folder)
    with output_to(root):
        root.mkdir(parents=True, exist_ok=True)
    paths_by_state: dict[str, list[str]] = defaultdict(list)
    missing: list[Missing] = []
    open_files, targets = open_report_files(), set()
    for report in reports:
        target = _copy_path(root, report)
        try:
            if target in targets:
                msg = f"another report goes to {target}"
                raise FileExistsError(msg)
            targets.add(target)
            state = _copy_if_complete(
                Path(report.path), target, open_files, settle_s
            )
        except (OSError, ValueError) as exc:
            missing.append(_missing_report(report, exc))
        else:
            is_incomplete = state == "left"
            paths_by_state[state].append(
                report.path if is_incomplete else str(target)
            )
    return CollectedReports(
        missing=tuple(missing),
        **{state: tuple(paths) for state, paths in paths_by_state.items()},
    )


def _missing_report(report: NsysReport, exc: Exception) -> Missing:
    reason = getattr(exc, "strerror", None) or str(exc)
    return Missing(what="report", reason=reason, source=report.path)


def _copy_path(root: Path, report: NsysReport) -> Path:
    # The node name may come from the user.
    node = report.node.replace("/", "_").lstrip(".")
    return root.joinpath(node, report.session, Path(report.path).name)


def _copy_if_complete(
    source: Path, target: Path, open_files: frozenset[str], settle_s: float
) -> str:
    before = source.stat()
    if _is_same_file(target, before):
        return "present"
    age = time.time() - before.st_mtime
    if str(source) in open_files or 0 <= age < settle_s:
        return "left"

    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.part")
    try:
        _copy_file(source, temporary)
        after = source.stat()
        if _size_and_mtime(after) != _size_and_mtime(before):
            return "left"
        os.utime(temporary, ns=(after.st_atime_ns, after.st_mtime_ns))
        temporary.replace(target)
    finally:
        with suppress(OSError):
            temporary.unlink()
    return "copied"


def _copy_file(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    with (
        open_ordinary(source, "not an ordinary file") as source_file,
        target.open("xb") as target_file,
    ):
        shutil.copyfileobj(source_file, target_file, _COPY_BYTES)
        target_file.flush()
        os.fsync(target_file.fileno())


def _size_and_mtime(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _is_same_file(target: Path, source: os.stat_result) -> bool:
    try:
        target_status = target.stat()
    except FileNotFoundError:
        return False

    # Some file systems round times to up to two seconds.
    is_same_time = (
        abs(target_status.st_mtime_ns - source.st_mtime_ns) < 2_000_000_000
    )
    return is_same_time and target_status.st_size == source.st_size


# Attribute names of this library's workers, of Ray's state API, and of tables
# of users.
_HOST_KEYS = ("host", "node", "hostname", "node_name", "ip", "node_ip")
_ACTOR_KEYS = ("actor", "actor_class", "class_name", "actor_name", "name")
_LOG_KEYS = ("logs", "log_paths", "log", "out", "err")


def join_workers(
    reports: Iterable[NsysReport], workers: Iterable[object]
) -> list[NsysReport]:
    """
    Add rank, actor, node, and logs of workers to their reports.

    Args:
        workers: Objects or mappings with a *pid*, and any of *host*, *rank*,
            *actor*, and *logs*.

    Returns:
        The reports.  A process ID that several nodes have is ambiguous if a
        report names no node; such a report stays as it is.
    """
    by_pid: dict[int, list[object]] = defaultdict(list)
    for worker in workers:
        pid = _first_value(worker, ("pid",))
        if isinstance(pid, int):
            by_pid[pid].append(worker)
    return [_add_worker(report, by_pid) for report in reports]


def _add_worker(
    report: NsysReport, by_pid: Mapping[int, list[object]]
) -> NsysReport:
    candidates = by_pid.get(report.pid or 0, [])
    matches = [
        w
        for w in candidates
        if _is_same_host(report.node, _first_value(w, _HOST_KEYS))
    ]
    if len(matches) != 1:
        return report

    (worker,) = matches
    rank, actor = (
        _first_value(worker, ("rank",)),
        _first_value(worker, _ACTOR_KEYS),
    )
    logs = [
        p
        for name in _LOG_KEYS
        for p in _to_paths(_first_value(worker, (name,)))
    ]
    return attrs.evolve(
        report,
        rank=rank if isinstance(rank, int) else report.rank,
        actor=clean(str(actor)) if actor else report.actor,
        node=report.node or str(_first_value(worker, _HOST_KEYS) or ""),
        logs=tuple(dict.fromkeys([*report.logs, *logs])),
    )


def _is_same_host(node: str, host: Any) -> bool:
    if not node or not host:
        return True
    # One may be the full domain name of the other.
    short, long = sorted((node, str(host)), key=len)
    return short == long or long.startswith(f"{short}.")


def _to_paths(logs: Any) -> list[str]:
    if logs is None:
        return []
    is_single = isinstance(logs, str) or not isinstance(logs, Iterable)
    # Entries may be objects with a path.
    return [
        str(getattr(x, "path", x)) for x in ([logs] if is_single else logs)
    ]


def _first_value(worker: object, names: Iterable[str]) -> Any:
    for name in names:
        if isinstance(worker, Mapping):
            value = worker.get(name)
        else:
            value = getattr(worker, name, None)
        if value is not None:
            return value
    return None


# nsys leaves .qdstrm files if it finds no importer.
SUFFIXES = (".nsys-rep", ".qdstrm")

# "dtensor_policy_worker_3-6_4711.2": NeMo RL writes 3:6, and nsys numbers
# the captures of one process.
_REPORT_NAME = re.compile(
    r"(?P<worker>.{1,200}?)"
    r"(?:_(?P<start>[0-9]{1,12})[:-](?P<stop>[0-9]{1,12}))?"
    r"_(?P<pid>[0-9]{1,7})"
    r"(?:\.(?P<part>[0-9]{1,9}))?",
    re.DOTALL,
)


class ReportName(NamedTuple):
    """
    The parts of the file name of a report.

    Attributes:
        worker: The worker, or ``""`` for other names.

        pid: The process ID on its node.

        step_range: The captured steps.

        part: The number of the capture, if the process has several.
    """

    worker: str
    pid: int | None = None
    step_range: StepRange | None = None
    part: int | None = None


def parse_report_name(name: str) -> ReportName | None:
    """
    Parse the file name of a report.

    Args:
        name: Such as ``"dtensor_policy_worker_3-6_4711.nsys-rep"``.

    Returns:
        ``None`` if it is not a report, or is the test report of Ray
        (``empty``).
    """
    stem = next((name[: -len(x)] for x in SUFFIXES if name.endswith(x)), "")
    if stem in {"", "empty"} or stem.startswith("."):
        return None

    match = _REPORT_NAME.fullmatch(stem)
    if match is None:
        return ReportName("")

    worker, steps = match["worker"], None
    if match["start"]:
        try:
            steps = parse_step_range(f"{match['start']}:{match['stop']}")
        except NsightError:  # the numbers are part of the name
            worker = stem[: match.start("pid") - 1]
    part = int(match["part"]) if match["part"] else None
    return ReportName(worker, int(match["pid"]), steps, part)


_SESSION_NAME = re.compile(r"session_[\w.-]{1,100}")
# Folder names of Ray and of log copies; any other name is that of a node.
_NOT_NODES = frozenset(
    {"ray", "logs", "nsight", "nsys", "tmp", "reports", "profiles"}
)


def session_report_folders(
    environ: Mapping[str, str] | None = None,
) -> tuple[Path, ...]:
    """
    Return the folders ``logs/nsight`` of Ray sessions on this node.

    Args:
        environ: The environment; by default that of this process.
    """
    environ = os.environ if environ is None else environ
    bases = [environ.get("RAY_TMPDIR"), environ.get("TMPDIR"), "/tmp"]  # noqa: S108 Ray's own default
    roots = {Path(base, "ray") for base in bases if base}
    folders = {
        resolved(folder)
        for root in roots
        for folder in matching(root, "session*/logs/nsight")
    }
    return tuple(sorted(folders))


def session_name(path: Path) -> str:
    """
    Return the name of the Ray session in a path, or ``""``.
    """
    names = (part for part in path.parts if _SESSION_NAME.fullmatch(part))
    return next(names, "")


def infer_node(
    path: Path, root: Path, local_folders: Collection[Path] = ()
) -> str:
    """
    Return the node of a file by its folders.

    Args:
        root: The folder that was searched.

        own: The folders ``logs/nsight`` of Ray sessions on this node.

    Returns:
        This node for files in *own*; else the innermost folder below *root*
        that is not a session or a common name; else ``""``.
    """
    if path.parent in local_folders:
        return socket.gethostname()

    names = (
        part
        for part in reversed(path.relative_to(root).parts[:-1])
        if part not in _NOT_NODES and not _SESSION_NAME.fullmatch(part)
    )
    return next(names, "")


_LOG_NAME = re.compile(
    r"worker-[0-9a-f]{8,64}-[0-9a-f]{4,32}-(?P<pid>[0-9]{1,7})\.(?:out|err)"
)
_ACTOR_LINE = re.compile(rb"^:actor_name:(.{1,200})$", re.MULTILINE)
_MAX_HEAD_BYTES = 1 << 16


class RayWorkerLogs:
    """
    Log files of Ray workers; each folder is listed once.
    """

    def __init__(self) -> None:
        self._folders: dict[Path, dict[int, list[str]]] = {}

    def of(
        self, folder: Path, pid: int | None
    ) -> tuple[str | None, tuple[str, ...]]:
        """
        Return the actor and the log files of a process.

        Args:
            folder: The folder ``logs`` of a session.

            pid: The process ID.

        Returns:
            The class of the actor, if its logs name it, and the log files.
        """
        if pid is None:
            return None, ()
        if folder not in self._folders:
            self._folders[folder] = _list_logs(folder)

        files = [folder / name for name in self._folders[folder].get(pid, ())]
        actors = filter(None, map(_read_actor, files))
        return next(actors, None), tuple(str(file) for file in files)


def _list_logs(folder: Path) -> dict[int, list[str]]:
    logs: dict[int, list[str]] = defaultdict(list)
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 there may be 200,000
    except OSError:
        return logs
    for name in names:
        if match := _LOG_NAME.fullmatch(name):
            logs[int(match["pid"])].append(name)
    return logs


def _read_actor(file: Path) -> str | None:
    try:
        with open_ordinary(file, "not an ordinary file") as stream:
            head = stream.read(_MAX_HEAD_BYTES)
    except (OSError, ValueError):
        return None

    match = _ACTOR_LINE.search(head)
    return clean(match[1].decode("utf-8", "replace")) if match else None


_MAX_DEPTH = 16


def find_nsys_reports(
    *places: str | os.PathLike[str], workers: Iterable[object] = ()
) -> NsysReports:
    """
    Find reports of nsys, and their workers.

    The process ID in a report name is also in the name of the worker's log,
    and that log names the actor.

    Args:
        places: Reports; or folders that hold them at any depth, such as a
            session of Ray, or copies from several nodes.  By default the
            sessions of Ray on this node.

        workers: Known workers: objects or mappings with any of *pid*,
            *host*, *rank*, *actor*, and *logs*, such as those that
            `find_workers` returns.

    Raises:
        NsightError: One of *places* does not exist.
    """
    missing: list[Missing] = []
    seen: set[tuple[int, int]] = set()
    logs, local_folders = RayWorkerLogs(), frozenset(session_report_folders())
    reports = [
        attrs.evolve(
            _make_report(path, status, logs),
            node=infer_node(path, root, local_folders),
        )
        for root in _search_roots(places)
        for path, status in _walk_reports(root, missing)
        if _is_new(status, seen)
    ]
    reports = join_workers(reports, workers)
    reports.sort(key=_sort_key)
    return NsysReports(reports=tuple(reports), missing=tuple(missing))


def _search_roots(places: Iterable[str | os.PathLike[str]]) -> list[Path]:
    paths = [Path(place) for place in places]
    for place in paths:
        if not is_there(place):
            msg = f"there is no {place}"
            raise NsightError(
                msg, remedy="name a folder, such as /tmp/ray/session_latest"
            )
    return [resolved(p) for p in paths or session_report_folders()]


def _walk_reports(
    root: Path, missing: list[Missing], depth: int = 0
) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        if root.is_file():
            yield root, root.stat()
            return
        with os.scandir(root) as entries_iterator:
            entries = sorted(entries_iterator, key=lambda entry: entry.name)
    except OSError as exc:
        reason = exc.strerror or str(exc)
        missing.append(Missing(what="report", reason=reason, source=str(root)))
        return

    # Symbolic links are not followed, to find each report once.
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and depth < _MAX_DEPTH:
            yield from _walk_reports(root / entry.name, missing, depth + 1)
        elif entry.name.endswith(SUFFIXES):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # removed meanwhile
                continue
            if stat.S_ISREG(status.st_mode):
                yield root / entry.name, status


def _is_new(status: os.stat_result, seen: set[tuple[int, int]]) -> bool:
    key = (status.st_dev, status.st_ino)
    is_new = key not in seen
    seen.add(key)
    return is_new


def _make_report(
    path: Path, status: os.stat_result, logs: RayWorkerLogs
) -> NsysReport:
    name = parse_report_name(path.name)
    worker = name.worker if name else ""
    pid = name.pid if name else None
    actor, files = logs.of(path.parent.parent, pid)
    return NsysReport(
        path=str(path),
        worker=worker,
        pid=pid,
        session=session_name(path),
        step_range=name.step_range if name else None,
        part=name.part if name else None,
        size=status.st_size,
        modified=status.st_mtime,
        actor=actor,
        logs=files,
        is_raw=path.suffix == ".qdstrm",
    )


def _sort_key(report: NsysReport) -> tuple[str, str, int, int, str]:
    pid, part = report.pid or 0, report.part or 0
    return report.node, report.worker, pid, part, report.path


_MAX_OUTPUT_BYTES = 1 << 20
_KILL_WAIT_S = 5.0


class CommandResult(NamedTuple):
    """
    The result of a command.

    Attributes:
        status: Its exit status; ``None`` after the timeout.

        output: Its output, at most 1 MiB.
    """

    status: int | None
    output: str

    @property
    def why(self) -> str:
        """
        Return one line that explains the failure.
        """
        if self.status is None:
            return "nsys was not done in time"
        lines = [x for x in self.output.splitlines() if x.strip()]
        last = clean(lines[-1]) if lines else "it said nothing"
        return f"nsys ended with status {self.status}: {last}"


def run_in_process_group(
    argv: Sequence[str], folder: Path, timeout_s: float
) -> CommandResult:
    """
    Run a command in its own process group, and kill the group afterwards.

    Args:
        folder: The working folder, also for temporary files.

        timeout_s: Limit in seconds.

    Raises:
        OSError: The command cannot be started.
    """
    output_file = folder / "printed"
    with output_file.open("wb") as stream:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
        )
        status: int | None = None
        try:
            with (
                stoppable(lambda: _kill_group(process)),
                suppress(subprocess.TimeoutExpired),
            ):
                status = process.wait(timeout_s)
        finally:
            _kill_group(process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_WAIT_S)
    with output_file.open("rb") as printed:
        output = printed.read(_MAX_OUTPUT_BYTES).decode("utf-8", "replace")
    return CommandResult(status, output)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # Child processes in the group may outlive the command.
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


# Table names of nsys since 2023, and before.
_NSYS_TABLES = {
    "ranges": ("nvtx_sum", "nvtxsum"),
    "calls": ("cuda_api_sum", "cudaapisum"),
    "kernels": ("cuda_gpu_kern_sum", "gpukernsum"),
}
_TABLE_NAME = re.compile(r"^ {0,8}(\w{1,60})", re.MULTILINE)
_LIST_TIMEOUT_S = 20.0
_MAX_SUMMARY_ROWS = 10_000


@attrs.frozen(kw_only=True)
class ReportRow:
    """
    Total time of a range, a call, or a kernel.

    Attributes:
        name: The name of the range, the call, or the kernel.

        total_s: The sum of all durations, in seconds.

        count: How often it occurred.
    """

    name: str
    total_s: float
    count: int


@attrs.frozen(kw_only=True)
class ReportSummary(Shown):
    """
    Total times in a report.

    Attributes:
        path: The report.

        ranges: NVTX ranges, longest total time first.

        calls: CUDA calls on the host, longest total time first.

        kernels: GPU kernels, longest total time first.

        problem: Why the summary is empty or incomplete; else ``""``.
    """

    path: str
    ranges: tuple[ReportRow, ...] = ()
    calls: tuple[ReportRow, ...] = ()
    kernels: tuple[ReportRow, ...] = ()
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        return {
            "path": self.path,
            **{
                t: [attrs.asdict(r) for r in getattr(self, t)]
                for t in _NSYS_TABLES
            },
            "problem": self.problem,
        }

    def _blocks_(self) -> Iterable[Block]:
        yield self.path
        for title in _NSYS_TABLES:
            rows = getattr(self, title)
            cells = [(r.name, f"{r.total_s:.6f}", r.count) for r in rows]
            if cells:
                yield Table((title, "seconds", "times"), cells, 5, "")
        if self.problem:
            yield self.problem


def summarize_report(
    path: str | os.PathLike[str],
    *,
    timeout_s: float = 300.0,
    nsys: str = "nsys",
) -> ReportSummary:
    """
    Summarize a report by ``nsys stats``.

    The command writes into a temporary folder, about as much as the size of
    the report, which is removed afterwards.

    Args:
        timeout_s: Limit in seconds.

        nsys: The name or path of nsys.

    Returns:
        The summary; if it failed, *problem* says why.
    """
    name = os.fspath(path)
    tool = find_nsys(nsys)
    if tool is None:
        return ReportSummary(path=name, problem="nsys is not installed here")
    if not is_file(name):
        return ReportSummary(path=name, problem="there is no such file")

    folder = tempfile.mkdtemp(prefix="distdebug-nsys-")
    try:
        return _summarize(name, tool, Path(folder), timeout_s)
    except OSError as exc:
        return ReportSummary(path=name, problem=exc.strerror or str(exc))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _summarize(
    path_text: str, tool: str, folder: Path, timeout_s: float
) -> ReportSummary:
    # nsys writes its export next to the report.
    report = folder / "report.nsys-rep"
    report.symlink_to(os.path.abspath(path_text))  # noqa: PTH100 a link stays one
    listing = [tool, "stats", "--help-reports"]
    known_tables = _parse_table_names(
        run_in_process_group(listing, folder, _LIST_TIMEOUT_S).output
    )
    tables = _select_tables(known_tables)
    argv = [tool, "stats", "--force-export", "true", "--format", "csv"]
    argv += ["--output", str(folder / "out"), "--report", ",".join(tables)]
    result = run_in_process_group([*argv, str(report)], folder, timeout_s)
    rows = {
        title: _read_rows(folder.glob(f"out_{table}*.csv"))
        for table, title in tables.items()
    }
    problem = "" if result.status == 0 or any(rows.values()) else result.why
    return ReportSummary(path=path_text, problem=problem, **rows)


def _parse_table_names(text: str) -> set[str]:
    return set(_TABLE_NAME.findall(text))


def _select_tables(known: set[str]) -> dict[str, str]:
    """
    Return the name of each table in this version of nsys.
    """
    return {
        next((n for n in names if n in known), names[0]): title
        for title, names in _NSYS_TABLES.items()
    }


def _read_rows(files: Iterable[Path]) -> tuple[ReportRow, ...]:
    rows = []
    for file in files:
        with (
            file.open(
                encoding="utf-8", errors="replace", newline=""
            ) as stream,
            # A field that is too long ends the file.
            suppress(csv.Error),
        ):
            for record in islice(csv.DictReader(stream), _MAX_SUMMARY_ROWS):
                rows += _parse_row(record)
    return tuple(sorted(rows, key=lambda row: -row.total_s))


def _parse_row(record: dict[str, str]) -> list[ReportRow]:
    name = record.get("Range") or record.get("Name")
    try:
        total = float(record["Total Time (ns)"]) / 1e9
        count = int(record.get("Instances") or record["Num Calls"])
    except (KeyError, TypeError, ValueError):
        return []
    # JSON has no infinity.
    if not (name and math.isfinite(total)):
        return []
    return [ReportRow(name=name, total_s=total, count=count)]
