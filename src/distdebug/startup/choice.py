"""
Whose log is it?
"""

from __future__ import annotations

from collections.abc import Iterable

from .book import Book
from .merging import Merged


__all__ = ["choose_book", "inner_books"]

_KINDS = ("orchestrator", "trainer", "engine")
# Something that only this framework prints, or two things that it prints.
_ENOUGH = 2.0


def choose_book(
    merged: Merged, books: Iterable[Book], wanted: str | None = None
) -> Book | None:
    """
    Whose log is it?

    Args:
        merged: What it tells.

        books: The choice.

        wanted: What the caller says.

    Returns:
        The book of what runs the others, or ``None`` if nothing tells.
    """
    books = list(books)
    if wanted is not None:
        return next((book for book in books if book.name == wanted), None)

    scores = merged.scores
    for kind in _KINDS:
        some = [
            book
            for book in books
            # Their texts are also those of what they run.
            if book.kind == kind
            and (book.name in merged.decided or not book.decisive)
        ]
        best = max(some, key=lambda b: scores.get(b.name, 0.0), default=None)
        if best and scores.get(best.name, 0.0) >= _ENOUGH:
            return best
    # Anybody may call an actor an engine.
    every = [book for book in books if book.name in merged.told]
    every.sort(key=lambda book: scores[book.name], reverse=True)
    ranked = [scores[book.name] for book in every]
    # What two print alike does not tell which it is.
    return every[0] if every and ranked[0] not in ranked[1:] else None


def inner_books(
    merged: Merged, book: Book | None, books: Iterable[Book]
) -> list[Book]:
    """
    Which books tell of this job: its own, and those of what runs inside it?

    Args:
        merged: What the logs tell.

        book: Whose they are.

        books: All books.

    Returns:
        Its own first; only what is common where nobody knows whose it is.
    """
    if book is None:
        return [one for one in books if one.kind == "common"]

    order = (*_KINDS, "common")
    rank = order.index(book.kind)
    inside = [
        one
        for one in books
        if one is not book
        and order.index(one.kind) > rank
        and (
            one.kind == "common" or merged.scores.get(one.name, 0.0) >= _ENOUGH
        )
    ]
    inside.sort(key=lambda one: order.index(one.kind))
    return [book, *inside]
