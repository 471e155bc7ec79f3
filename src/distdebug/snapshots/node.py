"""
Is this node able to work?

Facts only: what they mean is for those who read them.
"""

from __future__ import annotations

import json
import os
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

from .._io import is_there, open_ordinary, open_whole, write_whole
from .._text import clean, reason_of
from ..capture import find_tool
from ..findings import Missing
from ..flight_recorder import (
    SIDECAR_SUFFIX,
    VARIABLES,
    DumpFile,
    DumpRequest,
    Found,
    Search,
    Sidecar,
    find_files,
    request_dumps,
)
from ..health import (
    FACTS_LAYOUT,
    gpu_rows,
    is_suspicious,
    public_variables,
    read_interfaces,
    read_kernel_log,
)
from ..processes import read_environ


_MOST_LINES = 50
_MOST_WORKERS = 4096
_TOOL_S = 10.0

Fact = Callable[[float], Any]


def keep_facts(
    pids: Iterable[int], path: Path, seconds: float
) -> tuple[list[Path], list[Missing]]:
    """
    Write what is known about this node.

    Args:
        pids: The workers; of their environment only network variables and
            those of torch are kept.

        path: The file.

        seconds: How long it may take, in all.

    Returns:
        What was written; and which facts are not in it, and why.
    """
    deadline = time.monotonic() + seconds
    missing: list[Missing] = []
    facts: dict[str, Any] = {
        "schema": FACTS_LAYOUT,
        "taken": time.time(),
    }
    sources: Mapping[str, Fact] = {
        "machine": lambda _: _machine(path.parent),
        "variables": lambda _: _variables(pids),
        "interfaces": lambda _: _interfaces(),
        "gpus": _gpus,
        "kernel": _kernel_messages,
    }
    for name, learn in sources.items():
        left = min(max(deadline - time.monotonic(), 0.1), _TOOL_S)
        try:
            facts[name] = learn(left)
        except Exception as exc:  # noqa: BLE001 the other facts are worth it
            reason = clean(str(exc)) or type(exc).__name__
            missing.append(Missing(what=f"{name} of node", reason=reason))
    try:
        write_whole(path, json.dumps(facts, indent=1).encode())
    except OSError as exc:
        reason = f"not written: {exc.strerror}"
        return [], [*missing, Missing(what="facts of node", reason=reason)]

    return [path], missing


def _machine(folder: Path) -> dict[str, Any]:
    import psutil

    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "booted": psutil.boot_time(),
        "memory": {"total": memory.total, "available": memory.available},
        "swap": {"total": swap.total, "used": swap.used},
        "disks": {
            name: _disk(where)
            for name, where in (
                *(("bundle", str(folder)), ("tmp", "/tmp")),  # noqa: S108
                ("shm", "/dev/shm"),  # noqa: S108 only its size
            )
            if is_there(where)
        },
    }


def _disk(where: str) -> dict[str, int]:
    status = os.statvfs(where)
    return {
        "total": status.f_blocks * status.f_frsize,
        "free": status.f_bavail * status.f_frsize,
        "files": status.f_files,
        "free_files": status.f_favail,
    }


def _variables(pids: Iterable[int]) -> list[dict[str, Any]]:
    """
    The variables of workers, those that have the same ones together.
    """
    alike: dict[tuple[tuple[str, str], ...], list[int]] = defaultdict(list)
    for pid in list(pids)[:_MOST_WORKERS]:
        environ, source = read_environ(pid)
        if source:
            alike[tuple(public_variables(environ).items())].append(pid)
    return [
        {"pids": numbers, "variables": dict(variables)}
        for variables, numbers in alike.items()
    ]


def _gpus(timeout_s: float) -> list[dict[str, str]] | None:
    """
    What ``nvidia-smi`` says.  `None` if there is none: not all nodes have GPUs.
    """
    tool = find_tool("nvidia-smi")
    return None if tool is None else gpu_rows(tool, timeout_s=timeout_s)


def _kernel_messages(timeout_s: float) -> list[str]:
    """
    What the kernel said last that may be about trouble, as the journal has it.
    """
    log = read_kernel_log(timeout_s=timeout_s, keep=is_suspicious)
    return [
        line.text
        if line.time is None
        else f"{line.time:.6f} localhost kernel: {line.text}"
        for line in log.lines[-_MOST_LINES:]
    ]


def _interfaces() -> list[dict[str, Any]]:
    return [attrs.asdict(interface) for interface in read_interfaces()]


_MOST_BYTES = 1 << 20
_MOST_LOGS = 256
_SUFFIXES = {".err", ".log", ".out", ".txt"}


def keep_tails(
    logs: Iterable[str | os.PathLike[str]], folder: Path
) -> tuple[list[Path], list[Missing]]:
    """
    Copy the ends of logs.

    Args:
        logs: The files.

        folder: Where to; it is made if there is anything to keep.

    Returns:
        What was written, at most 1 MiB of each; and what was not, and why.
    """
    files: list[Path] = []
    missing: list[Missing] = []
    for number, log in enumerate(map(Path, logs)):
        try:
            if number >= _MOST_LOGS:
                _refuse(f"only {_MOST_LOGS} logs are kept")
            data = _tail(log)
            folder.mkdir(mode=0o700, exist_ok=True)
            path = _free_name(folder, log)
            write_whole(path, data)
        except (OSError, ValueError) as exc:
            missing.append(Missing.log(log, exc))
        else:
            files.append(path)
    return files, missing


