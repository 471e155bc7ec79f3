"""
Which processes are stuck inside the kernel?

Who waits for a disk is in state D for moments; who is found there again and
again waits for something that does not answer.
"""

from __future__ import annotations

import re
import time

from collections.abc import Collection, Iterable, Mapping

import attrs

from .._text import clean, list_text
from ..findings import Cause, Evidence, Finding
from ..processes.procfs import (
    list_numbers,
    parse_stat,
    parse_status,
    read_proc,
)
from .judged import Judged, as_finding, known_ranks


__all__ = ["Blocked", "judge_blocked", "read_blocked"]

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
            _judge(place, processes, ranks or {}, pids),
            host=host,
            evidence=Evidence(
                kind="process",
                source=f"/proc/{processes[0].pid}/wchan",
                quote=place,
            ),
        )
        for place, processes in places.items()
    )


def _judge(
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
