"""
Schedule of a job: the collectives of each rank, in order, as text to keep.

The text is meant for version control: equal ranks and repeated calls are
folded, and nothing in it depends on the machine or the time.
"""

from __future__ import annotations

import os
import re

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any

import attrs

from .._io import read_ordinary
from .._text import clean, reason_of
from ..errors import DumpError, ScheduleError
from ..findings import described
from ..ranks import ranks_text, unfold_ranks
from ..usercode import user_location
from .read import check_recorded
from .reading.columns import Dumps, EntryRow, Frame, entry_rows


_HEADING = "# The collectives of each rank, in order (distdebug schedule)."
_CALL = re.compile(
    r"  (?:(?P<count>\d{1,9}) x )?(?P<what>.+?)(?: @ (?P<where>.+))?"
)
_RANKS = re.compile(r"ranks? (?P<ranks>[\d,-]+)")
_MAX_CALLS = 1 << 22
_MAX_BYTES = 1 << 26


@attrs.frozen
class ScheduledCall:
    """
    One call of a schedule.

    Attributes:
        what: Operation, process group, sizes, and types, such as
            ``"all_reduce of 'default_pg': [4] Float"``.

        where: Function and line of the user's code, which is not compared;
            ``""`` if unknown.
    """

    what: str
    where: str = attrs.field(default="", eq=False)

    def __str__(self) -> str:
        return f"{self.what} at {self.where}" if self.where else self.what


# How often, what, and where.
_Folded = tuple[int, str, str]


@attrs.frozen
class Schedule:
    """
    The calls of each rank, in order.

    Attributes:
        calls: The calls by rank.
    """

    calls: Mapping[int, tuple[ScheduledCall, ...]]

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data for JSON, as folded as the text.
        """
        return {
            "schedule": [
                {
                    "ranks": ranks,
                    "calls": [
                        {"count": count, "what": what, "where": where}
                        for count, what, where in calls
                    ],
                }
                for ranks, calls in self._folded()
            ]
        }

    def _lines(self) -> Iterator[str]:
        yield _HEADING
        for ranks, calls in self._folded():
            yield ranks_text(ranks)
            for count, what, where in calls:
                times = f"{count} x " if count > 1 else ""
                place = f" @ {where}" if where else ""
                yield f"  {times}{what}{place}"

    def _folded(self) -> Iterator[tuple[list[int], list[_Folded]]]:
        """
        Yield equal ranks, and their calls, each with how often it is repeated.
        """
        alike = defaultdict(list)
        for rank, calls in sorted(self.calls.items()):
            # Calls at different lines are equal, but not shown as one.
            key = tuple((call.what, call.where) for call in calls)
            alike[key].append(rank)
        for pairs, ranks in alike.items():
            runs = ((pair, len([*run])) for pair, run in groupby(pairs))
            yield ranks, [(count, *pair) for pair, count in runs]


def make_schedule(dumps: Dumps) -> Schedule:
    """
    Return the schedule of a job.

    Args:
        dumps: Dumps that were taken after the last call of each rank.

    Raises:
        DumpError: A dump does not hold all calls of its rank.
        NoDumpsError: There is no dump.
    """
    check_recorded(dumps)
    if cut := [x.rank for x in dumps if x.wrapped or x.truncated]:
        msg = f"the dumps of {ranks_text(cut)} do not hold all their calls"
        remedy = "keep more: enable_flight_recorder(buffer_size=20_000)"
        raise DumpError(msg, remedy=remedy)

    stacks = dumps.frames_of({x.rank: range(len(x.entries)) for x in dumps})
    calls: dict[int, tuple[ScheduledCall, ...]] = {}
    for rank in dumps.ranks:
        rows = entry_rows(dumps, ranks=[rank])
        calls[rank] = tuple(map(_make_call, rows, stacks[rank]))
    return Schedule(calls)


def _make_call(row: EntryRow, frames: Iterable[Frame]) -> ScheduledCall:
    group = described(row.desc) or row.group
    sizes = row.inputs or "-"
    if row.outputs not in {row.inputs, ""}:
        sizes += f" -> {row.outputs}"
    place = user_location(frames)
    return ScheduledCall(
        f"{row.op} of {group!r}: {sizes}", clean(place.brief) if place else ""
    )


def read_schedule(path: str | os.PathLike[str]) -> Schedule:
    """
    Read a schedule from a file.

    Raises:
        ScheduleError: It cannot be read, or is something else.
    """
    remedy = "write it: distdebug schedule DUMPS -o FILE"
    try:
        return _parse(read_ordinary(path, _MAX_BYTES).decode())
    except (OSError, ValueError) as exc:
        msg = f"no schedule in {os.fspath(path)}: {reason_of(exc)}"
        raise ScheduleError(msg, remedy=remedy) from exc


def _parse(text: str) -> Schedule:
    ranks: tuple[int, ...] = ()
    calls: dict[int, list[ScheduledCall]] = {}
    left = _MAX_CALLS
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if found := _RANKS.fullmatch(line):
            ranks = unfold_ranks(found["ranks"])
            calls.update((rank, []) for rank in ranks)
            continue
        found = _CALL.fullmatch(line)
        count = int(found["count"] or 1) if found else 0
        left -= count * len(ranks)
        if not found or not ranks or left < 0:
            msg = f"line {number} is no call of a rank: {clean(line)}"
            raise ValueError(msg)

        call = ScheduledCall(found["what"], found["where"] or "")
        for rank in ranks:
            calls[rank] += [call] * count
    return Schedule({rank: tuple(run) for rank, run in calls.items()})


def compare_schedules(kept: Schedule, new: Schedule) -> tuple[str, ...]:
    """
    Compare two schedules; lines of code may differ.

    Args:
        kept: What is expected.

        new: What was recorded.

    Returns:
        For each rank the first difference, as one sentence for all ranks that
        have the same; nothing if there is none.
    """
    alike = defaultdict(list)
    for rank in sorted(kept.calls.keys() | new.calls.keys()):
        calls = [x.calls.get(rank) for x in (kept, new)]
        if text := _first_difference(*calls):
            alike[text].append(rank)
    return tuple(f"{ranks_text(r)}: {text}" for text, r in alike.items())


_Calls = Sequence[ScheduledCall]


def _first_difference(kept: _Calls | None, new: _Calls | None) -> str:
    if kept is None or new is None:
        return "not in the schedule" if kept is None else "no calls recorded"

    pairs = enumerate(zip_longest(kept, new))
    at = next((i for i, (old, call) in pairs if old != call), None)
    if at is None:
        return ""
    if at == len(kept) or kept[at] in new[at + 1 : at + 2]:
        return f"call {at + 1} is new: {new[at]}"
    if at == len(new) or new[at] in kept[at + 1 : at + 2]:
        before = f", after {new[at - 1]}" if at else ""
        return f"call {at + 1} is missing{before}: {kept[at]}"
    return f"call {at + 1} is {new[at]}, and was {kept[at]}"
