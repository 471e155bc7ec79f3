"""
Does a job lack memory, or was a process killed for it?
"""

from __future__ import annotations

from collections.abc import Iterator

from ..._text import size_text
from ...findings import Cause, Confidence, Evidence, Finding
from ..judged import Judged, as_finding
from .cgroups import MemoryGroup
from .read import Memory


__all__ = ["judge_memory"]

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
