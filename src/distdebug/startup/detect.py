"""
In which phase of its start-up is this job, and is that too long?
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from .._lines import walk_logs
from ..errors import LogError, NoLogsError
from ..findings import Missing
from .book import Book
from .books import read_books
from .choice import choose_book
from .endings import ending_reason
from .failures import failure_findings, harmless_lines
from .follow import follow_log
from .judge import judge
from .merging import merge
from .model import PhaseReport
from .rulebook import make_rules
from .silence import silence_of
from .states import current_phase, phase_states
from .story import Story


__all__ = ["detect_phase"]

# What has no blanks, and either a folder or what names of logs end with.
_PATH = re.compile(
    r"(?:[^\s\x00/]{0,255}/){1,64}[^\s\x00/]{0,255}"
    r"|[^\s\x00/]{1,255}\.(?:log|out|err|txt|gz|xz|bz2|zst)(?:\.\d{1,3})?"
)


def detect_phase(
    path_or_lines: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    now: float | None = None,
    framework: str | None = None,
    rules: Iterable[str | os.PathLike[str]] = (),
) -> PhaseReport:
    """
    Tell in which phase a job is, and whether that takes too long.

    Args:
        path_or_lines: A log, a folder of logs, or several of them, such as
            the driver's and those of the workers; or the lines of one log.  A
            list of texts is taken for files if all name such, or look as if
            they did.

        now: The time in seconds since the epoch, as of ``time.time()``.
            Without it, nothing is said about silence.

        framework: Whose logs they are; by default what the logs show.

        rules: Books of the user, as
            :func:`~distdebug.startup.books.load_book` reads them.

    Returns:
        The phases, how far each is, and a verdict.

    Raises:
        NoLogsError: There is no log.

        LogError: The framework is not known.

        RulesError: A book cannot be used.
    """
    books = read_books(rules)
    _check_framework(framework, books)
    stories, missing = _stories(path_or_lines, books, now)
    merged = merge(stories)
    book = choose_book(merged, books, framework)
    states = phase_states(merged, book, books)
    current, inner = current_phase(states, book)
    report = PhaseReport(
        framework=book.name if book else None,
        title=book.title if book else "",
        phases=states,
        current=current,
        inner=inner,
        missing=missing,
    )
    report = _with_logs(report, stories, now)
    by_name = {(b.name, p.name): p for b in books for p in b.phases}
    return judge(report, by_name, ending_reason(stories))


def _with_logs(
    report: PhaseReport, stories: Sequence[Story], now: float | None
) -> PhaseReport:
    """
    The same, with what the logs tell whatever the phases are.
    """
    latest = max(stories, key=lambda s: (s.mtime or 0.0, s.time or 0.0))
    timed = [story.time for story in stories if story.time is not None]
    ended = _ending(stories)
    return attrs.evolve(
        report,
        last_line=latest.last_line,
        last_time=max(timed, default=None),
        silent_s=silence_of(stories, now),
        ended=ended.ending[0] if ended and ended.ending else None,
        findings=failure_findings(stories),
        harmless=harmless_lines(stories),
        timings={k: v for s in stories for k, v in s.timings.items()},
        attempt=max(story.attempt for story in stories),
    )


def _check_framework(framework: str | None, books: Sequence[Book]) -> None:
    names = [book.name for book in books if book.phases]
    if framework is not None and framework not in names:
        msg = f"no such framework: {framework!r:.60}"
        raise LogError(msg, remedy=f"one of {', '.join(sorted(names))}")


def _stories(
    source: Any, books: tuple[Book, ...], now: float | None
) -> tuple[list[Story], tuple[Missing, ...]]:
    rules = make_rules(books)
    paths = _paths(source)
    if paths is None:
        return [follow_log(source, rules, now=now)], ()

    walk = walk_logs(paths)
    stories, missing = [], []
    for path in walk:
        try:
            stories.append(follow_log(path, rules, now=now))
        except (OSError, ValueError) as exc:
            missing.append(Missing.log(path, exc))
        else:
            missing += (Missing.log(path, exc) for exc in stories[-1].lost)
    missing = [*walk.missing, *missing]
    if not stories:
        named = ", ".join(map(str, paths[:3])) or "nothing"
        reasons = "; ".join(one.reason for one in missing[:3])
        msg = f"no log in {named}" + (f": {reasons}" if reasons else "")
        raise NoLogsError(msg, remedy="name a log, or a folder of logs")
    return stories, tuple(missing)


def _paths(source: Any) -> list[str | os.PathLike[str]] | None:
    """
    The paths that are meant, or ``None`` if these are lines.
    """
    if isinstance(source, str):
        return None if "\n" in source else [source]
    if isinstance(source, os.PathLike):
        return [source]
    if not isinstance(source, list | tuple) or not source:
        return None
    return list(source) if all(map(_is_path, source)) else None


def _is_path(one: Any) -> bool:
    """
    Does this name a file, be it one that is not there?
    """
    if isinstance(one, os.PathLike):
        return True
    try:
        return _PATH.fullmatch(one) is not None or Path(one).exists()
    except (OSError, TypeError, ValueError):
        return False


def _ending(stories: Sequence[Story]) -> Story | None:
    """
    The log that tells the end, unless another one goes on after it.
    """
    ended = [story for story in stories if story.ending]
    if not ended:
        return None

    last = max(ended, key=lambda s: s.ended_at or 0.0)
    newer = [
        track.last_at
        for story in stories
        for track in story.tracks.values()
        if track.phase.trains and track.last_at is not None
    ]
    if (
        last.ended_at is not None
        and max(newer, default=0) > last.ended_at + 60
    ):
        return None
    return last
