"""
Read and check process limits, blocked processes, and disks of a node.
"""

from __future__ import annotations

import os
import re
import time

from collections.abc import Collection, Iterable, Iterator, Mapping

import attrs

from .._in_time import answers_in_time
from .._text import clean, list_text, reason_of, size_text
from ..findings import (
    Cause,
    Confidence,
    Evidence,
    Finding,
    NodeFinding,
    as_finding,
    ranks_of_pids,
)
from ..processes import (
    list_numbers,
    parse_stat,
    parse_status,
    read_proc,
    whole_number,
)


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


def read_limits(
    pids: Iterable[int], *, proc: str = "/proc"
) -> tuple[Limits, ...]:
    """
    Return the limits of processes; unreadable processes are left out.

    Args:
        proc: The path of procfs.
    """
    entries = (
        _read_process_limits(pid, proc) for pid in list(pids)[:_MAX_PROCESSES]
    )
    return tuple(limits for limits in entries if limits is not None)


def _read_process_limits(pid: int, proc: str) -> Limits | None:
    data = read_proc(f"{proc}/{pid}/limits")
    if data is None:
        return None

    limits = dict(_LIMIT_LINE.findall(data.decode(errors="replace")))
    status = parse_status(read_proc(f"{proc}/{pid}/status"))
    capabilities = status.get("CapEff", "0")
    capability_bits = (
        int(capabilities, 16)
        if re.fullmatch(r"[0-9a-f]{1,32}", capabilities)
        else 0
    )
    return Limits(
        pid=pid,
        files=_parse_limit(limits.get("Max open files")),
        open_files=len(list_numbers(f"{proc}/{pid}/fd")) or None,
        locked=_parse_limit(limits.get("Max locked memory")),
        may_lock=bool(capability_bits >> _CAP_IPC_LOCK & 1),
    )


def _parse_limit(text: str | None) -> int | None:
    return whole_number(text)


def check_limits(
    limits: Iterable[Limits],
    *,
    host: str = "",
    ranks: Mapping[int, int] | None = None,
    has_rdma: bool = False,
) -> tuple[Finding, ...]:
    """
    Return findings about limits that are too low or nearly reached.

    Processes with the same problem share one finding.

    Args:
        ranks: Ranks by process ID.

        has_rdma: Whether the node has RDMA adapters, which need locked memory.
    """
    return tuple(
        as_finding(
            problem,
            host=host,
            evidence=Evidence(
                kind="process",
                source=f"/proc/{process.pid}/limits",
                quote=str(process),
            ),
        )
        for process, problem in _limit_problems(
            tuple(limits), ranks or {}, has_rdma=has_rdma
        )
    )


def _limit_problems(
    limits: tuple[Limits, ...], ranks: Mapping[int, int], *, has_rdma: bool
) -> Iterator[tuple[Limits, NodeFinding]]:
    near = [
        x
        for x in limits
        if x.files
        and x.open_files
        and x.open_files > _NEAR_LIMIT_RATIO * x.files
    ]
    if near:
        message = (
            f"{near[0].open_files} of {near[0].files} files that may be open "
            f"are open ({_process_names(near)})"
        )
        remedy = (
            "raise the limit (ulimit -n), or look for a leak of files; torch "
            "shares tensors by files, one each"
        )
        yield near[0], _limit_problem(near, message, remedy, ranks)
    low_memlock = [x for x in limits if _has_low_memlock(x)]
    if low_memlock and has_rdma:
        message = (
            f"only {size_text(low_memlock[0].locked or 0)} of memory may be "
            f"locked, too little for InfiniBand ({_process_names(low_memlock)})"
        )
        remedy = (
            "raise the limit (ulimit -l unlimited, or memlock in "
            "limits.conf, or --ulimit memlock=-1)"
        )
        yield (
            low_memlock[0],
            _limit_problem(low_memlock, message, remedy, ranks),
        )


def _has_low_memlock(x: Limits) -> bool:
    is_low = x.locked is not None and x.locked < _MIN_LOCKED_BYTES
    return is_low and not x.may_lock


def _process_names(processes: Iterable[Limits]) -> str:
    return list_text(f"process {x.pid}" for x in processes)


