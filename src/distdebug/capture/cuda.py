"""
Capture the GPU kernels of a process, by GPU core dump or cuda-gdb.

cuda-gdb stops the process and its GPUs for seconds.  So a GPU core dump is
requested instead where the process offers one and survives it.
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

from .._proc import find_tool, run_tool
from .._text import without_controls
from ..processes import list_numbers, read_environ, read_link, read_state
from ..stacks import GpuKernel, parse_kernels
from .attach import GDB, Threads, Tool, ToolResult, attach, gdb_arguments
from .model import Attempt, CaptureStatus


# Without these flags the dump ends the process, or holds all GPU memory.
_SAFE_FLAGS = {"skip_abort", "skip_global_memory"}
_DEFAULT_PIPE = "corepipe.cuda.%h.%p"
_DEFAULT_FILE = "core_%t_%h_%p.nvcudmp"
_TRIGGER_BYTES = 1 << 20
_CHUNK_BYTES = 4096  # PIPE_BUF: fits whenever a pipe is writable
_POLL_S = 0.1
_STABLE_S = 0.5


class DumpPipe(NamedTuple):
    """
    Pipe that requests a GPU core dump.

    Attributes:
        pid: The process that reads it.

        path: The pipe.

        files: Glob pattern of the files that dumps are written to.
    """

    pid: int
    path: str
    files: str


def find_dump_pipe(pid: int) -> DumpPipe | None:
    """
    Find the pipe by which a process accepts requests for GPU core dumps.

    Args:
        pid: A process of this node.

    Returns:
        The pipe; ``None`` if there is none, or a dump would do harm.
    """
    environ, _ = read_environ(pid)
    flags = environ.get("CUDA_COREDUMP_GENERATION_FLAGS", "")
    if not set(re.split(r"[\s,]+", flags)) >= _SAFE_FLAGS:
        return None

    template = environ.get("CUDA_COREDUMP_PIPE") or _DEFAULT_PIPE
    name = re.compile(
        _expand_pattern(template.rpartition("/")[2], re.escape, ".+")
    )
    for fd in list_numbers(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        target = read_link(path).rpartition("/")[2]
        if name.fullmatch(target) and _is_pipe(path):
            return DumpPipe(pid, path, _dump_file_glob(pid, environ))
    return None


def request_dump(pipe: DumpPipe, *, timeout_s: float) -> Path | None:
    """
    Request a GPU core dump of a process, and wait for the file.

    Args:
        timeout_s: Time limit, in seconds.

    Returns:
        The file; ``None`` if it was not complete in time.

    Raises:
        OSError: The pipe cannot be written to.
    """
    end = time.monotonic() + timeout_s
    old = set(glob.glob(pipe.files))  # noqa: PTH207 there are wildcards in it
    _trigger_dump(pipe.path, end)
    size, since = -1, time.monotonic()
    while time.monotonic() < end:
        time.sleep(_POLL_S)
        new = sorted(set(glob.glob(pipe.files)) - old)  # noqa: PTH207
        if not new:
            continue
        now, path = time.monotonic(), Path(new[0])
        if path.stat().st_size != size:
            size, since = path.stat().st_size, now
        elif size and now - since > _STABLE_S and not _is_open(pipe.pid, path):
            return path
    return None


def _expand_pattern(
    pattern: str, escape: Callable[[str], str], any_text: str
) -> str:
    """
    Replace ``%h``, ``%p``, and ``%t``, whose values are unknown, by a
    wildcard.
    """
    return "".join(
        any_text if part in {"%h", "%p", "%t"} else escape(part)
        for part in re.split("(%[hpt])", pattern)
    )


def _dump_file_glob(pid: int, environ: dict[str, str]) -> str:
    template = environ.get("CUDA_COREDUMP_FILE") or _DEFAULT_FILE
    # The path is that of the process, which may be in a container.
    base = "root" if template.startswith("/") else "cwd"
    return f"/proc/{pid}/{base}/{_expand_pattern(template, glob.escape, '*')}"


def _is_pipe(path: str) -> bool:
    try:
        return stat.S_ISFIFO(Path(path).stat().st_mode)
    except OSError:
        return False


def _trigger_dump(path: str, end: float) -> None:
    """
    Write more than a pipe buffers, so that the driver surely reads a byte.
    """
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        written, poll = 0, select.poll()
        poll.register(fd, select.POLLOUT)
        while written < _TRIGGER_BYTES and poll.poll(_poll_timeout_ms(end)):
            written += os.write(fd, bytes(_CHUNK_BYTES))
    finally:
        os.close(fd)


def _poll_timeout_ms(end: float) -> float:
    # A reader that stops for a second has read enough.
    return 1000 * min(max(end - time.monotonic(), 0), 1)


def _is_open(pid: int, path: Path) -> bool:
    fds = list_numbers(f"/proc/{pid}/fd")
    names = (read_link(f"/proc/{pid}/fd/{fd}") for fd in fds)
    return any(name.rpartition("/")[2] == path.name for name in names)


# Scripts around cuda-gdb search for this line.
_FAILED_LINE = "ERROR: cuda-gdb failed or timed out"

_CUDA_GDB_SHARE = 5 / 6  # the rest is for gdb, if cuda-gdb fails
# The unwinder of cuda-gdb 11.8 fails on every frame: it treats the answer of
# Python that there is nothing to unwind as an error.
_UNWINDER_FIX = (
    "set python print-stack none",
    "python gdb._execute_unwinders = None",
)


@attrs.frozen(kw_only=True)
class CudaOutcome:
    """
    GPU kernels and host threads of a process.

    Attributes:
        threads: Its threads on the host; empty if every tool failed.

        kernels: Kernels that its GPUs were running.

        text: Output of cuda-gdb; with a line that says so if it failed.

        attempts: One per tool that was tried.
    """

    threads: Threads = ()
    kernels: tuple[GpuKernel, ...] = ()
    text: str = ""
    attempts: tuple[Attempt, ...] = ()


def capture_cuda(
    pid: int, *, timeout_s: float, start_ticks: int | None = None
) -> CudaOutcome:
    """
    Return the GPU kernels of a process, and its host threads.

    Args:
        timeout_s: Time limit for all tools together, in seconds.

        start_ticks: Expected start time, in clock ticks since boot; None
            accepts any process with this PID.
    """
    deadline = time.monotonic() + timeout_s
    state = read_state(pid)
    before: tuple[Attempt, ...] = ()
    if state is not None and start_ticks in {None, state.start_ticks}:
        outcome = _capture_from_dump(pid, timeout_s / 2)
        if outcome.text:
            return outcome
        before = outcome.attempts
    left_s = max(deadline - time.monotonic(), 0.1)
    outcome = _capture_with_debugger(pid, left_s, start_ticks)
    return attrs.evolve(outcome, attempts=(*before, *outcome.attempts))


def _capture_from_dump(pid: int, timeout_s: float) -> CudaOutcome:
    """
    Capture from a GPU core dump; without text if there is none to read.
    """
    tool, pipe = find_tool("cuda-gdb"), find_dump_pipe(pid)
    if tool is None or pipe is None:
        return CudaOutcome()

    begin, result, path = time.monotonic(), None, None
    try:
        path = request_dump(pipe, timeout_s=timeout_s)
        if path is not None:
            target = f"target cudacore {path}"
            arguments = gdb_arguments(target, "info cuda kernels", "bt")
            result = run_tool([tool, *arguments], timeout_s=timeout_s)
        detail = str(path or "the process wrote no dump in time")
    except OSError as exc:
        detail = str(exc)
    kernels = parse_kernels(result.output) if result else ()
    attempt = Attempt(
        tool="GPU core dump",
        status=CaptureStatus.OK if kernels else CaptureStatus.TOOL_FAILED,
        detail=detail,
        seconds=time.monotonic() - begin,
    )
    text = without_controls(result.output) if result and kernels else ""
    return CudaOutcome(kernels=kernels, text=text, attempts=(attempt,))


def _capture_with_debugger(
    pid: int, timeout_s: float, start_ticks: int | None
) -> CudaOutcome:
    deadline = time.monotonic() + timeout_s
    result = attach(
        _CUDA_GDB,
        pid,
        timeout_s=timeout_s * _CUDA_GDB_SHARE,
        start_ticks=start_ticks,
    )
    outcome = CudaOutcome(
        threads=result.threads,
        kernels=parse_kernels(result.text),
        text=result.text,
        attempts=(result.attempt,),
    )
    if result.attempt.status is CaptureStatus.OK:
        return outcome

    left_s = max(deadline - time.monotonic(), 0.1)
    fallback = attach(GDB, pid, timeout_s=left_s, start_ticks=start_ticks)
    return attrs.evolve(
        outcome,
        threads=fallback.threads or result.threads,
        text=_failed_text(result, fallback),
        attempts=(result.attempt, fallback.attempt),
    )


def _failed_text(result: ToolResult, fallback: ToolResult) -> str:
    failure = result.attempt
    reason = ": ".join(
        part for part in (failure.status, failure.detail) if part
    )
    remedy = f"\nTry: {failure.remedy}" if failure.remedy else ""
    gdb_text = f"# What gdb saw\n\n{fallback.text}" if fallback.threads else ""
    parts = (result.text, f"{_FAILED_LINE} ({reason}){remedy}\n", gdb_text)
    return "\n".join(part for part in parts if part)


_CUDA_GDB_COMMANDS = (
    r"echo # CUDA Kernel Information\n",
    "info cuda kernels",
    r"echo # Thread Backtraces\n",
    "thread apply all bt",
)
_CUDA_GDB = Tool(
    *("cuda-gdb", "cuda-gdb"),
    [*gdb_arguments(*_CUDA_GDB_COMMANDS, more=_UNWINDER_FIX), "-p"],
)
