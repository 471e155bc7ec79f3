"""
Do the GPUs of a job do something?

A GPU that waits for another one is as busy as can be: the kernel that waits
spins, so that the GPU counts as used 100 % of the time, for hours.  What gives
it away is that nothing else happens: it hardly touches its memory, and the
figures stay as they are.  So these count as signs of work:

- The memory is in use for at least 10 % of the time.  A step of training reads
  weights and activations all the time, and one that waits polls a flag, which
  costs 0 % to a few.  A steady job can show the same figures for minutes, so
  to demand a change would be wrong here.

- A figure changed by more than 5 points since it was noted last.  A job whose
  GPUs idle now and then shows that.  Smaller changes are noise.  It is not
  rounded instead, because 49 and 50 may be different when rounded, and a value
  that trembles there would look like work for ever.

What was left out: energy and clocks, which grow or tremble whether or not
anything is done; power, whose level while waiting differs by model and is not
far from that of light work; and traffic counters of PCIe and NVLink, which
many nodes do not have, and polling moves some of them.

It stays a hint.  A job that computes for minutes out of the caches alone looks
as if it waited, a server without requests does wait, and one that writes a
checkpoint or compiles leaves its GPUs idle.
"""

from __future__ import annotations

import time

from collections.abc import Callable, Collection
from typing import NamedTuple

from ..health import Gpu, read_gpus


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


_BUSY = 10
_NOISE = 5
_PAUSE_S = 60.0
_LONGEST_PAUSE_S = 3600.0


class GpuActivity:
    """
    Counts how often GPUs were seen at work; to be called as a sense.

    If the driver does not answer, it is not asked again for a while, twice as
    long each time, up to an hour: whoever asked may hang with it for ever.

    Args:
        timeout_s: How long one look may take, in seconds.

        ask: Takes the numbers of processes and the seconds it may take, and
            tells the loads of their GPUs.

        clock: Tells the time in seconds; it must not go back.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 5.0,
        ask: Callable[..., tuple[GpuLoad, ...] | None] = gpu_loads,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s = timeout_s
        self._ask = ask
        self._clock = clock
        self._noted: dict[tuple[str, str], int] = {}
        self._count = 0
        self._pause_s = _PAUSE_S
        self._silent_until = float("-inf")

    def __call__(self, pids: Collection[int]) -> int | None:
        """
        Look at the GPUs.

        Args:
            pids: The processes that are watched; see
                :func:`~distdebug.watching.gpu_activity.gpu_loads`.

        Returns:
            The number of looks at which any of the GPUs worked, so equal to
            the last one if none did; ``None`` if that cannot be seen.
        """
        figures = self._figures(pids)
        if not figures:
            return None

        # All of them, because each is noted on the way.
        works = [self._shows_work(*figure) for figure in figures.items()]
        self._count += any(works)
        return self._count

    def _figures(self, pids: Collection[int]) -> dict[tuple[str, str], int]:
        if self._clock() < self._silent_until:
            return {}

        try:
            loads = self._ask(pids, timeout_s=self._timeout_s)
        except Exception:  # noqa: BLE001 a sense does not raise
            loads = None
        if loads is None:
            self._silent_until = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            return {}

        self._pause_s = _PAUSE_S
        return {
            (load.name, kind): figure
            for load in loads
            for kind, figure in load.figures().items()
        }

    def _shows_work(self, of: tuple[str, str], figure: int) -> bool:
        _, kind = of
        is_new = abs(figure - self._noted.setdefault(of, figure)) > _NOISE
        if is_new:
            self._noted[of] = figure
        return is_new or (kind == "memory" and figure >= _BUSY)
