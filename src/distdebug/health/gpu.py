"""
What do the GPUs of a node tell about themselves?
"""

from __future__ import annotations

import re
import time

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from .._in_time import in_time
from .._text import clean, list_text, size_text
from ..capture import find_tool, run_tool
from ..findings import (
    Cause,
    Evidence,
    Finding,
    Judged,
    as_finding,
    known_ranks,
)


# GPUs that nobody uses take some seconds to wake up.
_LONG_S = 8.0


def judge_driver(
    problem: str, *, host: str = "", waited_s: float = 0.0
) -> tuple[Finding, ...]:
    """
    Tell what it means that the GPUs could not be asked.

    Args:
        problem: Why not, in the words of whoever was asked.

        host: The node.

        waited_s: How long an answer was waited for, in seconds; 0 if it came,
            and was an error.

    Returns:
        What was found, nothing where there is no driver at all.
    """
    judged = None
    if "version mismatch" in problem.lower():
        judged = Judged(
            Cause.NODE_MISCONFIGURED,
            "certain",
            "the driver of the GPUs and its libraries have different versions",
            "load the new driver (reboot the node), or use the libraries of "
            "the driver that is loaded",
        )
    elif waited_s > 0:
        judged = Judged(
            Cause.GPU_FAULT,
            "likely" if waited_s >= _LONG_S else "possible",
            f"the driver of the GPUs does not answer within {waited_s:.0f} s",
            "look for Xid messages in the kernel log; a driver that hangs "
            "needs a reset of the GPU, or a reboot",
        )
    if judged is None:
        return ()

    evidence = Evidence(kind="gpu", source=host, quote=problem)
    return (as_finding(judged, host=host, evidence=evidence),)


_BUS = re.compile(
    r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,2}):"
    r"(?P<device>[0-9a-f]{1,2})(?:\.[0-9a-f])?",
    re.IGNORECASE,
)


@attrs.frozen(kw_only=True)
class GpuProcess:
    """
    Who computes on a GPU?

    Attributes:
        pid: Its number, as the driver tells it: in a container often one of
            the host, or none.

        memory: How many bytes of the GPU it holds; ``None`` if not told.
    """

    pid: int
    memory: int | None = None


@attrs.frozen(kw_only=True)
class Gpu:
    """
    What does one GPU tell?  ``None``, or ``""``, where it does not.

    Attributes:
        index: Its number in the order of NVIDIA's tools; -1 if it is lost and
            only its place is known.

        uuid: Such as ``"GPU-8f6e…"``.

        name: The product.

        bus_id: Its place on the PCI bus, such as ``"00000000:3B:00.0"``.

        utilization: Percent of the last second or less in which it computed.

        memory_utilization: Percent in which its memory was read or written.

        memory_used: Bytes in use.

        memory_total: Bytes there are.

        temperature: Degrees Celsius.

        pstate: Performance state, ``"P0"`` (fastest) to ``"P15"``.

        clock_mhz: Clock of its processors.

        most_clock_mhz: The highest that clock may be.

        power_w: What it draws, in watts.

        power_limit_w: What it may draw.

        slowed_by: Why its clocks are low, in words.

        uncorrected_errors: Errors of memory since the driver was loaded that
            could not be corrected.

        needs_reset: Whether it has to be reset to get rid of bad memory.

        is_worn_out: Whether bad memory could not be replaced.

        recovery: What the driver wants done: ``""`` if nothing, or
            ``"Reset"``, ``"Reboot"``, ….

        fabric: State of its registration with the NVSwitch fabric, such as
            ``"Completed"``; ``""`` if it has none.

        mig: Whether it is split up into instances.

        processes: Who computes on it.

        problem: Why it tells nothing, such as ``"GPU is lost"``.
    """

    index: int
    uuid: str = ""
    name: str = ""
    bus_id: str = ""
    utilization: int | None = None
    memory_utilization: int | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    temperature: int | None = None
    pstate: str = ""
    clock_mhz: int | None = None
    most_clock_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    slowed_by: tuple[str, ...] = ()
    uncorrected_errors: int | None = None
    needs_reset: bool | None = None
    is_worn_out: bool | None = None
    recovery: str = ""
    fabric: str = ""
    mig: bool | None = None
    processes: tuple[GpuProcess, ...] = ()
    problem: str = ""


def bus_key(bus_id: str) -> tuple[int, int, int] | None:
    """
    Which place on the PCI bus is meant?

    Args:
        bus_id: As the driver (``"00000000:3B:00.0"``) or the kernel
            (``"0000:3b:00"``, ``"PCI:0000:3b:00"``) writes it.

    Returns:
        Domain, bus, and device; ``None`` if it is no such place.
    """
    found = _BUS.fullmatch(bus_id.strip().removeprefix("PCI:"))
    if found is None:
        return None

    domain, bus, device = found.group("domain", "bus", "device")
    return int(domain or "0", 16), int(bus, 16), int(device, 16)


