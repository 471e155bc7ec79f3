"""
Which rules may fit a line?
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Literal

import attrs

from .bars import BAR_LITERALS
from .book import Book, Ending, Failure, Phase
from .literals import literals_of
from .words import Words, make_words


__all__ = ["TRACEBACK", "Kind", "Rule", "RuleBook", "make_rules"]

Kind = Literal[
    "start",
    "decisive",
    "actor",
    "shared_actor",
    "table",
    "begin",
    "progress",
    "end",
    "end_part",
    "fail",
    "facts",
    "failure",
    "more",
    "ending",
]
# Where an index is worth its making.
_LARGE = 1 << 17
TRACEBACK = "Traceback (most recent call last)"

_OF_PHASES: tuple[Kind, ...] = (
    *("end", "end_part", "begin", "progress", "fail", "facts"),
)
_WEIGHTS: dict[str, float] = {
    "decisive": 3.0,
    "actor": 2.0,
    "shared_actor": 1.5,
    "facts": 0.0,
    "start": 0.0,
}


@attrs.frozen(kw_only=True, eq=False)
class Rule:
    """
    One pattern, and what it means.
    """

    book: Book
    kind: Kind
    pattern: re.Pattern[str]
    phase: Phase | None = None
    failure: Failure | None = None
    ending: Ending | None = None

    def find(self, text: str) -> re.Match[str] | None:
        """
        Where does it fit?  What may stand anywhere is not tried everywhere.
        """
        if self.pattern.pattern.startswith(".{0,"):
            return self.pattern.match(text)
        return self.pattern.search(text)

    @property
    def told(self) -> str:
        """
        What it tells about the framework, in words that only it has.
        """
        return f"{self.kind} {self.pattern.pattern}"

    @property
    def weight(self) -> float:
        """
        How much it tells about the framework.
        """
        if self.phase is not None and self.kind != "facts":
            return self.phase.weight
        return _WEIGHTS.get(self.kind, 1.0)


@attrs.frozen(kw_only=True, eq=False)
class RuleBook:
    """
    All rules, by the plain texts that have to stand in a line.

    Attributes:
        books: Those they come from.

        by_text: The rules of which one may fit where that text stands.

        always: Those that have no such text.
    """

    books: tuple[Book, ...]
    by_text: dict[str, list[Rule]]
    always: tuple[Rule, ...]

    @cached_property
    def words(self) -> Words:
        """
        The plain texts, prepared to be found in large blocks.
        """
        return make_words(text.encode() for text in self.by_text)

    def texts_in(self, block: bytes) -> list[str]:
        """
        Which of the plain texts stand in this block of lines?
        """
        if len(block) < _LARGE:
            text = block.decode("utf-8", "replace")
            return [one for one in self.by_text if one in text]
        return [one.decode() for one in self.words.inside(block)]


def make_rules(books: tuple[Book, ...]) -> RuleBook:
    """
    Put the rules of some books in order.

    Args:
        books: The books.

    Returns:
        Their rules.
    """
    by_text: dict[str, list[Rule]] = {
        text: [] for text in (*BAR_LITERALS, TRACEBACK)
    }
    always = []
    for rule in _rules(books):
        texts = literals_of(rule.pattern)
        for text in texts:
            by_text.setdefault(text, []).append(rule)
        if not texts:
            always.append(rule)
    return RuleBook(books=books, by_text=by_text, always=tuple(always))


def _rules(books: Iterable[Book]) -> Iterator[Rule]:
    for book in books:
        for pattern in book.start:
            yield Rule(book=book, kind="start", pattern=pattern)
        for pattern in book.decisive:
            yield Rule(book=book, kind="decisive", pattern=pattern)
        for pattern in book.actors:
            yield Rule(book=book, kind="actor", pattern=pattern)
        for pattern in book.shared_actors:
            yield Rule(book=book, kind="shared_actor", pattern=pattern)
        if book.table:
            yield Rule(book=book, kind="table", pattern=book.table)
        for phase in book.phases:
            for kind in _OF_PHASES:
                for pattern in getattr(phase, kind):
                    yield Rule(
                        book=book, kind=kind, pattern=pattern, phase=phase
                    )
        yield from _of_failures(book)


def _of_failures(book: Book) -> Iterator[Rule]:
    for failure in book.failures:
        for pattern in failure.patterns:
            yield Rule(
                book=book, kind="failure", pattern=pattern, failure=failure
            )
        for pattern in failure.more:
            yield Rule(
                book=book, kind="more", pattern=pattern, failure=failure
            )
    for ending in book.endings:
        for pattern in ending.patterns:
            yield Rule(
                book=book, kind="ending", pattern=pattern, ending=ending
            )