def own_logs(pids: Iterable[int]) -> list[Path]:
    """
    Into which files do these processes print?

    Args:
        pids: The processes, on this node.

    Returns:
        The ordinary files that are their standard output and standard error,
        as far as they are known here by a name; each once.
    """
    found: dict[tuple[int, int], Path] = {}
    for pid in pids:
        for stream in (1, 2):
            link = Path(f"/proc/{pid}/fd/{stream}")
            # Who is gone, or of another user, or in a container of its own.
            with suppress(OSError):
                log, status = link.readlink(), link.stat()
                is_there = log.is_absolute() and log.samefile(link)
                if stat.S_ISREG(status.st_mode) and is_there:
                    found.setdefault((status.st_dev, status.st_ino), log)
    return list(found.values())


def _tail(log: Path) -> bytes:
    with open_ordinary(log, "it is not a file") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - _MOST_BYTES, 0))
        return file.read(_MOST_BYTES)


def _refuse(reason: str) -> None:
    raise OSError(0, reason)


def _free_name(folder: Path, log: Path) -> Path:
    # A log called rank_0 would be taken for a dump.
    is_plain = log.suffix in _SUFFIXES
    stem, suffix = (log.stem, log.suffix) if is_plain else (log.name, ".log")
    path, number = folder / f"{stem}{suffix}", 1
    while is_there(path):
        number += 1
        path = folder / f"{stem}.{number}{suffix}"
    return path


# Of all dumps of a node.
MOST_BYTES = 1 << 30
_ONE_MOST_BYTES = 1 << 28
_MOST_FILES = 200_000
_BLOCK = 1 << 20
# Other files of ranks lie in folders too, such as checkpoints.
_LIKELY = re.compile("nccl|rccl|xccl|gloo|trace|flight|dump", re.IGNORECASE)
# Times of files are kept less precisely than the clock's.
_TICK_S = 0.1
_PAUSE_S = 0.25


def ask_ranks(
    dump_dir: str | os.PathLike[str],
    timeout_s: float,
    *,
    ranks: Collection[int] | None = None,
    starts: tuple[str, ...] | None = None,
) -> list[Missing]:
    """
    Ask the ranks of this node for dumps.

    Args:
        dump_dir: Where they put them.

        timeout_s: How long to wait for answers, in seconds.

        ranks: Whom to ask; by default everybody who has a pipe there.

        starts: What the names of dumps start with, if that is known; see
            :class:`~distdebug.flight_recorder.reading.files.Search`.

    Returns:
        Who gave none, and why.
    """
    asked, deadline = time.time(), time.monotonic() + timeout_s
    rows = request_dumps(dump_dir, ranks=ranks, timeout_s=timeout_s)
    if not rows:
        reason = "nobody could be asked for dumps: there are no pipes"
        return [Missing(what="dump", reason=reason, source=str(dump_dir))]

    search = Search(deadline, _MOST_FILES, starts)
    late = _await_files(rows, dump_dir, asked, search)
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


def _await_files(
    rows: Iterable[DumpRequest],
    dump_dir: str | os.PathLike[str],
    asked: float,
    search: Search,
) -> set[DumpRequest]:
    """
    Who was asked through a pipe of torch, and wrote nothing in time?

    Torch does not answer; a new file is all there is to see.
    """
    late = {row for row in rows if row.status == "asked"}
    while late:
        begun = time.monotonic()
        files = find_files([os.fspath(dump_dir)], search).files
        fresh = {f.rank for f in files if f.modified >= asked - _TICK_S}
        late = {row for row in late if row.rank not in fresh}
        now = time.monotonic()
        if now >= search.deadline:
            break
        if late:
            # A large folder is not looked at all the time.
            pause_s = max(_PAUSE_S, now - begun)
            time.sleep(min(pause_s, search.deadline - now))
    return late


