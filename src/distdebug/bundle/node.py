"""
Is this node able to work?

Facts only: what they mean is for those who read them.
"""

from __future__ import annotations

import json
import os
import re
import time

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .._files import write_whole
from .._text import clean
from ..capture.tool import ToolOutput, find_tool, run_tool
from ..findings import Missing
from ..processes.environ import read_environ


__all__ = ["keep_facts", "public_variables"]

# Whatever else is in an environment is nobody's business.
_PREFIXES = (
    *("NCCL_", "RCCL_", "TORCH_", "TORCHELASTIC_", "GLOO_", "UCX_", "FI_"),
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF"),
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_ACCOUNT = re.compile(r"://[^/\s]*@")

_GPU_FIELDS = (
    *("index", "uuid", "name", "utilization.gpu", "memory.used"),
    *("memory.total", "temperature.gpu", "pstate", "clocks.sm"),
)
_TROUBLE = re.compile(
    r"NVRM: Xid|out of memory|oom-kill|oom_reaper|Killed process"
    r"|I/O error|blocked for more than|segfault|Machine check",
    re.IGNORECASE,
)
_MOST_LINES = 50
_MOST_WORKERS = 4096
_TOOL_S = 10.0

Fact = Callable[[float], Any]


class _UnknownError(Exception):
    """
    A fact that cannot be learned here, and why.
    """


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
    facts: dict[str, Any] = {"schema": 1, "taken": time.time()}
    sources: Mapping[str, Fact] = {
        "machine": lambda _: _machine(path.parent),
        "variables": lambda _: _variables(pids),
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


def public_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """
    Which variables of a worker may be kept?

    Args:
        environ: All of them.

    Returns:
        Those of the network and of torch by name, without any that may be a
        secret.
    """
    return {
        clean(name): clean(value, limit=500)
        for name, value in sorted(environ.items())
        if name.startswith(_PREFIXES)
        and not _SECRET.search(name)
        and not _ACCOUNT.search(value)
    }


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
            if Path(where).exists()
        },
    }


def _disk(where: str) -> dict[str, int]:
    status = os.statvfs(where)
    return {
        "total": status.f_blocks * status.f_frsize,
        "free": status.f_bavail * status.f_frsize,
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
    fields = ",".join(_GPU_FIELDS)
    text = _ask(
        "nvidia-smi",
        (f"--query-gpu={fields}", "--format=csv,noheader,nounits"),
        timeout_s,
    )
    if text is None:
        return None

    rows = [line.split(", ") for line in text.splitlines()]
    return [
        dict(zip(_GPU_FIELDS, map(clean, row), strict=True))
        for row in rows
        if len(row) == len(_GPU_FIELDS)
    ]


def _kernel_messages(timeout_s: float) -> list[str] | None:
    text = _ask("dmesg", ("--ctime",), timeout_s)
    if text is None:
        return None

    found = [line for line in text.splitlines() if _TROUBLE.search(line)]
    return [clean(line, limit=400) for line in found[-_MOST_LINES:]]


def _ask(name: str, arguments: Iterable[str], timeout_s: float) -> str | None:
    """
    What does a tool say?  `None` if there is none: not all nodes have GPUs.
    """
    tool = find_tool(name)
    if tool is None:
        return None

    got: ToolOutput = run_tool([tool, *arguments], timeout_s=timeout_s)
    if got.status is None:
        msg = f"{name} did not end within {timeout_s:.0f} s"
        raise _UnknownError(msg)
    if got.status != 0:
        why = got.complaint.strip() or got.output.strip()
        msg = f"{name}: {why or f'exit status {got.status}'}"
        raise _UnknownError(msg)

    return got.output
