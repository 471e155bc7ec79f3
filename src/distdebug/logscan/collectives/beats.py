"""
Whose watchdog hangs?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ...findings import Cause, Finding
from ...ranks import fold_ranks, ranks_text
from .logs import CollectiveLogs
from .model import Heartbeat, LogRecord
from .quoting import evidence_of
from .remedies import REMEDIES


__all__ = ["explain_heartbeats"]


def explain_heartbeats(logs: CollectiveLogs) -> list[Finding]:
    """
    Whose watchdog hangs, other than after a time-out?

    Args:
        logs: What was read.

    Returns:
        A finding, or nothing.
    """
    findings = []
    by_attempt: dict[int, dict[object, Heartbeat]] = defaultdict(dict)
    for beat in logs.heartbeats:
        by_attempt[beat.attempt].setdefault(_who(beat), beat)
    for attempt, beats in by_attempt.items():
        # After its own time-out, a watchdog hangs while it cleans up.
        late = {_who(x) for x in logs.timeouts if x.attempt == attempt} | {
            x.rank for x in logs.timeouts if x.attempt == attempt
        }
        stuck = {
            who: beat
            for who, beat in beats.items()
            if who not in late and (beat.rank is None or beat.rank not in late)
        }
        if stuck:
            findings.append(_heartbeat(stuck, is_all=not late))
    return findings


def _who(record: LogRecord) -> object:
    if record.rank is not None:
        return record.rank
    return (record.source, record.origin, record.group_rank)


def _heartbeat(stuck: Mapping[object, Heartbeat], *, is_all: bool) -> Finding:
    ranks = tuple(sorted(x.rank for x in stuck.values() if x.rank is not None))
    members = [
        x.group_rank for x in stuck.values() if x.group_rank is not None
    ]
    seconds = next((x.seconds for x in stuck.values() if x.seconds), None)
    who = (
        ranks_text(ranks)
        if ranks
        else f"rank {fold_ranks(members)} of its group"
        if members
        else "a rank"
    )
    spent = f" for {seconds:.0f} s" if seconds else ""
    return Finding(
        cause=Cause.RANK_BLOCKED_IN_LAUNCH,
        ranks=ranks,
        summary=f"the watchdog of {who} did not move{spent}: a call of CUDA "
        "or NCCL does not return there, or a thread keeps the GIL",
        confidence="possible" if is_all and len(stuck) > 1 else "likely",
        remedy=REMEDIES[Cause.RANK_BLOCKED_IN_LAUNCH],
        evidence=evidence_of(stuck.values()),
    )
