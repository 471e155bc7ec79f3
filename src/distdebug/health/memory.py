"""
How much memory has a job, and was a process killed for the lack of it?
"""

from __future__ import annotations

import os
import re

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import attrs

from .._text import clean, size_text
from ..findings import Cause, Confidence, Evidence, Finding, Judged, as_finding
from ..processes import parse_stat, read_proc, whole_number


# What a group without a limit has as its limit in version 1.
_NO_LIMIT = 1 << 60
_MOST_LEVELS = 32
_MOST_PROCESSES = 64


@attrs.frozen(kw_only=True)
class MemoryGroup:
    """
    A control group that limits or counts memory.

    Attributes:
        path: Its folder.

        is_own: Whether a process of the job is directly in it; it is above
            one otherwise.

        limit: How many bytes it may use; ``None`` if there is no limit.

        used: How many it uses, without what could be given up at once.

        kills: How many of its processes were killed for lack of memory, since
            it was made.

        waits: Whether its processes wait for memory instead of being killed.

        started: When its oldest process started, in seconds since boot.
    """

    path: str
    is_own: bool
    limit: int | None = None
    used: int | None = None
    kills: int | None = None
    waits: bool = False
    started: float | None = None


class _Mount(NamedTuple):
    """
    Where a hierarchy is seen.
    """

    version: int
    root: str
    point: str


def read_groups(
    pids: Iterable[int], *, proc: str = "/proc"
) -> tuple[MemoryGroup, ...]:
    """
    Look at the control groups of some processes, and at those above.

    Args:
        pids: The processes.

        proc: Where the kernel's files are.

    Returns:
        Each group once, inner ones before those around them; none if there
        are no control groups, or none that counts memory.
    """
    mounts = _mounts(proc)
    owned: dict[str, _Mount] = {}
    for pid in pids:
        for version, path in _paths(pid, proc):
            for mount in mounts:
                if mount.version == version:
                    owned.setdefault(_folder(path, mount), mount)
    found: dict[str, MemoryGroup] = {}
    for folder, mount in owned.items():
        for level in _upwards(folder, mount.point):
            if level not in found or level in owned:
                group = _group(
                    level, mount.version, proc, is_own=level in owned
                )
                if group is not None:
                    found[level] = group
    return tuple(found.values())


def _mounts(proc: str) -> list[_Mount]:
    data = read_proc(f"{proc}/self/mountinfo", limit=1 << 22) or b""
    mounts = []
    for line in data.decode("utf-8", "replace").splitlines():
        head, _, tail = line.partition(" - ")
        fields, kind = head.split(), tail.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            mounts.append(_Mount(2, fields[3], fields[4]))
        elif kind[0] == "cgroup" and "memory" in kind[-1].split(","):
            mounts.append(_Mount(1, fields[3], fields[4]))
    return mounts


def _paths(pid: int, proc: str) -> Iterator[tuple[int, str]]:
    text = (read_proc(f"{proc}/{pid}/cgroup") or b"").decode(errors="replace")
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            yield 2, path
        elif "memory" in names.split(","):
            yield 1, path


def _folder(path: str, mount: _Mount) -> str:
    # In a container the mount may show a part of the tree only.
    root = mount.root.rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    clear = os.path.normpath(f"/{path}")
    folder = os.path.normpath(f"{mount.point}{clear}")
    return folder if os.path.isdir(folder) else mount.point  # noqa: PTH112 text is enough


def _upwards(folder: str, top: str) -> Iterator[str]:
    for _ in range(_MOST_LEVELS):
        yield folder
        if folder == top or len(folder) <= len(top):
            return
        folder = os.path.dirname(folder)  # noqa: PTH120 text is enough


def _group(
    folder: str, version: int, proc: str, *, is_own: bool
) -> MemoryGroup | None:
    read = _read_v2 if version == 2 else _read_v1
    known = read(folder)
    if all(value is None for value in known.values()):
        return None
    started = _started(folder, proc) if is_own else None
    return MemoryGroup(
        path=clean(folder),
        is_own=is_own,
        started=started,
        limit=known["limit"],
        used=known["used"],
        kills=known["kills"],
        waits=bool(known.get("waits")),
    )


def _read_v2(folder: str) -> dict[str, int | None]:
    current = _number(f"{folder}/memory.current")
    events = _counters(f"{folder}/memory.events")
    given = _counters(f"{folder}/memory.stat").get("inactive_file", 0)
    return {
        "limit": _number(f"{folder}/memory.max"),
        "used": None if current is None else max(current - given, 0),
        "kills": events.get("oom_kill"),
    }


def _read_v1(folder: str) -> dict[str, int | None]:
    current = _number(f"{folder}/memory.usage_in_bytes")
    limit = _number(f"{folder}/memory.limit_in_bytes")
    events = _counters(f"{folder}/memory.oom_control")
    given = _counters(f"{folder}/memory.stat").get("total_inactive_file", 0)
    is_stuck = events.get("under_oom") and events.get("oom_kill_disable")
    return {
        "limit": limit if limit is not None and limit < _NO_LIMIT else None,
        "used": None if current is None else max(current - given, 0),
        "kills": events.get("oom_kill"),
        "waits": is_stuck or None,
    }


def _number(path: str) -> int | None:
    text = (read_proc(path, limit=64) or b"").strip()
    return whole_number(text)