def keep_dumps(  # noqa: PLR0913 each can be left out
    dump_dir: str | os.PathLike[str],
    folder: Path,
    deadline: float,
    *,
    own: Collection[int] | None = None,
    starts: tuple[str, ...] | None = None,
    most_bytes: int = MOST_BYTES,
) -> tuple[list[Path], list[Missing]]:
    """
    Copy the newest dump and side-car of each rank.

    Also of those that did not answer: what a rank left when it died is worth
    most.

    Args:
        dump_dir: Where the ranks put them.

        folder: Where to; it is made if there is anything to keep.

        deadline: When to stop, on the monotonic clock.

        own: The ranks that are alive on this node, if others share the
            folder: what is known to be of another node is left to it.

        starts: What the names of dumps start with, if that is known.

        most_bytes: How much to keep, at most.

    Returns:
        What was written, with the times of the originals, and at most half of
        what the disk has left; and what was not, and why.
    """
    root = Path(dump_dir)
    # Copying takes time too.
    now = time.monotonic()
    search_ends = min(deadline, now + max(deadline - now, 0.0) / 2)
    search = Search(search_ends, _MOST_FILES, starts)
    found = find_files([str(root)], search)
    if own is not None:
        found = _of_this_node(found, own)
    files: list[Path] = []
    missing = list(found.problems)
    # The job may need the rest of the disk.
    left = min(most_bytes, _free_bytes(folder.parent) // 2)
    for rank, source in _newest(found):
        try:
            if time.monotonic() > deadline:
                _dumps_refuse("the time was over")
            path = folder / source.relative_to(root)
            path.parent.mkdir(parents=True, exist_ok=True)
            most = min(left, _ONE_MOST_BYTES)
            left -= _copy(source, path, most, deadline)
        except OSError as exc:
            reason = reason_of(exc)
            missing.append(
                Missing(
                    what="dump", reason=reason, rank=rank, source=str(source)
                )
            )
        else:
            files.append(path)
    return files, missing


def _of_this_node(found: Found, own: Collection[int]) -> Found:
    here = socket.gethostname()

    def is_ours(sidecar: Sidecar | None) -> bool:
        return sidecar is None or sidecar.host == here or sidecar.rank in own

    return found._replace(
        files=[file for file in found.files if is_ours(file.sidecar)],
        sidecars=[s for s in found.sidecars if is_ours(s)],
    )


def _newest(found: Found) -> Iterator[tuple[int, Path]]:
    seen: set[str] = set()
    for rank, file in _last_by_rank(found.files).items():
        yield rank, Path(file.path)
        if file.sidecar:
            seen.add(file.sidecar.path)
            yield rank, Path(file.sidecar.path)

    # One that died may have left a side-car only.
    last: dict[int, Sidecar] = {}
    for sidecar in sorted(found.sidecars, key=lambda s: s.written):
        last[sidecar.rank] = sidecar
    for rank, sidecar in sorted(last.items()):
        if sidecar.path not in seen:
            yield rank, Path(sidecar.path)


def _last_by_rank(files: Iterable[DumpFile]) -> dict[int, DumpFile]:
    last: dict[int, DumpFile] = {}
    for file in sorted(files, key=lambda f: (_is_likely(f), f.modified)):
        # Configurations and notes are not ours to take.
        is_dump = file.is_expected
        if is_dump and file.rank is not None:
            last[file.rank] = file
    return dict(sorted(last.items()))


def _is_likely(file: DumpFile) -> bool:
    name = Path(file.path).name
    return file.sidecar is not None or bool(_LIKELY.search(name))


def _copy(source: Path, path: Path, most: int, deadline: float) -> int:
    """
    Copy a file, and give its size.
    """
    fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            _dumps_refuse("it is not a file")
        if status.st_size > most:
            _dumps_refuse("it is too large for the space that is left")
        with open_whole(path) as copy:
            _copy_blocks(file, copy, status.st_size, deadline)
            copy.flush()  # or else it would be of now
            times = status.st_atime_ns, status.st_mtime_ns
            os.utime(copy.fileno(), ns=times)

    return status.st_size


def _copy_blocks(
    file: IO[bytes], copy: IO[bytes], size: int, deadline: float
) -> None:
    """
    Copy what was there when it was looked at; it may still grow.
    """
    left = size
    while left > 0 and (block := file.read(min(left, _BLOCK))):
        if time.monotonic() > deadline:
            _dumps_refuse("the time was over")
        copy.write(block)
        left -= len(block)


def _free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _dumps_refuse(reason: str) -> None:
    raise OSError(0, reason)


_MOST_RANKS = 256
_MOST_ENTRIES = 100_000


def find_dump_dirs(pids: Iterable[int]) -> dict[Path, tuple[str, ...]]:
    """
    Find out from ranks where they put their dumps.

    Args:
        pids: The ranks.

    Returns:
        The folders that their environments name, and in which somebody listens
        or has dumped.
    """
    named: dict[Path, set[str]] = {}
    for pid in islice(pids, _MOST_RANKS):
        environ, _ = read_environ(pid)
        for prefix in _prefixes(environ):
            folder, name = os.path.split(prefix)
            if Path(folder).is_absolute():
                named.setdefault(Path(folder), set()).add(name)
    return {
        folder: tuple(sorted(names))
        for folder, names in named.items()
        if _is_used(folder, names)
    }


def _prefixes(environ: Mapping[str, str]) -> Iterator[str]:
    for variable in VARIABLES:
        if variable.key in {"dump_prefix", "pipe_prefix"}:
            for spelling in variable.spellings:
                yield environ.get(spelling.name, "")


def _is_used(folder: Path, names: Iterable[str]) -> bool:
    """
    Whether a folder has files of ranks, and is not just some folder.

    Other folders can be huge, and none of our business.
    """
    starts = tuple(name for name in names if name)
    try:
        with os.scandir(folder) as entries:
            return any(
                entry.name.endswith(SIDECAR_SUFFIX)
                or (starts and entry.name.startswith(starts))
                for entry in islice(entries, _MOST_ENTRIES)
            )
    except (OSError, ValueError):
        return False
