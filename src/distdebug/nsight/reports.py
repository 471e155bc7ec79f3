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
import socket
import tempfile
import time

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import attrs

from .._io import (
    FileWalk,
    WalkedFile,
    is_file,
    is_there,
    make_private_folder,
    matching,
    names_in,
    open_ordinary,
    open_private,
    output_to,
    resolved,
)
from .._render import Block, Lines, Shown, Table, as_plain
from .._text import clean, reason_of
from ..errors import NsightError
from ..findings import Missing
from ..identity import same_host
from ..processes import list_numbers, read_link, read_proc
from .doctor import run_nsys
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
        return {**as_plain(self), "step_range": steps}


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

    def _blocks_(self) -> Iterable[Block]:
        lines = [
            f"{len(self.copied)} copied, {len(self.present)} there already"
        ]
        lines += [f"  still being written: {path}" for path in self.left]
        lines += [f"  {m.source}: {m.reason}" for m in self.missing]
        yield Lines(lines, _MAX_SHOWN_ROWS)


_WRITER_NAMES = (b"nsys", b"QdstrmImporter")


def open_report_files() -> frozenset[str]:
    """
    Return the paths that nsys and its importer have open on this node.
    """
    return frozenset(
        read_link(f"/proc/{pid}/fd/{number}")
        for pid in list_numbers("/proc")
        if (read_proc(f"/proc/{pid}/comm") or b"").startswith(_WRITER_NAMES)
        for number in list_numbers(f"/proc/{pid}/fd")
    )


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
        make_private_folder(root)
    done: dict[str, list[Any]] = defaultdict(list)
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
            path = report.path if state == "left" else str(target)
            done[state].append(path)
        except (OSError, ValueError) as exc:
            done["missing"].append(_missing_report(report.path, exc))
    return CollectedReports(**{name: tuple(x) for name, x in done.items()})


def _missing_report(path: str, why: str | Exception) -> Missing:
    reason = why if isinstance(why, str) else reason_of(why)
    return Missing(what="report", reason=reason, source=path)


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

    make_private_folder(target.parent)
    temporary = target.with_name(f".{target.name}.part")
    try:
        _copy_file(source, temporary)
        after = source.stat()
        states = {(x.st_size, x.st_mtime_ns) for x in (before, after)}
        if len(states) > 1:
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
        open(target, "xb", opener=open_private) as target_file,
    ):
        shutil.copyfileobj(source_file, target_file, _COPY_BYTES)
        target_file.flush()
        os.fsync(target_file.fileno())


def _is_same_file(target: Path, source: os.stat_result) -> bool:
    try:
        copy = target.stat()
    except FileNotFoundError:
        return False

    # Some file systems round times to up to two seconds.
    is_same_time = abs(copy.st_mtime_ns - source.st_mtime_ns) < 2_000_000_000
    return is_same_time and copy.st_size == source.st_size


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
    matches = [
        worker
        for worker in by_pid.get(report.pid or 0, [])
        if _may_be_on(report.node, _first_value(worker, _HOST_KEYS))
    ]
    if len(matches) != 1:
        return report

    (worker,) = matches
    rank = _first_value(worker, ("rank",))
    actor = _first_value(worker, _ACTOR_KEYS)
    logs = [
        path
        for name in _LOG_KEYS
        for path in _to_paths(_first_value(worker, (name,)))
    ]
    return attrs.evolve(
        report,
        rank=rank if isinstance(rank, int) else report.rank,
        actor=clean(str(actor)) if actor else report.actor,
        node=report.node or str(_first_value(worker, _HOST_KEYS) or ""),
        logs=tuple(dict.fromkeys([*report.logs, *logs])),
    )


def _may_be_on(node: str, host: Any) -> bool:
    return not node or not host or same_host(node, str(host))


