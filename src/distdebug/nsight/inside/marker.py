"""
Who writes ranges into the profile of this process?
"""

from __future__ import annotations

import functools
import importlib
import sys

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple


__all__ = ["Marker", "find_marker"]


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
    return _of_torch("torch" in sys.modules) or _of_package()


@functools.cache
def _of_torch(is_loaded: bool) -> Marker | None:  # noqa: FBT001 the key of the cache
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