def _counters(path: str) -> dict[str, int]:
    data = (read_proc(path) or b"").decode(errors="replace")
    pairs = (line.split() for line in data.splitlines())
    told = ((p[0], whole_number(p[1])) for p in pairs if len(p) == 2)
    return {name: x for name, x in told if x is not None}


def _started(folder: str, proc: str) -> float | None:
    text = (read_proc(f"{folder}/cgroup.procs") or b"").split()
    pids = filter(None, map(whole_number, text[:_MOST_PROCESSES]))
    stats = (parse_stat(read_proc(f"{proc}/{pid}/stat")) for pid in pids)
    ticks = min((x.start_ticks for x in stats if x), default=None)
    return None if ticks is None else ticks / os.sysconf("SC_CLK_TCK")


@attrs.frozen(kw_only=True)
class Memory:
    """
    The memory of a node, in bytes.

    Attributes:
        total: What there is.

        available: What a program could get.

        swap_total: Swap there is.

        swap_used: Swap in use.

        groups: The control groups of the job, inner ones first.
    """

    total: int | None = None
    available: int | None = None
    swap_total: int | None = None
    swap_used: int | None = None
    groups: tuple[MemoryGroup, ...] = ()


def read_memory(pids: Collection[int] = (), *, proc: str = "/proc") -> Memory:
    """
    Look at the memory of this node.

    Args:
        pids: The processes of the job; by default this one stands for them,
            which is right in a container.

        proc: Where the kernel's files are.

    Returns:
        What is known.

    Raises:
        OSError: The kernel does not tell.
    """
    data = read_proc(f"{proc}/meminfo")
    if data is None:
        msg = f"{proc}/meminfo cannot be read"
        raise OSError(msg)

    pairs = (
        line.split() for line in data.decode(errors="replace").split("\n")
    )
    told = {x[0]: whole_number(x[1]) for x in pairs if x[1:]}
    kib = {name: x << 10 for name, x in told.items() if x is not None}
    swap, free = kib.get("SwapTotal:"), kib.get("SwapFree:")
    is_known = swap is not None and free is not None
    return Memory(
        total=kib.get("MemTotal:"),
        available=kib.get("MemAvailable:"),
        swap_total=swap,
        swap_used=swap - free if is_known else None,  # type: ignore[operator]
        groups=read_groups(pids or (os.getpid(),), proc=proc),
    )


_LITTLE = 0.02
_LITTLE_BYTES = 4 << 30
_NONE_LEFT = 0.005
_FULL = 0.97
_REMEDY = (
    "give the job more memory, or let it use less: fewer DataLoader workers, "
    "smaller prefetch and shuffle buffers, no second copy of the weights"
)
# Containers are made shortly before their jobs.
_BEFORE_S = 900.0


def judge_memory(
    memory: Memory,
    *,
    host: str = "",
    begins: float | None = None,
    is_log_whole: bool = False,
) -> tuple[Finding, ...]:
    """
    Tell whether memory is what a job lacks.

    Args:
        memory: What is known of the memory.

        host: The node.

        begins: When the job began, in seconds since the node was started;
            ``None`` if unknown.

        is_log_whole: Whether the log of the kernel goes back to the begin of
            the job: it tells of kills, and when they were, and a counter has
            nothing to add.

    Returns:
        What was found.
    """
    found = list(_of_node(memory))
    for group in memory.groups:
        age = None
        if group.started is not None and begins is not None:
            age = begins - group.started
        found += _of_group(group, age, is_log_whole=is_log_whole)
    return tuple(
        as_finding(judged, host=host, evidence=evidence)
        for judged, evidence in found
    )


def _of_node(memory: Memory) -> Iterator[tuple[Judged, Evidence]]:
    total, left = memory.total, memory.available
    if not total or left is None:
        return
    if left >= min(_LITTLE * total, _LITTLE_BYTES):
        return
    yield _judged(
        "likely" if left < _NONE_LEFT * total else "possible",
        f"only {size_text(left)} of {size_text(total)} memory are left",
        "/proc/meminfo",
        f"MemAvailable: {left >> 10} kB",
    )


def _of_group(
    group: MemoryGroup, age: float | None, *, is_log_whole: bool
) -> Iterator[tuple[Judged, Evidence]]:
    if group.waits:
        yield _judged(
            "certain",
            "processes of the control group of the job wait for memory, and "
            "none is killed for it",
            group.path,
            "under_oom 1, oom_kill_disable 1",
        )
    is_ours = group.is_own or group.limit is not None
    if group.kills and is_ours and not is_log_whole:
        # An old container may have outlived many jobs.
        is_young = age is not None and age < _BEFORE_S
        yield _judged(
            "likely" if is_young else "possible",
            f"the kernel killed {_processes(group.kills)} of the control "
            "group of the job because memory ran out; it does not tell when",
            group.path,
            f"oom_kill {group.kills}",
        )
    used = group.used or 0
    if group.limit and used > _FULL * group.limit:
        yield _judged(
            "possible",
            f"the job uses {size_text(used)} of the "
            f"{size_text(group.limit)} memory that its control group may use",
            group.path,
            f"limit {group.limit}, used {used}",
        )


def _processes(count: int) -> str:
    return "a process" if count == 1 else f"{count} processes"


def _judged(
    confidence: Confidence, says: str, source: str, quote: str
) -> tuple[Judged, Evidence]:
    judged = Judged(Cause.HOST_OUT_OF_MEMORY, confidence, says, _REMEDY)
    return judged, Evidence(kind="memory", source=source, quote=quote)


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
