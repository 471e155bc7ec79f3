"""
Which rank died first, and did the others only follow?
"""

from __future__ import annotations

import math

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from ..findings import Cause, Evidence, Finding
from ..flight_recorder.analysis.endings import (
    died_s,
    failed_in_call,
    last_words,
    lost_peer,
    was_interrupted,
)
from ..flight_recorder.columns import Dumps
from ..flight_recorder.sidecar import Sidecar
from .hosts import HostView


__all__ = ["find_death", "quote_error"]

# By so much the clocks of hosts may differ.
_SLACK_S = 0.5
# An exception may close the connections long before it ends the process.
_LONGEST_CLOSING_S = 10.0


def find_death(views: Mapping[int, HostView], dumps: Dumps) -> Finding | None:
    """
    Find the first rank that an exception ended, which no other rank caused.

    Args:
        views: What each rank was doing on its host.

        dumps: Its side-cars tell of exceptions.

    Returns:
        The finding; ``None`` if no rank died by itself.
    """
    words = [last_words(dumps, rank) for rank in dumps.sidecars]
    latest = _end_of_others(chain.from_iterable(words))
    died = sorted(
        (
            s
            for s in map(_first_error, words)
            if s and _ended_itself(s.error) and died_s(s) <= latest
        ),
        key=lambda s: s.written,
    )
    if not died:
        return None

    first = died[0]
    where = views[first.rank].location
    place = f" at {where.brief}" if where else ""
    return Finding(
        cause=Cause.RANK_CRASHED,
        ranks=(first.rank,),
        summary=f"rank {first.rank} died of {first.error}{place}",
        confidence="certain",
        remedy="mend the exception; the other ranks only lost their peer",
        location=where,
        evidence=tuple(map(quote_error, died[:4])),
    )


def quote_error(sidecar: Sidecar) -> Evidence:
    """
    Quote the exception that ended a rank.

    Args:
        sidecar: What the rank noted of its end.
    """
    return Evidence(
        kind="sidecar",
        source=sidecar.path,
        location=f"rank {sidecar.rank}",
        quote=sidecar.error,
    )


def _first_error(words: Sequence[Sidecar]) -> Sidecar | None:
    return next((s for s in words if s.error), None)


def _end_of_others(all_words: Iterable[Sidecar]) -> float:
    """
    When calls began to fail, or the job was being ended.

    Whoever dies after that dies because of it.
    """
    words = list(all_words)
    clocks = {s.host for s in words}
    slack_s = _SLACK_S if len(clocks) > 1 else 0.0
    return slack_s + min(
        (
            s.written + _closing_s(s)
            for s in words
            if failed_in_call(s.error) or s.reason == "SIGTERM"
        ),
        default=math.inf,
    )


def _closing_s(sidecar: Sidecar) -> float:
    """
    How much earlier its end shows than that of the rank which caused it.
    """
    is_told = lost_peer(sidecar.error) and sidecar.reason != "SIGTERM"
    return _LONGEST_CLOSING_S if is_told else 0.0


def _ended_itself(error: str) -> bool:
    return bool(error) and not (
        failed_in_call(error) or was_interrupted(error)
    )
