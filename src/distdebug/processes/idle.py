"""
For how long has a thread not run at all?

A rank that waits for a slow peer ran a moment ago; one that is stuck did not
run for minutes.  The kernel tells, to anybody and without stopping anything,
also about the time before we came: ``se.exec_start`` in ``/proc/PID/sched``
(Linux with ``CONFIG_SCHED_DEBUG``, as distributions build it) is the moment at
which a thread last was on a processor, by the clock of that processor.
"""

from __future__ import annotations

import re

from pathlib import Path


__all__ = ["idle_seconds"]

_EXEC_START = re.compile(rb"^se\.exec_start\s*:\s*(\d+\.\d+)", re.MULTILINE)
_MOST_BYTES = 4096


def idle_seconds(pid: int, tid: int, *, root: str = "/proc") -> float | None:
    """
    Tell how long ago a thread last ran.

    Clocks of processors differ by a few milliseconds, more on machines that
    are virtual and busy.

    Args:
        pid: The process.

        tid: The thread.

        root: Where the file system of processes is mounted.

    Returns:
        Seconds, to be taken with a grain of salt; ``None`` if this kernel
        does not tell.
    """
    now = _exec_start(f"{root}/thread-self/sched")
    last = _exec_start(f"{root}/{pid}/task/{tid}/sched")
    # It is zero for a thread that was moved to another processor and has not
    # run there yet.
    if not now or not last:
        return None

    return max(0.0, (now - last) / 1000)


def _exec_start(path: str) -> float | None:
    try:
        with Path(path).open("rb") as file:
            match = _EXEC_START.search(file.read(_MOST_BYTES))
    except OSError:
        return None

    return float(match[1]) if match else None
