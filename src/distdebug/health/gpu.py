"""
Read the state of NVIDIA GPUs by NVML or ``nvidia-smi``, and check it.
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
    NodeFinding,
    as_finding,
    ranks_of_pids,
)


# Idle GPUs without persistence mode take some seconds to wake up.
_LONG_WAIT_S = 8.0


def check_gpu_driver(
    problem: str, *, host: str = "", waited_s: float = 0.0
) -> tuple[Finding, ...]:
    """
    Return a finding if the GPU driver failed or did not answer.

    Args:
        problem: The error message.

        waited_s: How long an answer was awaited, in seconds; 0 if the driver
            answered with an error.

    Returns:
        Nothing for other errors, such as a node without a driver.
    """
    finding = None
    if "version mismatch" in problem.lower():
        finding = NodeFinding(
            Cause.NODE_MISCONFIGURED,
            "certain",
            "the driver of the GPUs and its libraries have different versions",
            "load the new driver (reboot the node), or use the libraries of "
            "the driver that is loaded",
        )
    elif waited_s > 0:
        finding = NodeFinding(
            Cause.GPU_FAULT,
            "likely" if waited_s >= _LONG_WAIT_S else "possible",
            f"the driver of the GPUs does not answer within {waited_s:.0f} s",
            "look for Xid messages in the kernel log; a driver that hangs "
            "needs a reset of the GPU, or a reboot",
        )
    if finding is None:
        return ()

    evidence = Evidence(kind="gpu", source=host, quote=problem)
    return (as_finding(finding, host=host, evidence=evidence),)


_BUS_ID = re.compile(
    r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,2}):"
    r"(?P<device>[0-9a-f]{1,2})(?:\.[0-9a-f])?",
    re.IGNORECASE,
)


@attrs.frozen(kw_only=True)
class GpuProcess:
    """
    A process that computes on a GPU.

    Attributes:
        pid: The process ID that the driver reports.  In a container it is
            often the one of the host, or missing.

        memory: GPU memory in bytes; ``None`` if unknown.
    """

    pid: int
    memory: int | None = None


@attrs.frozen(kw_only=True)
class Gpu:
    """
    The state of one GPU; unknown values are ``None`` or ``""``.

    Attributes:
        index: The index of NVIDIA's tools; -1 if the GPU is lost and only its
            bus ID is known.

        uuid: Such as ``"GPU-8f6e…"``.

        name: The product.

        bus_id: The PCI bus ID, such as ``"00000000:3B:00.0"``.

        utilization: Percent of the last sample period (at most 1 s) in which
            kernels ran.

        memory_utilization: Percent in which memory was read or written.

        memory_used: Bytes in use.

        memory_total: Bytes in total.

        temperature: Degrees Celsius.

        pstate: Performance state, ``"P0"`` (fastest) to ``"P15"``.

        clock_mhz: SM clock.

        most_clock_mhz: Maximum SM clock.

        power_w: Power draw in watts.

        power_limit_w: Power limit in watts.

        slowed_by: Throttle reasons.

        uncorrected_errors: Uncorrected ECC errors since the driver was
            loaded.

        needs_reset: Whether bad memory is replaced at the next reset.

        is_worn_out: Whether bad memory could not be replaced.

        recovery: The recovery action that the driver asks for: ``""`` for
            none, or ``"Reset"``, ``"Reboot"``, ….

        fabric: State of the registration with the NVSwitch fabric, such as
            ``"Completed"``; ``""`` without a fabric.

        mig: Whether MIG is enabled.

        processes: Processes that compute on it.

        problem: Why there are no values, such as ``"GPU is lost"``.
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


