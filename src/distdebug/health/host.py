"""
Read and check process limits, blocked processes, and disks of a node.
"""

from __future__ import annotations

import math
import os
import re
import time

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import attrs

from .._proc import answers_in_time
from .._text import clean, list_text, reason_of, size_text
from ..findings import Confidence, Evidence, Finding
from ..processes import (
    list_numbers,
    parse_stat,
    parse_status,
    read_proc,
    whole_number,
)
from .judgements import judge, ranks_of


_PROC = "/proc"
_LIMIT_LINE = re.compile(
    r"^(Max [a-z ]{1,30}?) {2,}(\d{1,20}|unlimited) ", re.MULTILINE
)
_CAP_IPC_LOCK = 14
_NEAR_LIMIT_RATIO = 0.9
# Each connection of an RDMA adapter locks megabytes.
_MIN_LOCKED_BYTES = 16 << 20
_MAX_PROCESSES = 1024


@attrs.frozen(kw_only=True)
class Limits:
    """
    The resource limits of a process; ``None`` is unlimited or unknown.

    Attributes:
        pid: The process ID.

        files: Maximum number of open files (``RLIMIT_NOFILE``).

        open_files: Number of open files.

        locked: Maximum locked memory in bytes (``RLIMIT_MEMLOCK``).

        may_lock: Whether ``CAP_IPC_LOCK`` exempts the process from *locked*.
    """

    pid: int
    files: int | None = None
    open_files: int | None = None
    locked: int | None = None
    may_lock: bool = False


def read_limits(pids: Iterable[int]) -> tuple[Limits, ...]:
    """
    Return the limits of processes; unreadable processes are left out.
    """
    entries = map(_read_process_limits, islice(pids, _MAX_PROCESSES))
    return tuple(limits for limits in entries if limits is not None)


def _read_process_limits(pid: int) -> Limits | None:
    data = read_proc(f"{_PROC}/{pid}/limits")
    if data is None:
        return None

    limits = dict(_LIMIT_LINE.findall(data.decode(errors="replace")))
    status = parse_status(read_proc(f"{_PROC}/{pid}/status"))
    capabilities = re.fullmatch(r"[0-9a-f]{1,32}", status.get("CapEff", ""))
    capability_bits = int(capabilities[0], 16) if capabilities else 0
    return Limits(
        pid=pid,
        files=whole_number(limits.get("Max open files")),
        open_files=len(list_numbers(f"{_PROC}/{pid}/fd")) or None,
        locked=whole_number(limits.get("Max locked memory")),
        may_lock=bool(capability_bits >> _CAP_IPC_LOCK & 1),
    )


def check_limits(
    limits: Iterable[Limits],
    *,
    ranks: Mapping[int, int] | None = None,
    has_rdma: bool = False,
) -> Iterator[Finding]:
    """
    Yield findings about limits that are too low or nearly reached.

    Processes with the same problem share one finding.

    Args:
        ranks: Ranks by process ID.

        has_rdma: Whether the node has RDMA adapters, which need locked memory.
    """
    processes = tuple(limits)
    affected = {"files_limit": list(filter(_is_near_limit, processes))}
    if has_rdma:
        affected["locked_limit"] = list(filter(_has_low_memlock, processes))
    for name, found in affected.items():
        if found:
            first = found[0]
            source = f"/proc/{first.pid}/limits"
            yield judge(
                name,
                Evidence(kind="process", source=source, quote=str(first)),
                ranks=ranks_of((x.pid for x in found), ranks or {}),
                open_files=first.open_files,
                files=first.files,
                locked=size_text(first.locked or 0),
                processes=list_text(f"process {x.pid}" for x in found),
            )


def _is_near_limit(x: Limits) -> bool:
    limit = x.files or math.inf
    return (x.open_files or 0) > _NEAR_LIMIT_RATIO * limit


def _has_low_memlock(x: Limits) -> bool:
    is_low = x.locked is not None and x.locked < _MIN_LOCKED_BYTES
    return is_low and not x.may_lock


