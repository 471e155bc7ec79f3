"""
Classify the errors that end ranks, and date what ended the job.
"""

from __future__ import annotations

import re

from ..reading.columns import Dumps
from ..sidecar import Sidecar


# Torch raises its own error types, and RuntimeError, as other code does.
_TORCH_DIST_ERROR = re.compile(r"(?:\w+\.)*Dist\w*Error\b")
_BACKEND_ERROR = re.compile(
    r"RuntimeError\b(?!.*dataloader).*?(?:gloo|nccl|timed out|pair closure"
    r"|connection (?:closed by peer|reset|refused))",
    re.IGNORECASE | re.DOTALL,
)
_CHILD_LOST = re.compile(
    r"RuntimeError: DataLoader worker .{0,80}(?:killed by signal"
    r"|exited unexpectedly)|(?:\w+\.){0,9}BrokenProcessPool\b",
)
# Sidecar reasons after which the rank continues.
_RUNNING_REASONS = {"start", "request", "call"}
# A child may receive the signal this much earlier than its rank.
_CHILD_SIGNAL_LEAD_S = 0.1
# Calls that Gloo does not record (torch 2.13).
_UNRECORDED_CALLS = {"irecv", "isend", "monitored_barrier", "recv", "send"}


def is_collective_error(error: str) -> bool:
    """
    Return whether an exception came out of a collective, not other code.

    Args:
        error: Type and message, such as ``"RuntimeError: Connection closed by
            peer"``.
    """
    return bool(_TORCH_DIST_ERROR.match(error) or _BACKEND_ERROR.match(error))


def failed_in_unrecorded_call(sidecar: Sidecar) -> bool:
    """
    Return whether a rank failed in a call that Gloo does not record.
    """
    if not is_collective_error(sidecar.error):
        return False

    stack = dict(sidecar.threads).get("MainThread", ())
    in_torch = (
        frame.name
        for frame in stack
        if frame.filename.endswith("distributed_c10d.py")
    )
    return next(in_torch, "") in _UNRECORDED_CALLS


def failed_in_recorded_call(sidecar: Sidecar) -> bool:
    """
    Return whether a rank failed in the last call that it recorded.
    """
    return is_collective_error(
        sidecar.error
    ) and not failed_in_unrecorded_call(sidecar)


def is_child_lost_error(error: str) -> bool:
    """
    Return whether a rank failed because its child process was gone.

    Args:
        error: Type and message of the exception.
    """
    return bool(_CHILD_LOST.match(error))


def exit_sidecars(dumps: Dumps, rank: int) -> tuple[Sidecar, ...]:
    """
    Return the sidecars that a rank wrote at its exit, oldest first.

    They are empty for a rank that still runs, and for one that left none.
    """
    newest = dumps.sidecars.get(rank)
    if newest is None:
        return ()

    sidecars = (*dumps.earlier.get(rank, ()), newest)
    return tuple(
        s for s in sidecars if s.error or s.reason not in _RUNNING_REASONS
    )


def exited_cleanly(sidecar: Sidecar) -> bool:
    """
    Return whether a rank came to its end without an error.
    """
    return sidecar.reason == "exit" and not sidecar.error


def sigterm_time_s(dumps: Dumps) -> float | None:
    """
    Return when SIGTERM ended the job from outside.

    A rank that fails by itself writes its exit sidecar before the others
    receive SIGTERM, or writes none.

    Returns:
        Time of the first SIGTERM in seconds since the epoch; ``None`` if some
        rank may have failed by itself.
    """
    sizes = (s.world_size for s in dumps.sidecars.values())
    if len(dumps.sidecars) < max([1, len(dumps), *sizes]):
        return None

    first: list[Sidecar] = []
    for rank in dumps.sidecars:
        sidecars = exit_sidecars(dumps, rank)
        if not sidecars:
            return None
        first.append(sidecars[0])
    earliest = min(first, key=exit_time_s)
    return earliest.written if earliest.reason == "SIGTERM" else None


def exit_time_s(sidecar: Sidecar) -> float:
    """
    Return the latest possible time of the event that ended a rank.

    A rank may lose its children before it receives the signal that ended all.

    Args:
        sidecar: One that it wrote at its exit.

    Returns:
        Seconds since the epoch.
    """
    lead_s = (
        _CHILD_SIGNAL_LEAD_S if is_child_lost_error(sidecar.error) else 0.0
    )
    return sidecar.written + lead_s


def is_keyboard_interrupt(error: str) -> bool:
    """
    Return whether a user interrupted the rank, perhaps because it was stuck.

    Args:
        error: Type and message of the exception.
    """
    return error.startswith("KeyboardInterrupt")
