"""
What is there to show?
"""

from __future__ import annotations

from collections.abc import Sequence, Sized

import attrs


__all__ = ["Block", "Branch", "Entries", "Entry", "Lines", "Table", "Tree"]


@attrs.frozen
class Lines:
    """
    Lines of text, as they stand.

    Attributes:
        lines: All of them.

        most: How many are shown at first.

        more: What the others are called.
    """

    lines: Sequence[str]
    most: int = 24
    more: str = ""

    @property
    def rest(self) -> str:
        """
        What is not shown at first, in words; ``""`` if nothing is.
        """
        return _rest(self.lines, self.most, self.more)


@attrs.frozen
class Entry:
    """
    A sentence, and facts about it.

    Attributes:
        head: The sentence.

        facts: Names and values, in few words.

        before: What leads to it, such as ``"also:"``.
    """

    head: str
    facts: Sequence[tuple[str, str]] = ()
    before: str = ""


@attrs.frozen
class Entries:
    """
    Sentences of the same kind, the most important one first.

    Attributes:
        entries: All of them.

        most: How many are shown at first.

        more: What the others are called.
    """

    entries: Sequence[Entry]
    most: int = 5
    more: str = "findings"

    @property
    def rest(self) -> str:
        """
        What is not shown at first, in words; ``""`` if nothing is.
        """
        return _rest(self.entries, self.most, self.more)


@attrs.frozen
class Table:
    """
    Rows of cells; each is cleaned, and shown by its ``str()``.

    Attributes:
        headers: Titles of the columns.

        rows: All of them.

        most: How many are shown at first.

        more: What the others are called.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    most: int = 24
    more: str = "rows"

    @property
    def rest(self) -> str:
        """
        What is not shown at first, in words; ``""`` if nothing is.
        """
        return _rest(self.rows, self.most, self.more)


@attrs.frozen
class Branch:
    """
    A part of a tree: who went there, and along what.

    Attributes:
        depth: How many branches lead to it.

        head: Who.

        parts: Along what, from the outermost on.
    """

    depth: int
    head: str
    parts: Sequence[str] = ()


@attrs.frozen
class Tree:
    """
    Branches; each comes after the one that it parts from.
    """

    branches: Sequence[Branch]


Block = str | Lines | Entries | Table | Tree


def _rest(items: Sized, most: int, more: str) -> str:
    hidden = len(items) - most
    return f"… and {hidden} more {more}".rstrip() if hidden > 0 else ""
