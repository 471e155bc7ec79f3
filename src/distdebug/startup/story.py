"""
What does one log tell of its job?
"""

from __future__ import annotations

import re

import attrs

from .._lines import LogLine
from .book import Book, Failure, How
from .tracks import Track


__all__ = ["Seen", "Story"]

_MOST_MORE = 20


@attrs.define
class Seen:
    """
    One failure, and what was learned about it.
    """

    failure: Failure
    line: LogLine
    count: int
    # Up to which line more is told about it.
    open_until: int
    last: int
    facts: dict[str, str] = attrs.field(factory=dict)

    def learn(self, found: re.Match[str]) -> None:
        """
        A pattern tells more about it.
        """
        for name, value in found.groupdict().items():
            if value and len(self.facts) < _MOST_MORE:
                self.facts.setdefault(name, value[:200])

    def differs(self, found: re.Match[str]) -> bool:
        """
        Does a pattern tell something else than is known already?
        """
        return any(
            value and self.facts.get(name, value[:200]) != value[:200]
            for name, value in found.groupdict().items()
        )

    @property
    def is_told(self) -> bool:
        """
        Whether it is known whom it is about.
        """
        return not self.facts.keys().isdisjoint({"actor", "pid", "ip"})


@attrs.define
class Story:
    """
    What one log tells of the last attempt to run the job.
    """

    source: str = ""
    tracks: dict[tuple[str, str], Track] = attrs.field(factory=dict)
    hits: dict[str, dict[str, float]] = attrs.field(factory=dict)
    failures: list[Seen] = attrs.field(factory=list)
    harmless: list[Seen] = attrs.field(factory=list)
    timings: dict[str, float] = attrs.field(factory=dict)
    ending: tuple[How, LogLine] | None = None
    ended_at: float | None = None
    reason: LogLine | None = None
    attempt: int = 1
    attempt_at: float | None = None
    last_line: LogLine | None = None
    last_is_timed: bool = False
    time: float | None = None
    mtime: float | None = None
    order: int = 0
    starts: set[tuple[object, str]] = attrs.field(factory=set)
    done_at_end: float = 0.0
    # Why the rest of the log could not be read.
    lost: list[Exception] = attrs.field(factory=list)

    def hit(self, book: Book, what: str, weight: float) -> None:
        """
        Something was printed that tells the framework.
        """
        if book.kind != "common":
            self.hits.setdefault(book.name, {})[what] = weight

    @property
    def trains(self) -> bool:
        """
        Whether the job has come as far as its training.
        """
        return any(
            track.phase.trains and track.begun is not None
            for track in self.tracks.values()
        )

    def begin_again(self, time: float | None) -> None:
        """
        The job was started again: what was seen belongs to the past.
        """
        self.tracks.clear()
        self.failures.clear()
        self.timings.clear()
        self.starts.clear()
        self.ending = None
        self.attempt += 1
        self.attempt_at = time
