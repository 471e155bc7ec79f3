"""
Do processes of this node wait for memory, disks, or processors?

The kernel counts the time in which they do: PSI, in its document
``accounting/psi``.  Where it does not, the load is left.
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterator

import attrs

from ..findings import Cause, Evidence, Finding
from ..processes.procfs import read_proc, whole_number
from .judged import Judged, as_finding


__all__ = ["Pressure", "judge_pressure", "read_pressure"]

_LINE = re.compile(
    rb"(some|full) avg10=(\d{1,3}(?:\.\d{1,2})?) avg60=(\d{1,3}(?:\.\d{1,2})?)"
)
_LOAD = re.compile(rb"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_CPU_SOME = 75.0
_CPU_LOAD = 3.0
_CPU_THROTTLED = 0.25
_MEMORY_SOME = 40.0
_MEMORY_FULL = 20.0
_IO_FULL = 60.0


@attrs.frozen(kw_only=True)
class Pressure:
    """
    How much time is lost by waiting, in percent of the last ten seconds.

    Attributes:
        cpu_some: At least one waits for a processor.

        memory_some: At least one waits for memory.

        memory_full: All wait for memory.

        io_some: At least one waits for a disk.

        io_full: All wait for a disk.

        load: Processes that run or wait for disks, on average of a minute.

        cpus: Processors of the node.

        throttled: Share of periods, from 0 to 1, in which the control group
            of this process used up its processor time; ``None`` if it has no
            limit.
    """

    cpu_some: float | None = None
    memory_some: float | None = None
    memory_full: float | None = None
    io_some: float | None = None
    io_full: float | None = None
    load: float | None = None
    cpus: int | None = None
    throttled: float | None = None


def read_pressure(
    *, proc: str = "/proc", cgroup: str = "/sys/fs/cgroup"
) -> Pressure:
    """
    Ask the kernel who waits.

    Args:
        proc: Where its files are.

        cgroup: Where the control group of this container is.

    Returns:
        What it tells; old kernels, and some containers, tell the load only.
    """
    numbers: dict[str, float] = {}
    for what in ("cpu", "memory", "io"):
        data = read_proc(f"{proc}/pressure/{what}") or b""
        for some, ten, _ in _LINE.findall(data):
            numbers[f"{what}_{some.decode()}"] = float(ten)
    load = _LOAD.match(read_proc(f"{proc}/loadavg") or b"")
    return Pressure(
        cpu_some=numbers.get("cpu_some"),
        memory_some=numbers.get("memory_some"),
        memory_full=numbers.get("memory_full"),
        io_some=numbers.get("io_some"),
        io_full=numbers.get("io_full"),
        load=float(load[0]) if load else None,
        cpus=os.cpu_count(),
        throttled=_throttled(cgroup),
    )


def _throttled(cgroup: str) -> float | None:
    for place in ("cpu.stat", "cpu/cpu.stat", "cpu,cpuacct/cpu.stat"):
        data = (read_proc(f"{cgroup}/{place}") or b"").split()
        pairs = dict(zip(data[::2], data[1::2], strict=False))
        periods, lost = pairs.get(b"nr_periods"), pairs.get(b"nr_throttled")
        of, some = whole_number(periods), whole_number(lost)
        if of and some is not None:
            return some / of
    return None


def judge_pressure(
    pressure: Pressure, *, host: str = ""
) -> tuple[Finding, ...]:
    """
    Tell what processes of a node wait for too long.

    Args:
        pressure: What the kernel told.

        host: The node.

    Returns:
        What was found.  Reading a data set keeps disks busy, too, so that
        waiting for them is only ever possible as a cause.
    """
    return tuple(
        as_finding(
            judged,
            host=host,
            evidence=Evidence(
                kind="pressure", source="/proc/pressure", quote=judged.says
            ),
        )
        for judged in _judge(pressure)
    )


def _judge(p: Pressure) -> Iterator[Judged]:
    yield from _memory_and_disks(p)
    yield from _processors(p)


def _memory_and_disks(p: Pressure) -> Iterator[Judged]:
    full, some = p.memory_full or 0.0, p.memory_some or 0.0
    if full > _MEMORY_FULL or some > _MEMORY_SOME:
        says = f"processes wait for memory {max(full, some):.0f} % of the time"
        remedy = (
            "the node has too little memory, and moves it around: let the "
            "job use less, or move it to a larger node"
        )
        yield Judged(Cause.HOST_OUT_OF_MEMORY, "likely", says, remedy)
    if (p.io_full or 0.0) > _IO_FULL:
        says = f"everybody waits for disks {p.io_full:.0f} % of the time"
        remedy = (
            "see with iostat which disk is busy, and with the stacks who "
            "reads or writes"
        )
        yield Judged(Cause.IO_WAIT, "possible", says, remedy)


def _is_crowded(p: Pressure) -> bool:
    return (p.load or 0.0) > _CPU_LOAD * (p.cpus or 1)


def _processors(p: Pressure) -> Iterator[Judged]:
    cause = Cause.NODE_MISCONFIGURED
    if (p.cpu_some or 0.0) > _CPU_SOME and _is_crowded(p):
        says = (
            f"processes wait for a processor {p.cpu_some:.0f} % of the time, "
            f"with a load of {p.load:.0f} on {p.cpus} processors"
        )
        remedy = (
            "start fewer threads (OMP_NUM_THREADS, DataLoader workers), or "
            "keep other jobs off the node"
        )
        yield Judged(cause, "possible", says, remedy)
    if (p.throttled or 0.0) > _CPU_THROTTLED:
        says = (
            "the container used up its processor time in "
            f"{100 * (p.throttled or 0):.0f} % of the periods"
        )
        remedy = "raise the limit of processors of the container (cpu.max)"
        yield Judged(cause, "possible", says, remedy)
