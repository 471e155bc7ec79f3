"""
Which kernels run on the GPUs of this process, and who waits for them?

cuda-gdb stops the process and its GPUs for seconds.  If the process can write
a core dump of its GPUs on request, and goes on after it, that is asked for
instead.
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

import attrs

from .._text import without_controls
from ..processes import list_numbers, read_environ, read_link, read_state
from ..stacks import GpuKernel, parse_gdb, parse_kernels
from .attach import GDB, Threads, Told, Tool, attach, gdb_arguments
from .model import Attempt, CaptureStatus
from .tool import find_tool, run_tool


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


# The line that users of the scripts around cuda-gdb look for.
_FAILED = "ERROR: cuda-gdb failed or timed out"

# Its unwinder of version 11.8 fails on every frame: it takes the answer of
# Python, that there is nothing to unwind, for a mistake.
_SHARE = 5 / 6  # what is left is for gdb, if that is needed
_CURE = (
    "set python print-stack none",
    "python gdb._execute_unwinders = None",
)


@attrs.frozen(kw_only=True)
class CudaOutcome:
    """
    What is known of the GPUs of a process.

    Attributes:
        threads: Its threads on the host; none if no tool could tell.

        kernels: What its GPUs were running.

        text: What cuda-gdb printed, and if it failed, a line that says so.

        attempts: How it went with each tool that was tried.
    """

    threads: Threads = ()
    kernels: tuple[GpuKernel, ...] = ()
    text: str = ""
    attempts: tuple[Attempt, ...] = ()


def capture_cuda(
    pid: int,
    *,
    timeout_s: float = 60.0,
    may_abort: bool = False,
    start_ticks: int | None = None,
) -> CudaOutcome:
    """
    Which kernels run on the GPUs of a process, and who waits for them?

    Args:
        pid: A process of this node.

        timeout_s: How long it may take in all, in seconds.

        may_abort: Whether a core dump of the GPUs may be asked for also if
            that ends the process, or may be as large as the memory of its
            GPUs.

        start_ticks: When the process started, in clock ticks since boot, if
            it must be that very process.

    Returns:
        The kernels, the threads, and how it went.
    """
    deadline = time.monotonic() + timeout_s
    state = read_state(pid)
    before: tuple[Attempt, ...] = ()
    if state is not None and start_ticks in {None, state.start_ticks}:
        outcome = _from_dump(pid, timeout_s / 2, may_abort=may_abort)
        if outcome.text:
            return outcome
        before = outcome.attempts
    left_s = max(deadline - time.monotonic(), 0.1)
    outcome = _from_debugger(pid, left_s, start_ticks)
    return attrs.evolve(outcome, attempts=(*before, *outcome.attempts))


def _from_dump(pid: int, timeout_s: float, *, may_abort: bool) -> CudaOutcome:
    """
    No text if the process offers no dump, or it could not be read.
    """
    tool, pipe = (
        find_tool("cuda-gdb"),
        find_dump_pipe(pid, may_abort=may_abort),
    )
    if tool is None or pipe is None:
        return CudaOutcome()

    begin, got, path = time.monotonic(), None, None
    try:
        path = request_dump(pipe, timeout_s=timeout_s)
        if path is not None:
            target = f"target cudacore {path}"
            look = gdb_arguments(target, "info cuda kernels", "bt")
            got = run_tool([tool, *look], timeout_s=timeout_s)
        detail = str(path or "the process wrote no dump in time")
    except OSError as exc:
        detail = str(exc)
    is_read = got is not None and bool(parse_kernels(got.output))
    attempt = Attempt(
        tool="GPU core dump",
        status=CaptureStatus.OK if is_read else CaptureStatus.TOOL_FAILED,
        detail=detail,
        seconds=time.monotonic() - begin,
    )
    if got is None or not is_read:
        return CudaOutcome(attempts=(attempt,))
    return CudaOutcome(
        kernels=parse_kernels(got.output),
        text=without_controls(got.output),
        attempts=(attempt,),
    )


def _from_debugger(
    pid: int, timeout_s: float, start_ticks: int | None
) -> CudaOutcome:
    deadline = time.monotonic() + timeout_s
    told = attach(
        _CUDA_GDB, pid, timeout_s=timeout_s * _SHARE, start_ticks=start_ticks
    )
    kernels = parse_kernels(told.text)
    if told.attempt.status is CaptureStatus.OK:
        return CudaOutcome(
            threads=told.threads,
            kernels=kernels,
            text=told.text,
            attempts=(told.attempt,),
        )

    left_s = max(deadline - time.monotonic(), 0.1)
    other = attach(GDB, pid, timeout_s=left_s, start_ticks=start_ticks)
    return CudaOutcome(
        threads=other.threads or told.threads,
        kernels=kernels,
        text=_failed_text(told, other),
        attempts=(told.attempt, other.attempt),
    )


def _failed_text(told: Told, other: Told) -> str:
    why = told.attempt
    reason = ": ".join(part for part in (why.status, why.detail) if part)
    remedy = f"\nTry: {why.remedy}" if why.remedy else ""
    seen = f"# What gdb saw\n\n{other.text}" if other.threads else ""
    parts = (told.text, f"{_FAILED} ({reason}){remedy}\n", seen)
    return "\n".join(part for part in parts if part)


def _arguments(pid: int) -> list[str]:
    commands = (
        r"echo # CUDA Kernel Information\n",
        "info cuda kernels",
        r"echo # Thread Backtraces\n",
        "thread apply all bt",
    )
    return [*gdb_arguments(*commands, more=_CURE), "-p", str(pid)]


_CUDA_GDB = Tool("cuda-gdb", "cuda-gdb", _arguments, parse_gdb)
