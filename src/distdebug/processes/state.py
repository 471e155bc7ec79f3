"""
In what state is a process?

Anybody may ask this about any process, and asking does not touch it: it is
the first thing to do before a tool is attached.
"""

from __future__ import annotations

from .model import ProcessState
from .proc.procfs import list_numbers, parse_stat, parse_status, read_proc


__all__ = ["read_state"]

# A process with more threads than this is looked at in part.
_MOST_THREADS = 4096


def read_state(pid: int, root: str = "/proc") -> ProcessState | None:
    """
    In what state is a process, and who else has a hold on it?

    Args:
        pid: Its number.

        root: Where the kernel's files are.

    Returns:
        What the kernel says; ``None`` if there is no such process.
    """
    stat = parse_stat(read_proc(f"{root}/{pid}/stat"))
    if stat is None:
        return None

    status = parse_status(read_proc(f"{root}/{pid}/status"))
    return ProcessState(
        letter=stat.letter,
        start_ticks=stat.start_ticks,
        tracer_pid=_number(status.get("TracerPid"), 0),
        uid=_number(status.get("Uid"), 1),
        uninterruptible=_uninterruptible(pid, root),
        pid_inside=_number(status.get("NSpid"), -1) or pid,
        caught_signals=_number(status.get("SigCgt"), 0, base=16),
        has_seccomp=_number(status.get("Seccomp"), 0) > 0,
    )


def _number(text: str | None, column: int, base: int = 10) -> int:
    try:
        return int((text or "").split()[column], base)
    except (ValueError, IndexError):
        return 0


def _uninterruptible(pid: int, root: str) -> tuple[int, ...]:
    folder = f"{root}/{pid}/task"
    threads = list_numbers(folder)[:_MOST_THREADS]
    stats = ((t, parse_stat(read_proc(f"{folder}/{t}/stat"))) for t in threads)
    return tuple(t for t, stat in stats if stat and stat.letter == "D")
