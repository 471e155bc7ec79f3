"""
Which report belongs to which worker, and what does it tell?
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
_MOST_ROWS = 100


@attrs.frozen(kw_only=True)
class NsysReport:
    """
    One report, and whose it is.

    Attributes:
        path: The file.

        worker: The name of the worker, out of the file's; ``""`` if that has
            another form.

        pid: The number of its process, on its node.

        node: The node, as far as the folders tell; else ``""``.

        session: The session of Ray, or ``""``.

        step_range: The steps that were captured, if the name tells.

        part: Which capture of the process it is, if there are several.

        size: How large it is, in bytes.

        modified: When it was last written, in seconds since the epoch.

        actor: The class of the Ray actor, if it is known.

        rank: Its global rank, if it is known.

        logs: The logs of the same worker.

        is_raw: Whether it was never turned into a report, because nsys found
            no importer.
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
        Plain data in the layout of the command line's ``--json``.
        """
        steps = None if self.step_range is None else str(self.step_range)
        plain = attrs.asdict(self, recurse=False)
        return {**plain, "step_range": steps, "logs": list(self.logs)}


@attrs.frozen(kw_only=True)
class NsysReports(Shown):
    """
    All reports that were found.

    Attributes:
        reports: In the order of nodes, workers, and processes.

        missing: What could not be looked at, and why.
    """

    reports: tuple[NsysReport, ...] = ()
    missing: tuple[Missing, ...] = ()

    def __iter__(self) -> Iterator[NsysReport]:
        return iter(self.reports)

    def __len__(self) -> int:
        return len(self.reports)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {
            "reports": self.to_records(),
            "missing": [attrs.asdict(m) for m in self.missing],
        }

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per report, for a data frame.
        """
        return [report.to_dict() for report in self.reports]

    def _blocks_(self) -> Iterable[Block]:
        rows = [_row(report) for report in self.reports]
        yield Table(_HEADERS, rows, _MOST_ROWS) if rows else "no report"
        raw = sum(report.is_raw for report in self.reports)
        if raw:
            yield f"{raw} raw: see 'distdebug nsight doctor'"


_HEADERS = (
    *("node", "worker", "pid", "rank", "actor", "steps"),
    *("MiB", "written", "report"),
)


def _row(report: NsysReport) -> tuple[object, ...]:
    shown = (report.pid, report.rank, report.actor, report.step_range)
    pid, rank, actor, steps = ("" if x is None else x for x in shown)
    written = time.strftime(
        "%Y-%m-%d %H:%M:%S", time.localtime(report.modified)
    )
    size = f"{report.size / _MIB:.1f}"
    head = (report.node, report.worker, pid, rank, actor, steps)
    return (*head, size, written, report.path)


@attrs.frozen(kw_only=True)
class Collected(Shown):
    """
    What came of copying reports.

    Attributes:
        copied: The copies that were made now.

        present: Those that were there already.

        left: Reports that are still being written; collect again later.

        missing: What could not be copied, and why.
    """

    copied: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
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
        yield Lines(lines, _MOST_ROWS)


_WRITERS = (b"nsys", b"QdstrmImporter")


def being_written(proc: str = "/proc") -> frozenset[str]:
    """
    Which files do nsys and its importer have open on this node?

    Args:
        proc: Where the kernel tells of processes.

    Returns:
        Their paths.
    """
    found = set()
    for pid in list_numbers(proc):
        name = read_proc(f"{proc}/{pid}/comm") or b""
        if name.startswith(_WRITERS):
            folder = f"{proc}/{pid}/fd"
            for number in list_numbers(folder):
                found.add(read_link(f"{folder}/{number}"))
    return frozenset(found)


_SETTLE_S = 3.0
_BLOCK = 1 << 20


