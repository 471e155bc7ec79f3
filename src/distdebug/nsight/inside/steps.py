"""
When does a worker capture the steps that are wanted?
"""

from __future__ import annotations

import atexit
import threading

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from ..options.steps import (
    StepRange,
    parse_step_range,
    step_range_of_environment,
)
from .capture_range import start_capture, stop_capture


__all__ = ["StepProfiler"]


class StepProfiler:
    """
    Captures some steps of a job, once.

    Call it with the number of each step when that begins::

        with StepProfiler("3:6") as profiler:
            for number, batch in enumerate(batches, 1):
                profiler.step(number)
                train(batch)

    It starts at the first step within the range, also if the job resumed in
    the midst of it, and stops at the first step behind it, at the end of the
    block, or when the process ends, whichever comes first.  Starting and
    stopping twice does no harm; what was stopped never starts again, because
    nsys would not record it.  Without CUDA, and without a range, it does
    nothing.

    Args:
        step_range: Which steps; by default what
            ``DISTDEBUG_NSYS_PROFILE_STEP_RANGE`` says, which
            `nsight_runtime_env` sets, or else
            ``NRL_NSYS_PROFILE_STEP_RANGE``.

        start: What to call at the beginning; by default
            ``cudaProfilerStart``.

        stop: What to call at the end; by default ``cudaProfilerStop``.

    Raises:
        NsightError: It is no range of steps.
    """

    def __init__(
        self,
        step_range: StepRange | str | None = None,
        *,
        start: Callable[[], object] = start_capture,
        stop: Callable[[], object] = stop_capture,
    ) -> None:
        if isinstance(step_range, str):
            step_range = parse_step_range(step_range)
        self.step_range = step_range or step_range_of_environment()
        self._start, self._stop = start, stop
        self._began = self._ended = False
        self._lock = threading.Lock()

    @property
    def is_capturing(self) -> bool:
        """
        Whether it started, and did not stop yet.
        """
        return self._began and not self._ended

    def step(self, number: int) -> None:
        """
        Say that a step begins.

        Args:
            number: Its number, counted from 1.
        """
        if self.step_range is None:
            return
        if number in self.step_range:
            self.start()
        elif number >= self.step_range.stop:
            self.stop()

    __call__ = step

    def start(self) -> None:
        """
        Start capturing, unless it did before.
        """
        with self._lock:
            if self._began:
                return
            self._began = True
            atexit.register(self.stop)
            with suppress(Exception):
                self._start()

    def stop(self) -> None:
        """
        Stop capturing, if it started and did not stop yet.
        """
        with self._lock:
            if not self.is_capturing:
                return
            self._ended = True
            atexit.unregister(self.stop)
            with suppress(Exception):
                self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
