"""
How is the profiler told to capture, and to stop?
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


__all__ = ["start_capture", "stop_capture"]

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