def collect_nsys_reports(
    reports: Iterable[NsysReport],
    folder: str | os.PathLike[str],
    *,
    settle_s: float = _SETTLE_S,
) -> Collected:
    """
    Copy reports out of folders that go with their container.

    A report is copied to ``FOLDER/NODE/SESSION/NAME``, and appears there
    whole.  What is there with the same size and time is not copied again, so
    that it can be called as often as one likes, also after it was interrupted.

    Args:
        reports: Those that `find_nsys_reports` found.

        folder: Where they go.

        settle_s: How long a report must not have changed to be taken for
            whole, in seconds.

    Returns:
        What was copied, what was there, and what was left because nsys is
        still writing it.

    Raises:
        OutputError: The folder cannot be made.
    """
    root = Path(folder)
    with output_to(root):
        root.mkdir(parents=True, exist_ok=True)
    done: dict[str, list[str]] = defaultdict(list)
    missing: list[Missing] = []
    busy, taken = being_written(), set()
    for report in reports:
        target = _target(root, report)
        try:
            if target in taken:
                msg = f"another report goes to {target}"
                raise FileExistsError(msg)
            taken.add(target)
            state = _collect(Path(report.path), target, busy, settle_s)
        except (OSError, ValueError) as exc:
            missing.append(_lost(report, exc))
        else:
            is_left = state == "left"
            done[state].append(report.path if is_left else str(target))
    return Collected(
        missing=tuple(missing),
        **{state: tuple(paths) for state, paths in done.items()},
    )


def _lost(report: NsysReport, exc: Exception) -> Missing:
    reason = getattr(exc, "strerror", None) or str(exc)
    return Missing(what="report", reason=reason, source=report.path)


def _target(root: Path, report: NsysReport) -> Path:
    # The name of a node may be what a user typed.
    node = report.node.replace("/", "_").lstrip(".")
    return root.joinpath(node, report.session, Path(report.path).name)


def _collect(
    source: Path, target: Path, busy: frozenset[str], settle_s: float
) -> str:
    before = source.stat()
    if _same(target, before):
        return "present"
    age = time.time() - before.st_mtime
    if str(source) in busy or 0 <= age < settle_s:
        return "left"

    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.part")
    try:
        _copy(source, temporary)
        after = source.stat()
        if _stamp(after) != _stamp(before):
            return "left"
        os.utime(temporary, ns=(after.st_atime_ns, after.st_mtime_ns))
        temporary.replace(target)
    finally:
        with suppress(OSError):
            temporary.unlink()
    return "copied"


def _copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    with (
        open_ordinary(source, "not an ordinary file") as opened,
        target.open("xb") as made,
    ):
        shutil.copyfileobj(opened, made, _BLOCK)
        made.flush()
        os.fsync(made.fileno())


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _same(target: Path, source: os.stat_result) -> bool:
    try:
        there = target.stat()
    except FileNotFoundError:
        return False

    # Some file systems keep less than a nanosecond.
    near = abs(there.st_mtime_ns - source.st_mtime_ns) < 2_000_000_000
    return near and there.st_size == source.st_size


# How others call the same: the workers of this library, those of Ray's state
# API, and tables of users.
_HOSTS = ("host", "node", "hostname", "node_name", "ip", "node_ip")
_ACTORS = ("actor", "actor_class", "class_name", "actor_name", "name")
_LOGS = ("logs", "log_paths", "log", "out", "err")


def join_workers(
    reports: Iterable[NsysReport], workers: Iterable[object]
) -> list[NsysReport]:
    """
    Add to each report what is known of its worker.

    Args:
        reports: The reports.

        workers: Objects or mappings with a *pid*, and any of *host*, *rank*,
            *actor*, and *logs*.

    Returns:
        The reports.  Where two workers have the same number, and the node does
        not tell them apart, neither is taken.
    """
    by_pid: dict[int, list[object]] = defaultdict(list)
    for worker in workers:
        pid = _first(worker, ("pid",))
        if isinstance(pid, int):
            by_pid[pid].append(worker)
    return [_joined(report, by_pid) for report in reports]


