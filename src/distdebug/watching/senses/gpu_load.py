"""
How busy are the GPUs of this node?

By NVIDIA's library if Python can use it, which is cheap, or else by one short
call of ``nvidia-smi``.  A driver that hangs makes both hang for ever, so both
have a bound.
"""

from __future__ import annotations

import re
import time

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from ..._in_time import in_time
from ...capture.tool import find_tool, run_tool


__all__ = ["GpuLoad", "gpu_loads"]

_LOADS = "--query-gpu=uuid,utilization.gpu,utilization.memory"
_USERS = "--query-compute-apps=gpu_uuid,pid"
_FORMAT = "--format=csv,noheader,nounits"
_PERCENT = re.compile(r"[0-9]{1,3}")


class GpuLoad(NamedTuple):
    """
    How busy a GPU was during the last second or less.

    Attributes:
        name: What it is known by.

        computing: Percent of the time in which it ran anything, be it only a
            kernel that waits; ``None`` if that is not told.

        memory: Percent of the time in which its memory was read or written;
            ``None`` if that is not told.
    """

    name: str
    computing: int | None
    memory: int | None

    def figures(self) -> dict[str, int]:
        """
        What is told of both, by name.
        """
        both = {"computing": self.computing, "memory": self.memory}
        return {name: x for name, x in both.items() if x is not None}


def gpu_loads(
    pids: Collection[int], *, timeout_s: float
) -> tuple[GpuLoad, ...] | None:
    """
    Ask for the load of GPUs.

    Args:
        pids: Some processes.  If any of them is known to use a GPU, only the
            GPUs that they use are told; else all, because in a container the
            processes of GPUs often have other numbers, or none.

        timeout_s: How long it may take, in seconds.

    Returns:
        The load of each GPU, one that is split up (MIG) without numbers;
        ``None`` if there is no way to ask.

    Raises:
        TimeoutError: The driver does not answer.
    """
    library = _library()
    if library is not None:
        found = in_time(lambda: _by_library(library, pids), timeout_s)
        if found is not None:
            return found

    return _by_tool(pids, timeout_s)


def _used(
    loads: Iterable[GpuLoad], users: Collection[str]
) -> tuple[GpuLoad, ...]:
    loads = tuple(loads)
    return tuple(x for x in loads if x.name in users) or loads


def _library() -> Any:
    try:
        import pynvml
    except Exception:  # noqa: BLE001 nvidia-smi is left
        return None

    return pynvml


def _by_library(
    nvml: Any, pids: Collection[int]
) -> tuple[GpuLoad, ...] | None:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # there is no driver, or another one
        return None

    try:
        loads, users = [], set()
        for index in range(nvml.nvmlDeviceGetCount()):
            load, is_used = _ask_library(nvml, index, pids)
            loads.append(load)
            if is_used:
                users.add(load.name)
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()
    return _used(loads, users)


def _ask_library(
    nvml: Any, index: int, pids: Collection[int]
) -> tuple[GpuLoad, bool]:
    """
    The load of a GPU, and whether any of the processes uses it.
    """
    # A GPU that fell off the bus must not hide the others.
    load, is_used = GpuLoad(str(index), None, None), False
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        users = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        is_used = any(user.pid in pids for user in users)
        rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
        load = GpuLoad(str(index), rates.gpu, rates.memory)
    except nvml.NVMLError:
        pass
    return load, is_used


def _by_tool(
    pids: Collection[int], timeout_s: float
) -> tuple[GpuLoad, ...] | None:
    tool = find_tool("nvidia-smi")
    if tool is None:
        return None

    deadline = time.monotonic() + timeout_s
    rows = _rows(tool, _LOADS, timeout_s)
    if rows is None:
        return None

    loads = [
        GpuLoad(row[0], _percent(row[1]), _percent(row[2]))
        for row in rows
        if len(row) == 3
    ]
    if len(loads) < 2:  # there is nothing to choose
        return tuple(loads)

    left = max(0.1, deadline - time.monotonic())
    apps = _rows(tool, _USERS, left) or []
    ours = {str(pid) for pid in pids}
    return _used(loads, {row[0] for row in apps if row[-1] in ours})


def _rows(tool: str, query: str, timeout_s: float) -> list[list[str]] | None:
    try:
        got = run_tool([tool, query, _FORMAT], timeout_s=timeout_s)
    except OSError:
        return None

    if got.status is None:
        msg = f"nvidia-smi did not end within {timeout_s:g} s"
        raise TimeoutError(msg)
    if got.status != 0:
        return None

    return [
        [cell.strip() for cell in line.split(",")]
        for line in got.output.splitlines()
    ]


def _percent(cell: str) -> int | None:
    # `[N/A]`, `[Not Supported]`, `[Unknown Error]`, `[GPU requires reset]`
    return int(cell) if _PERCENT.fullmatch(cell) else None
