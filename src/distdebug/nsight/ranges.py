"""
Mark NVTX ranges, and start and stop the capture of a profiler.
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

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, overload

from .runtime_env import StepRange, resolve_step_range


_LOADED_LIBRARY = re.compile(
    r"\s(/\S{0,4000}/libcudart[\w.-]{0,60})$", re.MULTILINE
)
_LIBRARY_NAMES = (
    "libcudart.so",
    *(f"libcudart.so.{n}" for n in (13, 12, "11.0")),
)


def start_capture() -> bool:
    """
    Call ``cudaProfilerStart``, which starts the capture of a profiler.

    Returns:
        Whether it was called; ``False`` without CUDA.
    """
    return _call_cudart("cudaProfilerStart")


def stop_capture() -> bool:
    """
    Call ``cudaProfilerStop``, which ends the capture of a profiler.

    Returns:
        Whether it was called; ``False`` without CUDA.
    """
    return _call_cudart("cudaProfilerStop")


def _call_cudart(name: str) -> bool:
    with suppress(Exception):
        function = _torch_function(name) or _library_function(name)
        if function is not None:
            function()
            return True
    return False


def _torch_function(name: str) -> Callable[[], object] | None:
    # Never import torch: a job without it has nothing to capture.
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_available():
        return None
    function: Callable[[], object] = getattr(cuda.cudart(), name)
    return function


def _library_function(name: str) -> Callable[[], object] | None:
    library = _load_cudart()
    return None if library is None else getattr(library, name)


@functools.cache
def _load_cudart() -> ctypes.CDLL | None:
    loaded: list[str] = []
    with suppress(OSError):
        loaded = _LOADED_LIBRARY.findall(
            Path("/proc/self/maps").read_text("utf-8")
        )
    for path in [*loaded, *_LIBRARY_NAMES]:
        with suppress(OSError):
            return ctypes.CDLL(path)
    return None


class RangeApi(NamedTuple):
    """
    Functions that write NVTX ranges.

    Attributes:
        push: Begins a nested range of this thread.

        pop: Ends the innermost range of this thread.

        begin: Begins a range that any thread may end; returns its handle.

        end: Ends the range of a handle.
    """

    push: Callable[[str], object]
    pop: Callable[[], object]
    begin: Callable[[str], Any]
    end: Callable[[Any], object]


# The modules that write ranges, with the names of these functions there.
_RANGE_MODULES = {
    "torch.cuda.nvtx": ("range_push", "range_pop", "range_start", "range_end"),
    "nvtx": ("push_range", "pop_range", "start_range", "end_range"),
}


def find_range_api() -> RangeApi | None:
    """
    Return the NVTX functions of torch or of the package ``nvtx``.

    Torch is used if the job has imported it and it was built with CUDA.

    Returns:
        ``None`` if there is neither.
    """
    is_loaded = "torch" in sys.modules
    from_torch = _load_range_api("torch.cuda.nvtx") if is_loaded else None
    return from_torch or _load_range_api("nvtx")


@functools.cache
def _load_range_api(module: str) -> RangeApi | None:
    with suppress(Exception):
        found, names = importlib.import_module(module), _RANGE_MODULES[module]
        api = RangeApi(*(getattr(found, name) for name in names))
        if module != "nvtx":
            # Without CUDA, torch has the functions, but they raise.
            api.push("distdebug")
            api.pop()
        return api
    return None


Function = TypeVar("Function", bound=Callable[..., Any])


class _Range:
    """
    An NVTX range as a context manager and a decorator.

    A movable one may end in another thread, or between others.
    """

    def __init__(self, name: str, *, is_movable: bool = False) -> None:
        self._name, self._is_movable = name, is_movable
        self._ends: list[Callable[[], object]] = []

    def __enter__(self) -> None:
        api = find_range_api()
        end: Callable[[], object] = bool  # nothing to end
        with suppress(Exception):
            if api is not None and self._is_movable:
                end = functools.partial(api.end, api.begin(self._name))
            elif api is not None:
                api.push(self._name)
                end = api.pop
        self._ends.append(end)

    def __exit__(self, *_: object) -> None:
        end = self._ends.pop()
        with suppress(Exception):
            end()

    def __call__(self, function: Function) -> Function:
        named: Function = _wrap_function(function, self._name)
        return named


@overload
def nvtx(name: str) -> _Range:
    """
    Return a context manager that is also a decorator.
    """


@overload
def nvtx(name: Function) -> Function:
    """
    Return the decorated function.
    """


def nvtx(name: Any) -> Any:
    """
    Mark a function, or a block, as an NVTX range in the profile.

    Use it as ``@nvtx``, ``@nvtx("forward")``, or ``with nvtx("forward"):``.
    The range also ends if the code raises.  A generator or an ``async``
    function has one range from its first step to its end, including waits.
    Without CUDA, it does nothing.

    Args:
        name: The name of the range; or a function, which gives the name.

    Returns:
        A context manager that is also a decorator; or the decorated function.
    """
    if isinstance(name, str):
        return _Range(name)
    return _wrap_function(name, name.__qualname__)


def _wrap_function(function: Any, name: str) -> Any:
    kinds: tuple[tuple[Callable[[Any], bool], Callable[..., Any]], ...] = (
        (inspect.isasyncgenfunction, _wrap_async_generator),
        (inspect.iscoroutinefunction, _wrap_coroutine),
        (inspect.isgeneratorfunction, _wrap_generator),
    )
    for is_kind, wrap in kinds:
        if is_kind(function):
            return functools.wraps(function)(wrap(function, name))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _Range(name):
            return function(*args, **kwargs)

    return call


def _wrap_coroutine(function: Any, name: str) -> Any:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with _Range(name, is_movable=True):
            return await function(*args, **kwargs)

    return call


def _wrap_generator(function: Any, name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _Range(name, is_movable=True):
            return (yield from function(*args, **kwargs))

    return call


def _wrap_async_generator(function: Any, name: str) -> Any:
    async def call(*args: Any, **kwargs: Any) -> Any:
        stream = function(*args, **kwargs)
        resume, sent = stream.asend, None
        with _Range(name, is_movable=True):
            try:
                while True:
                    try:
                        item = await resume(sent)
                    except StopAsyncIteration:
                        return
                    try:
                        sent = yield item
                        resume = stream.asend
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001 passed to the generator
                        resume, sent = stream.athrow, error
            finally:
                await stream.aclose()

    return call


class StepProfiler:
    """
    Capture a range of steps of a job, once.

    Call it with the number of each step when that begins::

        with StepProfiler("3:6") as profiler:
            for number, batch in enumerate(batches, 1):
                profiler.step(number)
                train(batch)

    Capture starts at the first step within the range, also if the job resumes
    inside it, and stops at the first step behind it, at the end of the block,
    or at the end of the process.  Repeated starts and stops do nothing.  It
    never starts again after a stop, because nsys would not record it.  Without
    CUDA, and without a range, it does nothing.

    Args:
        step_range: The steps; by default the value of
            ``DISTDEBUG_NSYS_PROFILE_STEP_RANGE``, which `nsight_runtime_env`
            sets, or else of ``NRL_NSYS_PROFILE_STEP_RANGE``.

        start: Called at the beginning; by default ``cudaProfilerStart``.

        stop: Called at the end; by default ``cudaProfilerStop``.

    Raises:
        NsightError: *step_range* is not a range of steps.
    """

    def __init__(
        self,
        step_range: StepRange | str | None = None,
        *,
        start: Callable[[], object] = start_capture,
        stop: Callable[[], object] = stop_capture,
    ) -> None:
        self.step_range = resolve_step_range(step_range)
        self._start, self._stop = start, stop
        self._began = self._ended = False
        self._lock = threading.Lock()

    @property
    def is_capturing(self) -> bool:
        """
        Return whether capture has started and not stopped.
        """
        return self._began and not self._ended

    def step(self, number: int) -> None:
        """
        Start or stop capture at the begin of a step.

        Args:
            number: The step number, from 1.
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
        Start capture, unless it was started before.
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
        Stop capture, if it is running.
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

    def __exit__(self, *_: object) -> None:
        self.stop()
