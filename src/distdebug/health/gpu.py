"""
Read the state of NVIDIA GPUs by NVML, and check it.
"""

from __future__ import annotations

import functools
import re

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from typing import Any

import attrs

from .._proc import in_time
from .._text import clean, list_text, size_text
from ..findings import Evidence, Finding
from ..processes import read_proc
from .judgements import judge, ranks_of


_DRIVER = re.compile(rb"Kernel Module(?: for \S+)?\s+(\d[\d.]{1,20})")


def driver_version() -> str:
    """
    Return the version of the NVIDIA driver of this node; ``""`` without one.
    """
    found = _DRIVER.search(read_proc("/proc/driver/nvidia/version") or b"")
    return found[1].decode() if found else ""


# Idle GPUs without persistence mode take some seconds to wake up.
_LONG_WAIT_S = 8.0


def check_gpu_driver(
    problem: str, *, host: str = "", waited_s: float = 0.0
) -> Iterator[Finding]:
    """
    Yield a finding if the GPU driver failed or did not answer.

    Args:
        problem: The error message.

        waited_s: How long an answer was awaited, in seconds; 0 if the driver
            answered with an error.

    Yields:
        Nothing for other errors, such as a node without a driver.
    """
    evidence = Evidence(kind="gpu", source=host, quote=problem)
    if "version mismatch" in problem.lower():
        yield judge("driver_mismatch", evidence)
    elif waited_s > 0:
        is_long = waited_s >= _LONG_WAIT_S
        yield judge(
            "driver_silent",
            evidence,
            confidence="likely" if is_long else "possible",
            seconds=waited_s,
        )


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
_REASON_BITS = {
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
#: All throttle reasons.
THROTTLE_REASONS = tuple(_REASON_BITS.values())
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
    return tuple(name for bit, name in _REASON_BITS.items() if bits & bit)


# A CUDA context and the kernels of a program need more.
_MIN_FREE_BYTES = 256 << 20
_SLOW_CLOCK_RATIO = 0.6
_BUSY_PERCENT = 50


def check_gpus(
    gpus: Iterable[Gpu],
    *,
    host: str = "",
    ranks: Mapping[int, int] | None = None,
) -> Iterator[Finding]:
    """
    Yield the most important finding of each unhealthy GPU.

    Args:
        gpus: All GPUs of a node.

        ranks: Ranks by process ID.
    """
    for gpu in gpus:
        label = (
            f"GPU {gpu.index}" if gpu.index >= 0 else f"GPU at {gpu.bus_id}"
        )
        names = ", ".join(filter(None, (gpu.name, gpu.bus_id, gpu.uuid)))
        # The first problem explains the others.
        for name, values in islice(_gpu_problems(gpu), 1):
            yield judge(
                name,
                Evidence(kind="gpu", source=host, location=label, quote=names),
                ranks=ranks_of((x.pid for x in gpu.processes), ranks or {}),
                gpu=label,
                **values,
            )


def _gpu_problems(gpu: Gpu) -> Iterator[tuple[str, dict[str, Any]]]:
    """
    Yield what is wrong, the most important first.
    """
    if gpu.problem:
        yield "gpu_lost", {"problem": gpu.problem}
    if gpu.recovery:
        yield "gpu_recovery", {"recovery": gpu.recovery}
    if gpu.is_worn_out:
        yield "gpu_worn_out", {}
    if gpu.uncorrected_errors:
        confidence = "likely" if gpu.needs_reset else "possible"
        values = {"errors": gpu.uncorrected_errors, "confidence": confidence}
        yield "gpu_memory_errors", values
    if gpu.needs_reset:
        yield "gpu_needs_reset", {}
    if gpu.fabric in {"Not Started", "In Progress"}:
        yield "gpu_fabric", {"fabric": gpu.fabric}
    if values := _slowdown(gpu):
        yield "gpu_slow", values
    used, total = gpu.memory_used, gpu.memory_total
    if used and total and total - used < min(_MIN_FREE_BYTES, total // 50):
        free = size_text(total - used)
        yield "gpu_full", {"free": free, "total": size_text(total)}


def _slowdown(gpu: Gpu) -> dict[str, Any]:
    severe = [x for x in gpu.slowed_by if x in SEVERE_REASONS]
    if not severe or IDLE_REASON in gpu.slowed_by:
        return {}

    clock, most = gpu.clock_mhz, gpu.most_clock_mhz
    speed, is_slow = "", False
    if clock and most:
        speed = f" to {clock} of {most} MHz"
        is_slow = clock < _SLOW_CLOCK_RATIO * most
    is_busy = (gpu.utilization or 0) >= _BUSY_PERCENT
    confidence = "likely" if is_slow and is_busy else "possible"
    return {
        "speed": speed,
        "reasons": list_text(severe),
        "confidence": confidence,
    }


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


def _decode(value: bytes | str) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return clean(value)


def _processes(values: Iterable[Any]) -> tuple[GpuProcess, ...]:
    return tuple(
        GpuProcess(pid=x.pid, memory=getattr(x, "usedGpuMemory", None))
        for x in values
    )


_SM_CLOCK = 1
# For each field: the function of NVML, its arguments, and what to keep of the
# answer.
_Query = tuple[str, tuple[int, ...], Callable[[Any], Any]]
_BRIEF_QUERIES: dict[str, _Query] = {
    "utilization": ("UtilizationRates", (), attrgetter("gpu")),
    "memory_utilization": ("UtilizationRates", (), attrgetter("memory")),
    "processes": ("ComputeRunningProcesses", (), _processes),
    "uuid": ("UUID", (), _decode),
}
_OTHER_QUERIES: dict[str, _Query] = {
    "name": ("Name", (), _decode),
    "bus_id": ("PciInfo", (), lambda pci: _decode(pci.busId)),
    "memory_used": ("MemoryInfo", (), attrgetter("used")),
    "memory_total": ("MemoryInfo", (), attrgetter("total")),
    "mig": ("MigMode", (), lambda modes: bool(modes[0])),
    "temperature": ("Temperature", (0,), int),
    "pstate": ("PerformanceState", (), "P{}".format),
    "clock_mhz": ("ClockInfo", (_SM_CLOCK,), int),
    "most_clock_mhz": ("MaxClockInfo", (_SM_CLOCK,), int),
    "power_w": ("PowerUsage", (), lambda milliwatts: milliwatts / 1000),
    "power_limit_w": ("EnforcedPowerLimit", (), lambda limit: limit / 1000),
    # Uncorrected ones, since the driver was loaded.
    "uncorrected_errors": ("TotalEccErrors", (1, 0), int),
    "is_worn_out": ("RemappedRows", (), lambda rows: bool(rows[3])),
}


def read_gpus(
    *, timeout_s: float = 10.0, brief: bool = False
) -> tuple[Gpu, ...] | None:
    """
    Read the state of the GPUs of this node.

    Args:
        timeout_s: Limit in seconds.

        brief: Whether to read utilization and processes only; cheap enough for
            frequent calls.

    Returns:
        All GPUs by index, including those that do not answer; ``None``
        without an NVIDIA driver.

    Raises:
        TimeoutError: The driver did not answer in time.

        OSError: The driver cannot be asked; the message says why.
    """
    try:
        import pynvml
    except ImportError as exc:
        msg = "nvidia-ml-py is not installed: pip install nvidia-ml-py"
        raise OSError(msg) from exc

    return in_time(lambda: _query_nvml(pynvml, brief=brief), timeout_s)


def _query_nvml(nvml: Any, *, brief: bool) -> tuple[Gpu, ...] | None:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as exc:
        # Only a driver brings the library along.
        if exc.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return None
        raise _nvml_error(exc) from exc

    try:
        count = nvml.nvmlDeviceGetCount()
        return tuple(_query_gpu(nvml, i, brief=brief) for i in range(count))
    except nvml.NVMLError as exc:
        raise _nvml_error(exc) from exc
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _nvml_error(exc: Exception) -> OSError:
    return OSError(f"NVML: {clean(str(exc))}")


def _query_gpu(nvml: Any, index: int, *, brief: bool) -> Gpu:
    # A GPU that fell off the bus must not hide the others.
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as exc:
        return Gpu(index=index, problem=_fatal_error_text(nvml, exc))

    # Some answers have several fields.
    query = functools.cache(functools.partial(_call_nvml, nvml, handle))
    fields = {}
    for field, (name, args, convert) in (
        _BRIEF_QUERIES if brief else _BRIEF_QUERIES | _OTHER_QUERIES
    ).items():
        if (answer := query(f"nvmlDeviceGet{name}", *args)) is not None:
            with suppress(AttributeError, IndexError, TypeError, ValueError):
                fields[field] = convert(answer)
    if not brief:
        fields |= _query_health(nvml, query)
    try:
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as exc:
        fields["problem"] = _fatal_error_text(nvml, exc)
    return Gpu(index=index, **fields)


def _fatal_error_text(nvml: Any, exc: Any) -> str:
    # Its text says "restart"; the documentation and nvidia-smi say "reset".
    if exc.value == getattr(nvml, "NVML_ERROR_RESET_REQUIRED", None):
        return "GPU requires reset"
    broken = {getattr(nvml, name, None) for name in _FATAL_ERRORS}
    return clean(str(exc)) if exc.value in broken else ""


def _call_nvml(nvml: Any, handle: Any, name: str, *args: object) -> Any:
    try:
        return getattr(nvml, name)(handle, *args)
    except (nvml.NVMLError, AttributeError, TypeError, ValueError):
        return None


def _query_health(nvml: Any, query: Callable[..., Any]) -> dict[str, Any]:
    bits = query("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:  # its name in older versions
        bits = query("nvmlDeviceGetCurrentClocksThrottleReasons")
    rows = query("nvmlDeviceGetRemappedRows")
    retiring = query("nvmlDeviceGetRetiredPagesPendingStatus")
    known = [x for x in (rows and bool(rows[2]), retiring) if x is not None]
    return {
        "slowed_by": throttle_reasons(bits or 0),
        "needs_reset": any(known) if known else None,
        "fabric": _query_fabric(nvml, query),
        "recovery": _query_recovery_action(nvml, query),
    }


def _query_fabric(nvml: Any, query: Callable[..., Any]) -> str:
    import ctypes

    info_type = getattr(nvml, "c_nvmlGpuFabricInfo_t", None)
    if info_type is None:
        return ""

    info = info_type()
    query("nvmlDeviceGetGpuFabricInfo", ctypes.byref(info))
    return _FABRIC_STATES.get(getattr(info, "state", 0), "")


def _query_recovery_action(nvml: Any, query: Callable[..., Any]) -> str:
    field = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    values = query("nvmlDeviceGetFieldValues", (field,)) if field else None
    if not values or values[0].nvmlReturn != 0:
        return ""

    action = int(values[0].value.uiVal)
    return dict(enumerate(_RECOVERY_ACTIONS)).get(action, f"action {action}")
