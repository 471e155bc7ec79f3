"""
Detect whether the GPUs of a job do work, from their utilization.

A GPU that waits for another one looks busy: the waiting kernel spins, so the
GPU is used 100 % of the time, for hours.  But it hardly touches its memory,
and its figures do not change.  So these count as work:

- The memory is used at least 10 % of the time.  A training step reads weights
  and activations all the time; a waiting GPU polls a flag, which costs 0 % to
  a few.  A steady job can show the same figures for minutes, so a change is
  not required here.

- A figure changed by more than 5 points since its baseline.  A job whose GPUs
  idle now and then shows that.  Smaller changes are noise.  Rounding would not
  do: 49 and 50 may round differently, and a value that varies there would look
  like work for ever.

Not used: energy and clocks, which change without work; power, whose level
while waiting differs by model and is close to that of light work; and traffic
counters of PCIe and NVLink, which many nodes lack, and polling moves some of
them.

The result is a hint.  A job that computes for minutes from the caches alone
looks as if it waits, a server without requests does wait, and a job that
writes a checkpoint or compiles leaves its GPUs idle.
"""

from __future__ import annotations

import time

from collections.abc import Callable, Collection

from ..health import read_gpus


_BUSY_PERCENT = 10
_NOISE_POINTS = 5
_RETRY_S = 60.0
_MAX_RETRY_S = 3600.0


class GpuActivity:
    """
    Counts the samples in which GPUs did work; a sense for the watch.

    If the driver does not answer, wait before the next query, twice as long
    each time, up to an hour: each query may leave a thread that hangs.

    Args:
        timeout_s: How long one query may take, in seconds.

        clock: Returns the time in seconds; monotonic.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._baselines: dict[tuple[str, str], int] = {}
        self._count = 0
        self._retry_s = _RETRY_S
        self._next_query = float("-inf")

    def __call__(self, pids: Collection[int]) -> int | None:
        """
        Read the GPUs of *pids*, and return the number of samples with work.

        If none of them is known to use a GPU, all GPUs count, because in a
        container the PIDs of GPU processes often differ or are missing.

        The number is equal to the last one if no GPU worked; ``None`` if
        unknown.
        """
        figures = self._query(pids)
        if not figures:
            return None

        # A list: each call updates a baseline.
        is_working = [self._shows_work(*figure) for figure in figures.items()]
        self._count += any(is_working)
        return self._count

    def _query(self, pids: Collection[int]) -> dict[tuple[str, str], int]:
        """
        Return percent of the last second or less, by GPU and kind of load.

        A kernel ran (``computing``), even a waiting one, or the memory was
        read or written (``memory``); neither is known of a GPU in MIG mode.
        """
        if self._clock() < self._next_query:
            return {}

        try:
            gpus = read_gpus(timeout_s=self._timeout_s, brief=True)
        except Exception:  # noqa: BLE001 a sense must not raise
            gpus = None
        if gpus is None:
            self._next_query = self._clock() + self._retry_s
            self._retry_s = min(2 * self._retry_s, _MAX_RETRY_S)
            return {}

        self._retry_s = _RETRY_S
        used = [x for x in gpus if any(y.pid in pids for y in x.processes)]
        figures = {}
        for gpu in used or gpus:
            name = gpu.uuid or gpu.bus_id or str(gpu.index)
            figures[name, "computing"] = gpu.utilization
            figures[name, "memory"] = gpu.memory_utilization
        return {key: x for key, x in figures.items() if x is not None}

    def _shows_work(self, key: tuple[str, str], figure: int) -> bool:
        baseline = self._baselines.setdefault(key, figure)
        if abs(figure - baseline) > _NOISE_POINTS:
            self._baselines[key] = figure
            return True
        return key[1] == "memory" and figure >= _BUSY_PERCENT
