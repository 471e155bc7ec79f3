"""
Is this node able to work?

Facts only: what they mean is for those who read them.
"""

from __future__ import annotations

import json
import os
import stat
import time

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from .._io import is_there, open_ordinary, write_whole
from .._text import clean
from ..capture import find_tool
from ..findings import Missing
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
