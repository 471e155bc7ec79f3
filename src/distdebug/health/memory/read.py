"""
How much memory is left on this node, and to this job?
"""

from __future__ import annotations

import os

from collections.abc import Collection

import attrs

from ...processes.procfs import read_proc, whole_number
from .cgroups import MemoryGroup, read_groups


__all__ = ["Memory", "read_memory"]


@attrs.frozen(kw_only=True)
class Memory:
    """
    The memory of a node, in bytes.

    Attributes:
        total: What there is.

        available: What a program could get.

        swap_total: Swap there is.

        swap_used: Swap in use.

        groups: The control groups of the job, inner ones first.
    """

    total: int | None = None
    available: int | None = None
    swap_total: int | None = None
    swap_used: int | None = None
    groups: tuple[MemoryGroup, ...] = ()


def read_memory(pids: Collection[int] = (), *, proc: str = "/proc") -> Memory:
    """
    Look at the memory of this node.

    Args:
        pids: The processes of the job; by default this one stands for them,
            which is right in a container.

        proc: Where the kernel's files are.

    Returns:
        What is known.

    Raises:
        OSError: The kernel does not tell.
    """
    data = read_proc(f"{proc}/meminfo")
    if data is None:
        msg = f"{proc}/meminfo cannot be read"
        raise OSError(msg)

    pairs = (
        line.split() for line in data.decode(errors="replace").split("\n")
    )
    told = {x[0]: whole_number(x[1]) for x in pairs if x[1:]}
    kib = {name: x << 10 for name, x in told.items() if x is not None}
    swap, free = kib.get("SwapTotal:"), kib.get("SwapFree:")
    is_known = swap is not None and free is not None
    return Memory(
        total=kib.get("MemTotal:"),
        available=kib.get("MemAvailable:"),
        swap_total=swap,
        swap_used=swap - free if is_known else None,  # type: ignore[operator]
        groups=read_groups(pids or (os.getpid(),), proc=proc),
    )
