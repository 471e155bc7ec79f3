"""
Read memory, cgroups, and pressure of a node, and check them.
"""

from __future__ import annotations

import os
import re
import time

from collections.abc import Collection, Iterable, Iterator

import attrs

from .._text import clean, size_text
from ..findings import Evidence, Finding
from ..processes import (
    Mount,
    first_start,
    parse_status,
    read_mounts,
    read_proc,
    whole_number,
)
from .judgements import judge


_PROC, _CGROUP = "/proc", "/sys/fs/cgroup"
# By the version of cgroups: the files with the limit, the use, and the
# events of a group, and the counter of inactive page cache.
_GROUP_FILES = {
    1: (
        *("memory.limit_in_bytes", "memory.usage_in_bytes"),
        *("memory.oom_control", "total_inactive_file"),
    ),
    2: ("memory.max", "memory.current", "memory.events", "inactive_file"),
}
# In cgroup v1, a group without a limit has a huge limit.
_NO_LIMIT = 1 << 60
_MAX_LEVELS = 32
_MAX_PROCESSES = 64


@attrs.frozen(kw_only=True)
class MemoryGroup:
    """
    A cgroup (v1 or v2) of the memory controller.

    Attributes:
        path: Its folder.

        is_own: Whether a process of the job is a direct member; otherwise it
            is an ancestor of such a group.

        limit: The limit in bytes; ``None`` if unlimited.

        used: Bytes in use, without inactive page cache.

        kills: Number of OOM kills since the group was created.

        waits: Whether its processes wait for memory instead of being killed.

        started: Start of its oldest process, in seconds since boot.
    """

    path: str
    is_own: bool
    limit: int | None = None
    used: int | None = None
    kills: int | None = None
    waits: bool = False
    started: float | None = None


def read_memory_groups(pids: Iterable[int]) -> tuple[MemoryGroup, ...]:
    """
    Return the cgroups of processes, and the ancestors of these.

    Returns:
        Each group once, inner ones before outer ones; nothing without the
        memory controller.
    """
    mounts = [*_read_mounts()]
    own: dict[str, tuple[int, Mount]] = {}
    for pid in pids:
        for version, path in _cgroup_paths(pid):
            for mounted, mount in mounts:
                if mounted == version:
                    own.setdefault(
                        _group_folder(path, mount), (version, mount)
                    )
    groups: dict[str, MemoryGroup] = {}
    for folder, (version, mount) in own.items():
        for level in _ancestors(folder, mount.point):
            if level not in groups or level in own:
                group = _read_group(level, version, is_own=level in own)
                if group is not None:
                    groups[level] = group
    return tuple(groups.values())


def _read_mounts() -> Iterator[tuple[int, Mount]]:
    """
    Yield the mounted trees of groups with their version.
    """
    for mount in read_mounts(f"{_PROC}/self"):
        if mount.kind == "cgroup2":
            yield 2, mount
        elif mount.kind == "cgroup" and "memory" in mount.options.split(","):
            yield 1, mount


def _cgroup_paths(pid: int) -> Iterator[tuple[int, str]]:
    data = read_proc(f"{_PROC}/{pid}/cgroup") or b""
    for line in data.decode(errors="replace").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            yield 2, path
        elif "memory" in names.split(","):
            yield 1, path


def _group_folder(path: str, mount: Mount) -> str:
    # In a container, the mount may be a part of the tree.
    root = mount.root.rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    normal = os.path.normpath(f"/{path}")
    folder = os.path.normpath(f"{mount.point}{normal}")
    return folder if os.path.isdir(folder) else mount.point  # noqa: PTH112 text is enough


def _ancestors(folder: str, top: str) -> Iterator[str]:
    for _ in range(_MAX_LEVELS):
        yield folder
        if folder == top or len(folder) <= len(top):
            return
        folder = os.path.dirname(folder)  # noqa: PTH120 text is enough


def _read_group(
    folder: str, version: int, *, is_own: bool
) -> MemoryGroup | None:
    limit_file, use_file, events_file, inactive = _GROUP_FILES[version]
    limit = _read_number(f"{folder}/{limit_file}")
    current = _read_number(f"{folder}/{use_file}")
    events = _read_counters(f"{folder}/{events_file}")
    stat = _read_counters(f"{folder}/memory.stat")
    kills = events.get("oom_kill")
    waits = bool(events.get("under_oom") and events.get("oom_kill_disable"))
    if limit is not None and limit >= _NO_LIMIT:
        limit = None
    if (limit, current, kills, waits) == (None, None, None, False):
        return None
    used = None
    if current is not None:
        used = max(current - stat.get(inactive, 0), 0)
    return MemoryGroup(
        path=clean(folder),
        is_own=is_own,
        started=_start_time(folder) if is_own else None,
        limit=limit,
        used=used,
        kills=kills,
        waits=waits,
    )


