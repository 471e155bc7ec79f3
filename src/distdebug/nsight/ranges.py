"""
How is the profiler told to capture, and to stop?
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import inspect
import re
import sys
import threading

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, overload

from .runtime_env import StepRange, parse_step_range, step_range_of_environment


_LIBRARY = re.compile(r"\s(/\S{0,4000}/libcudart[\w.-]{0,60})$", re.MULTILINE)
_NAMES = ("libcudart.so", *(f"libcudart.so.{n}" for n in (13, 12, "11.0")))


def start_capture() -> bool:
    """
    Call ``cudaProfilerStart``, which a profiler waits for.

    Returns:
        Whether it was called; without CUDA it is not.
    """
    return _call("cudaProfilerStart")


def stop_capture() -> bool:
    """
    Call ``cudaProfilerStop``, which ends what `start_capture` began.

    Returns:
        Whether it was called; without CUDA it is not.
    """
    return _call("cudaProfilerStop")


def _call(name: str) -> bool:
    with suppress(Exception):
        function = _of_torch(name) or _of_library(name)
        if function is not None:
            function()
            return True
    return False


def _of_torch(name: str) -> Callable[[], object] | None:
    # Only if the job has it already: without it there is nothing to capture.
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_available():
        return None
    function: Callable[[], object] = getattr(cuda.cudart(), name)
    return function


def _of_library(name: str) -> Callable[[], object] | None:
    library = _library()
    return None if library is None else getattr(library, name)


@functools.cache
def _library() -> ctypes.CDLL | None:
    loaded: list[str] = []
    with suppress(OSError):
        loaded = _LIBRARY.findall(Path("/proc/self/maps").read_text("utf-8"))
    for path in [*loaded, *_NAMES]:
        with suppress(OSError):
            return ctypes.CDLL(path)
    return None


class Marker(NamedTuple):
    """
    How to write a range.

    Attributes:
        push: Begins one within the last one of this thread.

        pop: Ends the last one of this thread.

        begin: Begins one that any thread may end; returns what ends it.

        end: Ends what *begin* began.
    """

    push: Callable[[str], object]
    pop: Callable[[], object]
    begin: Callable[[str], Any]
    end: Callable[[Any], object]


def find_marker() -> Marker | None:
    """
    Who writes ranges here?

    Returns:
        That of torch, if the job has it and it was built with CUDA; else the
        package ``nvtx``; ``None`` if there is neither.
    """
    return _marker_of_torch("torch" in sys.modules) or _of_package()


@functools.cache
def _marker_of_torch(is_loaded: bool) -> Marker | None:  # noqa: FBT001 the key of the cache
    if not is_loaded:
        return None
    with suppress(Exception):
        nvtx = importlib.import_module("torch.cuda.nvtx")
        # Without CUDA it is there, and raises.
        nvtx.range_push("distdebug")
        nvtx.range_pop()
        return Marker(
            nvtx.range_push, nvtx.range_pop, nvtx.range_start, nvtx.range_end
        )
    return None


@functools.cache
def _of_package() -> Marker | None:
    with suppress(Exception):
        nvtx = importlib.import_module("nvtx")
        return Marker(
            nvtx.push_range, nvtx.pop_range, nvtx.start_range, nvtx.end_range
        )
    return None


Function = TypeVar("Function", bound=Callable[..., Any])


class _Range:
    """
    A block, or a function, under a name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pops: list[Callable[[], object] | None] = []

    def __enter__(self) -> None:
        marker, pop = find_marker(), None
        with suppress(Exception):
            if marker is not None:
                marker.push(self._name)
                pop = marker.pop
        self._pops.append(pop)

    def __exit__(self, *_: object) -> None:
        pop = self._pops.pop()
        with suppress(Exception):
            if pop is not None:
                pop()

    def __call__(self, function: Function) -> Function:
        named: Function = _named(function, self._name)
        return named


@overload
def nvtx(name: str) -> _Range:
    """
    A block, or what decorates a function.
    """


@overload
def nvtx(name: Function) -> Function:
    """
    The function, decorated.
    """


def nvtx(name: Any) -> Any:
    """
    Let a function, or a block, stand in the profile under a name.

    As ``@nvtx``, ``@nvtx("forward")``, or ``with nvtx("forward"):``.  The
    range ends however the code ends.  A generator, or a function that is
    ``async``, has one range from its first step to its end, in which it may
    wait.  Where no profile can be written, such as without CUDA, nothing
    happens.

    Args:
        name: The name; or a function, which then stands under its own.

    Returns:
        What is a context manager, and a decorator that keeps the signature;
        or the function, decorated.
    """
    if isinstance(name, str):
        return _Range(name)
    return _named(name, name.__qualname__)


def _named(function: Any, name: str) -> Any:
    kinds: tuple[tuple[Callable[[Any], bool], Callable[..., Any]], ...] = (
        (inspect.isasyncgenfunction, _async_generator),
        (inspect.iscoroutinefunction, _coroutine),
        (inspect.isgeneratorfunction, _generator),
    )
    for is_kind, wrap in kinds:
        if is_kind(function):
            return functools.wraps(function)(wrap(function, name))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _Range(name):
            return function(*args, **kwargs)

    return call


@contextmanager
def _whole(name: str) -> Iterator[None]:
    """
    A range that may end anywhere: others run while this code waits.
    """
    marker, begun = find_marker(), None
    with suppress(Exception):
        if marker is not None:
            begun = (marker.begin(name),)
    try:
        yield
    finally:
        with suppress(Exception):
            if marker is not None and begun is not None:
                marker.end(*begun)


def _coroutine(function: Any, name: str) -> Any:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with _whole(name):
            return await function(*args, **kwargs)

    return call


def _generator(function: Any, name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _whole(name):
            return (yield from function(*args, **kwargs))

    return call


def _async_generator(function: Any, name: str) -> Any:
    async def call(*args: Any, **kwargs: Any) -> Any:
        stream = function(*args, **kwargs)
        resume, given = stream.asend, None
        with _whole(name):
            try:
                while True:
                    try:
                        item = await resume(given)
                    except StopAsyncIteration:
                        return
                    try:
                        given = yield item
                        resume = stream.asend
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001 it is passed on
                        resume, given = stream.athrow, error
            finally:
                await stream.aclose()

    return call


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