IDLE = "idle"
_REASONS = {
    0x1: IDLE,
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "clocks of a display",
}
#: Those that no healthy node shows for long.  A power cap is usual at work.
SEVERE = frozenset(
    {
        "hardware slowdown",
        "software thermal slowdown",
        "hardware thermal slowdown",
        "hardware power brake",
    }
)


def reason_names(bits: int) -> tuple[str, ...]:
    """
    Name the reasons.

    Args:
        bits: All of them, as the driver tells them.

    Returns:
        Their names; bits that are not known are left out.
    """
    return tuple(name for bit, name in _REASONS.items() if bits & bit)


# Less than this is not enough for a context and the kernels of a program.
_LEAST_FREE = 256 << 20
_SLOW_CLOCK = 0.6
_BUSY = 50

_Judge = Callable[[Gpu], Judged | None]


def judge_gpus(
    gpus: Iterable[Gpu],
    *,
    host: str = "",
    ranks: Mapping[int, int] | None = None,
) -> tuple[Finding, ...]:
    """
    Tell what is wrong with GPUs.

    Args:
        gpus: All of a node.

        host: The node.

        ranks: The rank of each process that is known.

    Returns:
        What was found, nothing for GPUs that are well.
    """
    found = []
    for gpu in gpus:
        # The first tells why the others are as they are.
        judged = next(filter(None, (judge(gpu) for judge in _JUDGES)), None)
        if judged is not None:
            found.append(_finding(gpu, judged, host, ranks or {}))
    return tuple(found)


def _finding(
    gpu: Gpu, judged: Judged, host: str, ranks: Mapping[int, int]
) -> Finding:
    name = f"GPU {gpu.index}" if gpu.index >= 0 else f"GPU at {gpu.bus_id}"
    names = [x for x in (gpu.name, gpu.bus_id, gpu.uuid) if x]
    return as_finding(
        judged._replace(
            says=f"{name} {judged.says}",
            ranks=known_ranks((x.pid for x in gpu.processes), ranks),
        ),
        host=host,
        evidence=Evidence(
            kind="gpu",
            source=host,
            location=name,
            quote=", ".join(names),
        ),
    )


def _lost(gpu: Gpu) -> Judged | None:
    if not gpu.problem:
        return None
    return Judged(
        Cause.GPU_FAULT,
        "certain",
        f"does not answer: {gpu.problem}",
        (
            "take the node out, reset the GPU or reboot, and look for Xid "
            "messages in the kernel log"
        ),
    )


def _recovery(gpu: Gpu) -> Judged | None:
    if not gpu.recovery:
        return None
    return Judged(
        Cause.GPU_FAULT,
        "likely",
        f"is not fit for work: its driver asks for {gpu.recovery!r}",
        "end the job on this node, and do what the driver asks for",
    )


def _worn_out(gpu: Gpu) -> Judged | None:
    if not gpu.is_worn_out:
        return None
    return Judged(
        Cause.GPU_FAULT,
        "likely",
        "has bad memory that could not be replaced",
        "take the node out, and have the GPU exchanged",
    )


def _errors(gpu: Gpu) -> Judged | None:
    if not gpu.uncorrected_errors:
        return None
    return Judged(
        Cause.GPU_FAULT,
        "likely" if gpu.needs_reset else "possible",
        (
            f"had {gpu.uncorrected_errors} memory errors that could not be "
            "corrected since its driver was loaded"
        ),
        "reset the GPU or reboot the node before the next job",
    )


def _needs_reset(gpu: Gpu) -> Judged | None:
    if not gpu.needs_reset:
        return None
    return Judged(
        Cause.GPU_FAULT,
        "possible",
        "has bad memory that is replaced at the next reset",
        "reset the GPU when the job is over",
    )


def _fabric(gpu: Gpu) -> Judged | None:
    if gpu.fabric not in {"Not Started", "In Progress"}:
        return None
    return Judged(
        Cause.NODE_MISCONFIGURED,
        "likely",
        (
            "did not join the NVSwitch fabric, so CUDA does not start "
            f"(state: {gpu.fabric})"
        ),
        "start nvidia-fabricmanager, of the same version as the driver",
    )


