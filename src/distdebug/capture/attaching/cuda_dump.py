"""
Can a process write down what its GPUs do, without a debugger?

The CUDA driver does so when something is written to a pipe that the process
keeps for that, if it was started with CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1.
"""

from __future__ import annotations

import glob
import os
import re
import select
import stat
import time

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ...processes.environ import read_environ
from ...processes.procfs import list_numbers, read_link


__all__ = ["DumpPipe", "find_dump_pipe", "request_dump"]

# Without these, the process is ended by its own dump, or writes down all the
# memory of its GPUs.
_HARMLESS = {"skip_abort", "skip_global_memory"}
_DEFAULT_PIPE = "corepipe.cuda.%h.%p"
_DEFAULT_FILE = "core_%t_%h_%p.nvcudmp"
_ENOUGH = 1 << 20
_PART = 4096  # fits whenever a pipe says that there is room
_STEP_S = 0.1
_SETTLED_S = 0.5


class DumpPipe(NamedTuple):
    """
    How a dump is asked for.

    Attributes:
        pid: The process.

        path: The pipe.

        files: A pattern of the files that dumps are written to.
    """

    pid: int
    path: str
    files: str


def find_dump_pipe(pid: int, *, may_abort: bool = False) -> DumpPipe | None:
    """
    Does a process offer to write down what its GPUs do?

    Args:
        pid: A process of this node.

        may_abort: Whether to use the pipe also if that may end the process,
            or fill a disk.

    Returns:
        How to ask for it; ``None`` if the process does not offer it, or if it
        would do harm.
    """
    environ, _ = read_environ(pid)
    flags = environ.get("CUDA_COREDUMP_GENERATION_FLAGS", "")
    if not may_abort and not set(re.split(r"[\s,]+", flags)) >= _HARMLESS:
        return None

    wanted = environ.get("CUDA_COREDUMP_PIPE") or _DEFAULT_PIPE
    name = re.compile(_filled(wanted.rpartition("/")[2], re.escape, ".+"))
    for fd in list_numbers(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        target = read_link(path).rpartition("/")[2]
        if name.fullmatch(target) and _is_pipe(path):
            return DumpPipe(pid, path, _files(pid, environ))
    return None


def request_dump(pipe: DumpPipe, *, timeout_s: float) -> Path | None:
    """
    Ask a process for a dump of its GPUs, and wait for it.

    Args:
        pipe: How to ask.

        timeout_s: How long to wait, in seconds.

    Returns:
        The file; ``None`` if it was not finished in time.

    Raises:
        OSError: The pipe cannot be written to.
    """
    end = time.monotonic() + timeout_s
    old = set(glob.glob(pipe.files))  # noqa: PTH207 there are wildcards in it
    _write(pipe.path, end)
    size, since = -1, time.monotonic()
    while time.monotonic() < end:
        time.sleep(_STEP_S)
        new = sorted(set(glob.glob(pipe.files)) - old)  # noqa: PTH207
        if not new:
            continue
        now, path = time.monotonic(), Path(new[0])
        if path.stat().st_size != size:
            size, since = path.stat().st_size, now
        elif (
            size and now - since > _SETTLED_S and not _is_open(pipe.pid, path)
        ):
            return path
    return None


def _filled(pattern: str, escape: Callable[[str], str], any_text: str) -> str:
    """
    What the driver puts in place of host, process, and time is not known.
    """
    return "".join(
        any_text if part in {"%h", "%p", "%t"} else escape(part)
        for part in re.split("(%[hpt])", pattern)
    )


def _files(pid: int, environ: dict[str, str]) -> str:
    wanted = environ.get("CUDA_COREDUMP_FILE") or _DEFAULT_FILE
    # As the process sees it, which may be in a container.
    place = "root" if wanted.startswith("/") else "cwd"
    return f"/proc/{pid}/{place}/{_filled(wanted, glob.escape, '*')}"


def _is_pipe(path: str) -> bool:
    try:
        return stat.S_ISFIFO(Path(path).stat().st_mode)
    except OSError:
        return False


def _write(path: str, end: float) -> None:
    """
    Little may be held back on its way, so more than a pipe holds is written.
    """
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        written, poll = 0, select.poll()
        poll.register(fd, select.POLLOUT)
        while written < _ENOUGH and poll.poll(_patience_ms(end)):
            written += os.write(fd, bytes(_PART))
    finally:
        os.close(fd)


def _patience_ms(end: float) -> float:
    # Who does not read on within a second has read enough.
    return 1000 * min(max(end - time.monotonic(), 0), 1)


def _is_open(pid: int, path: Path) -> bool:
    fds = list_numbers(f"/proc/{pid}/fd")
    names = (read_link(f"/proc/{pid}/fd/{fd}") for fd in fds)
    return any(name.rpartition("/")[2] == path.name for name in names)
