"""
What is each thread of a process doing, as far as the kernel knows?

Nothing here stops the process or needs the right to trace it, but for
:func:`read_system_call`.
"""

from __future__ import annotations

import os

import attrs

from .._text import clean
from .proc.procfs import (
    list_numbers,
    parse_stat,
    parse_status,
    read_proc,
    whole_number,
)
from .proc.system_calls import name_of
from .proc.targets import target_of


__all__ = ["ThreadFacts", "read_system_call", "read_threads"]

_MOST_THREADS = 4096
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@attrs.frozen(kw_only=True)
class ThreadFacts:
    """
    What the kernel tells anybody about a thread.

    Attributes:
        name: Its name of at most 15 characters.

        state: The letter of its state, such as ``"S"``.

        voluntary: How often it gave up the processor to wait.

        involuntary: How often the processor was taken from it.

        cpu_s: How long it ran since it started, in seconds.
    """

    name: str
    state: str
    voluntary: int
    involuntary: int
    cpu_s: float


def read_threads(pid: int, root: str = "/proc") -> dict[int, ThreadFacts]:
    """
    What has every thread of a process done so far?

    Args:
        pid: The process.

        root: Where the kernel's files are.

    Returns:
        Facts by the number of the thread, in order; of the first 4,096
        threads.  Nothing for a process that is gone.
    """
    folder = f"{root}/{pid}/task"
    facts = {
        thread: _facts(f"{folder}/{thread}")
        for thread in list_numbers(folder)[:_MOST_THREADS]
    }
    return {thread: x for thread, x in facts.items() if x is not None}


def read_system_call(
    pid: int, thread_id: int, root: str = "/proc"
) -> tuple[str, str] | None:
    """
    What did a thread ask the kernel for, and did not get yet?

    Args:
        pid: The process.

        thread_id: The thread.

        root: Where the kernel's files are.

    Returns:
        The name of the call, and what it is about, such as a file, ``"pipe:[7]"``,
        ``"tcp 10.0.0.1:5000 -> 10.0.0.2:29500 SYN_SENT"``, or ``""``.  The
        name is ``"running"`` if the thread is not waiting.  ``None`` if the
        kernel does not say.
    """
    data = read_proc(f"{root}/{pid}/task/{thread_id}/syscall", limit=512)
    fields = (data or b"").decode("ascii", errors="replace").split()
    if fields[:1] == ["running"]:
        return "running", ""

    try:
        number = int(fields[0])
        arguments = [int(x, 16) for x in fields[1:7]]
    except (ValueError, IndexError):
        return None
    if number < 0:  # it waits, but not in a call: for a page of memory
        return None

    name = name_of(number)
    return name, clean(target_of(pid, name, arguments, root), limit=400)


def _facts(folder: str) -> ThreadFacts | None:
    stat = parse_stat(read_proc(f"{folder}/stat"))
    if stat is None:
        return None

    status = parse_status(read_proc(f"{folder}/status"))
    return ThreadFacts(
        name=clean(stat.name),
        state=stat.letter,
        voluntary=whole_number(status.get("voluntary_ctxt_switches")) or 0,
        involuntary=whole_number(status.get("nonvoluntary_ctxt_switches"))
        or 0,
        cpu_s=_cpu_s(folder, stat.cpu_ticks),
    )


def _cpu_s(folder: str, ticks: int) -> float:
    # In nanoseconds, where the kernel counts them; ticks are 10 ms apart.
    data = read_proc(f"{folder}/schedstat", limit=128)
    spent = whole_number(next(iter((data or b"").split()), None))
    return ticks / _TICKS_PER_S if spent is None else spent / 1e9