def _joined(
    report: NsysReport, by_pid: Mapping[int, list[object]]
) -> NsysReport:
    found = by_pid.get(report.pid or 0, [])
    fitting = [w for w in found if _fits(report.node, _first(w, _HOSTS))]
    if len(fitting) != 1:
        return report

    (worker,) = fitting
    rank, actor = _first(worker, ("rank",)), _first(worker, _ACTORS)
    logs = [p for name in _LOGS for p in _paths(_first(worker, (name,)))]
    return attrs.evolve(
        report,
        rank=rank if isinstance(rank, int) else report.rank,
        actor=clean(str(actor)) if actor else report.actor,
        node=report.node or str(_first(worker, _HOSTS) or ""),
        logs=tuple(dict.fromkeys([*report.logs, *logs])),
    )


def _fits(node: str, host: Any) -> bool:
    if not node or not host:
        return True
    # One may be the long name of the other.
    short, long = sorted((node, str(host)), key=len)
    return short == long or long.startswith(f"{short}.")


def _paths(logs: Any) -> list[str]:
    if logs is None:
        return []
    one = isinstance(logs, str) or not isinstance(logs, Iterable)
    # Some are not paths, but have one.
    return [str(getattr(x, "path", x)) for x in ([logs] if one else logs)]


def _first(worker: object, names: Iterable[str]) -> Any:
    for name in names:
        if isinstance(worker, Mapping):
            value = worker.get(name)
        else:
            value = getattr(worker, name, None)
        if value is not None:
            return value
    return None


# The second is what nsys leaves where it finds no importer.
SUFFIXES = (".nsys-rep", ".qdstrm")

# "dtensor_policy_worker_3-6_4711.2": NeMo RL writes 3:6, and nsys numbers
# the captures of one process.
_NAME = re.compile(
    r"(?P<worker>.{1,200}?)"
    r"(?:_(?P<start>[0-9]{1,12})[:-](?P<stop>[0-9]{1,12}))?"
    r"_(?P<pid>[0-9]{1,7})"
    r"(?:\.(?P<part>[0-9]{1,9}))?",
    re.DOTALL,
)


class ReportName(NamedTuple):
    """
    What a name tells.

    Attributes:
        worker: The worker, or ``""`` if the name has another form.

        pid: The number of its process, on its node.

        step_range: The steps that were captured.

        part: Which capture of the process it is, if there are several.
    """

    worker: str
    pid: int | None = None
    step_range: StepRange | None = None
    part: int | None = None


def parse_report_name(name: str) -> ReportName | None:
    """
    What does the name of a report tell?

    Args:
        name: The name of a file, such as
            ``"dtensor_policy_worker_3-6_4711.nsys-rep"``.

    Returns:
        What it tells; ``None`` if it is not the name of a report, or that of
        one that Ray makes to try options out.
    """
    stem = next((name[: -len(x)] for x in SUFFIXES if name.endswith(x)), "")
    if stem in {"", "empty"} or stem.startswith("."):
        return None

    match = _NAME.fullmatch(stem)
    if match is None:
        return ReportName("")

    worker, steps = match["worker"], None
    if match["start"]:
        try:
            steps = parse_step_range(f"{match['start']}:{match['stop']}")
        except NsightError:  # it is part of the name
            worker = stem[: match.start("pid") - 1]
    part = int(match["part"]) if match["part"] else None
    return ReportName(worker, int(match["pid"]), steps, part)


_SESSION = re.compile(r"session_[\w.-]{1,100}")
# Folders of Ray, and of those who copy its logs; any other is named after a
# node.
_COMMON = frozenset(
    {"ray", "logs", "nsight", "nsys", "tmp", "reports", "profiles"}
)