def parse_bus_id(bus_id: str) -> tuple[int, int, int] | None:
    """
    Parse a PCI bus ID.

    Args:
        bus_id: As the driver (``"00000000:3B:00.0"``) or the kernel
            (``"0000:3b:00"``, ``"PCI:0000:3b:00"``) writes it.

    Returns:
        Domain, bus, and device; ``None`` if it is not a bus ID.
    """
    match = _BUS_ID.fullmatch(bus_id.strip().removeprefix("PCI:"))
    if match is None:
        return None

    domain, bus, device = match.group("domain", "bus", "device")
    return int(domain or "0", 16), int(bus, 16), int(device, 16)


IDLE_REASON = "idle"
_THROTTLE_REASONS = {
    0x1: IDLE_REASON,
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "clocks of a display",
}
#: Reasons that a healthy node never shows for long.  A power cap is normal
#: under load.
SEVERE_REASONS = frozenset(
    {
        "hardware slowdown",
        "software thermal slowdown",
        "hardware thermal slowdown",
        "hardware power brake",
    }
)


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """
    Return the names of throttle reasons; unknown bits are ignored.

    Args:
        bits: The bit mask of the driver (``nvmlClocksEventReasons``).
    """
    return tuple(name for bit, name in _THROTTLE_REASONS.items() if bits & bit)


# A CUDA context and the kernels of a program need more.
_MIN_FREE_BYTES = 256 << 20
_SLOW_CLOCK_RATIO = 0.6
_BUSY_PERCENT = 50

_Check = Callable[[Gpu], NodeFinding | None]


def check_gpus(
    gpus: Iterable[Gpu],
    *,
    host: str = "",
    ranks: Mapping[int, int] | None = None,
) -> tuple[Finding, ...]:
    """
    Return the most important finding of each unhealthy GPU.

    Args:
        gpus: All GPUs of a node.

        ranks: Ranks by process ID.
    """
    findings = []
    for gpu in gpus:
        # The first problem explains the others.
        finding = next(filter(None, (check(gpu) for check in _CHECKS)), None)
        if finding is not None:
            findings.append(_gpu_finding(gpu, finding, host, ranks or {}))
    return tuple(findings)


def _gpu_finding(
    gpu: Gpu, finding: NodeFinding, host: str, ranks: Mapping[int, int]
) -> Finding:
    name = f"GPU {gpu.index}" if gpu.index >= 0 else f"GPU at {gpu.bus_id}"
    names = [x for x in (gpu.name, gpu.bus_id, gpu.uuid) if x]
    return as_finding(
        finding._replace(
            says=f"{name} {finding.says}",
            ranks=ranks_of_pids((x.pid for x in gpu.processes), ranks),
        ),
        host=host,
        evidence=Evidence(
            kind="gpu",
            source=host,
            location=name,
            quote=", ".join(names),
        ),
    )


def _check_lost(gpu: Gpu) -> NodeFinding | None:
    if not gpu.problem:
        return None
    return NodeFinding(
        Cause.GPU_FAULT,
        "certain",
        f"does not answer: {gpu.problem}",
        (
            "take the node out, reset the GPU or reboot, and look for Xid "
            "messages in the kernel log"
        ),
    )


def _check_recovery_action(gpu: Gpu) -> NodeFinding | None:
    if not gpu.recovery:
        return None
    return NodeFinding(
        Cause.GPU_FAULT,
        "likely",
        f"is not fit for work: its driver asks for {gpu.recovery!r}",
        "end the job on this node, and do what the driver asks for",
    )


def _check_bad_memory(gpu: Gpu) -> NodeFinding | None:
    if not gpu.is_worn_out:
        return None
    return NodeFinding(
        Cause.GPU_FAULT,
        "likely",
        "has bad memory that could not be replaced",
        "take the node out, and have the GPU exchanged",
    )


def _check_memory_errors(gpu: Gpu) -> NodeFinding | None:
    if not gpu.uncorrected_errors:
        return None
    return NodeFinding(
        Cause.GPU_FAULT,
        "likely" if gpu.needs_reset else "possible",
        (
            f"had {gpu.uncorrected_errors} memory errors that could not be "
            "corrected since its driver was loaded"
        ),
        "reset the GPU or reboot the node before the next job",
    )


