"""
What runs on the GPU while the host waits for it?
"""

from __future__ import annotations

import re

import attrs

from ..findings import Cause, Evidence
from .model import GpuKernel
from .rules import RuleBook
from .view import ProcessView


__all__ = ["with_kernels"]

# Communication waits for other ranks, and is no kernel of its own.
_OF_RANKS = re.compile(
    r"nccl|rccl|nvshmem|all_?reduce|allgather|hccl", re.IGNORECASE
)
_WAITS_FOR_GPU = frozenset(
    {
        Cause.GPU_SYNC_WAIT,
        Cause.LAUNCH_BLOCKED,
        Cause.COLLECTIVE_WAIT,
        Cause.NATIVE_SPIN,
        Cause.PYTHON_LOOP,
        Cause.UNKNOWN,
        Cause.LOCK_DEADLOCK,
    }
)
_MOST_NAME = 80


def with_kernels(view: ProcessView, book: RuleBook) -> ProcessView:
    """
    Let the kernels on its GPU tell what a process waits for.

    Args:
        view: What the host does.

        book: Says what to do about it.

    Returns:
        The view; of a host that waits for its GPU, with the kernel's name.
    """
    kernels = view.process.kernels
    if not kernels or view.cause not in _WAITS_FOR_GPU:
        return view

    own = [k for k in kernels if not _OF_RANKS.search(k.name[:200])]
    kernel = (own or list(kernels))[0]
    cause = Cause.GPU_KERNEL if own else Cause.COLLECTIVE_WAIT
    name = short_name(kernel)
    device = "" if kernel.device is None else f" of device {kernel.device}"
    return attrs.evolve(
        view,
        cause=cause,
        doing=f"is waiting for the kernel {name}{device}",
        confidence="likely",
        remedy=book.remedy.get(cause, ""),
        evidence=(
            Evidence(
                kind="gpu",
                source=view.process.source,
                location=f"device {kernel.device}",
                quote=kernel.name,
            ),
            *view.evidence,
        ),
    )


def short_name(kernel: GpuKernel) -> str:
    """
    Name a kernel without its arguments.

    Args:
        kernel: The kernel.
    """
    name = kernel.name.partition("<<<")[0].partition("(")[0].strip()
    name = (name or kernel.name).removeprefix("void ")
    return name if len(name) <= _MOST_NAME else f"{name[:_MOST_NAME]}…"