def temporary_folders(
    environ: Mapping[str, str] | None = None,
) -> tuple[Path, ...]:
    """
    Where does Ray keep its sessions on this node?

    Args:
        environ: The environment; by default that of this process.

    Returns:
        The folders ``logs/nsight`` of all sessions that are there.
    """
    environ = os.environ if environ is None else environ
    bases = [environ.get("RAY_TMPDIR"), environ.get("TMPDIR"), "/tmp"]  # noqa: S108 it is where Ray looks
    roots = {Path(base, "ray") for base in bases if base}
    found = {
        resolved(folder)
        for root in roots
        for folder in matching(root, "session*/logs/nsight")
    }
    return tuple(sorted(found))


def session_of(path: Path) -> str:
    """
    Of which session of Ray is this file?

    Args:
        path: Its path.

    Returns:
        The name of the session, if a folder bears it; else ``""``.
    """
    names = (part for part in path.parts if _SESSION.fullmatch(part))
    return next(names, "")


def node_of(path: Path, root: Path, own: Collection[Path] = ()) -> str:
    """
    Of which node is this file?

    Args:
        path: Its path.

        root: The folder below which it was found.

        own: Where Ray keeps such files on this node.

    Returns:
        The innermost folder below *root* whose name is not that of any
        session; this node, if Ray itself keeps the file here; else ``""``.
    """
    if path.parent in own:
        return socket.gethostname()

    names = (
        part
        for part in reversed(path.relative_to(root).parts[:-1])
        if part not in _COMMON and not _SESSION.fullmatch(part)
    )
    return next(names, "")


_FILE = re.compile(
    r"worker-[0-9a-f]{8,64}-[0-9a-f]{4,32}-(?P<pid>[0-9]{1,7})\.(?:out|err)"
)
_ACTOR = re.compile(rb"^:actor_name:(.{1,200})$", re.MULTILINE)
_MOST_BYTES = 1 << 16


class WorkerLogs:
    """
    The logs of Ray's workers; each folder is listed once.
    """

    def __init__(self) -> None:
        self._folders: dict[Path, dict[int, list[str]]] = {}

    def of(
        self, folder: Path, pid: int | None
    ) -> tuple[str | None, tuple[str, ...]]:
        """
        Which actor was this process, and where are its logs?

        Args:
            folder: The folder ``logs`` of a session.

            pid: The number of the process.

        Returns:
            The class of the actor, if its logs tell, and the logs.
        """
        if pid is None:
            return None, ()
        if folder not in self._folders:
            self._folders[folder] = _listed(folder)

        files = [folder / name for name in self._folders[folder].get(pid, ())]
        actors = filter(None, map(_actor, files))
        return next(actors, None), tuple(str(file) for file in files)


def _listed(folder: Path) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 there may be 200,000
    except OSError:
        return found
    for name in names:
        if match := _FILE.fullmatch(name):
            found[int(match["pid"])].append(name)
    return found


def _actor(file: Path) -> str | None:
    try:
        with open_ordinary(file, "not an ordinary file") as opened:
            head = opened.read(_MOST_BYTES)
    except (OSError, ValueError):
        return None

    match = _ACTOR.search(head)
    return clean(match[1].decode("utf-8", "replace")) if match else None


_MOST_DEPTH = 16


def find_nsys_reports(
    *places: str | os.PathLike[str], workers: Iterable[object] = ()
) -> NsysReports:
    """
    Which worker left which report of nsys?

    The process of a report is that of the worker's own log, so what stands in
    the logs beside it tells the actor.

    Args:
        places: Reports; or folders that hold them anywhere, such as a session
            of Ray, or what was copied from several nodes.  By default the
            sessions of Ray on this node.

        workers: Who else is known: objects or mappings with any of *pid*,
            *host*, *rank*, *actor*, and *logs*, such as those that
            `find_workers` returns.

    Returns:
        The reports, and what could not be looked at.

    Raises:
        NsightError: One of *places* is not there.
    """
    missing: list[Missing] = []
    seen: set[tuple[int, int]] = set()
    logs, own = WorkerLogs(), frozenset(temporary_folders())
    reports = [
        attrs.evolve(
            _report(path, status, logs), node=node_of(path, root, own)
        )
        for root in _roots(places)
        for path, status in _files(root, missing)
        if _is_new(status, seen)
    ]
    reports = join_workers(reports, workers)
    reports.sort(key=_order)
    return NsysReports(reports=tuple(reports), missing=tuple(missing))


