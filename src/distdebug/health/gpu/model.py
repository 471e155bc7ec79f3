"""
What is known of a GPU?
"""

from __future__ import annotations

import re

import attrs


__all__ = ["Gpu", "GpuProcess", "bus_key"]

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
