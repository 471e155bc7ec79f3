"""
Where is a rank that does not answer at all?

Native code may hold its interpreter, so that no thread of it runs.  py-spy looks
from outside, if it may.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from ..._text import without_controls
from ...processes.model import Worker
from .model import ranks_told


__all__ = ["stacks_from_outside", "stacks_of_unarmed"]

_TIMEOUT_S = 15.0
# A node has seldom more ranks.
_AT_ONCE = 8


def stacks_from_outside(pids: Iterable[int]) -> tuple[str, ...]:
    """
    What does py-spy say of some processes that do not answer?

    Args:
        pids: Processes of this node.

    Returns:
        The stack of each, or why there is none.
    """
    return _stacks((pid, f"process {pid} does not answer") for pid in pids)


def stacks_of_unarmed(workers: Iterable[Worker]) -> tuple[str, ...]:
    """
    What does py-spy say of ranks that were started without us?

    Args:
        workers: Ranks of this node.

    Returns:
        The stack of each, or why there is none.
    """
    return _stacks(
        (w.pid, f"{ranks_told([w.rank])} (process {w.pid}) is not armed")
        for w in workers
    )


def _stacks(asked: Iterable[tuple[int, str]]) -> tuple[str, ...]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(pool.map(lambda one: _stack(*one), asked))


def _stack(pid: int, why: str) -> str:
    from ...capture.node import capture_process
    from ...errors import DistdebugError

    head = f"{why}; seen from outside:"
    try:
        found = capture_process(pid, timeout_s=_TIMEOUT_S)
    except (DistdebugError, OSError) as exc:
        return f"{head} {without_controls(str(exc))}"

    if found.stacks is None:
        return f"{head} {without_controls(found.remedy)}"

    lines = [
        f"  {frame.filename}:{frame.line} in {frame.name}"
        for thread in found.stacks.threads
        if thread.is_main
        for frame in reversed(thread.frames)
    ]
    return without_controls("\n".join([head, *lines]))