def _read_number(path: str) -> int | None:
    text = (read_proc(path, limit=64) or b"").strip()
    return whole_number(text)


def _read_counters(path: str) -> dict[str, int]:
    data = (read_proc(path) or b"").decode(errors="replace")
    pairs = (line.split() for line in data.splitlines())
    numbers = ((p[0], whole_number(p[1])) for p in pairs if len(p) == 2)
    return {name: x for name, x in numbers if x is not None}


def _start_time(folder: str) -> float | None:
    text = (read_proc(f"{folder}/cgroup.procs") or b"").split()
    pids = filter(None, map(whole_number, text[:_MAX_PROCESSES]))
    return first_start(pids, _PROC)


@attrs.frozen(kw_only=True)
class Memory:
    """
    The memory of a node, in bytes.

    Attributes:
        total: Installed memory.

        available: Memory that a program could allocate.

        swap_total: Swap space.

        swap_used: Swap in use.

        groups: The cgroups of the job, inner ones first.
    """

    total: int | None = None
    available: int | None = None
    swap_total: int | None = None
    swap_used: int | None = None
    groups: tuple[MemoryGroup, ...] = ()


def read_memory(pids: Collection[int] = ()) -> Memory:
    """
    Read the memory of this node.

    Args:
        pids: The processes of the job; by default this process, which is
            right in a container.

    Raises:
        OSError: ``/proc/meminfo`` cannot be read.
    """
    data = read_proc(f"{_PROC}/meminfo")
    if data is None:
        msg = f"{_PROC}/meminfo cannot be read"
        raise OSError(msg)

    sizes = {
        name: number << 10
        for name, text in parse_status(data).items()
        if (number := whole_number(text.removesuffix(" kB"))) is not None
    }
    swap, free = sizes.get("SwapTotal"), sizes.get("SwapFree")
    is_known = swap is not None and free is not None
    return Memory(
        total=sizes.get("MemTotal"),
        available=sizes.get("MemAvailable"),
        swap_total=swap,
        swap_used=swap - free if is_known else None,  # type: ignore[operator]
        groups=read_memory_groups(pids or (os.getpid(),)),
    )


_LOW_RATIO = 0.02
_LOW_BYTES = 4 << 30
_EXHAUSTED_RATIO = 0.005
_NEAR_LIMIT_RATIO = 0.97
# Containers start shortly before their jobs.
_MAX_AGE_S = 900.0


def check_memory(
    memory: Memory,
    *,
    begins: float | None = None,
    is_log_whole: bool = False,
) -> Iterator[Finding]:
    """
    Yield findings about a shortage of memory.

    Args:
        begins: Start of the job, in seconds since boot; ``None`` if unknown.

        is_log_whole: Whether the kernel log reaches back to the start of the
            job.  It has the OOM kills with their times, so the counters are
            ignored.
    """
    total, available = memory.total or 0, memory.available
    low_bytes = min(_LOW_RATIO * total, _LOW_BYTES)
    if available is not None and available < low_bytes:
        is_exhausted = available < _EXHAUSTED_RATIO * total
        yield judge(
            "memory_low",
            _evidence("/proc/meminfo", f"MemAvailable: {available >> 10} kB"),
            confidence="likely" if is_exhausted else None,
            available=size_text(available),
            total=size_text(total),
        )
    for group in memory.groups:
        if not is_log_whole:
            yield from _check_kills(group, begins)
        yield from _check_group(group)


def _check_kills(
    group: MemoryGroup, begins: float | None
) -> Iterator[Finding]:
    count = group.kills
    if count and (group.is_own or group.limit is not None):
        # An old container may have run many jobs.
        is_new = (
            group.started is not None
            and begins is not None
            and begins - group.started < _MAX_AGE_S
        )
        yield judge(
            "group_kills",
            _evidence(group.path, f"oom_kill {count}"),
            confidence="likely" if is_new else "possible",
            processes="a process" if count == 1 else f"{count} processes",
        )


def _check_group(group: MemoryGroup) -> Iterator[Finding]:
    if group.waits:
        quote = "under_oom 1, oom_kill_disable 1"
        yield judge("group_waits", _evidence(group.path, quote))
    used, limit = group.used or 0, group.limit
    if limit and used > _NEAR_LIMIT_RATIO * limit:
        yield judge(
            "group_full",
            _evidence(group.path, f"limit {limit}, used {used}"),
            used=size_text(used),
            limit=size_text(limit),
        )


def _evidence(source: str, quote: str) -> Evidence:
    return Evidence(kind="memory", source=source, quote=quote)


