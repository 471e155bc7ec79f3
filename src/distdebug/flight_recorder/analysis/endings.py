"""
Did a rank end by itself, or because others did?

When one rank dies, the collectives of all others fail.  Only the text of the
exception tells which came first.
"""

from __future__ import annotations

import re

from ..sidecar import Sidecar


__all__ = [
    "failed_in_call",
    "failed_off_record",
    "lost_peer",
    "was_interrupted",
]

# Torch raises its own kinds of errors; and RuntimeError, which anybody raises.
_OF_TORCH = re.compile(r"(?:\w+\.)*Dist\w*Error\b")
_OF_ANYBODY = re.compile(
    r"RuntimeError\b(?!.*dataloader).*?(?:gloo|nccl|timed out"
    r"|connection (?:closed by peer|reset|refused))",
    re.IGNORECASE | re.DOTALL,
)
_PEER_IS_GONE = re.compile(
    r"connection (?:closed by peer|reset|refused)|broken pipe"
    r"|remote process exit",
    re.IGNORECASE,
)
# What Gloo does not record (torch 2.13).
_OFF_RECORD = {"irecv", "isend", "monitored_barrier", "recv", "send"}


def failed_in_call(error: str) -> bool:
    """
    Whether an exception came out of a collective, not out of other code.

    Args:
        error: Type and text, such as ``"RuntimeError: Connection closed by
            peer"``.
    """
    return bool(_OF_TORCH.match(error) or _OF_ANYBODY.match(error))


def failed_off_record(sidecar: Sidecar) -> bool:
    """
    Whether a rank died of a call that Gloo does not record.

    Args:
        sidecar: Of that rank.
    """
    if not failed_in_call(sidecar.error):
        return False

    stack = dict(sidecar.threads).get("MainThread", ())
    in_torch = (
        frame.name
        for frame in stack
        if frame.filename.endswith("distributed_c10d.py")
    )
    return next(in_torch, "") in _OFF_RECORD


def lost_peer(error: str) -> bool:
    """
    Whether a collective failed because another rank had gone.

    Args:
        error: Type and text of the exception.
    """
    return failed_in_call(error) and bool(_PEER_IS_GONE.search(error))


def was_interrupted(error: str) -> bool:
    """
    Whether a person ended the rank, perhaps because it was stuck.

    Args:
        error: Type and text of the exception.
    """
    return error.startswith("KeyboardInterrupt")
