"""
Did a rank end by itself, or because others did?

When one rank dies, the collectives of all others fail.  Only the text of the
exception tells which came first.
"""

from __future__ import annotations

import re

from ..columns import Dumps
from ..sidecar import Sidecar


__all__ = [
    "died_s",
    "ended_s",
    "failed_in_call",
    "failed_off_record",
    "failed_on_record",
    "last_words",
    "lost_child",
    "lost_peer",
    "was_interrupted",
]

# Torch raises its own kinds of errors; and RuntimeError, which anybody raises.
_OF_TORCH = re.compile(r"(?:\w+\.)*Dist\w*Error\b")
_OF_ANYBODY = re.compile(
    r"RuntimeError\b(?!.*dataloader).*?(?:gloo|nccl|timed out|pair closure"
    r"|connection (?:closed by peer|reset|refused))",
    re.IGNORECASE | re.DOTALL,
)
_PEER_IS_GONE = re.compile(
    r"connection (?:closed by peer|reset|refused)|broken pipe"
    r"|remote process exit|pair closure",
    re.IGNORECASE,
)
_CHILD_IS_GONE = re.compile(
    r"RuntimeError: DataLoader worker .{0,80}(?:killed by signal"
    r"|exited unexpectedly)|(?:\w+\.){0,9}BrokenProcessPool\b",
)
# Reasons of those who go on afterwards.
_GOES_ON = {"start", "request", "call"}
# A rank may notice the signal later than its child does.
_CHILD_FIRST_S = 0.1
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


def failed_on_record(sidecar: Sidecar) -> bool:
    """
    Whether a rank died of the last call that it recorded.

    Args:
        sidecar: Of that rank.
    """
    return failed_in_call(sidecar.error) and not failed_off_record(sidecar)


def lost_peer(error: str) -> bool:
    """
    Whether a collective failed because another rank had gone.

    Args:
        error: Type and text of the exception.
    """
    return failed_in_call(error) and bool(_PEER_IS_GONE.search(error))


def lost_child(error: str) -> bool:
    """
    Whether a rank failed because a process of its own had gone.

    Args:
        error: Type and text of the exception.
    """
    return bool(_CHILD_IS_GONE.match(error))


def last_words(dumps: Dumps, rank: int) -> tuple[Sidecar, ...]:
    """
    What a rank noted when it ended, oldest first.

    Args:
        dumps: Its side-cars tell.

        rank: Global rank.

    Returns:
        Side-cars; none of a rank that goes on, or ended without a word.
    """
    newest = dumps.sidecars.get(rank)
    if newest is None:
        return ()

    notes = (*dumps.earlier.get(rank, ()), newest)
    return tuple(s for s in notes if s.error or s.reason not in _GOES_ON)


def ended_s(dumps: Dumps) -> float | None:
    """
    When was this job ended from outside, by a signal?

    Whoever dies by itself leaves its last words before the others are told to
    end, or none.

    Args:
        dumps: Its side-cars tell.

    Returns:
        When the first rank was told to end, in seconds since the epoch;
        ``None`` if some rank may have died by itself.
    """
    sizes = (s.world_size for s in dumps.sidecars.values())
    if len(dumps.sidecars) < max([1, len(dumps), *sizes]):
        return None

    first: list[Sidecar] = []
    for rank in dumps.sidecars:
        words = last_words(dumps, rank)
        if not words:
            return None
        first.append(words[0])
    begin = min(first, key=died_s)
    return begin.written if begin.reason == "SIGTERM" else None


def died_s(sidecar: Sidecar) -> float:
    """
    When did what ended a rank happen, at the latest?

    Args:
        sidecar: Its last words.

    Returns:
        Seconds since the epoch; a rank may lose its children before it hears
        of the signal that ended them all.
    """
    late_s = _CHILD_FIRST_S if lost_child(sidecar.error) else 0.0
    return sidecar.written + late_s


def was_interrupted(error: str) -> bool:
    """
    Whether a person ended the rank, perhaps because it was stuck.

    Args:
        error: Type and text of the exception.
    """
    return error.startswith("KeyboardInterrupt")
