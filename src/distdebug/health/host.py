"""
Which limits of a process are nearly reached, or too low for its network?
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
    Judged,
    as_finding,
    known_ranks,
)
from ..processes import (
    list_numbers,
    parse_stat,
    parse_status,
    read_proc,
    whole_number,
)


_LINE = re.compile(
    r"^(Max [a-z ]{1,30}?) {2,}(\d{1,20}|unlimited) ", re.MULTILINE
)
_CAP_IPC_LOCK = 14
_NEAR = 0.9
# Each connection of an adapter locks megabytes.
_LITTLE_LOCKED = 16 << 20
_MOST_PROCESSES = 1024


@attrs.frozen(kw_only=True)
class Limits:
    """
    What a process may use.  ``None`` means without a limit, or not known.

    Attributes:
        pid: Its number.

        files: How many files it may have open.

        open_files: How many it has open.

        locked: How many bytes of memory it may lock.

        may_lock: Whether that limit does not bind it.
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
    Ask which limits some processes have.

    Args:
        pids: The processes.

        proc: Where the kernel's files are.

    Returns:
        Those that could be asked.
    """
    found = (_read(pid, proc) for pid in list(pids)[:_MOST_PROCESSES])
    return tuple(limits for limits in found if limits is not None)


def _read(pid: int, proc: str) -> Limits | None:
    data = read_proc(f"{proc}/{pid}/limits")
    if data is None:
        return None

    told = dict(_LINE.findall(data.decode(errors="replace")))
    status = parse_status(read_proc(f"{proc}/{pid}/status"))
    rights = status.get("CapEff", "0")
    can = int(rights, 16) if re.fullmatch(r"[0-9a-f]{1,32}", rights) else 0
    return Limits(
        pid=pid,
        files=_number(told.get("Max open files")),
        open_files=len(list_numbers(f"{proc}/{pid}/fd")) or None,
        locked=_number(told.get("Max locked memory")),
        may_lock=bool(can >> _CAP_IPC_LOCK & 1),
    )


def _number(text: str | None) -> int | None:
    return whole_number(text)


def judge_limits(
    limits: Iterable[Limits],
    *,
    host: str = "",
    ranks: Mapping[int, int] | None = None,
    has_rdma: bool = False,
) -> tuple[Finding, ...]:
    """
    Tell which limits hinder a job.

    Args:
        limits: Those of its processes.

        host: The node.

        ranks: The rank of each process that is known.

        has_rdma: Whether the node has adapters for which memory is locked.

    Returns:
        What was found, processes with the same trouble together.
    """
    return tuple(
        as_finding(
            judged,
            host=host,
            evidence=Evidence(
                kind="process",
                source=f"/proc/{who.pid}/limits",
                quote=str(who),
            ),
        )
        for who, judged in _judge(
            tuple(limits), ranks or {}, has_rdma=has_rdma
        )
    )


def _judge(
    limits: tuple[Limits, ...], ranks: Mapping[int, int], *, has_rdma: bool
) -> Iterator[tuple[Limits, Judged]]:
    near = [
        x
        for x in limits
        if x.files and x.open_files and x.open_files > _NEAR * x.files
    ]
    if near:
        says = (
            f"{near[0].open_files} of {near[0].files} files that may be open "
            f"are open ({_names(near)})"
        )
        remedy = (
            "raise the limit (ulimit -n), or look for a leak of files; torch "
            "shares tensors by files, one each"
        )
        yield near[0], _judged(near, says, remedy, ranks)
    locked = [x for x in limits if _may_lock_little(x)]
    if locked and has_rdma:
        says = (
            f"only {size_text(locked[0].locked or 0)} of memory may be "
            f"locked, too little for InfiniBand ({_names(locked)})"
        )
        remedy = (
            "raise the limit (ulimit -l unlimited, or memlock in "
            "limits.conf, or --ulimit memlock=-1)"
        )
        yield locked[0], _judged(locked, says, remedy, ranks)


def _may_lock_little(x: Limits) -> bool:
    is_low = x.locked is not None and x.locked < _LITTLE_LOCKED
    return is_low and not x.may_lock


def _names(who: Iterable[Limits]) -> str:
    return list_text(f"process {x.pid}" for x in who)


def _judged(
    who: Iterable[Limits], says: str, remedy: str, ranks: Mapping[int, int]
) -> Judged:
    concerned = known_ranks((x.pid for x in who), ranks)
    cause = Cause.NODE_MISCONFIGURED
    return Judged(cause, "likely", says, remedy, concerned)


_LOOKS = 4
_APART_S = 0.15
_MOST = 16_384
_DRIVER = re.compile(r"^(?:nv_|nvidia|_nv\d|uvm_|os_acquire|rm_)")
_NETWORK_DISK = re.compile(
    r"^(?:nfs|rpc_|nlm|cl_|ll_|ptlrpc|osc_|ceph|fuse|cifs|gpfs|wait_on_page)"
    r"|request_wait_answer|folio_wait"
)


@attrs.frozen(kw_only=True)
class Blocked:
    """
    A process that nothing can interrupt.

    Attributes:
        pid: Its number.

        name: What the kernel calls it.

        where: The function of the kernel it waits in, if that is told.
    """

    pid: int
    name: str
    where: str = ""


def read_blocked(
    pids: Collection[int] = (),
    *,
    proc: str = "/proc",
    apart_s: float = _APART_S,
) -> tuple[Blocked, ...]:
    """
    Find the processes that stay in state D.

    Args:
        pids: Look at these and their threads only; at all of the node by
            default.

        proc: Where the kernel's files are.

        apart_s: Time between two of the four looks, in seconds.

    Returns:
        Those that were in it at every look.
    """
    numbers = list(pids) or list_numbers(proc)
    stuck = {pid: pid for pid in numbers[:_MOST]}
    for look in range(_LOOKS):
        if look:
            time.sleep(apart_s)
        stuck = {
            pid: thread
            for pid in stuck
            if (thread := _blocked_thread(pid, proc, deep=bool(pids)))
        }
        if not stuck:
            return ()
    found = (_describe(pid, thread, proc) for pid, thread in stuck.items())
    return tuple(x for x in found if x is not None)


def _blocked_thread(pid: int, proc: str, *, deep: bool) -> int | None:
    threads = list_numbers(f"{proc}/{pid}/task") if deep else []
    for thread in threads or [pid]:
        stat = parse_stat(read_proc(f"{proc}/{pid}/task/{thread}/stat"))
        if stat is not None and stat.letter == "D":
            return thread
    return None


def _describe(pid: int, thread: int, proc: str) -> Blocked | None:
    status = parse_status(read_proc(f"{proc}/{pid}/status"))
    # Threads of the kernel itself have no memory, and often rest in state D.
    if "VmSize" not in status:
        return None

    where = read_proc(f"{proc}/{pid}/task/{thread}/wchan", limit=128) or b""
    text = clean(where.decode(errors="replace"))
    name = clean(status.get("Name", ""))
    return Blocked(pid=pid, name=name, where="" if text == "0" else text)


def judge_blocked(
    blocked: Iterable[Blocked],
    *,
    host: str = "",
    ranks: Mapping[int, int] | None = None,
    pids: Collection[int] = (),
) -> tuple[Finding, ...]:
    """
    Tell what processes are stuck in.

    Args:
        blocked: Processes that stay in state D.

        host: The node.

        ranks: The rank of each process that is known.

        pids: The processes of the job: others are only possible as a cause.

    Returns:
        One finding for all that wait at the same place.
    """
    places: dict[str, list[Blocked]] = {}
    for process in blocked:
        places.setdefault(process.where, []).append(process)
    return tuple(
        as_finding(
            _blocked_judge(place, processes, ranks or {}, pids),
            host=host,
            evidence=Evidence(
                kind="process",
                source=f"/proc/{processes[0].pid}/wchan",
                quote=place,
            ),
        )
        for place, processes in places.items()
    )


def _blocked_judge(
    place: str,
    processes: list[Blocked],
    ranks: Mapping[int, int],
    pids: Collection[int],
) -> Judged:
    ours = [x for x in processes if x.pid in pids or x.pid in ranks]
    told = ours or processes
    names = list_text(f"{x.pid} ({x.name})" for x in told)
    plural = "processes" if len(told) > 1 else "process"
    cause, what, remedy = _meaning(place)
    return Judged(
        cause,
        "likely" if ours else "possible",
        f"{plural} {names} cannot be interrupted: stuck in the kernel{what}",
        remedy,
        known_ranks((x.pid for x in ours), ranks),
    )


def _meaning(place: str) -> tuple[Cause, str, str]:
    inside = f", in {place}" if place else ""
    if _DRIVER.search(place):
        return (
            Cause.GPU_FAULT,
            f"{inside} of the driver of the GPU",
            (
                "look for Xid messages; a driver that hangs needs a reset of the "
                "GPU, or a reboot"
            ),
        )
    if _NETWORK_DISK.search(place):
        return (
            Cause.IO_WAIT,
            f"{inside}, for a file system",
            "see that the file system and its server answer",
        )
    return (
        Cause.UNINTERRUPTIBLE,
        inside,
        "see /proc/PID/stack, as root, for what it waits for",
    )


#: Where every job writes.
PLACES: Mapping[str, str] = {
    "tmp": "/tmp",  # noqa: S108 only its size
    "shm": "/dev/shm",  # noqa: S108 only its size
}
_FULL = 1 << 20
_NEARLY_FULL = 256 << 20
_FEW_FILES = 100
# What container engines give; DataLoader workers and NCCL want far more.
_SMALL_SHM = 256 << 20


@attrs.frozen(kw_only=True)
class Disk:
    """
    A file system, as seen at a folder.

    Attributes:
        name: What the folder is to the job: ``"tmp"``, ``"shm"``, or its
            path.

        path: The folder.

        total: Bytes there are.

        free: Bytes that the user may still write.

        files: How many files it can hold; 0 if it does not count them.

        free_files: How many more.

        is_read_only: Whether nobody may write to it.

        answers: Whether it answered in time.

        problem: Why nothing is known of it.
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
    places: Mapping[str, str] = PLACES,
) -> tuple[Disk, ...]:
    """
    Ask the file systems that a job writes to.

    Args:
        folders: Folders of the job, such as that of its checkpoints.

        timeout_s: How long it may take, in seconds.

        places: Folders that every job uses, by name.

    Returns:
        One for each folder that is there, also if it does not answer.
    """
    wanted = dict(places)
    wanted.update({os.fspath(folder): os.fspath(folder) for folder in folders})
    deadline = time.monotonic() + timeout_s
    answers = dict(
        answers_in_time(_ask, list(wanted.items()), deadline, threads=64)
    )
    found = []
    for item in wanted.items():
        silent = Disk(name=clean(item[0]), path=item[1], answers=False)
        disk = answers.get(item, silent)
        if not disk.problem or item[0] not in places:
            found.append(disk)
    return tuple(found)