_SAMPLES = 4
_INTERVAL_S = 0.15
_MAX_SAMPLED = 16_384
_GPU_DRIVER = re.compile(r"^(?:nv_|nvidia|_nv\d|uvm_|os_acquire|rm_)")
_FILE_SYSTEM = re.compile(
    r"^(?:nfs|rpc_|nlm|cl_|ll_|ptlrpc|osc_|ceph|fuse|cifs|gpfs|wait_on_page)"
    r"|request_wait_answer|folio_wait"
)


@attrs.frozen(kw_only=True)
class Blocked:
    """
    A process in uninterruptible sleep.

    Attributes:
        pid: The process ID.

        name: The command name.

        where: The kernel function that it waits in (``wchan``), or ``""``.
    """

    pid: int
    name: str
    where: str = ""


def read_blocked_processes(
    pids: Collection[int] = (),
) -> tuple[Blocked, ...]:
    """
    Return the processes that stay in state D.

    Args:
        pids: The processes to examine, with their threads; by default all
            processes of the node, without threads.

    Returns:
        The processes that were in state D in each of four samples.
    """
    numbers = list(pids) or list_numbers(_PROC)
    stuck = {pid: pid for pid in numbers[:_MAX_SAMPLED]}
    for sample in range(_SAMPLES):
        if sample:
            time.sleep(_INTERVAL_S)
        stuck = {
            pid: thread
            for pid in stuck
            if (thread := _blocked_thread(pid, deep=bool(pids)))
        }
        if not stuck:
            return ()
    processes = (_blocked_process(*x) for x in stuck.items())
    return tuple(x for x in processes if x is not None)


def _blocked_thread(pid: int, *, deep: bool) -> int | None:
    threads = list_numbers(f"{_PROC}/{pid}/task") if deep else []
    for thread in threads or [pid]:
        stat = parse_stat(read_proc(f"{_PROC}/{pid}/task/{thread}/stat"))
        if stat is not None and stat.letter == "D":
            return thread
    return None


def _blocked_process(pid: int, thread: int) -> Blocked | None:
    status = parse_status(read_proc(f"{_PROC}/{pid}/status"))
    # Kernel threads have no memory, and are often in state D.
    if "VmSize" not in status:
        return None

    where = read_proc(f"{_PROC}/{pid}/task/{thread}/wchan", limit=128) or b""
    text = clean(where.decode(errors="replace"))
    name = clean(status.get("Name", ""))
    return Blocked(pid=pid, name=name, where="" if text == "0" else text)


def check_blocked_processes(
    blocked: Iterable[Blocked],
    *,
    ranks: Mapping[int, int] | None = None,
    pids: Collection[int] = (),
) -> Iterator[Finding]:
    """
    Yield one finding per kernel function that processes are blocked in.

    Args:
        ranks: Ranks by process ID.

        pids: The processes of the job; a finding about other processes is
            only ``"possible"``.
    """
    by_wait_channel: dict[str, list[Blocked]] = defaultdict(list)
    for process in blocked:
        by_wait_channel[process.where].append(process)
    known_ranks, job = ranks or {}, {*pids, *(ranks or ())}
    for where, processes in by_wait_channel.items():
        ours = [x for x in processes if x.pid in job]
        shown = ours or processes
        names = list_text(f"{x.pid} ({x.name})" for x in shown)
        source = f"/proc/{processes[0].pid}/wchan"
        yield judge(
            _blocked_name(where),
            Evidence(kind="process", source=source, quote=where),
            ranks=ranks_of((x.pid for x in ours), known_ranks),
            confidence="likely" if ours else "possible",
            processes=f"{'processes' if len(shown) > 1 else 'process'} "
            f"{names}",
            where=f", in {where}" if where else "",
        )


def _blocked_name(wait_channel: str) -> str:
    if _GPU_DRIVER.search(wait_channel):
        return "blocked_in_driver"
    in_file_system = _FILE_SYSTEM.search(wait_channel)
    return "blocked_in_file_system" if in_file_system else "blocked"


#: Folders that every job writes to.
JOB_FOLDERS: Mapping[str, str] = {
    "tmp": "/tmp",  # noqa: S108 only its size
    "shm": "/dev/shm",  # noqa: S108 only its size
}
_FULL_BYTES = 1 << 20
_NEARLY_FULL_BYTES = 256 << 20
_MIN_FREE_FILES = 100
# Container engines default to 64 MiB; DataLoader workers and NCCL need more.
_MIN_SHM_BYTES = 256 << 20


