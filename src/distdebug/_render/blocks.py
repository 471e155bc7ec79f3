"""
Describe results as blocks, and render blocks as text and as HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import cache, singledispatch
from html import escape
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

import attrs

from .._text import clean, text_table
from ..errors import MissingDependencyError


def as_plain(result: Any) -> dict[str, Any]:
    """
    Convert an attrs object to plain data for JSON.

    Tuples become lists, paths become strings, and members of an enumeration
    become their values.
    """
    return attrs.asdict(result, value_serializer=_serialize_value)


def _serialize_value(_: object, __: object, value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)

    return list(value) if isinstance(value, tuple) else value


@attrs.frozen
class Lines:
    """
    Lines of text.

    Attributes:
        lines: All of them.

        most: How many are shown at first.

        more: The noun for the others.
    """

    lines: Sequence[str]
    most: int = 24
    more: str = ""


@attrs.frozen
class Entry:
    """
    A sentence, and facts about it.

    Attributes:
        head: The sentence.

        facts: Names and values.

        before: An introduction, such as ``"also:"``.

        quotes: Evidence, as kinds, places, and texts; each is one line in a
            terminal.
    """

    head: str
    facts: Sequence[tuple[str, str]] = ()
    before: str = ""
    quotes: Sequence[tuple[str, str, str]] = ()


@attrs.frozen
class Entries:
    """
    Sentences of one kind, the most important one first.

    Attributes:
        entries: All of them.

        most: How many are shown at first.

        more: The noun for the others.
    """

    entries: Sequence[Entry]
    most: int = 5
    more: str = "findings"


@attrs.frozen
class Table:
    """
    Rows of cells; each is cleaned, and shown by its ``str()``.

    Attributes:
        headers: Titles of the columns.

        rows: All of them.

        most: How many are shown at first.

        more: The noun for the others.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    most: int = 24
    more: str = "rows"

    def __str__(self) -> str:
        return text_table(self.headers, self.rows)


