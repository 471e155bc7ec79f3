"""
Save node facts, log tails, and Flight Recorder dumps of one node.

Only collects; :mod:`distdebug.health` and the diagnosis interpret it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import stat
import time

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any

import attrs

from .._io import (
    is_there,
    make_private_folder,
    open_ordinary,
    open_whole,
    write_whole,
)
from .._text import clean, reason_of
from ..findings import Missing
from ..flight_recorder import (
    SIDECAR_SUFFIX,
    VARIABLES,
    DumpFile,
    DumpRequest,
    FoundFiles,
    SearchLimits,
    Sidecar,
    find_files,
    request_dumps,
)
from ..health import (
    FACTS_LAYOUT,
    boot_time,
    driver_version,
    is_suspicious,
    public_variables,
    read_gpus,
    read_interfaces,
    read_kernel_log,
)
from ..processes import read_environ


_MAX_KERNEL_LINES = 50
_MAX_WORKERS = 4096
_TOOL_S = 10.0

_FOLDERS = {"tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108 only their sizes

FactReader = Callable[[float], Any]


def save_node_facts(
    pids: Iterable[int], path: Path, seconds: float
) -> tuple[list[Path], list[Missing]]:
    """
    Write facts about this node: machine, GPUs, network, kernel messages.

    Args:
        pids: The workers; only network and torch variables of their
            environments are saved.

        path: Output file.

        seconds: Time limit for all facts.

    Returns:
        The files written, and the missing facts with reasons.
    """
    deadline = time.monotonic() + seconds
    missing: list[Missing] = []
    facts: dict[str, Any] = {
        "schema": FACTS_LAYOUT,
        "taken": time.time(),
    }
    sources: Mapping[str, FactReader] = {
        "machine": lambda _: _machine_facts(path.parent),
        "variables": lambda _: _worker_variables(pids),
        "interfaces": lambda _: [attrs.asdict(x) for x in read_interfaces()],
        "gpus": _gpu_facts,
        "kernel": _kernel_messages,
    }
    for name, read_fact in sources.items():
        left = min(max(deadline - time.monotonic(), 0.1), _TOOL_S)
        try:
            facts[name] = read_fact(left)
        except Exception as exc:  # noqa: BLE001 other facts may still work
            reason = clean(str(exc)) or type(exc).__name__
            missing.append(Missing(what=f"{name} of node", reason=reason))
    try:
        write_whole(path, json.dumps(facts, indent=1).encode())
    except OSError as exc:
        reason = f"not written: {exc.strerror}"
        return [], [*missing, Missing(what="facts of node", reason=reason)]

    return [path], missing


def _machine_facts(folder: Path) -> dict[str, Any]:
    import psutil

    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "platform": platform.machine(),
        "driver": driver_version(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "booted": boot_time(),
        "memory": {"total": memory.total, "available": memory.available},
        "swap": {"total": swap.total, "used": swap.used},
        "disks": {
            name: _disk_facts(where)
            for name, where in {"bundle": str(folder), **_FOLDERS}.items()
            if is_there(where)
        },
    }


def _disk_facts(where: str) -> dict[str, int]:
    status = os.statvfs(where)
    return {
        "total": status.f_blocks * status.f_frsize,
        "free": status.f_bavail * status.f_frsize,
        "files": status.f_files,
        "free_files": status.f_favail,
    }


def _worker_variables(pids: Iterable[int]) -> list[dict[str, Any]]:
    """
    Return the variables of workers, grouped by equal values.
    """
    alike: dict[tuple[tuple[str, str], ...], list[int]] = defaultdict(list)
    for pid in list(pids)[:_MAX_WORKERS]:
        environ, source = read_environ(pid)
        if source:
            alike[tuple(public_variables(environ).items())].append(pid)
    return [
        {"pids": numbers, "variables": dict(variables)}
        for variables, numbers in alike.items()
    ]


def _gpu_facts(timeout_s: float) -> list[dict[str, Any]] | None:
    """
    Return the state of the GPUs; None without a driver.
    """
    gpus = read_gpus(timeout_s=timeout_s)
    return None if gpus is None else [attrs.asdict(gpu) for gpu in gpus]


def _kernel_messages(timeout_s: float) -> list[str]:
    """
    Return the last suspicious kernel messages, as the journal formats them.
    """
    log = read_kernel_log(timeout_s=timeout_s, keep=is_suspicious)
    return [
        line.text
        if line.time is None
        else f"{line.time:.6f} localhost kernel: {line.text}"
        for line in log.lines[-_MAX_KERNEL_LINES:]
    ]


_MAX_LOG_BYTES = 1 << 20
_MAX_LOGS = 256
_LOG_SUFFIXES = {".err", ".log", ".out", ".txt"}


def save_log_tails(
    logs: Iterable[str | os.PathLike[str]], folder: Path
) -> tuple[list[Path], list[Missing]]:
    """
    Copy the ends of logs.

    Args:
        logs: Log files.

        folder: Output folder; made only if there is something to copy.

    Returns:
        The files written, at most 1 MiB of each log; and the missing logs with
        reasons.
    """
    files: list[Path] = []
    missing: list[Missing] = []
    for number, log in enumerate(map(Path, logs)):
        try:
            if number >= _MAX_LOGS:
                _raise_reason(f"only {_MAX_LOGS} logs are kept")
            data = _read_tail(log)
            folder.mkdir(mode=0o700, exist_ok=True)
            path = _unused_path(folder, log)
            write_whole(path, data)
        except (OSError, ValueError) as exc:
            missing.append(Missing.log(log, exc))
        else:
            files.append(path)
    return files, missing


def find_worker_logs(pids: Iterable[int]) -> list[Path]:
    """
    Find the files that processes of this node write their output to.

    Returns:
        The regular files behind their stdout and stderr, each once; only files
        whose path exists on this side of a container.
    """
    found: dict[tuple[int, int], Path] = {}
    for pid in pids:
        for stream in (1, 2):
            link = Path(f"/proc/{pid}/fd/{stream}")
            # The process ended, belongs to another user, or runs in a container.
            with suppress(OSError):
                log, status = link.readlink(), link.stat()
                is_same_file = log.is_absolute() and log.samefile(link)
                if stat.S_ISREG(status.st_mode) and is_same_file:
                    found.setdefault((status.st_dev, status.st_ino), log)
    return list(found.values())


def _read_tail(log: Path) -> bytes:
    with open_ordinary(log, "it is not a file") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - _MAX_LOG_BYTES, 0))
        return file.read(_MAX_LOG_BYTES)


def _raise_reason(reason: str) -> None:
    raise OSError(0, reason)


def _unused_path(folder: Path, log: Path) -> Path:
    # A file named rank_0 would pass for a dump.
    is_plain = log.suffix in _LOG_SUFFIXES
    stem, suffix = (log.stem, log.suffix) if is_plain else (log.name, ".log")
    path, number = folder / f"{stem}{suffix}", 1
    while is_there(path):
        number += 1
        path = folder / f"{stem}.{number}{suffix}"
    return path


# Limit for all dumps of a node.
MAX_DUMP_BYTES = 1 << 30
_MAX_DUMP_FILE_BYTES = 1 << 28
_MAX_FILES = 200_000
_BLOCK = 1 << 20
# Folders also hold other files per rank, such as checkpoints.
_DUMP_NAME = re.compile("nccl|rccl|xccl|gloo|trace|flight|dump", re.IGNORECASE)
# File times are less precise than the clock.
_MTIME_SLACK_S = 0.1
_POLL_S = 0.25


@attrs.frozen
class DumpFolder:
    """
    A folder that ranks write dumps to.

    Attributes:
        prefixes: Prefixes of dump names, if known; see
            :class:`~distdebug.flight_recorder.reading.files.SearchLimits`.

        local_ranks: Live ranks of this node, if several nodes share the
            folder: only they are asked, and dumps of other hosts are skipped.
    """

    path: Path
    prefixes: tuple[str, ...] | None = None
    local_ranks: Collection[int] | None = None

    def find_files(self, deadline: float) -> FoundFiles:
        """
        Find dumps and sidecars until a deadline on the monotonic clock.
        """
        search = SearchLimits(deadline, _MAX_FILES, self.prefixes)
        return find_files([str(self.path)], search)


def request_rank_dumps(source: DumpFolder, timeout_s: float) -> list[Missing]:
    """
    Ask the ranks of this node for dumps, and wait for the files.

    Args:
        timeout_s: Time limit in seconds.

    Returns:
        The ranks without a new dump, and why.
    """
    requested_at, deadline = time.time(), time.monotonic() + timeout_s
    rows = request_dumps(
        source.path, ranks=source.local_ranks, timeout_s=timeout_s
    )
    if not rows:
        reason = "no rank could be asked for a dump: there are no pipes"
        return [Missing(what="dump", reason=reason, source=str(source.path))]

    late = _wait_for_dumps(rows, source, requested_at, deadline)
    return [
        Missing(
            what="fresh dump",
            reason=row.reason or "torch was asked for it, and wrote none",
            rank=row.rank,
            source=str(row.path),
        )
        for row in rows
        if row.status != "dumped" and (row.status != "asked" or row in late)
    ]


def _wait_for_dumps(
    rows: Iterable[DumpRequest],
    source: DumpFolder,
    requested_at: float,
    deadline: float,
) -> set[DumpRequest]:
    """
    Return the ranks that wrote no dump in time after a request by pipe.

    Torch does not answer; only a new file shows success.
    """
    late = {row for row in rows if row.status == "asked"}
    while late:
        begun, since = time.monotonic(), requested_at - _MTIME_SLACK_S
        files = source.find_files(deadline).files
        fresh = {file.rank for file in files if file.modified >= since}
        late = {row for row in late if row.rank not in fresh}
        now = time.monotonic()
        if now >= deadline:
            break
        if late:
            # Listing a large folder is slow: pause as long as it took.
            pause_s = max(_POLL_S, now - begun)
            time.sleep(min(pause_s, deadline - now))
    return late


def collect_dumps(
    source: DumpFolder,
    folder: Path,
    deadline: float,
    *,
    max_bytes: int = MAX_DUMP_BYTES,
) -> tuple[list[Path], list[Missing]]:
    """
    Copy the newest dump and sidecar of each rank.

    Includes ranks that did not answer: what a rank left when it died is the
    most valuable evidence.

    Args:
        folder: Output folder; made only if there is something to copy.

        deadline: When to stop, on the monotonic clock.

        max_bytes: Limit for all copies, in bytes; half of the free disk space
            is a limit, too.

    Returns:
        The files written, with the times of the originals; and the missing
        ones with reasons.
    """
    # Leave half of the time for copying.
    now = time.monotonic()
    search_ends = min(deadline, now + max(deadline - now, 0.0) / 2)
    found = source.find_files(search_ends)
    if source.local_ranks is not None:
        found = _select_local_files(found, source.local_ranks)
    files: list[Path] = []
    missing = list(found.problems)
    # Leave the other half of the disk to the job.
    left = min(max_bytes, _free_bytes(folder.parent) // 2)
    for rank, file in _newest_by_rank(found):
        try:
            if time.monotonic() > deadline:
                _raise_reason("the time was over")
            path = folder / file.relative_to(source.path)
            make_private_folder(path.parent)
            max_file_bytes = min(left, _MAX_DUMP_FILE_BYTES)
            left -= _copy(file, path, max_file_bytes, deadline)
        except (OSError, ValueError) as exc:
            why, where = reason_of(exc), str(file)
            missing.append(
                Missing(what="dump", reason=why, rank=rank, source=where)
            )
        else:
            files.append(path)
    return files, missing


def _select_local_files(
    found: FoundFiles, local_ranks: Collection[int]
) -> FoundFiles:
    host = socket.gethostname()

    def is_local(side: Sidecar | None) -> bool:
        return side is None or side.host == host or side.rank in local_ranks

    return found._replace(
        files=[file for file in found.files if is_local(file.sidecar)],
        sidecars=[s for s in found.sidecars if is_local(s)],
    )


def _newest_by_rank(found: FoundFiles) -> Iterator[tuple[int, Path]]:
    used_sidecars: set[str] = set()
    for rank, file in _last_by_rank(found.files).items():
        yield rank, Path(file.path)
        if file.sidecar:
            used_sidecars.add(file.sidecar.path)
            yield rank, Path(file.sidecar.path)

    # A rank that died may have left only a sidecar.
    written = sorted(found.sidecars, key=lambda sidecar: sidecar.written)
    last_sidecar = {sidecar.rank: sidecar for sidecar in written}
    for rank, sidecar in sorted(last_sidecar.items()):
        if sidecar.path not in used_sidecars:
            yield rank, Path(sidecar.path)


def _last_by_rank(files: Iterable[DumpFile]) -> dict[int, DumpFile]:
    last: dict[int, DumpFile] = {}
    for file in sorted(files, key=lambda f: (_has_dump_name(f), f.modified)):
        # Other files are no dumps, such as configurations.
        if file.is_expected and file.rank is not None:
            last[file.rank] = file
    return dict(sorted(last.items()))


def _has_dump_name(file: DumpFile) -> bool:
    name = Path(file.path).name
    return file.sidecar is not None or bool(_DUMP_NAME.search(name))


def _copy(
    source: Path, path: Path, max_file_bytes: int, deadline: float
) -> int:
    """
    Copy a file, and return its size.
    """
    with open_ordinary(source, "it is not a file") as file:
        status = os.fstat(file.fileno())
        if status.st_size > max_file_bytes:
            _raise_reason("it is too large for the space that is left")
        with open_whole(path) as copy:
            _copy_blocks(file, copy, status.st_size, deadline)
            copy.flush()  # a later flush would change the time
            times = status.st_atime_ns, status.st_mtime_ns
            os.utime(copy.fileno(), ns=times)

    return status.st_size


def _copy_blocks(
    file: IO[bytes], copy: IO[bytes], size: int, deadline: float
) -> None:
    """
    Copy *size* bytes; the file may still grow.
    """
    left = size
    while left > 0 and (block := file.read(min(left, _BLOCK))):
        if time.monotonic() > deadline:
            _raise_reason("the time was over")
        copy.write(block)
        left -= len(block)


def _free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


_MAX_RANKS = 256
_MAX_ENTRIES = 100_000


def find_dump_dirs(pids: Iterable[int]) -> dict[Path, tuple[str, ...]]:
    """
    Find the dump folders that the environments of ranks name.

    Returns:
        The folders that hold files of ranks, with the prefixes of their dumps.
    """
    named: dict[Path, set[str]] = {}
    for pid in islice(pids, _MAX_RANKS):
        environ, _ = read_environ(pid)
        for prefix in _prefixes(environ):
            folder, name = os.path.split(prefix)
            if Path(folder).is_absolute():
                named.setdefault(Path(folder), set()).add(name)
    return {
        folder: tuple(sorted(names))
        for folder, names in named.items()
        if _has_rank_files(folder, names)
    }


def _prefixes(environ: Mapping[str, str]) -> Iterator[str]:
    for variable in VARIABLES:
        if variable.key in {"dump_prefix", "pipe_prefix"}:
            for spelling in variable.spellings:
                yield environ.get(spelling.name, "")


def _has_rank_files(folder: Path, names: Iterable[str]) -> bool:
    """
    Return whether a folder holds files of ranks.

    Other folders can be huge, and are not searched.
    """
    prefixes = tuple(name for name in names if name)
    try:
        with os.scandir(folder) as entries:
            return any(
                entry.name.endswith(SIDECAR_SUFFIX)
                or (prefixes and entry.name.startswith(prefixes))
                for entry in islice(entries, _MAX_ENTRIES)
            )
    except (OSError, ValueError):
        return False