def _to_paths(logs: Any) -> list[str]:
    if logs is None:
        return []
    is_single = isinstance(logs, str) or not isinstance(logs, Iterable)
    # Entries may be objects with a path.
    return [
        str(getattr(x, "path", x)) for x in ([logs] if is_single else logs)
    ]


def _first_value(worker: object, names: Iterable[str]) -> Any:
    values = (
        worker.get(name)
        if isinstance(worker, Mapping)
        else getattr(worker, name, None)
        for name in names
    )
    return next((x for x in values if x is not None), None)


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


def _parse_report_name(name: str) -> dict[str, Any]:
    """
    Parse a file name such as ``dtensor_policy_worker_3-6_4711.nsys-rep``.

    Returns:
        Attributes of a `NsysReport`.
    """
    stem = next((name[: -len(x)] for x in SUFFIXES if name.endswith(x)), "")
    match = _REPORT_NAME.fullmatch(stem)
    if match is None or stem.startswith("."):
        return {"worker": "", "pid": None}

    worker, steps = match["worker"], None
    if match["start"]:
        try:
            steps = parse_step_range(f"{match['start']}:{match['stop']}")
        except NsightError:  # the numbers are part of the name
            worker = stem[: match.start("pid") - 1]
    return {
        "worker": worker,
        "pid": int(match["pid"]),
        "step_range": steps,
        "part": int(match["part"]) if match["part"] else None,
    }


_SESSION_NAME = re.compile(r"session_[\w.-]{1,100}")
# Folder names of Ray and of log copies; any other name is that of a node.
_NOT_NODES = frozenset(
    {"ray", "logs", "nsight", "nsys", "tmp", "reports", "profiles"}
)


def session_report_folders() -> tuple[Path, ...]:
    """
    Return the folders ``logs/nsight`` of Ray sessions on this node.
    """
    bases = [*map(os.environ.get, ("RAY_TMPDIR", "TMPDIR")), "/tmp"]  # noqa: S108 Ray's own default
    roots = {Path(base, "ray") for base in bases if base}
    folders = {
        resolved(folder)
        for root in roots
        for folder in matching(root, "session*/logs/nsight")
    }
    return tuple(sorted(folders))