@attrs.frozen
class Branch:
    """
    A part of a tree.

    Attributes:
        depth: How many branches lead to it.

        head: Its title, such as the ranks that went there.

        parts: Its steps, such as frames, the outermost first.
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


def _folded(
    items: Sequence[Any], block: Lines | Entries | Table, *, full: bool = False
) -> tuple[Sequence[Any], Sequence[Any], str]:
    """
    Return what is shown at first, the rest, and how many that are.
    """
    hidden = 0 if full else len(items) - block.most
    if hidden <= 0:
        return items, (), ""

    rest = f"… and {hidden} more {block.more}".rstrip()
    return items[: block.most], items[block.most :], rest


_WIDTH = 96
# Longer texts are cut here and stay whole in the data.
_LONGEST_HEAD, _LONGEST_FACT = 400, 2000


class Line(NamedTuple):
    """
    One line of a block.

    Attributes:
        parts: Its texts, each with its kind: ``""``, ``"head"``, ``"label"``,
            ``"note"``, or the name of a fact, such as ``"cause"``.

        indent: Of what goes on in the next line, where it may be wrapped;
            ``None`` if it is not.

        cut: Where its last part is cut if it does not fit: at its end, or in
            front, as of stacks, whose last frame says most.
    """

    parts: tuple[tuple[str, str], ...]
    indent: int | None = None
    cut: Literal["", "end", "front"] = ""

    def __str__(self) -> str:
        return "".join(text for _, text in self.parts)


def blocks_text(blocks: Iterable[Block], *, full: bool = False) -> str:
    """
    Render blocks as text, without a line break at the end.

    Args:
        blocks: What to render.

        full: Whether to show also what is cut at first.
    """
    texts = (
        "\n".join(map(str, block_lines(block, full=full))) for block in blocks
    )
    return "\n\n".join(filter(None, texts))


@singledispatch
def block_lines(block: Block, *, full: bool) -> Iterator[Line | Table]:
    """
    Yield the lines of a block, and a table as it is to be shown.

    Args:
        block: What to render.

        full: Whether to show also what is cut at first.
    """
    del full
    for line in str(block).splitlines():
        yield _line("", plain_line(line))


@block_lines.register
def _(block: Lines, *, full: bool) -> Iterator[Line]:
    shown, _, rest = _folded(block.lines, block, full=full)
    for line in shown:
        yield _line("", plain_line(line))
    if rest:
        yield _line("note", rest)


@block_lines.register
def _(block: Entries, *, full: bool) -> Iterator[Line]:
    shown, _, rest = _folded(block.entries, block, full=full)
    for i, entry in enumerate(shown):
        if i:
            yield Line(())
        yield from _entry(entry)
    if rest:
        if shown:
            yield Line(())
        yield _line("note", rest)


@block_lines.register
def _(block: Table, *, full: bool) -> Iterator[Line | Table]:
    shown, _, rest = _folded(block.rows, block, full=full)
    yield attrs.evolve(block, rows=shown)
    if rest:
        yield _line("note", rest)


@block_lines.register
def _(block: Tree, *, full: bool) -> Iterator[Line]:
    del full
    for branch in block.branches:
        indent = "  " + "    " * (branch.depth - 1) if branch.depth else ""
        mark = "▸ " if branch.depth else ""
        yield Line((("", f"{indent}{mark}"), ("label", branch.head)))
        inner = indent + ("    " if branch.depth else "  ")
        if branch.parts:
            yield from _wrapped(inner, branch.parts)


def _line(kind: str, text: str) -> Line:
    return Line(((kind, text),))


def plain_line(line: str) -> str:
    """
    Clean a line for a terminal; its indentation stays.
    """
    indent = len(line) - len(line.lstrip(" "))
    return " " * min(indent, _WIDTH) + clean(line, limit=_LONGEST_FACT)


def _entry(entry: Entry) -> Iterator[Line]:
    if entry.before:
        yield _line("", entry.before)
    head = clean(entry.head, limit=_LONGEST_HEAD)
    yield Line((("head", head),), indent=0)
    for name, value in entry.facts:
        yield Line(_fact_parts(name, value), indent=4)
    for name, place, value in entry.quotes:
        parts = _fact_parts(name, value, place)
        yield Line(parts, indent=4, cut="front" if name == "stack" else "end")


def _fact_parts(
    name: str, value: str, place: str = ""
) -> tuple[tuple[str, str], ...]:
    fact = clean(value, limit=_LONGEST_FACT)
    place = clean(place, limit=_LONGEST_FACT)
    before = f" {place}: " if place else " "
    return (("", "  "), ("label", f"{name}:"), ("", before), (name, fact))


def _wrapped(indent: str, parts: Sequence[str]) -> Iterator[Line]:
    line = ""
    for part in parts:
        longer = f"{line} → {part}" if line else part
        if line and len(indent) + len(longer) > _WIDTH:
            yield _line("", f"{indent}{line} →")
            line = part
        else:
            line = longer
    yield _line("", f"{indent}{line}")


# A notebook shows no more than this; the data has all.
_MOST_ITEMS = 2_000
_MOST_CHARS = 2000
_DEEPEST = 64


def blocks_html(blocks: Iterable[Block], picture: str = "") -> str:
    """
    Render blocks as HTML for a notebook, without scripts or other files.

    Args:
        blocks: What to show.

        picture: HTML to show below them where styles are allowed.
    """
    shown = list(blocks)
    page = "\n".join(filter(None, map(_html, shown)))
    text = escape(blocks_text(shown))
    return (
        f'<div class="distdebug"><style>{_style()}</style>'
        f'<pre class="dd-text">{text}</pre>'
        f'<div class="dd-page" style="display:none">{page}{picture}'
        "</div></div>"
    )


@cache
def _style() -> str:
    from importlib.resources import files

    return files(__package__).joinpath("style.css").read_text("utf-8")


@singledispatch
def _html(block: Block) -> str:
    return f"<pre>{_lines(str(block).splitlines())}</pre>" if block else ""


@_html.register
def _(block: Lines) -> str:
    if not block.lines:
        return ""

    first, others, title = _folded(block.lines, block)
    rest = f"<pre>{_lines(others[:_MOST_ITEMS])}</pre>"
    return f"<pre>{_lines(first)}</pre>{_details(title, rest)}"


@_html.register
def _(block: Entries) -> str:
    first, others, title = _folded(block.entries, block)
    rest = "".join(map(_as_html_entry, others[:_MOST_ITEMS]))
    return "".join(map(_as_html_entry, first)) + _details(title, rest)


@_html.register
def _(block: Table) -> str:
    first, others, title = _folded(block.rows, block)
    rest = _table(block.headers, others[:_MOST_ITEMS])
    return _table(block.headers, first) + _details(title, rest)


@_html.register
def _(block: Tree) -> str:
    """
    Nested parts that fold, without recursion: stacks may be deep.
    """
    parts: list[str] = []
    depth = -1
    for branch in block.branches:
        level = min(branch.depth, _DEEPEST)
        parts.append("</details>" * (depth - level + 1))
        parts.append(_as_html_branch(branch))
        depth = level
    parts.append("</details>" * (depth + 1))
    return f'<div class="dd-tree">{"".join(parts)}</div>'


def _as_html_branch(branch: Branch) -> str:
    # Text marks the user's own frames by an asterisk, too.
    frames = "".join(
        f"<li{' class=dd-own' if part.startswith('* ') else ''}>"
        f"{_cell(part)}</li>"
        for part in branch.parts
    )
    listed = f"<ol>{frames}</ol>" if frames else ""
    return f"<details open><summary>{_cell(branch.head)}</summary>{listed}"


def _as_html_entry(entry: Entry) -> str:
    before = f"<p>{_cell(entry.before)}</p>" if entry.before else ""
    quotes = (
        (name, f"{place}: {text}" if place else text)
        for name, place, text in entry.quotes
    )
    facts = "".join(
        f"<dt>{_cell(name)}:</dt><dd>{_cell(value)}</dd>"
        for name, value in (*entry.facts, *quotes)
    )
    listed = f"<dl>{facts}</dl>" if facts else ""
    return f"{before}<p><strong>{_cell(entry.head)}</strong></p>{listed}"


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{_cells('th', headers)}</tr></thead>"
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _cells(tag: str, cells: Iterable[object]) -> str:
    return "".join(f"<{tag}>{_cell(cell)}</{tag}>" for cell in cells)


def _details(title: str, inner: str) -> str:
    if not title:
        return ""

    return f"<details><summary>{escape(title)}</summary>{inner}</details>"


def _cell(value: object) -> str:
    return escape(clean(str(value), limit=_MOST_CHARS))


def _lines(lines: Iterable[str]) -> str:
    return escape("\n".join(map(plain_line, lines)))


TYPE_CHECKING = False
if TYPE_CHECKING:
    import pandas as pd


def frame_of(
    records: list[dict[str, Any]], *, flat: bool = False
) -> pd.DataFrame:
    """
    Make a data frame of one plain dictionary per row.

    Args:
        flat: Whether inner dictionaries become columns of their own.

    Raises:
        MissingDependencyError: *pandas* is not installed.
    """
    try:
        import pandas as pd
    except ImportError as exc:
        message = "a data frame needs pandas"
        remedy = "pip install pandas"
        raise MissingDependencyError(message, remedy=remedy) from exc

    if flat:
        return pd.json_normalize(records, sep="_")
    return pd.DataFrame.from_records(records)


class Shown:
    """
    Base of results that show themselves in a terminal, a notebook, a data frame.

    A subclass returns its blocks from ``_blocks_``.  It has ``to_dict`` if its
    plain data are not just its attributes, and ``to_records`` if it is more
    than one row.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        # IPython prefers the ``__repr__`` of a class to what its bases have.
        cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]

    def _blocks_(self) -> Iterable[Block]:
        raise NotImplementedError

    def _picture_(self) -> str:
        return ""

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        return as_plain(self)

    def to_text(self, *, full: bool = False) -> str:
        """
        Return text for a terminal or a ticket; ``str()`` is the same.

        Args:
            full: Whether to show also what is cut at first.
        """
        return blocks_text(self._blocks_(), full=full)

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per row of a data frame.
        """
        return [self.to_dict()]

    def to_frame(self) -> pd.DataFrame:
        """
        Return the records as a data frame of *pandas*.

        Raises:
            MissingDependencyError: *pandas* is not installed.
        """
        return frame_of(self.to_records())

    def __str__(self) -> str:
        return self.to_text()

    # IPython and Jupyter call these.
    def _repr_pretty_(self, p: Any, cycle: bool) -> None:  # noqa: FBT001
        p.text("..." if cycle else str(self))

    def _repr_html_(self) -> str:
        return blocks_html(self._blocks_(), self._picture_())