@attrs.frozen(kw_only=True)
class Disk:
    """
    The file system of a folder.

    Attributes:
        name: ``"tmp"``, ``"shm"``, or the path.

        path: The folder.

        total: Bytes in total.

        free: Bytes free for the user.

        files: Number of inodes; 0 if the file system does not count them.

        free_files: Number of free inodes.

        is_read_only: Whether it is mounted read-only.

        answers: Whether it answered in time.

        problem: Why it could not be read.
    """

    name: str
    path: str
    total: int | None = None
    free: int | None = None
    files: int | None = None
    free_files: int | None = None
    is_read_only: bool = False
    answers: bool = True
    problem: str = ""


def read_disks(
    folders: Iterable[str | os.PathLike[str]] = (), *, timeout_s: float = 5.0
) -> tuple[Disk, ...]:
    """
    Read the file systems that a job writes to.

    Args:
        folders: Folders of the job, such as its checkpoint folder.

        timeout_s: Limit in seconds.

    Returns:
        One entry per existing folder, including those that do not answer.
    """
    paths = {**JOB_FOLDERS, **{os.fspath(x): os.fspath(x) for x in folders}}
    deadline = time.monotonic() + timeout_s
    answers = dict(
        answers_in_time(_read_disk, list(paths.items()), deadline, threads=64)
    )
    disks = (
        answers.get(x, Disk(name=clean(x[0]), path=x[1], answers=False))
        for x in paths.items()
    )
    return tuple(
        x for x in disks if not x.problem or x.name not in JOB_FOLDERS
    )


def _read_disk(item: tuple[str, str]) -> Disk:
    disk = Disk(name=clean(item[0]), path=item[1])
    try:
        status = os.statvfs(disk.path)
    except (OSError, ValueError) as exc:
        return attrs.evolve(disk, problem=reason_of(exc))

    return attrs.evolve(
        disk,
        total=status.f_blocks * status.f_frsize,
        free=status.f_bavail * status.f_frsize,
        files=status.f_files,
        free_files=status.f_favail,
        is_read_only=bool(status.f_flag & os.ST_RDONLY),
    )


def check_disks(disks: Iterable[Disk]) -> Iterator[Finding]:
    """
    Yield findings about full, read-only, small, or hanging file systems.
    """
    for disk in disks:
        path, is_known = clean(disk.path), disk.total is not None
        quote = f"{disk.free} of {disk.total} bytes free" if is_known else ""
        for name, values in islice(_disk_problems(disk), 1):
            yield judge(
                name,
                Evidence(kind="disk", source=path, quote=quote),
                path=path,
                total=size_text(disk.total or 0),
                **values,
            )


def _disk_problems(disk: Disk) -> Iterator[tuple[str, dict[str, Any]]]:
    """
    Yield what is wrong, the most important first.
    """
    if not disk.answers:
        yield "disk_silent", {}
    if disk.is_read_only:
        yield "disk_read_only", {}
    if space := _space_problem(disk):
        yield "disk_full", {"confidence": space[0], "space": space[1]}
    if disk.name == "shm" and 0 < (disk.total or 0) < _MIN_SHM_BYTES:
        yield "shared_memory_small", {}


def _space_problem(disk: Disk) -> tuple[Confidence, str] | None:
    if not disk.total or disk.free is None:
        return None

    left = f"{size_text(disk.free)} of {size_text(disk.total)} left"
    # Some file systems count no files.
    free_files = disk.free_files if disk.files else None
    if disk.free < min(_FULL_BYTES, disk.total // 20):
        return "certain", f"is full: {left}"
    if free_files == 0:
        return "certain", "is full: it can hold no more files"
    if disk.free < min(_NEARLY_FULL_BYTES, disk.total // 50):
        return "possible", f"is nearly full: {left}"
    if free_files is not None and free_files < _MIN_FREE_FILES:
        return "possible", f"can hold only {free_files} more files"
    return None
