"""
What do the GPUs of this node tell?

By NVIDIA's library if Python can use it, or else by ``nvidia-smi``.  A driver
that hangs makes both hang for ever, so both have a bound.
"""

from __future__ import annotations

import time

from typing import Any

from ..._in_time import in_time
from ...capture.tool import find_tool
from .model import Gpu
from .nvml import gpus_by_library
from .smi import gpus_by_tool


__all__ = ["read_gpus"]


def read_gpus(
    *, timeout_s: float = 10.0, brief: bool = False
) -> tuple[Gpu, ...] | None:
    """
    Ask the GPUs of this node how they are.

    Args:
        timeout_s: How long it may take, in seconds.

        brief: Whether to ask only how busy they are and, if there are several,
            who uses which: that is cheap enough to be asked often.

    Returns:
        Every GPU in the order of its number, also one that does not answer;
        ``None`` if there is no way to ask: no driver, or none of NVIDIA.

    Raises:
        TimeoutError: The driver does not answer.

        OSError: ``nvidia-smi`` is there and fails; it says why.
    """
    deadline = time.monotonic() + timeout_s
    library = _library()
    if library is not None:
        found = in_time(
            lambda: gpus_by_library(library, brief=brief), timeout_s
        )
        if found is not None:
            return found

    tool = find_tool("nvidia-smi")
    if tool is None:
        return None

    left = max(deadline - time.monotonic(), 0.1)
    return gpus_by_tool(tool, timeout_s=left, brief=brief)


def _library() -> Any:
    try:
        import pynvml
    except Exception:  # noqa: BLE001 nvidia-smi is left
        return None

    return pynvml
