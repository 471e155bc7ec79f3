"""
What does NVIDIA's library tell about the GPUs?

Older drivers and smaller GPUs do not know every question, so each is asked for
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..._text import clean
from .model import Gpu, GpuProcess
from .reasons import reason_names


__all__ = ["gpus_by_library"]

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
        "fabric": _fabric(nvml, ask),
        "recovery": _recovery(nvml, ask),
    }


def _fabric(nvml: Any, ask: Ask) -> str:
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


def _recovery(nvml: Any, ask: Ask) -> str:
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
