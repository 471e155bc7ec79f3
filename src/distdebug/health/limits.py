"""
Which limits of a process are nearly reached, or too low for its network?
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator, Mapping

import attrs

from .._text import list_text, size_text
from ..findings import Cause, Evidence, Finding
from ..processes.procfs import (
    list_numbers,
    parse_status,
    read_proc,
    whole_number,
)
from .judged import Judged, as_finding, known_ranks


__all__ = ["Limits", "judge_limits", "read_limits"]

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