def _limit_problem(
    processes: Iterable[Limits],
    message: str,
    remedy: str,
    ranks: Mapping[int, int],
) -> NodeFinding:
    affected_ranks = ranks_of_pids((x.pid for x in processes), ranks)
    cause = Cause.NODE_MISCONFIGURED
    return NodeFinding(cause, "likely", message, remedy, affected_ranks)


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
    *,
    proc: str = "/proc",
    apart_s: float = _INTERVAL_S,
) -> tuple[Blocked, ...]:
    """
    Return the processes that stay in state D.

    Args:
        pids: The processes to examine, with their threads; by default all
            processes of the node, without threads.

        proc: The path of procfs.

        apart_s: Seconds between two of the four samples.

    Returns:
        The processes that were in state D in every sample.
    """
    numbers = list(pids) or list_numbers(proc)
    stuck = {pid: pid for pid in numbers[:_MAX_SAMPLED]}
    for sample in range(_SAMPLES):
        if sample:
            time.sleep(apart_s)
        stuck = {
            pid: thread
            for pid in stuck
            if (thread := _blocked_thread(pid, proc, deep=bool(pids)))
        }
        if not stuck:
            return ()
    processes = (
        _blocked_process(pid, thread, proc) for pid, thread in stuck.items()
    )
    return tuple(x for x in processes if x is not None)


def _blocked_thread(pid: int, proc: str, *, deep: bool) -> int | None:
    threads = list_numbers(f"{proc}/{pid}/task") if deep else []
    for thread in threads or [pid]:
        stat = parse_stat(read_proc(f"{proc}/{pid}/task/{thread}/stat"))
        if stat is not None and stat.letter == "D":
            return thread
    return None


def _blocked_process(pid: int, thread: int, proc: str) -> Blocked | None:
    status = parse_status(read_proc(f"{proc}/{pid}/status"))
    # Kernel threads have no memory, and are often in state D.
    if "VmSize" not in status:
        return None

    where = read_proc(f"{proc}/{pid}/task/{thread}/wchan", limit=128) or b""
    text = clean(where.decode(errors="replace"))
    name = clean(status.get("Name", ""))
    return Blocked(pid=pid, name=name, where="" if text == "0" else text)


def check_blocked_processes(
    blocked: Iterable[Blocked],
    *,
    host: str = "",
    ranks: Mapping[int, int] | None = None,
    pids: Collection[int] = (),
) -> tuple[Finding, ...]:
    """
    Return one finding per kernel function that processes are blocked in.

    Args:
        ranks: Ranks by process ID.

        pids: The processes of the job; a finding about other processes is
            only ``"possible"``.
    """
    by_wait_channel: dict[str, list[Blocked]] = {}
    for process in blocked:
        by_wait_channel.setdefault(process.where, []).append(process)
    return tuple(
        as_finding(
            _blocked_problem(wait_channel, processes, ranks or {}, pids),
            host=host,
            evidence=Evidence(
                kind="process",
                source=f"/proc/{processes[0].pid}/wchan",
                quote=wait_channel,
            ),
        )
        for wait_channel, processes in by_wait_channel.items()
    )


def _blocked_problem(
    wait_channel: str,
    processes: list[Blocked],
    ranks: Mapping[int, int],
    pids: Collection[int],
) -> NodeFinding:
    job_processes = [x for x in processes if x.pid in pids or x.pid in ranks]
    shown = job_processes or processes
    names = list_text(f"{x.pid} ({x.name})" for x in shown)
    plural = "processes" if len(shown) > 1 else "process"
    cause, where, remedy = _explain_wait_channel(wait_channel)
    return NodeFinding(
        cause,
        "likely" if job_processes else "possible",
        f"{plural} {names} cannot be interrupted: stuck in the kernel{where}",
        remedy,
        ranks_of_pids((x.pid for x in job_processes), ranks),
    )


