"""
What is wrong if something failed in this way, and is its own rank at fault?
"""

from __future__ import annotations

import re

from collections.abc import Mapping

from ...findings import Cause
from .model import Failure, FailureKind


__all__ = ["WAITED", "cause_of", "is_waiting"]

_CAUSES: Mapping[FailureKind, Cause] = {
    "task_error": Cause.RANK_CRASHED,
    "out_of_memory": Cause.HOST_OUT_OF_MEMORY,
    "start_timeout": Cause.RAY_WORKER_START_TIMEOUT,
    "not_started": Cause.NODE_MISCONFIGURED,
}
# Of Gloo, NCCL, and what torch makes of them.  Words that others use too count
# only where they stand by the name of such a library.
_TIMED_OUT = re.compile(
    r"Watchdog caught collective|NCCL communicator was aborted"
    r"|Timed out waiting \d{1,12} ?ms for (?:recv|send)"
    r"|Application timeout caused pair closure"
    r"|watchdog thread terminated with exception"
    r"|(?:collective|NCCL) (?:operation )?time(?:d )?[ -]?out"
    r"|(?:gloo|NCCL|monitoredBarrier|Dist(?:Backend)?Error)[^\n]{0,200}"
    r"(?i:\btimed out|\btimeout)"
)
_LOST_PEER = re.compile(
    r"Connection closed by peer \[|remote process exited|ncclRemoteError"
    r"|(?:gloo|NCCL|ProcessGroup|TCPStore|Dist(?:Backend|Network)?Error)"
    r"[^\n]{0,200}(?:Connection (?:closed|reset) by peer|Broken pipe"
    r"|Socket closed|[Ff]ailed to recv)"
)
_ERRORS = (
    (
        re.compile(r"CUDA out of memory|HIP out of memory"),
        Cause.GPU_OUT_OF_MEMORY,
    ),
    (re.compile(r"No space left on device"), Cause.DISK_FULL),
    (
        re.compile(r"waiting for clients|client socket has timed out"),
        Cause.RENDEZVOUS_TIMEOUT,
    ),
    (_TIMED_OUT, Cause.COLLECTIVE_TIMEOUT),
    (_LOST_PEER, Cause.NETWORK_FAILURE),
)
#: Whoever is told of these waited for somebody else.
WAITED = frozenset({Cause.COLLECTIVE_TIMEOUT, Cause.NETWORK_FAILURE})


def cause_of(failure: Failure, signal: str | None = None) -> Cause:
    """
    What is wrong, in the words of findings?

    Args:
        failure: What failed.

        signal: The one that its process printed, if any.

    Returns:
        The cause; what was raised may tell more than that it was.
    """
    cause = _CAUSES.get(failure.kind, Cause.ACTOR_DIED)
    if signal is not None and failure.kind in {"actor_died", "worker_crashed"}:
        return Cause.NATIVE_CRASH
    if failure.kind in {"task_error", "init_error"}:
        text = f"{failure.error}: {failure.message}"
        causes = (cause for x, cause in _ERRORS if x.search(text))
        return next(causes, cause)
    return cause


def is_waiting(failure: Failure) -> bool:
    """
    Whether somebody else is at fault.

    Args:
        failure: What failed.

    Returns:
        Whether it tells only that somebody else did not answer.
    """
    return failure.kind == "actor_unavailable" or cause_of(failure) in WAITED