def _check_reset(gpu: Gpu) -> NodeFinding | None:
    if not gpu.needs_reset:
        return None
    return NodeFinding(
        Cause.GPU_FAULT,
        "possible",
        "has bad memory that is replaced at the next reset",
        "reset the GPU when the job is over",
    )


def _check_fabric(gpu: Gpu) -> NodeFinding | None:
    if gpu.fabric not in {"Not Started", "In Progress"}:
        return None
    return NodeFinding(
        Cause.NODE_MISCONFIGURED,
        "likely",
        (
            "did not join the NVSwitch fabric, so CUDA does not start "
            f"(state: {gpu.fabric})"
        ),
        "start nvidia-fabricmanager, of the same version as the driver",
    )


def _check_throttling(gpu: Gpu) -> NodeFinding | None:
    severe = [x for x in gpu.slowed_by if x in SEVERE_REASONS]
    if not severe or IDLE_REASON in gpu.slowed_by:
        return None
    clock, max_clock = gpu.clock_mhz, gpu.most_clock_mhz
    speed = f" to {clock} of {max_clock} MHz" if clock and max_clock else ""
    is_slow = bool(
        clock and max_clock and clock < _SLOW_CLOCK_RATIO * max_clock
    )
    is_busy = (gpu.utilization or 0) >= _BUSY_PERCENT
    return NodeFinding(
        Cause.STRAGGLER,
        "likely" if is_slow and is_busy else "possible",
        f"is slowed down{speed}: {list_text(severe)}",
        "check the cooling and the power supply of the node",
    )


