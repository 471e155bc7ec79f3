"""
Is this node able to work?

Facts only: what they mean is for those who read them.
"""

from __future__ import annotations

import json
import os
import time

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from .._files import is_there, write_whole
from .._text import clean
from ..capture.tool import find_tool
from ..findings import Missing
from ..health.gpu.smi import gpu_rows
from ..health.kernel.events import is_suspicious
from ..health.kernel.log import read_kernel_log
from ..health.network.interfaces import read_interfaces
from ..health.stored import FACTS_LAYOUT
from ..health.variables import public_variables
from ..processes.environ import read_environ


__all__ = ["keep_facts"]

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
