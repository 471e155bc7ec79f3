"""
Where is a rank that does not answer at all?

Native code may hold its interpreter, so that no thread of it runs.  py-spy looks
from outside, if it may.
"""

from __future__ import annotations

from ..._text import without_controls


__all__ = ["stack_from_outside"]


def stack_from_outside(pid: int) -> str:
    """
    What does py-spy say of a process?

    Args:
        pid: A process of this node.

    Returns:
        Its stack, or why there is none.
    """
    from ...capture.node import capture_process
    from ...errors import DistdebugError

    head = f"process {pid} does not answer; seen from outside:"
    try:
        found = capture_process(pid, timeout_s=15.0)
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
