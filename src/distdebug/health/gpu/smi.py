"""
What does ``nvidia-smi`` tell about the GPUs?

It refuses a whole query for one field that its version does not know, and
names the field: that one is left out then.
"""

from __future__ import annotations

import re
import time

from collections import defaultdict

from ..._text import clean
from ...capture.tool import run_tool
from .model import Gpu, GpuProcess
from .rows import REASONS, gpu_of_row, mebibytes


__all__ = ["gpu_rows", "gpus_by_tool"]

_BRIEF = (
    "index",
    "uuid",
    "utilization.gpu",
    "utilization.memory",
    "mig.mode.current",
)
_FULL = (
    *_BRIEF,
    *("name", "pci.bus_id", "memory.used", "memory.total"),
    *("temperature.gpu", "pstate", "clocks.sm", "clocks.max.sm"),
    *("power.draw", "enforced.power.limit", REASONS[0]),
    *("ecc.errors.uncorrected.volatile.total", "retired_pages.pending"),
    *("fabric.state", "gpu_recovery_action"),
)
_APPS = "gpu_uuid,pid,used_memory"
_ROWS = "gpu_uuid,remapped_rows.pending,remapped_rows.failure"
_FORMAT = "--format=csv,noheader,nounits"
_UNKNOWN = re.compile(r"Field \"([\w.]{1,80})\" is not a valid field")
_NO_HANDLE = re.compile(
    r"Unable to determine the device handle for GPU ?([0-9A-Fa-f:.]{5,20}): "
    r"([^\n]{1,200})"
)


def gpus_by_tool(
    tool: str, *, timeout_s: float, brief: bool
) -> tuple[Gpu, ...]:
    """
    Ask ``nvidia-smi``.

    Args:
        tool: Where it is.

        timeout_s: How long it may take, in seconds.

        brief: Whether to ask only how busy they are and, if there are several,
            who uses which.

    Returns:
        The GPUs.

    Raises:
        TimeoutError: It does not end.

        OSError: It fails; it says why.
    """
    deadline = time.monotonic() + timeout_s
    fields = list(_BRIEF if brief else _FULL)
    rows, lost = _gpu_rows(tool, fields, deadline)
    # A call takes up to seconds, and a single GPU is used by whoever uses any.
    is_enough = brief and len(rows) < 2
    users = [] if is_enough else _table(tool, "compute-apps", _APPS, deadline)
    remapped = [] if brief else _table(tool, "remapped-rows", _ROWS, deadline)
    processes: dict[str, list[GpuProcess]] = defaultdict(list)
    for uuid, pid, memory in (row for row in users if len(row) == 3):
        if pid.isascii() and pid.isdigit():
            used = mebibytes(memory)
            processes[uuid].append(GpuProcess(pid=int(pid), memory=used))
    worn = {row[0]: row[1:] for row in remapped if len(row) == 3}
    found = (
        gpu_of_row(
            row,
            index=index,
            processes=processes[row.get("uuid", "")],
            remapped=worn.get(row.get("uuid", ""), ()),
        )
        for index, row in enumerate(rows)
    )
    return (*found, *lost)


def gpu_rows(tool: str, *, timeout_s: float) -> list[dict[str, str]]:
    """
    Ask ``nvidia-smi``, and keep its own words.

    Args:
        tool: Where it is.

        timeout_s: How long it may take, in seconds.

    Returns:
        What it says of each field that its version knows, for each GPU, as
        :func:`~distdebug.health.gpu.rows.gpu_of_row` takes it.

    Raises:
        TimeoutError: It does not end.

        OSError: It fails; it says why.
    """
    deadline = time.monotonic() + timeout_s
    rows, lost = _gpu_rows(tool, list(_FULL), deadline)
    gone = [
        {"pci.bus_id": x.bus_id, "utilization.gpu": f"[{x.problem}]"}
        for x in lost
    ]
    return [{k: clean(v) for k, v in row.items()} for row in [*rows, *gone]]


def _gpu_rows(
    tool: str, fields: list[str], deadline: float
) -> tuple[list[dict[str, str]], list[Gpu]]:
    """
    The rows, and the GPUs of which it only says that they are lost.
    """
    for _ in range(len(fields)):
        status, text = _run(tool, f"--query-gpu={','.join(fields)}", deadline)
        lost = [
            Gpu(index=-1, bus_id=clean(found[1]), problem=clean(found[2]))
            for found in _NO_HANDLE.finditer(text)
        ]
        if status == 0 or lost or "No devices were found" in text:
            rows = (_cells(line) for line in text.splitlines())
            whole = [row for row in rows if len(row) == len(fields)]
            return [dict(zip(fields, x, strict=True)) for x in whole], lost
        unknown = _UNKNOWN.search(text)
        if unknown is None or unknown[1] not in fields:
            break
        # What it is called now was called something else before.
        at = fields.index(unknown[1])
        fields[at : at + 1] = REASONS[1:] if unknown[1] == REASONS[0] else ()
    msg = f"nvidia-smi: {clean(text) or f'exit status {status}'}"
    raise OSError(msg)


def _table(
    tool: str, what: str, fields: str, deadline: float
) -> list[list[str]]:
    status, text = _run(tool, f"--query-{what}={fields}", deadline)
    return [_cells(x) for x in text.splitlines()] if status == 0 else []


def _run(tool: str, query: str, deadline: float) -> tuple[int, str]:
    left = max(deadline - time.monotonic(), 0.1)
    got = run_tool([tool, query, _FORMAT], timeout_s=left)
    if got.status is None:
        msg = f"nvidia-smi did not end within {left:.1f} s"
        raise TimeoutError(msg)

    return got.status, got.output or got.complaint


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]