def _ask(item: tuple[str, str]) -> Disk:
    name, path = item
    try:
        status = os.statvfs(path)
    except (OSError, ValueError) as exc:
        why = reason_of(exc)
        return Disk(name=clean(name), path=path, problem=why)

    return Disk(
        name=clean(name),
        path=path,
        total=status.f_blocks * status.f_frsize,
        free=status.f_bavail * status.f_frsize,
        files=status.f_files,
        free_files=status.f_favail,
        is_read_only=bool(status.f_flag & os.ST_RDONLY),
    )


def judge_disks(
    disks: Iterable[Disk], *, host: str = ""
) -> tuple[Finding, ...]:
    """
    Tell which file systems hinder a job.

    Args:
        disks: All that the job writes to.

        host: The node.

    Returns:
        What was found.
    """
    judged = ((disk, _disks_judge(disk)) for disk in disks)
    return tuple(
        as_finding(verdict, host=host, evidence=_evidence(disk))
        for disk, verdict in judged
        if verdict is not None
    )


def _disks_judge(disk: Disk) -> Judged | None:
    what = f"the file system of {clean(disk.path)}"
    if not disk.answers:
        return Judged(
            Cause.IO_WAIT,
            "likely",
            f"{what} does not answer",
            "see that its server and the way to it work; whoever uses it "
            "waits in the kernel",
        )
    if disk.is_read_only:
        return Judged(
            Cause.NODE_MISCONFIGURED,
            "likely",
            f"{what} is mounted read-only",
            "write elsewhere; if it became so by itself, look at the kernel "
            "log for errors of the disk",
        )
    if space := _space(disk):
        return Judged(
            Cause.DISK_FULL,
            space[0],
            f"{what} {space[1]}",
            "delete what nobody needs, or let the job write elsewhere",
        )
    if disk.name == "shm" and 0 < (disk.total or 0) < _SMALL_SHM:
        return Judged(
            Cause.NODE_MISCONFIGURED,
            "possible",
            f"shared memory ({clean(disk.path)}) has only "
            f"{size_text(disk.total or 0)}",
            "give the container more (--shm-size, --ipc=host, or an emptyDir "
            "of medium Memory): DataLoader workers and NCCL need it",
        )
    return None


def _space(disk: Disk) -> tuple[Confidence, str] | None:
    if not disk.total or disk.free is None:
        return None

    left = f"{size_text(disk.free)} of {size_text(disk.total)} left"
    if disk.free < min(_FULL, disk.total // 20):
        return "certain", f"is full: {left}"
    if disk.files and disk.free_files == 0:
        return "certain", "is full: it can hold no more files"
    if disk.free < min(_NEARLY_FULL, disk.total // 50):
        return "possible", f"is nearly full: {left}"
    more = disk.free_files
    if disk.files and more is not None and more < _FEW_FILES:
        return "possible", f"can hold only {more} more files"
    return None


def _evidence(disk: Disk) -> Evidence:
    is_known = disk.total is not None
    return Evidence(
        kind="disk",
        source=clean(disk.path),
        quote=f"{disk.free} of {disk.total} bytes free" if is_known else "",
    )