def _check_free_memory(gpu: Gpu) -> NodeFinding | None:
    used, total = gpu.memory_used, gpu.memory_total
    if (
        not used
        or not total
        or total - used >= min(_MIN_FREE_BYTES, total // 50)
    ):
        return None
    return NodeFinding(
        Cause.GPU_OUT_OF_MEMORY,
        "possible",
        f"has only {size_text(total - used)} of {size_text(total)} left",
        "see who holds its memory; frameworks that reserve it all are fine",
    )


_CHECKS: tuple[_Check, ...] = (
    *(
        _check_lost,
        _check_recovery_action,
        _check_bad_memory,
        _check_memory_errors,
    ),
    *(_check_reset, _check_fabric, _check_throttling, _check_free_memory),
)


_FABRIC_STATES = {0: "", 1: "Not Started", 2: "In Progress", 3: "Completed"}
_RECOVERY_ACTIONS = (
    *("", "Reset", "Reboot", "Drain P2P", "Drain and Reset"),
    *("Recover IMEX Domain", "Bus Reset", "System Reboot"),
)
# Other errors mean missing permission or an unsupported query.
_FATAL_ERRORS = (
    *("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED"),
    *("NVML_ERROR_UNKNOWN", "NVML_ERROR_TIMEOUT", "NVML_ERROR_IRQ_ISSUE"),
    "NVML_ERROR_INSUFFICIENT_POWER",
)

NvmlQuery = Callable[..., Any]


def query_nvml(nvml: Any, *, brief: bool) -> tuple[Gpu, ...] | None:
    """
    Read the GPUs by NVML.

    Args:
        nvml: The module ``pynvml`` of nvidia-ml-py.

        brief: Whether to read utilization and processes only.

    Returns:
        The GPUs; ``None`` without a driver that NVML supports.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None

    try:
        count = nvml.nvmlDeviceGetCount()
        return tuple(_query_gpu(nvml, i, brief=brief) for i in range(count))
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _query_gpu(nvml: Any, index: int, *, brief: bool) -> Gpu:
    # A GPU that fell off the bus must not hide the others.
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as exc:
        return Gpu(index=index, problem=_fatal_error_text(nvml, exc))

    query = partial(_call_nvml, nvml, handle)
    rates = query("nvmlDeviceGetUtilizationRates")
    fields: dict[str, Any] = {
        "utilization": getattr(rates, "gpu", None),
        "memory_utilization": getattr(rates, "memory", None),
        "processes": _query_processes(query),
        "uuid": _decode(query("nvmlDeviceGetUUID")),
    }
    if not brief:
        fields |= (
            _query_identity(query)
            | _query_clocks(nvml, query)
            | _query_health(nvml, query)
        )
    return Gpu(index=index, problem=_nvml_problem(nvml, handle), **fields)


def _nvml_problem(nvml: Any, handle: Any) -> str:
    try:
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as exc:
        return _fatal_error_text(nvml, exc)

    return ""


def _fatal_error_text(nvml: Any, exc: Exception) -> str:
    broken = {getattr(nvml, name, None) for name in _FATAL_ERRORS} - {None}
    return clean(str(exc)) if getattr(exc, "value", None) in broken else ""


def _call_nvml(nvml: Any, handle: Any, name: str, *args: object) -> Any:
    function = getattr(nvml, name, None)
    if function is None:
        return None
    try:
        return function(handle, *args)
    except (nvml.NVMLError, TypeError, AttributeError):
        return None


def _query_processes(query: NvmlQuery) -> tuple[GpuProcess, ...]:
    values = query("nvmlDeviceGetComputeRunningProcesses") or ()
    return tuple(
        GpuProcess(pid=x.pid, memory=getattr(x, "usedGpuMemory", None))
        for x in values
    )


def _query_identity(query: NvmlQuery) -> dict[str, Any]:
    memory = query("nvmlDeviceGetMemoryInfo")
    pci = query("nvmlDeviceGetPciInfo")
    mode = query("nvmlDeviceGetMigMode")
    return {
        "name": _decode(query("nvmlDeviceGetName")),
        "bus_id": _decode(getattr(pci, "busId", "")),
        "memory_used": getattr(memory, "used", None),
        "memory_total": getattr(memory, "total", None),
        "mig": bool(mode[0]) if mode else None,
    }


def _query_clocks(nvml: Any, query: NvmlQuery) -> dict[str, Any]:
    clock = getattr(nvml, "NVML_CLOCK_SM", 1)
    state = query("nvmlDeviceGetPerformanceState")
    bits = query("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:
        bits = query("nvmlDeviceGetCurrentClocksThrottleReasons")
    return {
        "temperature": query("nvmlDeviceGetTemperature", 0),
        "pstate": "" if state is None else f"P{state}",
        "clock_mhz": query("nvmlDeviceGetClockInfo", clock),
        "most_clock_mhz": query("nvmlDeviceGetMaxClockInfo", clock),
        "power_w": _watts(query("nvmlDeviceGetPowerUsage")),
        "power_limit_w": _watts(query("nvmlDeviceGetEnforcedPowerLimit")),
        "slowed_by": throttle_reasons(bits or 0),
    }


def _query_health(nvml: Any, query: NvmlQuery) -> dict[str, Any]:
    # (uncorrected, since the driver was loaded)
    errors = query("nvmlDeviceGetTotalEccErrors", 1, 0)
    rows = query("nvmlDeviceGetRemappedRows")
    retiring = query("nvmlDeviceGetRetiredPagesPendingStatus")
    known = [x for x in (rows and bool(rows[2]), retiring) if x is not None]
    return {
        "uncorrected_errors": errors,
        "needs_reset": any(known) if known else None,
        "is_worn_out": bool(rows[3]) if rows else None,
        "fabric": _query_fabric(nvml, query),
        "recovery": _query_recovery_action(nvml, query),
    }


def _query_fabric(nvml: Any, query: NvmlQuery) -> str:
    info_type = getattr(nvml, "c_nvmlGpuFabricInfo_t", None)
    if info_type is None:
        return ""

    info = info_type()
    try:
        query("nvmlDeviceGetGpuFabricInfo", _reference(info))
    except (TypeError, ValueError):
        return ""
    return _FABRIC_STATES.get(getattr(info, "state", 0), "")


def _reference(info: Any) -> Any:
    import ctypes

    return ctypes.byref(info)


def _query_recovery_action(nvml: Any, query: NvmlQuery) -> str:
    field = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    values = query("nvmlDeviceGetFieldValues", [field]) if field else None
    if not values or values[0].nvmlReturn != 0:
        return ""

    action = int(values[0].value.uiVal)
    return (
        _RECOVERY_ACTIONS[action]
        if action < len(_RECOVERY_ACTIONS)
        else f"action {action}"
    )


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _decode(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return clean(str(value)) if value else ""


#: The field of throttle reasons, and its name in older versions.
THROTTLE_FIELDS = (
    "clocks_event_reasons.active",
    "clocks_throttle_reasons.active",
)
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,6})?")
_LOST_TEXT = re.compile(
    r"GPU is lost|GPU requires reset|Unknown Error", re.IGNORECASE
)
_MIB = 1 << 20


def parse_gpu_row(
    row: Mapping[str, str],
    *,
    index: int = 0,
    processes: Iterable[GpuProcess] = (),
    remapped: Sequence[str] = (),
) -> Gpu:
    """
    Parse one row of ``nvidia-smi --query-gpu``.

    Args:
        row: The cells by field name.

        index: The GPU index, if the row has none.

        remapped: The cells ``remapped_rows.pending`` and
            ``remapped_rows.failure``: ``"Yes"``, ``"No"``, or anything else.
    """
    number = {name: _parse_number(cell) for name, cell in row.items()}
    pending = [row.get("retired_pages.pending", ""), *remapped[:1]]
    return Gpu(
        index=_to_int(number.get("index"), index),
        uuid=_cell_text(row, "uuid"),
        name=_cell_text(row, "name"),
        bus_id=_cell_text(row, "pci.bus_id"),
        utilization=_to_int(number.get("utilization.gpu")),
        memory_utilization=_to_int(number.get("utilization.memory")),
        memory_used=parse_mebibytes(row.get("memory.used", "")),
        memory_total=parse_mebibytes(row.get("memory.total", "")),
        temperature=_to_int(number.get("temperature.gpu")),
        pstate=_cell_text(row, "pstate"),
        clock_mhz=_to_int(number.get("clocks.sm")),
        most_clock_mhz=_to_int(number.get("clocks.max.sm")),
        power_w=number.get("power.draw"),
        power_limit_w=number.get("enforced.power.limit"),
        slowed_by=throttle_reasons(_throttle_bits(row)),
        uncorrected_errors=_to_int(
            number.get("ecc.errors.uncorrected.volatile.total")
        ),
        needs_reset=_is_any_yes(pending),
        is_worn_out=_is_any_yes(remapped[1:2]),
        recovery=_cell_text(row, "gpu_recovery_action"),
        fabric=_cell_text(row, "fabric.state"),
        mig=_is_any_yes([row.get("mig.mode.current", "")]),
        processes=tuple(processes),
        problem=_row_problem(row),
    )


def parse_mebibytes(cell: Any) -> int | None:
    """
    Convert a cell in MiB to bytes; ``None`` if it is not a number.
    """
    number = _parse_number(cell)
    return None if number is None else int(number * _MIB)


def _parse_number(cell: Any) -> float | None:
    # `[N/A]`, `[Not Supported]`, `[Unknown Error]`, `[GPU requires reset]`
    if not isinstance(cell, str) or not _NUMBER.fullmatch(cell.strip()):
        return None
    return float(cell)


def _to_int(number: float | None, default: int | None = None) -> Any:
    return default if number is None else int(number)


def _throttle_bits(row: Mapping[str, str]) -> int:
    for name in THROTTLE_FIELDS:
        cell = row.get(name, "")
        if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", cell):
            return int(cell, 16)
    return 0


def _cell_text(row: Mapping[str, str], name: str) -> str:
    cell = clean(row.get(name, ""))
    return "" if cell in {"N/A", "None"} or cell.startswith("[") else cell


def _is_any_yes(cells: Iterable[str]) -> bool | None:
    answers = {
        cell.strip().lower() in {"yes", "enabled"}
        for cell in cells
        if cell.strip().lower() in {"yes", "no", "enabled", "disabled"}
    }
    return any(answers) if answers else None


def _row_problem(row: Mapping[str, str]) -> str:
    cells = (row.get(x, "") for x in ("memory.used", "utilization.gpu"))
    lost = next((x for x in cells if _LOST_TEXT.search(x)), "")
    return clean(lost.strip("[]"))


_BRIEF_FIELDS = (
    "index",
    "uuid",
    "utilization.gpu",
    "utilization.memory",
    "mig.mode.current",
)
_ALL_FIELDS = (
    *_BRIEF_FIELDS,
    *("name", "pci.bus_id", "memory.used", "memory.total"),
    *("temperature.gpu", "pstate", "clocks.sm", "clocks.max.sm"),
    *("power.draw", "enforced.power.limit", THROTTLE_FIELDS[0]),
    *("ecc.errors.uncorrected.volatile.total", "retired_pages.pending"),
    *("fabric.state", "gpu_recovery_action"),
)
_PROCESS_FIELDS = "gpu_uuid,pid,used_memory"
_REMAPPED_FIELDS = "gpu_uuid,remapped_rows.pending,remapped_rows.failure"
_FORMAT = "--format=csv,noheader,nounits"
_UNKNOWN_FIELD = re.compile(r"Field \"([\w.]{1,80})\" is not a valid field")
_LOST_GPU = re.compile(
    r"Unable to determine the device handle for GPU ?([0-9A-Fa-f:.]{5,20}): "
    r"([^\n]{1,200})"
)


def query_nvidia_smi(
    tool: str, *, timeout_s: float, brief: bool
) -> tuple[Gpu, ...]:
    """
    Read the GPUs by ``nvidia-smi``.

    Args:
        tool: The path of ``nvidia-smi``.

        brief: Whether to read utilization only and, if there are several GPUs,
            their processes.

    Raises:
        TimeoutError: ``nvidia-smi`` did not end in time.

        OSError: ``nvidia-smi`` failed; the message has its output.
    """
    deadline = time.monotonic() + timeout_s
    fields = list(_BRIEF_FIELDS if brief else _ALL_FIELDS)
    rows, lost = _query_rows(tool, fields, deadline)
    # A call can take seconds, and with a single GPU its users are clear.
    is_single_gpu = brief and len(rows) < 2
    users = (
        []
        if is_single_gpu
        else _query_table(tool, "compute-apps", _PROCESS_FIELDS, deadline)
    )
    remapped = (
        []
        if brief
        else _query_table(tool, "remapped-rows", _REMAPPED_FIELDS, deadline)
    )
    processes: dict[str, list[GpuProcess]] = defaultdict(list)
    for uuid, pid, memory in (row for row in users if len(row) == 3):
        if pid.isascii() and pid.isdigit():
            used = parse_mebibytes(memory)
            processes[uuid].append(GpuProcess(pid=int(pid), memory=used))
    remapped_by_uuid = {row[0]: row[1:] for row in remapped if len(row) == 3}
    gpus = (
        parse_gpu_row(
            row,
            index=index,
            processes=processes[row.get("uuid", "")],
            remapped=remapped_by_uuid.get(row.get("uuid", ""), ()),
        )
        for index, row in enumerate(rows)
    )
    return (*gpus, *lost)


def read_gpu_rows(tool: str, *, timeout_s: float) -> list[dict[str, str]]:
    """
    Return the raw cells of ``nvidia-smi --query-gpu``.

    Args:
        tool: The path of ``nvidia-smi``.

    Returns:
        The cells by field name, for each GPU, in the form that
        :func:`~distdebug.health.gpu.parse_gpu_row` takes.  Fields that this
        version does not support are left out.

    Raises:
        TimeoutError: ``nvidia-smi`` did not end in time.

        OSError: ``nvidia-smi`` failed; the message has its output.
    """
    deadline = time.monotonic() + timeout_s
    rows, lost = _query_rows(tool, list(_ALL_FIELDS), deadline)
    lost_rows = [
        {"pci.bus_id": x.bus_id, "utilization.gpu": f"[{x.problem}]"}
        for x in lost
    ]
    return [
        {k: clean(v) for k, v in row.items()} for row in [*rows, *lost_rows]
    ]


def _query_rows(
    tool: str, fields: list[str], deadline: float
) -> tuple[list[dict[str, str]], list[Gpu]]:
    """
    Return the rows, and the GPUs that are reported as lost.
    """
    for _ in range(len(fields)):
        status, text = _run_nvidia_smi(
            tool, f"--query-gpu={','.join(fields)}", deadline
        )
        lost = [
            Gpu(index=-1, bus_id=clean(match[1]), problem=clean(match[2]))
            for match in _LOST_GPU.finditer(text)
        ]
        if status == 0 or lost or "No devices were found" in text:
            rows = (_split_row(line) for line in text.splitlines())
            complete = [row for row in rows if len(row) == len(fields)]
            return [dict(zip(fields, x, strict=True)) for x in complete], lost
        unknown_field = _UNKNOWN_FIELD.search(text)
        if unknown_field is None or unknown_field[1] not in fields:
            break
        # Older versions have another name for the throttle reasons.
        index = fields.index(unknown_field[1])
        fields[index : index + 1] = (
            THROTTLE_FIELDS[1:]
            if unknown_field[1] == THROTTLE_FIELDS[0]
            else ()
        )
    msg = f"nvidia-smi: {clean(text) or f'exit status {status}'}"
    raise OSError(msg)


def _query_table(
    tool: str, what: str, fields: str, deadline: float
) -> list[list[str]]:
    status, text = _run_nvidia_smi(tool, f"--query-{what}={fields}", deadline)
    return [_split_row(x) for x in text.splitlines()] if status == 0 else []


def _run_nvidia_smi(tool: str, query: str, deadline: float) -> tuple[int, str]:
    left = max(deadline - time.monotonic(), 0.1)
    result = run_tool([tool, query, _FORMAT], timeout_s=left)
    if result.status is None:
        msg = f"nvidia-smi did not end within {left:.1f} s"
        raise TimeoutError(msg)

    return result.status, result.output or result.complaint


def _split_row(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def read_gpus(
    *, timeout_s: float = 10.0, brief: bool = False
) -> tuple[Gpu, ...] | None:
    """
    Read the state of the GPUs of this node.

    Args:
        timeout_s: Limit in seconds.

        brief: Whether to read utilization only and, if there are several GPUs,
            their processes; cheap enough for frequent calls.

    Returns:
        All GPUs by index, including those that do not answer; ``None``
        without an NVIDIA driver.

    Raises:
        TimeoutError: The driver did not answer in time.

        OSError: ``nvidia-smi`` failed; the message has its output.
    """
    deadline = time.monotonic() + timeout_s
    library = _import_pynvml()
    if library is not None:
        gpus = in_time(lambda: query_nvml(library, brief=brief), timeout_s)
        if gpus is not None:
            return gpus

    tool = find_tool("nvidia-smi")
    if tool is None:
        return None

    left = max(deadline - time.monotonic(), 0.1)
    return query_nvidia_smi(tool, timeout_s=left, brief=brief)


def _import_pynvml() -> Any:
    try:
        import pynvml
    except Exception:  # noqa: BLE001 nvidia-smi is left
        return None

    return pynvml
