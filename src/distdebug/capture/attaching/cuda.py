"""
Which kernels run on the GPUs of this process, and who waits for them?

cuda-gdb stops the process and its GPUs for seconds.  If the process can write
a core dump of its GPUs on request, and goes on after it, that is asked for
instead.
"""

from __future__ import annotations

import time

import attrs

from ..._text import without_controls
from ...processes.threads import read_state
from ...stacks.formats.cuda import parse_kernels
from ...stacks.formats.gdb import parse_gdb
from ...stacks.model import GpuKernel
from ..model import Attempt, CaptureStatus
from ..tool import find_tool, run_tool
from .attach import Threads, Told, Tool, attach
from .cuda_dump import find_dump_pipe, request_dump
from .native import GDB, gdb_arguments


__all__ = ["CudaOutcome", "capture_cuda"]

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
