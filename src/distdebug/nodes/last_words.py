"""
Why did a command end that should not have?
"""

from __future__ import annotations

from .._text import clean
from .model import NodeStatus, Trouble


__all__ = ["trouble_of"]


def trouble_of(
    status: int | None, complaint: str, timeout_s: float
) -> Trouble:
    """
    What can be told of a command that left no answer?

    Args:
        status: Its exit status; ``None`` if it was ended by us.

        complaint: What it wrote to its standard error.

        timeout_s: How long it was waited for, in seconds.

    Returns:
        What happened, and what helps.
    """
    if status is None:
        return Trouble(
            NodeStatus.TIMED_OUT,
            f"no answer after {timeout_s:g} s",
            "give it more time, or look at the node itself",
        )
    return Trouble(
        NodeStatus.FAILED,
        _last_words(status, complaint),
        _missing_remedy(complaint),
    )


def _last_words(status: int, complaint: str) -> str:
    lines = [line for line in map(clean, complaint.splitlines()) if line]
    ended = f"signal {-status}" if status < 0 else f"status {status}"
    return f"it ended with {ended}" + (f": {lines[-1]}" if lines else "")


def _missing_remedy(complaint: str) -> str:
    if "No module named" in complaint:
        return "install distdebug on the node, or in its container"
    return ""
