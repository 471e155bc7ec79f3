"""
What does a line tell about a phase?
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .._lines import LogLine
from .attempts import note_restart, note_step
from .bars import Progress, parse_number
from .book import Book, Phase
from .parts import go_on, is_inside, track_of
from .rulebook import Rule
from .series import series_of
from .story import Story
from .tracks import Track


__all__ = ["BarPhase", "note_bar", "note_phase", "phases_of_bar"]

_COUNTED = frozenset({"done", "total", "next", "part", "of"})
_HARDLY_BEGUN = 10.0


class BarPhase(NamedTuple):
    """
    A phase that a bar belongs to.

    Attributes:
        phase: The phase.

        main: The pattern that says so, if it tells how far the phase is.

        side: The pattern that says so, if it only tells that it goes on.
    """

    phase: Phase
    main: str | None
    side: str | None


def note_phase(
    story: Story,
    rule: Rule,
    found: re.Match[str],
    line: LogLine,
    time: float | None,
) -> None:
    """
    A text of a phase was printed.

    Args:
        story: What is known.

        rule: Whose text it is.

        found: Where it fits.

        line: The line.

        time: When it was printed.
    """
    phase = rule.phase
    if phase is None or not is_inside(story, rule.book, phase):
        return
    if rule.kind == "begin" and not (phase.trains or phase.part_of):
        note_restart(story, time)
    track = track_of(story, rule.book, phase)
    groups = {k: v for k, v in found.groupdict().items() if v is not None}
    track.add_facts({k: v for k, v in groups.items() if k not in _COUNTED})
    if "of" in groups:
        track.of = parse_number(groups["of"])
    if rule.kind == "facts":
        return

    if rule.kind in {"begin", "progress"}:
        go_on(story, rule.book, track, line, time)
    track.is_deduplicated |= line.count > 1
    track.touch(story.order, time, line)
    _count(story, track, groups, line, time)
    is_last = track.of is None or track.done_parts >= track.of
    if rule.kind == "end" or (rule.kind == "end_part" and is_last):
        track.end(time)
    elif rule.kind == "fail":
        track.has_failed = True


def _count(
    story: Story,
    track: Track,
    groups: Mapping[str, str],
    line: LogLine,
    time: float | None,
) -> None:
    if "part" in groups:
        track.add_part(groups["part"], line.count)
    if "done" in groups or "next" in groups:
        total = groups.get("total")
        step = Progress(
            done=parse_number(groups["done"])
            if "done" in groups
            else max(parse_number(groups["next"]) - 1, 0.0),
            total=parse_number(total) if total else None,
        )
        if track.phase.trains:
            note_step(story, step.done)
        # Before the first step, much else is done.
        track.add_step(step, time if "done" in groups else None)


def phases_of_bar(book: Book, name: str) -> tuple[BarPhase, ...]:
    """
    Which phases of this book does a bar of this name belong to?

    Args:
        book: The book.

        name: The name of the bar, without what a logger wrote before it.

    Returns:
        Each with the pattern of a main bar, and of a side bar, that fits.
    """
    found = (
        BarPhase(
            phase, _first(phase.bars, name), _first(phase.side_bars, name)
        )
        for phase in book.phases
    )
    return tuple(x for x in found if x.main or x.side)


def note_bar(  # noqa: PLR0913, PLR0917 all that is known of a bar
    story: Story,
    book: Book,
    phases: Iterable[BarPhase],
    name: str,
    bar: Progress,
    line: LogLine,
    time: float | None,
) -> None:
    """
    A bar moved: tell the phase of this book that it belongs to.

    Args:
        story: What is known.

        book: The book.

        phases: What :func:`phases_of_bar` says of it.

        name: The name of the bar, without what a logger wrote before it.

        bar: How far it is.

        line: The line.

        time: When it was printed.
    """
    for phase, main, side in phases:
        if not is_inside(story, book, phase):
            continue
        is_early = not (phase.trains or phase.part_of)
        if is_early and (bar.percent or 0.0) <= _HARDLY_BEGUN:
            note_restart(story, time)
        track = track_of(story, book, phase)
        if not name and not track.counts(bar):
            continue
        if name:
            # Who runs others shows their bars.
            weight = 0.0 if book.kind == "orchestrator" else phase.weight
            story.hit(book, f"bar {main or side}", weight)
        if not bar.is_full:
            go_on(story, book, track, line, time)
        track.is_deduplicated |= line.count > 1
        track.touch(story.order, time, line)
        if main:
            _move(story, track, bar, line, time)


def _move(
    story: Story,
    track: Track,
    bar: Progress,
    line: LogLine,
    time: float | None,
) -> None:
    phase = track.phase
    if phase.trains:
        note_step(story, bar.done)
    track.add_bar(line.origin, bar, series_of(bar.name))
    everything = all(one.is_full for one in track.bars.values())
    if everything and not phase.then and not phase.trains:
        track.end(time)


def _first(patterns: tuple[re.Pattern[str], ...], name: str) -> str | None:
    return next((p.pattern for p in patterns if p.search(name)), None)