def infer_node(
    path: Path, root: Path, local_folders: Collection[Path] = ()
) -> str:
    """
    Return the node of a file by its folders.

    Args:
        root: The folder that was searched.

        local_folders: The folders ``logs/nsight`` of Ray sessions on this
            node.

    Returns:
        This node for files in *local_folders*; else the innermost folder below *root*
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


def _worker_logs(
    folder: Path, pid: int | None, listed: dict[Path, dict[int, list[Path]]]
) -> tuple[str | None, tuple[str, ...]]:
    """
    Return the actor and the log files of a Ray worker, if they are known.

    Args:
        folder: The folder ``logs`` of a session.

        listed: The logs of each folder by process ID, so that each is listed
            once.
    """
    if folder not in listed:
        listed[folder] = _list_logs(folder)
    files = listed[folder].get(pid or 0, ())
    actors = filter(None, map(_read_actor, files))
    return next(actors, None), tuple(map(str, files))


def _list_logs(folder: Path) -> dict[int, list[Path]]:
    logs: dict[int, list[Path]] = defaultdict(list)
    for name in sorted(names_in(folder)):  # there may be 200,000
        if match := _LOG_NAME.fullmatch(name):
            logs[int(match["pid"])].append(folder / name)
    return logs


def _read_actor(file: Path) -> str | None:
    try:
        with open_ordinary(file, "not an ordinary file") as stream:
            head = stream.read(_MAX_HEAD_BYTES)
    except (OSError, ValueError):
        return None

    match = _ACTOR_LINE.search(head)
    return clean(match[1].decode("utf-8", "replace")) if match else None


_MAX_DEPTH = 17  # levels of folders


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
    walk = FileWalk(
        _search_roots(places),
        is_wanted=lambda entry, _: (
            entry.name.endswith(SUFFIXES) or entry.is_dir()
        ),
        max_depth=_MAX_DEPTH,
    )
    logs: dict[Path, dict[int, list[Path]]] = {}
    local_folders = frozenset(session_report_folders())
    reports = [
        attrs.evolve(
            _make_report(file, logs),
            node=infer_node(Path(file.path), Path(file.root), local_folders),
        )
        for file in walk
    ]
    reports = join_workers(reports, workers)
    reports.sort(key=_sort_key)
    return NsysReports(
        reports=tuple(reports),
        missing=tuple(_missing_report(*problem) for problem in walk.problems),
    )


def _search_roots(places: Iterable[str | os.PathLike[str]]) -> list[Path]:
    paths = [Path(place) for place in places]
    for place in paths:
        if not is_there(place):
            msg = f"there is no {place}"
            raise NsightError(
                msg, remedy="name a folder, such as /tmp/ray/session_latest"
            )
    return [resolved(p) for p in paths or session_report_folders()]


def _make_report(
    file: WalkedFile, listed_logs: dict[Path, dict[int, list[Path]]]
) -> NsysReport:
    path = Path(file.path)
    name = _parse_report_name(path.name)
    actor, logs = _worker_logs(path.parent.parent, name["pid"], listed_logs)
    sessions = filter(_SESSION_NAME.fullmatch, path.parts)
    return NsysReport(
        **name,
        path=str(path),
        session=next(sessions, ""),
        size=file.size,
        modified=file.modified,
        actor=actor,
        logs=logs,
        is_raw=path.suffix == ".qdstrm",
    )


def _sort_key(report: NsysReport) -> tuple[str, str, int, int, str]:
    pid, part = report.pid or 0, report.part or 0
    return report.node, report.worker, pid, part, report.path


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
    tool = shutil.which(nsys)
    if tool is None:
        return ReportSummary(path=name, problem="nsys is not installed here")
    if not is_file(name):
        return ReportSummary(path=name, problem="there is no such file")

    folder = tempfile.mkdtemp(prefix="distdebug-nsys-")
    try:
        return _summarize(name, tool, Path(folder), timeout_s)
    except OSError as exc:
        return ReportSummary(path=name, problem=reason_of(exc))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _summarize(
    path_text: str, tool: str, folder: Path, timeout_s: float
) -> ReportSummary:
    # nsys writes its export next to the report.
    report = folder / "report.nsys-rep"
    report.symlink_to(os.path.abspath(path_text))  # noqa: PTH100 a link stays one
    listing, _ = run_nsys(
        [tool, "stats", "--help-reports"],
        timeout_s=_LIST_TIMEOUT_S,
        folder=folder,
    )
    tables = _select_tables(listing)
    argv = [tool, "stats", "--force-export", "true", "--format", "csv"]
    argv += ["--output", str(folder / "out"), "--report", ",".join(tables)]
    argv.append(str(report))
    _, problem = run_nsys(argv, timeout_s=timeout_s, folder=folder)
    rows = {
        title: _read_rows(folder.glob(f"out_{table}*.csv"))
        for table, title in tables.items()
    }
    if any(rows.values()):
        problem = ""
    return ReportSummary(path=path_text, problem=problem, **rows)


def _select_tables(listing: str) -> dict[str, str]:
    """
    Return the name of each table in this version of nsys.
    """
    known = set(_TABLE_NAME.findall(listing))
    return {
        next((n for n in names if n in known), names[0]): title
        for title, names in _NSYS_TABLES.items()
    }


def _read_rows(files: Iterable[Path]) -> tuple[ReportRow, ...]:
    rows = []
    for file in files:
        # A field that is too long ends the file.
        with (
            file.open(encoding="utf-8", errors="replace", newline="") as text,
            suppress(csv.Error),
        ):
            for record in islice(csv.DictReader(text), _MAX_SUMMARY_ROWS):
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