def _explain_wait_channel(wait_channel: str) -> tuple[Cause, str, str]:
    where = f", in {wait_channel}" if wait_channel else ""
    if _GPU_DRIVER.search(wait_channel):
        return (
            Cause.GPU_FAULT,
            f"{where} of the driver of the GPU",
            (
                "look for Xid messages; a driver that hangs needs a reset of the "
                "GPU, or a reboot"
            ),
        )
    if _FILE_SYSTEM.search(wait_channel):
        return (
            Cause.IO_WAIT,
            f"{where}, for a file system",
            "see that the file system and its server answer",
        )
    return (
        Cause.UNINTERRUPTIBLE,
        where,
        "see /proc/PID/stack, as root, for what it waits for",
    )


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
    folders: Iterable[str | os.PathLike[str]] = (),
    *,
    timeout_s: float = 5.0,
    places: Mapping[str, str] = JOB_FOLDERS,
) -> tuple[Disk, ...]:
    """
    Read the file systems that a job writes to.

    Args:
        folders: Folders of the job, such as its checkpoint folder.

        timeout_s: Limit in seconds.

        places: Folders that every job uses, by name.

    Returns:
        One entry per existing folder, including those that do not answer.
    """
    paths = dict(places)
    paths.update({os.fspath(folder): os.fspath(folder) for folder in folders})
    deadline = time.monotonic() + timeout_s
    answers = dict(
        answers_in_time(_read_disk, list(paths.items()), deadline, threads=64)
    )
    disks = []
    for item in paths.items():
        unresponsive = Disk(name=clean(item[0]), path=item[1], answers=False)
        disk = answers.get(item, unresponsive)
        if not disk.problem or item[0] not in places:
            disks.append(disk)
    return tuple(disks)


def _read_disk(item: tuple[str, str]) -> Disk:
    name, path = item
    try:
        status = os.statvfs(path)
    except (OSError, ValueError) as exc:
        reason = reason_of(exc)
        return Disk(name=clean(name), path=path, problem=reason)

    return Disk(
        name=clean(name),
        path=path,
        total=status.f_blocks * status.f_frsize,
        free=status.f_bavail * status.f_frsize,
        files=status.f_files,
        free_files=status.f_favail,
        is_read_only=bool(status.f_flag & os.ST_RDONLY),
    )


def check_disks(
    disks: Iterable[Disk], *, host: str = ""
) -> tuple[Finding, ...]:
    """
    Return findings about full, read-only, small, or hanging file systems.
    """
    checked = ((disk, _disk_problem(disk)) for disk in disks)
    return tuple(
        as_finding(problem, host=host, evidence=_disk_evidence(disk))
        for disk, problem in checked
        if problem is not None
    )


def _disk_problem(disk: Disk) -> NodeFinding | None:
    subject = f"the file system of {clean(disk.path)}"
    if not disk.answers:
        return NodeFinding(
            Cause.IO_WAIT,
            "likely",
            f"{subject} does not answer",
            "see that its server and the way to it work; whoever uses it "
            "waits in the kernel",
        )
    if disk.is_read_only:
        return NodeFinding(
            Cause.NODE_MISCONFIGURED,
            "likely",
            f"{subject} is mounted read-only",
            "write elsewhere; if it became so by itself, look at the kernel "
            "log for errors of the disk",
        )
    if space := _space_problem(disk):
        return NodeFinding(
            Cause.DISK_FULL,
            space[0],
            f"{subject} {space[1]}",
            "delete what nobody needs, or let the job write elsewhere",
        )
    if disk.name == "shm" and 0 < (disk.total or 0) < _MIN_SHM_BYTES:
        return NodeFinding(
            Cause.NODE_MISCONFIGURED,
            "possible",
            f"shared memory ({clean(disk.path)}) has only "
            f"{size_text(disk.total or 0)}",
            "give the container more (--shm-size, --ipc=host, or an emptyDir "
            "of medium Memory): DataLoader workers and NCCL need it",
        )
    return None


def _space_problem(disk: Disk) -> tuple[Confidence, str] | None:
    if not disk.total or disk.free is None:
        return None

    left = f"{size_text(disk.free)} of {size_text(disk.total)} left"
    if disk.free < min(_FULL_BYTES, disk.total // 20):
        return "certain", f"is full: {left}"
    if disk.files and disk.free_files == 0:
        return "certain", "is full: it can hold no more files"
    if disk.free < min(_NEARLY_FULL_BYTES, disk.total // 50):
        return "possible", f"is nearly full: {left}"
    free_files = disk.free_files
    if disk.files and free_files is not None and free_files < _MIN_FREE_FILES:
        return "possible", f"can hold only {free_files} more files"
    return None


def _disk_evidence(disk: Disk) -> Evidence:
    is_known = disk.total is not None
    return Evidence(
        kind="disk",
        source=clean(disk.path),
        quote=f"{disk.free} of {disk.total} bytes free" if is_known else "",
    )
