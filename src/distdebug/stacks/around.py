"""
What is around the code that tells?

Workers run the user's code inside loops of their own; with ``fork`` they also
carry the stack of their parent.
"""

from __future__ import annotations

from collections.abc import Sequence

from .model import ProcessStacks, StackFrame, ThreadStack
from .places import is_native, last_name


__all__ = [
    "is_begun",
    "is_in_loop",
    "is_program",
    "outside_of",
    "own_frames",
    "uses_gpu",
]

# The driver, and torch for the sake of NCCL, name threads of their own.
_GPU_THREADS = ("cuda-", "cuda0", "pt_nccl_")
_GPU_SERVERS = ("sglang::scheduler", "VLLM::Worker", "VLLM::EngineCore")


def own_frames(
    thread: ThreadStack, process: ProcessStacks
) -> Sequence[StackFrame]:
    """
    The lines of the code that a thread was given; all, if there are none.

    Args:
        thread: The thread.

        process: Its process.
    """
    outside = outside_of(thread, process)
    python = [f for f in thread.frames if not is_native(f)]
    return python[:outside] or thread.frames or thread.native


def outside_of(thread: ThreadStack, process: ProcessStacks) -> int:
    """
    Where the code that a worker was given begins, from the inside.

    What is around it is the worker, and with ``fork`` also its parent.
    """
    python = (f for f in thread.frames if not is_native(f))
    for index, frame in enumerate(python):
        name = last_name(frame.name)
        path = frame.filename.replace("\\", "/")
        if name == "_bootstrap" and path.endswith(
            "multiprocessing/process.py"
        ):
            return index + 1
        if name == "_worker_loop" and "utils/data" in path:
            return index + 1
        if path.endswith("torch/utils/data/_utils/fetch.py") and (
            process.role == "dataloader"
        ):
            return index or 1
    return len(thread.frames)


def is_program(thread: ThreadStack) -> bool:
    """
    Whether a thread began as a program, and not as a thread.
    """
    return any(last_name(f.name) == "<module>" for f in thread.frames[-2:])


def is_begun(thread: ThreadStack) -> bool:
    """
    Whether a thread began as a thread of Python, and not as a program.
    """
    return any(
        last_name(f.name) in {"_bootstrap", "_bootstrap_inner"}
        and f.filename.endswith("threading.py")
        for f in thread.frames[-6:]
    )


def uses_gpu(process: ProcessStacks) -> bool | None:
    """
    Whether a process uses a GPU: the driver names threads of its own.
    """
    if process.kernels or any(
        t.name.startswith(_GPU_THREADS) for t in process.threads
    ):
        return True
    was_alive = any(
        t.activity or t.system_call or t.idle_s is not None
        for t in process.threads
    )
    is_server = process.command.startswith(_GPU_SERVERS)
    return is_server or (False if was_alive else None)


def is_in_loop(thread: ThreadStack) -> bool:
    """
    Whether a thread runs a callback of an event loop.
    """
    for index, frame in enumerate(thread.frames):
        path = frame.filename.replace("\\", "/")
        name = last_name(frame.name)
        if name == "_run" and path.endswith("asyncio/events.py"):
            return True
        if (
            index
            and name in {"run", "wrapper"}
            and path.endswith(("asyncio/runners.py", "uvloop/__init__.py"))
        ):
            return True
    return False
