"""
What does one row of a table of ``nvidia-smi`` tell of a GPU?
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..._text import clean
from .model import Gpu, GpuProcess
from .reasons import reason_names


__all__ = ["REASONS", "gpu_of_row", "mebibytes"]

#: The field that tells why clocks are low, and its name in older versions.
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,6})?")
_LOST = re.compile(
    r"GPU is lost|GPU requires reset|Unknown Error", re.IGNORECASE
)
_MIB = 1 << 20


def gpu_of_row(
    row: Mapping[str, str],
    *,
    index: int = 0,
    processes: Iterable[GpuProcess] = (),
    remapped: Sequence[str] = (),
) -> Gpu:
    """
    Understand one row of its table.

    Args:
        row: What it says of each field, as ``--query-gpu`` names them.

        index: The number of the GPU, if the row does not tell.

        processes: Who computes on it.

        remapped: Whether a bad row of memory waits for a reset, and whether
            one could not be replaced: ``"Yes"``, ``"No"``, or anything else.

    Returns:
        What is known of it.
    """
    number = {name: _number(cell) for name, cell in row.items()}
    pending = [row.get("retired_pages.pending", ""), *remapped[:1]]
    return Gpu(
        index=_whole(number.get("index"), index),
        uuid=_text(row, "uuid"),
        name=_text(row, "name"),
        bus_id=_text(row, "pci.bus_id"),
        utilization=_whole(number.get("utilization.gpu")),
        memory_utilization=_whole(number.get("utilization.memory")),
        memory_used=mebibytes(row.get("memory.used", "")),
        memory_total=mebibytes(row.get("memory.total", "")),
        temperature=_whole(number.get("temperature.gpu")),
        pstate=_text(row, "pstate"),
        clock_mhz=_whole(number.get("clocks.sm")),
        most_clock_mhz=_whole(number.get("clocks.max.sm")),
        power_w=number.get("power.draw"),
        power_limit_w=number.get("enforced.power.limit"),
        slowed_by=reason_names(_bits(row)),
        uncorrected_errors=_whole(
            number.get("ecc.errors.uncorrected.volatile.total")
        ),
        needs_reset=_any_yes(pending),
        is_worn_out=_any_yes(remapped[1:2]),
        recovery=_text(row, "gpu_recovery_action"),
        fabric=_text(row, "fabric.state"),
        mig=_any_yes([row.get("mig.mode.current", "")]),
        processes=tuple(processes),
        problem=_problem(row),
    )


def mebibytes(cell: Any) -> int | None:
    """
    Read a number of MiB, in which the tool tells memory.

    Args:
        cell: The cell.

    Returns:
        As many in bytes; ``None`` if it is no number.
    """
    number = _number(cell)
    return None if number is None else int(number * _MIB)


def _number(cell: Any) -> float | None:
    # `[N/A]`, `[Not Supported]`, `[Unknown Error]`, `[GPU requires reset]`
    if not isinstance(cell, str) or not _NUMBER.fullmatch(cell.strip()):
        return None
    return float(cell)


def _whole(number: float | None, other: int | None = None) -> Any:
    return other if number is None else int(number)


def _bits(row: Mapping[str, str]) -> int:
    for name in REASONS:
        cell = row.get(name, "")
        if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", cell):
            return int(cell, 16)
    return 0


def _text(row: Mapping[str, str], name: str) -> str:
    cell = clean(row.get(name, ""))
    return "" if cell in {"N/A", "None"} or cell.startswith("[") else cell


def _any_yes(cells: Iterable[str]) -> bool | None:
    told = {
        cell.strip().lower() in {"yes", "enabled"}
        for cell in cells
        if cell.strip().lower() in {"yes", "no", "enabled", "disabled"}
    }
    return any(told) if told else None


def _problem(row: Mapping[str, str]) -> str:
    cells = (row.get(x, "") for x in ("memory.used", "utilization.gpu"))
    lost = next((x for x in cells if _LOST.search(x)), "")
    return clean(lost.strip("[]"))
