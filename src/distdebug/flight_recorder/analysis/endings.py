"""
Classify the errors that end ranks, and date what ended the job.
"""

from __future__ import annotations

import re

import attrs

from ..._lazy import late_pattern
from ...findings import Missing
from ...ranks import ranks_text
from ..reading.columns import Dumps, RankDump
from ..sidecar import Sidecar


# Torch raises its own error types, and RuntimeError, as other code does.
_TORCH_DIST_ERROR = late_pattern(r"(?:\w+\.)*Dist\w*Error\b")
_BACKEND_ERROR = late_pattern(
    r"RuntimeError\b(?!.*dataloader).*?(?:gloo|nccl|timed out|pair closure"
    r"|connection (?:closed by peer|reset|refused))",
    re.IGNORECASE | re.DOTALL,
)
_CHILD_LOST = late_pattern(
    r"RuntimeError: DataLoader worker .{0,80}(?:killed by signal"
    r"|exited unexpectedly)|(?:\w+\.){0,9}BrokenProcessPool\b",
)
# Sidecar reasons after which the rank continues.
_RUNNING_REASONS = {"start", "request", "call"}
# A child may receive the signal this much earlier than its rank.
_CHILD_SIGNAL_LEAD_S = 0.1
_MOST_CLOCK_OFFSET_S = 2.0
# A dump that is so much later than the first SIGTERM shows more than the hang.
_LATE_DUMP_S = 1.0
#: Ranks do not receive the signal to end at the same time; what is much newer
#: is not of this shutdown.
MAX_SHUTDOWN_S = 10.0
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


def cut_at_sigterm(dumps: Dumps) -> Dumps:
    """
    Drop the calls that ranks made when SIGTERM had ended others already.

    A rank that was stopped, or in a long call, goes on when the job is ended,
    and arrives where nobody waits any more.
    """
    end_s = sigterm_time_s(dumps)
    if end_s is None:
        return dumps

    ends = {rank: exit_sidecars(dumps, rank)[0] for rank in dumps.sidecars}
    host = min(ends.values(), key=exit_time_s).host
    cut: dict[int, RankDump] = {}
    for dump in dumps:
        end = ends.get(dump.rank)
        age_s = dump.written_ns / 1e9 - end_s
        if end is None or not _LATE_DUMP_S <= age_s <= MAX_SHUTDOWN_S:
            continue
        doubt_s = 0.0 if end.host == host else _MOST_CLOCK_OFFSET_S
        is_before = dump.entries.created_ns <= 1e9 * (end_s + doubt_s)
        if is_before.any() and not is_before.all():
            # Its stack is of that time, too.
            end = end._replace(threads=())
            entries = dump.entries.take(is_before)
            cut[dump.rank] = attrs.evolve(dump, entries=entries, sidecar=end)
    if not cut:
        return dumps
    note = Missing(
        what="calls",
        reason=f"{ranks_text(cut)} went on only when SIGTERM had ended others; "
        "calls from then on do not count",
    )
    late = {rank: x.sidecar for rank, x in cut.items() if x.sidecar}
    return attrs.evolve(
        dumps,
        by_rank={**dumps.by_rank, **cut},
        sidecars={**dumps.sidecars, **late},
        problems=(*dumps.problems, note),
    )


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
