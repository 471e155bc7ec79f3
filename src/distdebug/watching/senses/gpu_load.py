"""
How busy are the GPUs of this node?
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ...health.gpu.model import Gpu
from ...health.gpu.read import read_gpus


__all__ = ["GpuLoad", "gpu_loads"]


class GpuLoad(NamedTuple):
    """
    How busy a GPU was during the last second or less.

    Attributes:
        name: What it is known by.

        computing: Percent of the time in which it ran anything, be it only a
            kernel that waits; ``None`` if that is not told.

        memory: Percent of the time in which its memory was read or written;
            ``None`` if that is not told.
    """

    name: str
    computing: int | None
    memory: int | None

    def figures(self) -> dict[str, int]:
        """
        What is told of both, by name.
        """
        both = {"computing": self.computing, "memory": self.memory}
        return {name: x for name, x in both.items() if x is not None}


def gpu_loads(
    pids: Collection[int], *, timeout_s: float
) -> tuple[GpuLoad, ...] | None:
    """
    Ask for the load of GPUs.

    Args:
        pids: Some processes.  If any of them is known to use a GPU, only the
            GPUs that they use are told; else all, because in a container the
            processes of GPUs often have other numbers, or none.

        timeout_s: How long it may take, in seconds.

    Returns:
        The load of each GPU, one that is split up (MIG) without numbers;
        ``None`` if there is no way to ask, or none that works.

    Raises:
        TimeoutError: The driver does not answer.
    """
    try:
        gpus = read_gpus(timeout_s=timeout_s, brief=True)
    except TimeoutError:
        raise
    except OSError:  # there is no driver, or it is broken
        return None

    if gpus is None:
        return None

    used = [x for x in gpus if any(user.pid in pids for user in x.processes)]
    return tuple(map(_load, used or gpus))


def _load(gpu: Gpu) -> GpuLoad:
    name = gpu.uuid or gpu.bus_id or str(gpu.index)
    return GpuLoad(name, gpu.utilization, gpu.memory_utilization)
