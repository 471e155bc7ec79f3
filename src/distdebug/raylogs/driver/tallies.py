"""
Who printed into the output of a driver, and how much?
"""

from __future__ import annotations

import re

import attrs

from ..._lines import LogLine, Origin
from ..._text import clean
from .model import DriverSource


__all__ = ["Tallies", "count_line", "sources_of"]

_SIGNAL = re.compile(r"\*\*\* (SIG[A-Z]{2,10}) received at time=")
_MOST_SOURCES = 100_000
_MOST_NAMES = 8


@attrs.define(kw_only=True)
class _Tally:
    # It can be changed, because there are millions of lines.
    origin: Origin
    first: LogLine
    last: LogLine
    names: list[str] = attrs.field(factory=list)
    lines: int = 0
    count: int = 0
    signal: str | None = None


#: By name, if there is no process; number of the process; and node.
Tallies = dict[tuple[str, int | None, str | None], _Tally]


def count_line(tallies: Tallies, line: LogLine) -> None:
    """
    Count a line for whom it is of.

    Args:
        tallies: What was counted before; it is changed.

        line: The next line; one without a prefix does not count.
    """
    origin = line.origin
    if origin is None or not (origin.name or origin.pid is not None):
        return

    # Once an actor is made, its name may become what its __repr__ returns.
    name = origin.name if origin.pid is None else ""
    key = name, origin.pid, origin.ip
    tally = tallies.get(key)
    if tally is None:
        if len(tallies) >= _MOST_SOURCES:
            return
        tally = tallies[key] = _Tally(origin=origin, first=line, last=line)
    if tally.origin is not origin:
        tally.origin = _later(tally.origin, origin)
    if origin.name not in tally.names:
        tally.names = [*tally.names, origin.name][-_MOST_NAMES:]
    tally.last = line
    tally.lines += 1
    tally.count += line.count
    if "*** SIG" in line.text and (found := _SIGNAL.search(line.text[:200])):
        tally.signal = found[1]


def sources_of(tallies: Tallies) -> tuple[DriverSource, ...]:
    """
    Tell what was counted.

    Args:
        tallies: What was counted.

    Returns:
        Each who printed, in the order of their first lines.
    """
    return tuple(
        DriverSource(
            origin=x.origin,
            names=tuple(x.names),
            first_line=x.first.number,
            last_line=x.last.number,
            lines=x.lines,
            count=x.count,
            last_text=clean(x.last.text, limit=400),
            signal=x.signal,
        )
        for x in tallies.values()
    )


def _later(known: Origin, origin: Origin) -> Origin:
    """
    The new prefix, with the ranks that only an earlier one told.
    """
    rank, local_rank = origin.rank, origin.local_rank
    return attrs.evolve(
        origin,
        rank=known.rank if rank is None else rank,
        local_rank=known.local_rank if local_rank is None else local_rank,
    )
