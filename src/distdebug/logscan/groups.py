"""
What went wrong, and what of it is the most important?
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Mapping

from .gather import Key, Tally
from .lend import lent_ranks
from .model import LogGroup, TraceGroup
from .outlived import Sequel, is_mortal, read_sequels
from .rules import LEAST_PRIORITY, LogRule


__all__ = ["groups_of"]

_MOST_LISTED = 100
_HANDLED = re.compile(
    # Not what a watchdog, a crash, or the worker of a data loader says.
    r"\b(?:(?<!watchdog )caught(?! signal| .{1,80} in \w)|skipp(?:ed|ing)"
    r"|ignor(?:ed|ing)|recovered|retry(?:ing)?|fall(?:ing)? ?back)\b",
    re.IGNORECASE,
)
# So many things are looked at to see whether the job survived them.
_MOST_SEQUELS = 50


def groups_of(
    tallies: Mapping[Key, Tally],
) -> list[tuple[LogRule, LogGroup | TraceGroup]]:
    """
    What went wrong, the most important first.

    Args:
        tallies: What tells of the same, each once.
    """
    bad = [t for t in tallies.values() if not t.rule.is_harmless]
    times = _times(bad)
    files = {
        path: n
        for n, path in enumerate(
            dict.fromkeys(path for t in bad for path in t.files)
        )
    }

    def order(tally: Tally) -> tuple[int, bool, float, int, int]:
        hit, time = tally.first, times[id(tally)]
        place = files[hit.source], hit.offset
        return tally.rule.priority, time is None, time or 0.0, *place

    bad.sort(key=order)
    survived = _survived(bad)
    bad.sort(key=lambda tally: id(tally) in survived)
    lent = lent_ranks([t for t in bad if id(t) not in survived])
    nodes = {node for tally in bad for node, _ in tally.locals}
    groups = []
    for tally in bad:
        ranks = tally.ranks | lent.get(id(tally), set())
        if len(nodes) == 1:
            ranks |= {rank for _, rank in tally.locals}
        is_survived = id(tally) in survived
        groups.append(
            (tally.rule, _group(tally, ranks, is_survived=is_survived))
        )
    return groups


def _times(tallies: Iterable[Tally]) -> dict[int, float | None]:
    """
    When each began: what tells no time, when the next of its file did.
    """
    by_file: dict[str, list[Tally]] = {}
    for tally in tallies:
        by_file.setdefault(tally.first.source, []).append(tally)
    times: dict[int, float | None] = {}
    for mine in by_file.values():
        mine.sort(key=lambda tally: tally.first.offset)
        time = max((t.first.time for t in mine if t.first.time), default=None)
        for tally in reversed(mine):
            time = tally.first.time or time
            times[id(tally)] = time
    return times


def _survived(bad: list[Tally]) -> set[int]:
    """
    Which of the things that went wrong did the job survive?
    """
    mortal = [tally for tally in bad if is_mortal(tally.rule.cause)]
    looked = mortal[:_MOST_SEQUELS]
    sequels = read_sequels([tally.files for tally in looked])
    told = {id(t): x for t, x in zip(looked, sequels, strict=True)}
    nothing = Sequel()
    after = [told.get(id(tally), nothing) for tally in bad]
    # Others may go on for a while without the one that died.
    is_well = all(x.is_over or x.goes_on for x in after)
    return {
        id(tally)
        for tally, x in zip(bad, after, strict=True)
        if x.is_over or (is_well and x.goes_on) or _is_handled(tally)
    }


def _is_handled(tally: Tally) -> bool:
    """
    Whether the program says itself that it goes on.
    """
    lines = (tally.first.text, tally.last.text)
    return not tally.shape and all(map(_HANDLED.search, lines))


def _group(
    tally: Tally, ranks: set[int], *, is_survived: bool
) -> LogGroup | TraceGroup:
    rule = tally.rule
    group = LogGroup(
        rule=rule.name,
        key=tally.key,
        cause=rule.cause,
        priority=LEAST_PRIORITY if is_survived else rule.priority,
        count=tally.count,
        is_more=tally.is_more,
        first=tally.first,
        last=tally.last,
        files=tuple(tally.files)[:_MOST_LISTED],
        ranks=tuple(sorted(ranks)),
        origins=tuple(tally.origins)[:_MOST_LISTED],
        is_survived=is_survived,
    )
    if not tally.shape:
        return group
    return TraceGroup(errors=tally.errors, group=group)