def _roots(places: Iterable[str | os.PathLike[str]]) -> list[Path]:
    given = [Path(place) for place in places]
    for place in given:
        if not is_there(place):
            msg = f"there is no {place}"
            raise NsightError(
                msg, remedy="name a folder, such as /tmp/ray/session_latest"
            )
    return [resolved(p) for p in given or temporary_folders()]


def _files(
    root: Path, missing: list[Missing], depth: int = 0
) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        if root.is_file():
            yield root, root.stat()
            return
        with os.scandir(root) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except OSError as exc:
        reason = exc.strerror or str(exc)
        missing.append(Missing(what="report", reason=reason, source=str(root)))
        return

    # Links are not followed: what they point to is found where it is.
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and depth < _MOST_DEPTH:
            yield from _files(root / entry.name, missing, depth + 1)
        elif entry.name.endswith(SUFFIXES):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # gone meanwhile
                continue
            if stat.S_ISREG(status.st_mode):
                yield root / entry.name, status


def _is_new(status: os.stat_result, seen: set[tuple[int, int]]) -> bool:
    key = (status.st_dev, status.st_ino)
    is_new = key not in seen
    seen.add(key)
    return is_new


def _report(
    path: Path, status: os.stat_result, logs: WorkerLogs
) -> NsysReport:
    name = parse_report_name(path.name)
    worker = name.worker if name else ""
    pid = name.pid if name else None
    actor, files = logs.of(path.parent.parent, pid)
    return NsysReport(
        path=str(path),
        worker=worker,
        pid=pid,
        session=session_of(path),
        step_range=name.step_range if name else None,
        part=name.part if name else None,
        size=status.st_size,
        modified=status.st_mtime,
        actor=actor,
        logs=files,
        is_raw=path.suffix == ".qdstrm",
    )


def _order(report: NsysReport) -> tuple[str, str, int, int, str]:
    pid, part = report.pid or 0, report.part or 0
    return report.node, report.worker, pid, part, report.path


_MOST_OUTPUT = 1 << 20
_REAP_S = 5.0


class Ended(NamedTuple):
    """
    How a command ended.

    Attributes:
        status: Its exit status; ``None`` if its time was over.

        output: What it printed, at most 1 MiB of it.
    """

    status: int | None
    output: str

    @property
    def why(self) -> str:
        """
        One line that says why it failed.
        """
        if self.status is None:
            return "nsys was not done in time"
        lines = [x for x in self.output.splitlines() if x.strip()]
        last = clean(lines[-1]) if lines else "it said nothing"
        return f"nsys ended with status {self.status}: {last}"


def run_in_group(argv: Sequence[str], folder: Path, timeout_s: float) -> Ended:
    """
    Run a command in a process group, which is gone afterwards.

    Args:
        argv: The command and its arguments.

        folder: Where it may leave files.

        timeout_s: How long it may take, in seconds.

    Returns:
        How it ended.

    Raises:
        OSError: It cannot be started.
    """
    printed = folder / "printed"
    with printed.open("wb") as out:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
        )
        status: int | None = None
        try:
            with (
                stoppable(lambda: _kill(process)),
                suppress(subprocess.TimeoutExpired),
            ):
                status = process.wait(timeout_s)
        finally:
            _kill(process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_REAP_S)
    with printed.open("rb") as text:
        output = text.read(_MOST_OUTPUT).decode("utf-8", "replace")
    return Ended(status, output)


def _kill(process: subprocess.Popen[bytes]) -> None:
    # What it started may outlive it, in the same group.
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