def _slow(gpu: Gpu) -> Judged | None:
    severe = [x for x in gpu.slowed_by if x in SEVERE]
    if not severe or IDLE in gpu.slowed_by:
        return None
    clock, most = gpu.clock_mhz, gpu.most_clock_mhz
    speed = f" to {clock} of {most} MHz" if clock and most else ""
    is_slow = bool(clock and most and clock < _SLOW_CLOCK * most)
    is_busy = (gpu.utilization or 0) >= _BUSY
    return Judged(
        Cause.STRAGGLER,
        "likely" if is_slow and is_busy else "possible",
        f"is slowed down{speed}: {list_text(severe)}",
        "check the cooling and the power supply of the node",
    )


def _full(gpu: Gpu) -> Judged | None:
    used, total = gpu.memory_used, gpu.memory_total
    if not used or not total or total - used >= min(_LEAST_FREE, total // 50):
        return None
    return Judged(
        Cause.GPU_OUT_OF_MEMORY,
        "possible",
        f"has only {size_text(total - used)} of {size_text(total)} left",
        "see who holds its memory; frameworks that reserve it all are fine",
    )


_JUDGES: tuple[_Judge, ...] = (
    *(_lost, _recovery, _worn_out, _errors),
    *(_needs_reset, _fabric, _slow, _full),
)


_FABRIC = {0: "", 1: "Not Started", 2: "In Progress", 3: "Completed"}
_ACTIONS = (
    *("", "Reset", "Reboot", "Drain P2P", "Drain and Reset"),
    *("Recover IMEX Domain", "Bus Reset", "System Reboot"),
)
# Other errors say that we may not ask, or that it does not know.
_BROKEN = (
    *("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED"),
    *("NVML_ERROR_UNKNOWN", "NVML_ERROR_TIMEOUT", "NVML_ERROR_IRQ_ISSUE"),
    "NVML_ERROR_INSUFFICIENT_POWER",
)

Ask = Callable[..., Any]


def gpus_by_library(nvml: Any, *, brief: bool) -> tuple[Gpu, ...] | None:
    """
    Ask NVIDIA's library.

    Args:
        nvml: The module ``pynvml`` of nvidia-ml-py.

        brief: Whether to ask only how busy they are, and who uses them.

    Returns:
        The GPUs; ``None`` if there is no driver that it understands.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None

    try:
        count = nvml.nvmlDeviceGetCount()
        return tuple(_gpu(nvml, i, brief=brief) for i in range(count))
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, *, brief: bool) -> Gpu:
    # A GPU that fell off the bus must not hide the others.
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as exc:
        return Gpu(index=index, problem=_trouble(nvml, exc))

    ask = partial(_ask, nvml, handle)
    rates = ask("nvmlDeviceGetUtilizationRates")
    known: dict[str, Any] = {
        "utilization": getattr(rates, "gpu", None),
        "memory_utilization": getattr(rates, "memory", None),
        "processes": _processes(ask),
        "uuid": _text(ask("nvmlDeviceGetUUID")),
    }
    if not brief:
        known |= _identity(ask) | _speed(nvml, ask) | _health(nvml, ask)
    return Gpu(index=index, problem=_problem(nvml, handle), **known)


def _problem(nvml: Any, handle: Any) -> str:
    try:
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as exc:
        return _trouble(nvml, exc)

    return ""


def _trouble(nvml: Any, exc: Exception) -> str:
    broken = {getattr(nvml, name, None) for name in _BROKEN} - {None}
    return clean(str(exc)) if getattr(exc, "value", None) in broken else ""


def _ask(nvml: Any, handle: Any, name: str, *args: object) -> Any:
    question = getattr(nvml, name, None)
    if question is None:
        return None
    try:
        return question(handle, *args)
    except (nvml.NVMLError, TypeError, AttributeError):
        return None


def _processes(ask: Ask) -> tuple[GpuProcess, ...]:
    found = ask("nvmlDeviceGetComputeRunningProcesses") or ()
    return tuple(
        GpuProcess(pid=x.pid, memory=getattr(x, "usedGpuMemory", None))
        for x in found
    )


def _identity(ask: Ask) -> dict[str, Any]:
    memory = ask("nvmlDeviceGetMemoryInfo")
    place = ask("nvmlDeviceGetPciInfo")
    mode = ask("nvmlDeviceGetMigMode")
    return {
        "name": _text(ask("nvmlDeviceGetName")),
        "bus_id": _text(getattr(place, "busId", "")),
        "memory_used": getattr(memory, "used", None),
        "memory_total": getattr(memory, "total", None),
        "mig": bool(mode[0]) if mode else None,
    }


def _speed(nvml: Any, ask: Ask) -> dict[str, Any]:
    clock = getattr(nvml, "NVML_CLOCK_SM", 1)
    state = ask("nvmlDeviceGetPerformanceState")
    bits = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:
        bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return {
        "temperature": ask("nvmlDeviceGetTemperature", 0),
        "pstate": "" if state is None else f"P{state}",
        "clock_mhz": ask("nvmlDeviceGetClockInfo", clock),
        "most_clock_mhz": ask("nvmlDeviceGetMaxClockInfo", clock),
        "power_w": _watts(ask("nvmlDeviceGetPowerUsage")),
        "power_limit_w": _watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
        "slowed_by": reason_names(bits or 0),
    }


def _health(nvml: Any, ask: Ask) -> dict[str, Any]:
    # (uncorrected, since the driver was loaded)
    errors = ask("nvmlDeviceGetTotalEccErrors", 1, 0)
    rows = ask("nvmlDeviceGetRemappedRows")
    retiring = ask("nvmlDeviceGetRetiredPagesPendingStatus")
    told = [x for x in (rows and bool(rows[2]), retiring) if x is not None]
    return {
        "uncorrected_errors": errors,
        "needs_reset": any(told) if told else None,
        "is_worn_out": bool(rows[3]) if rows else None,
        "fabric": _nvml_fabric(nvml, ask),
        "recovery": _nvml_recovery(nvml, ask),
    }


def _nvml_fabric(nvml: Any, ask: Ask) -> str:
    make = getattr(nvml, "c_nvmlGpuFabricInfo_t", None)
    if make is None:
        return ""

    info = make()
    try:
        ask("nvmlDeviceGetGpuFabricInfo", _reference(info))
    except (TypeError, ValueError):
        return ""
    return _FABRIC.get(getattr(info, "state", 0), "")


def _reference(info: Any) -> Any:
    import ctypes

    return ctypes.byref(info)


def _nvml_recovery(nvml: Any, ask: Ask) -> str:
    field = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    found = ask("nvmlDeviceGetFieldValues", [field]) if field else None
    if not found or found[0].nvmlReturn != 0:
        return ""

    action = int(found[0].value.uiVal)
    return _ACTIONS[action] if action < len(_ACTIONS) else f"action {action}"


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return clean(str(value)) if value else ""


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
        uuid=_rows_text(row, "uuid"),
        name=_rows_text(row, "name"),
        bus_id=_rows_text(row, "pci.bus_id"),
        utilization=_whole(number.get("utilization.gpu")),
        memory_utilization=_whole(number.get("utilization.memory")),
        memory_used=mebibytes(row.get("memory.used", "")),
        memory_total=mebibytes(row.get("memory.total", "")),
        temperature=_whole(number.get("temperature.gpu")),
        pstate=_rows_text(row, "pstate"),
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
        recovery=_rows_text(row, "gpu_recovery_action"),
        fabric=_rows_text(row, "fabric.state"),
        mig=_any_yes([row.get("mig.mode.current", "")]),
        processes=tuple(processes),
        problem=_rows_problem(row),
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


def _rows_text(row: Mapping[str, str], name: str) -> str:
    cell = clean(row.get(name, ""))
    return "" if cell in {"N/A", "None"} or cell.startswith("[") else cell


def _any_yes(cells: Iterable[str]) -> bool | None:
    told = {
        cell.strip().lower() in {"yes", "enabled"}
        for cell in cells
        if cell.strip().lower() in {"yes", "no", "enabled", "disabled"}
    }
    return any(told) if told else None


def _rows_problem(row: Mapping[str, str]) -> str:
    cells = (row.get(x, "") for x in ("memory.used", "utilization.gpu"))
    lost = next((x for x in cells if _LOST.search(x)), "")
    return clean(lost.strip("[]"))


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
        :func:`~distdebug.health.gpu.gpu_of_row` takes it.

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


def read_gpus(
    *, timeout_s: float = 10.0, brief: bool = False
) -> tuple[Gpu, ...] | None:
    """
    Ask the GPUs of this node how they are.

    Args:
        timeout_s: How long it may take, in seconds.

        brief: Whether to ask only how busy they are and, if there are several,
            who uses which: that is cheap enough to be asked often.

    Returns:
        Every GPU in the order of its number, also one that does not answer;
        ``None`` if there is no way to ask: no driver, or none of NVIDIA.

    Raises:
        TimeoutError: The driver does not answer.

        OSError: ``nvidia-smi`` is there and fails; it says why.
    """
    deadline = time.monotonic() + timeout_s
    library = _library()
    if library is not None:
        found = in_time(
            lambda: gpus_by_library(library, brief=brief), timeout_s
        )
        if found is not None:
            return found

    tool = find_tool("nvidia-smi")
    if tool is None:
        return None

    left = max(deadline - time.monotonic(), 0.1)
    return gpus_by_tool(tool, timeout_s=left, brief=brief)


def _library() -> Any:
    try:
        import pynvml
    except Exception:  # noqa: BLE001 nvidia-smi is left
        return None

    return pynvml
