"""
Which of all lines tell of the same?
"""

from __future__ import annotations

import re

from collections import Counter
from collections.abc import Iterable, Mapping

import attrs

from .._lines import Origin
from .._text import clean
from ..findings import Cause
from .model import Hit
from .part import Event
from .pyerror import PyError
from .rules import LogRule
from .who import rank_of_file, rank_of_line, tasks_in, tasks_of_line


__all__ = [
    "Tally",
    "gather",
    "harmless_of",
    "join_tallies",
    "shape_of",
]

_MOST_ORIGINS = 100
_MOST_KINDS = 2_000
# Beyond, the tasks that Slurm names are not listed, as they may be many.
_MOST_TASKED = 200
_LONGEST = 500
# Each rank words these in its own way, and they tell of the same.
_SHARED = frozenset({Cause.COLLECTIVE_TIMEOUT, Cause.NETWORK_FAILURE})
_NUMBERS = re.compile(r"0x[0-9a-fA-F]{1,16}|\d{1,20}")
_QUOTED = re.compile(r"'[^']{0,200}'|\"[^\"]{0,200}\"")

Key = tuple[str, str]


@attrs.define(kw_only=True)
class Tally:
    """
    What is known of lines that tell of the same, while they are counted.

    Attributes:
        rule: The rule that they fit.

        key: What tells them apart from others of the rule.

        shape: That of a traceback, or ``""``.

        first: The first of them.

        last: The last of them.

        errors: The exceptions of the first traceback.

        count: How many there are.

        is_more: Whether there are more.

        files: The files they are in, with where in it the last one stands.

        ranks: The global ranks they are about.

        locals: Ranks on a node, with where that stands.

        origins: Who printed them.
    """

    rule: LogRule
    key: str
    shape: str
    first: Hit
    last: Hit
    errors: tuple[PyError, ...] = ()
    count: int = 0
    is_more: bool = False
    files: dict[str, int] = attrs.field(factory=dict)
    ranks: set[int] = attrs.field(factory=set)
    locals: set[tuple[str, int]] = attrs.field(factory=set)
    origins: dict[Origin, None] = attrs.field(factory=dict)


def gather(events: Iterable[Event], path: str) -> dict[Key, Tally]:
    """
    Count what part of a file tells.

    Args:
        events: What was found in it.

        path: The file.

    Returns:
        What tells of the same, each once.
    """
    tallies: dict[Key, Tally] = {}
    named = rank_of_file(path)
    node = path.partition("/attempt_")[0] if "local_rank" in named else path
    for event in events:
        shape = shape_of(event.trace.errors) if event.trace else ""
        group = clean(event.groups.get("key", ""), limit=100)
        hit = _hit(event, path, named)
        tasks = tasks_of_line(event.line.text)
        # Who failed first, and who only ended then, is told apart.
        is_shared = event.rule.cause in _SHARED
        key = event.rule.name, group or (not is_shared and shape) or tasks
        tally = tallies.get(key)
        if tally is None:
            if len(tallies) >= _MOST_KINDS:
                continue
            tally = tallies[key] = Tally(
                rule=event.rule, key=group, shape=shape, first=hit, last=hit
            )
            tally.errors = event.trace.errors if event.trace else ()
            if len(tallies) <= _MOST_TASKED:
                tally.ranks.update(tasks_in(tasks))
        tally.last = hit
        tally.files[path] = hit.offset
        tally.count += event.line.count
        tally.is_more |= event.is_last
        if hit.rank is not None:
            tally.ranks.add(hit.rank)
        elif hit.local_rank is not None:
            tally.locals.add((node, hit.local_rank))
        if hit.origin and len(tally.origins) < _MOST_ORIGINS:
            tally.origins[hit.origin] = None
    return tallies


def shape_of(errors: Iterable[PyError]) -> str:
    """
    What do tracebacks have in common that tell of the same?

    Args:
        errors: The exceptions of one of them.

    Returns:
        Types and functions, and messages without what differs each time.
    """
    return "\n".join(
        "|".join(
            [
                error.type,
                _NUMBERS.sub("#", _QUOTED.sub("''", error.message))[:_LONGEST],
                *(
                    f"{x.file.rpartition('/')[2]}:{x.function}"
                    for x in error.frames
                ),
            ]
        )
        for error in errors
    )


def join_tallies(
    parts: Iterable[tuple[int | None, Mapping[Key, Tally]]],
) -> dict[Key, Tally]:
    """
    Join what parts of files tell.

    Args:
        parts: Those of all files in their order, each with how many lines of
            its file are before it, if that is known.

    Returns:
        What tells of the same, each once.
    """
    joined: dict[Key, Tally] = {}
    for lines, tallies in parts:
        for key, tally in tallies.items():
            tally.first = _moved(tally.first, lines)
            tally.last = _moved(tally.last, lines)
            known = joined.setdefault(key, tally)
            if known is not tally:
                _join(known, tally)
    return joined


def harmless_of(tallies: Mapping[Key, Tally]) -> dict[str, int]:
    """
    How many lines only look bad, by the name of the rule.
    """
    counts: Counter[str] = Counter()
    for tally in tallies.values():
        if tally.rule.is_harmless:
            counts[tally.rule.name] += tally.count
    return dict(counts)


def _hit(event: Event, path: str, named: Mapping[str, int]) -> Hit:
    line, text = event.line, event.line.text
    if event.trace and event.trace.root:
        text = str(event.trace.root)
    told = rank_of_line(text, line.origin, event.groups, named)
    if event.trace and not told:
        told = rank_of_line(line.text, None, {}, {})
    if not told and event.trace and event.trace.rank is not None:
        told = {"rank": event.trace.rank}
    return Hit(
        text=clean(text, limit=_LONGEST),
        source=path,
        line=event.number,
        offset=event.offset,
        time=event.time,
        origin=line.origin,
        rank=told.get("rank"),
        local_rank=told.get("local_rank"),
    )


def _moved(hit: Hit, lines: int | None) -> Hit:
    return attrs.evolve(hit, line=0 if lines is None else hit.line + lines)


def _join(known: Tally, new: Tally) -> None:
    if _is_before(new.first, known.first):
        known.first, known.errors = new.first, new.errors
    if not _is_before(new.last, known.last):
        known.last = new.last
    known.count += new.count
    known.is_more |= new.is_more
    known.files |= new.files
    known.ranks |= new.ranks
    known.locals |= new.locals
    known.origins |= new.origins


def _is_before(one: Hit, other: Hit) -> bool:
    if one.time is None or other.time is None:
        return False
    return one.time < other.time