# What versions since 2023 call it, and those before.
_TABLES = {
    "ranges": ("nvtx_sum", "nvtxsum"),
    "calls": ("cuda_api_sum", "cudaapisum"),
    "kernels": ("cuda_gpu_kern_sum", "gpukernsum"),
}
_LISTED = re.compile(r"^ {0,8}(\w{1,60})", re.MULTILINE)
_LIST_S = 20.0
_SUMMARY_MOST_ROWS = 10_000


@attrs.frozen(kw_only=True)
class ReportRow:
    """
    What took how long in sum.

    Attributes:
        name: The range, the call, or the kernel.

        total_s: How long all of them took, in seconds.

        count: How many there were.
    """

    name: str
    total_s: float
    count: int


@attrs.frozen(kw_only=True)
class ReportSummary(Shown):
    """
    What a report tells.

    Attributes:
        path: The report.

        ranges: NVTX ranges, those that took longest first.

        calls: Calls of CUDA on the host, likewise.

        kernels: Kernels on the GPU, likewise.

        problem: Why there is nothing, or not all; else ``""``.
    """

    path: str
    ranges: tuple[ReportRow, ...] = ()
    calls: tuple[ReportRow, ...] = ()
    kernels: tuple[ReportRow, ...] = ()
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {
            "path": self.path,
            **{
                t: [attrs.asdict(r) for r in getattr(self, t)] for t in _TABLES
            },
            "problem": self.problem,
        }

    def _blocks_(self) -> Iterable[Block]:
        yield self.path
        for title in _TABLES:
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
    What took most of the time, as a report tells?

    ``nsys stats`` reads it; what that writes goes into a folder for temporary
    files, which needs about as much space again, and is removed.

    Args:
        path: The report.

        timeout_s: How long it may take, in seconds.

        nsys: The name of nsys, or its path.

    Returns:
        The summary; if there is none, its *problem* says why.
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
    name: str, tool: str, folder: Path, timeout_s: float
) -> ReportSummary:
    # What is written goes beside what is read.
    report = folder / "report.nsys-rep"
    report.symlink_to(os.path.abspath(name))  # noqa: PTH100 a link stays one
    listing = [tool, "stats", "--help-reports"]
    known = _known(run_in_group(listing, folder, _LIST_S).output)
    tables = _chosen(known)
    argv = [tool, "stats", "--force-export", "true", "--format", "csv"]
    argv += ["--output", str(folder / "out"), "--report", ",".join(tables)]
    ended = run_in_group([*argv, str(report)], folder, timeout_s)
    found = {
        title: _rows(folder.glob(f"out_{table}*.csv"))
        for table, title in tables.items()
    }
    problem = "" if ended.status == 0 or any(found.values()) else ended.why
    return ReportSummary(path=name, problem=problem, **found)


def _known(text: str) -> set[str]:
    return set(_LISTED.findall(text))


def _chosen(known: set[str]) -> dict[str, str]:
    """
    The name that this version has for each table.
    """
    return {
        next((n for n in names if n in known), names[0]): title
        for title, names in _TABLES.items()
    }


def _rows(files: Iterable[Path]) -> tuple[ReportRow, ...]:
    found = []
    for file in files:
        with (
            file.open(encoding="utf-8", errors="replace", newline="") as text,
            # A name that is too long hides what comes after it.
            suppress(csv.Error),
        ):
            for record in islice(csv.DictReader(text), _SUMMARY_MOST_ROWS):
                found += _summary_row(record)
    return tuple(sorted(found, key=lambda row: -row.total_s))


def _summary_row(record: dict[str, str]) -> list[ReportRow]:
    name = record.get("Range") or record.get("Name")
    try:
        total = float(record["Total Time (ns)"]) / 1e9
        count = int(record.get("Instances") or record["Num Calls"])
    except (KeyError, TypeError, ValueError):
        return []
    # No time is endless, and JSON has no word for it.
    if not (name and math.isfinite(total)):
        return []
    return [ReportRow(name=name, total_s=total, count=count)]