_PRESSURE_LINE = re.compile(
    rb"(some|full) avg10=(\d{1,3}(?:\.\d{1,2})?) avg60="
)
_LOAD = re.compile(rb"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_MAX_CPU_SOME = 75.0
_MAX_LOAD_PER_CPU = 3.0
_MAX_THROTTLED = 25.0
_MAX_MEMORY_SOME = 40.0
_MAX_MEMORY_FULL = 20.0
_MAX_IO_FULL = 60.0
# The kernel counts the processor time of a container in periods of 0.1 s.
_THROTTLE_S = 0.5


@attrs.frozen(kw_only=True)
class Pressure:
    """
    Pressure stall information: percent of the last ten seconds.

    Attributes:
        cpu_some: At least one task waited for a CPU.

        memory_some: At least one task waited for memory.

        memory_full: All tasks waited for memory.

        io_some: At least one task waited for I/O.

        io_full: All tasks waited for I/O.

        load: Load average of one minute.

        cpus: Number of CPUs.

        throttled: Ratio of periods, from 0 to 1, in which the cgroup
            of this process was throttled; ``None`` without a CPU limit.

        is_throttled_now: Whether *throttled* is of the last half second;
            otherwise it is since the start of the cgroup.
    """

    cpu_some: float | None = None
    memory_some: float | None = None
    memory_full: float | None = None
    io_some: float | None = None
    io_full: float | None = None
    load: float | None = None
    cpus: int | None = None
    throttled: float | None = None
    is_throttled_now: bool = False


def read_pressure() -> Pressure:
    """
    Read the pressure stall information of the kernel.

    Old kernels, and some containers, have the load average only.
    """
    numbers: dict[str, float] = {}
    for resource in ("cpu", "memory", "io"):
        data = read_proc(f"{_PROC}/pressure/{resource}") or b""
        for scope, avg10 in _PRESSURE_LINE.findall(data):
            numbers[f"{resource}_{scope.decode()}"] = float(avg10)
    numbers.pop("cpu_full", None)
    load = _LOAD.match(read_proc(f"{_PROC}/loadavg") or b"")
    throttled, is_now = _read_throttled()
    return Pressure(
        **numbers,
        load=float(load[0]) if load else None,
        cpus=os.cpu_count(),
        throttled=throttled,
        is_throttled_now=is_now,
    )


def _read_throttled() -> tuple[float | None, bool]:
    """
    Return the ratio of throttled periods, and whether it is a recent one.
    """
    before = _read_periods()
    if before is None:
        return None, False
    if before[1]:
        time.sleep(_THROTTLE_S)
        after = _read_periods() or before
        periods = after[0] - before[0]
        if periods > 0:
            return max(after[1] - before[1], 0) / periods, True
    return before[1] / before[0], False


def _read_periods() -> tuple[int, int] | None:
    """
    Return the number of periods since the start, and of throttled ones.
    """
    for name in ("cpu.stat", "cpu/cpu.stat", "cpu,cpuacct/cpu.stat"):
        counters = _read_counters(f"{_CGROUP}/{name}")
        periods = counters.get("nr_periods")
        throttled = counters.get("nr_throttled")
        if periods and throttled is not None:
            return periods, throttled
    return None


def check_pressure(pressure: Pressure) -> Iterator[Finding]:
    """
    Yield findings about tasks that wait too long for resources.

    A finding about I/O is only ``"possible"``: reading a dataset keeps disks
    busy, too.
    """
    for name, source, percent in _pressure_problems(pressure):
        yield judge(
            name,
            Evidence(kind="pressure", source=source, quote=f"{percent:.1f} %"),
            percent=percent,
            load=pressure.load,
            cpus=pressure.cpus,
        )


def _pressure_problems(p: Pressure) -> Iterator[tuple[str, str, float]]:
    source, full, some = "/proc/pressure", p.memory_full, p.memory_some
    if (full or 0.0) > _MAX_MEMORY_FULL or (some or 0.0) > _MAX_MEMORY_SOME:
        yield "memory_pressure", source, max(full or 0.0, some or 0.0)
    if p.io_full is not None and p.io_full > _MAX_IO_FULL:
        yield "io_pressure", source, p.io_full
    is_overloaded = (p.load or 0.0) > _MAX_LOAD_PER_CPU * (p.cpus or 1)
    if p.cpu_some is not None and p.cpu_some > _MAX_CPU_SOME and is_overloaded:
        yield "cpu_pressure", source, p.cpu_some
    throttled = 100 * (p.throttled or 0.0)
    if throttled > _MAX_THROTTLED:
        name = "throttled" if p.is_throttled_now else "throttled_before"
        yield name, "cpu.stat", throttled
