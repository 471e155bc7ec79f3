"""
Capture the GPU kernels of a process by cuda-gdb.

cuda-gdb stops the process and its GPUs for seconds.  A GPU core dump on request
(``CUDA_ENABLE_USER_TRIGGERED_COREDUMP``) takes less, but the process does not
survive it: with driver 580 the CUDA context fails afterwards, whatever the flags,
``skip_abort`` included.  So none is ever requested.
"""

from __future__ import annotations

import time

import attrs

from ..stacks import GpuKernel, parse_kernels
from .attach import GDB, Threads, Tool, ToolResult, attach, gdb_arguments
from .model import Attempt, CaptureStatus


# Scripts around cuda-gdb search for this line.
_FAILED_LINE = "ERROR: cuda-gdb failed or timed out"

_CUDA_GDB_SHARE = 5 / 6  # the rest is for gdb, if cuda-gdb fails
# cuda-gdb writes each module of the GPU to a temporary file; that of NCCL is
# larger than all that other tools write.
_MODULE_BYTES = 1 << 31
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
    _MODULE_BYTES,
)
