"""
How much memory may the control group of a process use, and was one killed?

Counters of control groups can be read by anybody, also in containers, where
the log of the kernel mostly cannot.  Formats: the kernel's documents
``cgroup-v2`` and ``cgroup-v1/memory``.
"""

from __future__ import annotations

import os

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import attrs

from ..._text import clean
from ...processes.procfs import parse_stat, read_proc, whole_number


__all__ = ["MemoryGroup", "read_groups"]

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
