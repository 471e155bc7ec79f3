"""
Which texts begin, move, and end the phases of a job's start-up?

The rules are data: one file in TOML per framework, in ``books`` beside this
file; users can add files of their own.
"""

from __future__ import annotations

import os

from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import attrs

from .._patterns import check_pattern
from .._toml import read_toml
from ..errors import RulesError
from .book import Book, Ending, Failure, Phase


__all__ = ["load_book", "read_books"]

_MOST_SECONDS = 1e9
_BOOKS = Path(__file__).with_name("books")


def load_book(path: str | os.PathLike[str]) -> Book:
    """
    Read what is known about one framework.

    Args:
        path: A file in TOML, with a table ``[framework]`` and tables
            ``[[phase]]``, ``[[failure]]``, and ``[[ending]]``, whose keys are
            the attributes of :class:`~distdebug.startup.book.Book`,
            :class:`~distdebug.startup.book.Phase`,
            :class:`~distdebug.startup.book.Failure`, and
            :class:`~distdebug.startup.book.Ending`.

    Returns:
        The book.

    Raises:
        RulesError: It cannot be read, or is not such a book.
    """
    return _load(path, is_ours=False)


def _load(path: str | os.PathLike[str], *, is_ours: bool) -> Book:
    name = os.fspath(path)
    try:
        table = read_toml(path)
    except (OSError, ValueError) as exc:
        raise RulesError(str(exc), name) from None

    parts = {"framework", "phase", "failure", "ending"}
    if unknown := set(table) - parts:
        msg = f"no such table: {min(unknown)!r:.60}"
        raise RulesError(msg, name)
    items = partial(_items, path=name, is_ours=is_ours)
    made: dict[str, Any] = {
        "phases": tuple(items(Phase, table, "phase")),
        "failures": tuple(items(Failure, table, "failure")),
        "endings": tuple(items(Ending, table, "ending")),
    }
    framework = table.get("framework", {})
    try:
        checked = _checked(Book, framework, is_ours=is_ours, leave=set(made))
        return Book(**checked, **made)
    except (TypeError, ValueError, RecursionError) as exc:
        msg = f"[framework]: {exc}"
        raise RulesError(msg, name) from None


def read_books(
    paths: Iterable[str | os.PathLike[str]] = (),
) -> tuple[Book, ...]:
    """
    Gather the books of these files and our own.

    Args:
        paths: Files of the user.  One whose framework has the name of one of
            ours takes its place.

    Returns:
        All books, those of the user first.

    Raises:
        RulesError: One of the files cannot be used.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    books = {book.name: book for book in map(load_book, paths)}
    for book in _own_books():
        books.setdefault(book.name, book)
    return tuple(books.values())


@cache
def _own_books() -> tuple[Book, ...]:
    return tuple(
        _load(path, is_ours=True) for path in sorted(_BOOKS.glob("*.toml"))
    )


def _items(
    kind: Any, book: Mapping[str, Any], word: str, *, path: str, is_ours: bool
) -> Iterable[Any]:
    tables = book.get(word, [])
    if not isinstance(tables, list):
        msg = f"write [[{word}]], not [{word}]"
        raise RulesError(msg, path)

    for number, table in enumerate(tables, start=1):
        try:
            yield kind(**_checked(kind, table, is_ours=is_ours))
        except (TypeError, ValueError, RecursionError) as exc:
            msg = f"{word} {number}: {exc}"
            raise RulesError(msg, path) from None


def _checked(
    kind: Any, table: Any, *, is_ours: bool, leave: Iterable[str] = ()
) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        msg = f"not a table: {table!r:.60}"
        raise TypeError(msg)

    fields = {field.name: field for field in attrs.fields(kind)}
    for key, value in table.items():
        if key not in fields or key in leave:
            msg = f"no such key: {key!r:.60}"
            raise ValueError(msg)
        _check_value(key, fields[key], value)
        # Ours were measured, and have more choices than can be counted.
        if not is_ours and "Pattern" in str(fields[key].type):
            for text in [value] if isinstance(value, str) else value:
                check_pattern(text)
    return table


def _check_value(key: str, field: Any, value: Any) -> None:
    """
    Values of the wrong type, and numbers that no clock shows, are refused.
    """
    if str(field.type) == "float":
        is_right = (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and 0 <= value <= _MOST_SECONDS
        )
    elif str(field.type) == "bool":
        is_right = isinstance(value, bool)
    elif str(field.type).startswith(("tuple[str", "tuple[re.Pattern")):
        is_right = isinstance(value, list) and all(
            isinstance(item, str) for item in value
        )
    else:
        is_right = isinstance(value, str)
    if not is_right:
        msg = f"{key} has the wrong type or value: {value!r:.60}"
        raise TypeError(msg)
