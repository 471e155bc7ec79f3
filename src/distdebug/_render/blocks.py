"""
Describe results as blocks, and render blocks as text and as HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from functools import cache, singledispatch
from html import escape
from importlib.resources import files
from typing import Any

import attrs

from .._text import clean, text_table
from ..errors import MissingDependencyError


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

    @property
    def rest(self) -> str:
        """
        Say how many are not shown at first; empty if all are.
        """
        return _rest(self.lines, self.most, self.more)


@attrs.frozen
class Entry:
    """
    A sentence, and facts about it.

    Attributes:
        head: The sentence.

        facts: Names and values.

        before: An introduction, such as ``"also:"``.
    """

    head: str
    facts: Sequence[tuple[str, str]] = ()
    before: str = ""


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

    @property
    def rest(self) -> str:
        """
        Say how many are not shown at first; empty if all are.
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

        more: The noun for the others.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    most: int = 24
    more: str = "rows"

    @property
    def rest(self) -> str:
        """
        Say how many are not shown at first; empty if all are.
        """
        return _rest(self.rows, self.most, self.more)


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


def _rest(items: Sized, most: int, more: str) -> str:
    hidden = len(items) - most
    return f"… and {hidden} more {more}".rstrip() if hidden > 0 else ""


# Takes the kind of a text ("head", "label", "note", or the name of a fact, such as
# "cause") and the text, and returns the text with the codes of a terminal.
Paint = Callable[[str, str], str]

_WIDTH = 96
# Longer texts are cut here and stay whole in the data.
_LONGEST_HEAD, _LONGEST_FACT = 400, 2000


def blocks_text(
    blocks: Iterable[Block],
    *,
    full: bool = False,
    paint: Paint = lambda _kind, text: text,
) -> str:
    """
    Render blocks as text, without a line break at the end.

    Args:
        blocks: What to render.

        full: Whether to show also what is cut at first.

        paint: Adds the terminal's codes to a text of some kind; they take no
            room in the layout.
    """
    texts = (_text(block, full, paint) for block in blocks)
    return "\n\n".join(text for text in texts if text)


@singledispatch
def _text(block: Block, full: bool, paint: Paint) -> str:  # noqa: FBT001
    del full, paint
    return "\n".join(map(plain_line, str(block).splitlines()))


@_text.register
def _(block: Lines, full: bool, paint: Paint) -> str:  # noqa: FBT001
    shown, rest = block.lines, ""
    if not full:
        shown, rest = block.lines[: block.most], block.rest
    return "\n".join([*map(plain_line, shown), *_note(rest, paint)])


@_text.register
def _(block: Entries, full: bool, paint: Paint) -> str:  # noqa: FBT001
    shown, rest = block.entries, ""
    if not full:
        shown, rest = block.entries[: block.most], block.rest
    texts = ("\n".join(_entry(entry, paint)) for entry in shown)
    return "\n\n".join([*texts, *_note(rest, paint)])


@_text.register
def _(block: Table, full: bool, paint: Paint) -> str:  # noqa: FBT001
    shown, rest = block.rows, ""
    if not full:
        shown, rest = block.rows[: block.most], block.rest
    table = text_table(block.headers, shown)
    return "\n".join([table, *_note(rest, paint)])


@_text.register
def _(block: Tree, full: bool, paint: Paint) -> str:  # noqa: FBT001
    del full
    return "\n".join(
        line for branch in block.branches for line in _branch(branch, paint)
    )


def plain_line(line: str) -> str:
    """
    Clean a line for a terminal; its indentation stays.
    """
    indent = len(line) - len(line.lstrip(" "))
    return " " * min(indent, _WIDTH) + clean(line, limit=_LONGEST_FACT)


def _note(text: str, paint: Paint) -> Iterator[str]:
    if text:
        yield paint("note", text)


def _entry(entry: Entry, paint: Paint) -> Iterator[str]:
    if entry.before:
        yield entry.before
    yield paint("head", clean(entry.head, limit=_LONGEST_HEAD))
    for name, value in entry.facts:
        label = paint("label", f"{name}:")
        fact = clean(value, limit=_LONGEST_FACT)
        yield f"  {label} {paint(name, fact)}"


def _branch(branch: Branch, paint: Paint) -> Iterator[str]:
    indent = "  " + "    " * (branch.depth - 1) if branch.depth else ""
    mark = "▸ " if branch.depth else ""
    yield f"{indent}{mark}{paint('label', branch.head)}"
    inner = indent + ("    " if branch.depth else "  ")
    if branch.parts:
        yield from _wrapped(inner, branch.parts)


def _wrapped(indent: str, parts: Sequence[str]) -> Iterator[str]:
    line = ""
    for part in parts:
        longer = f"{line} → {part}" if line else part
        if line and len(indent) + len(longer) > _WIDTH:
            yield f"{indent}{line} →"
            line = part
        else:
            line = longer
    yield f"{indent}{line}"


# A notebook shows no more than this; the data has all.
_MOST_ITEMS = 2_000
_MOST_CHARS = 2000
_DEEPEST = 64


def blocks_html(blocks: Iterable[Block]) -> str:
    """
    Render blocks as HTML for a notebook, without scripts or other files.
    """
    shown = list(blocks)
    page = "\n".join(filter(None, map(_html, shown)))
    text = escape(blocks_text(shown))
    return (
        f'<div class="distdebug"><style>{_style()}</style>'
        f'<pre class="dd-text">{text}</pre>'
        f'<div class="dd-page" style="display:none">{page}</div></div>'
    )


@cache
def _style() -> str:
    return files(__package__).joinpath("style.css").read_text("utf-8")


@singledispatch
def _html(block: Block) -> str:
    return f"<pre>{_lines(str(block).splitlines())}</pre>" if block else ""


@_html.register
def _(block: Lines) -> str:
    if not block.lines:
        return ""

    first, others = block.lines[: block.most], block.lines[block.most :]
    rest = f"<pre>{_lines(others[:_MOST_ITEMS])}</pre>"
    return f"<pre>{_lines(first)}</pre>{_folded(block.rest, rest)}"


@_html.register
def _(block: Entries) -> str:
    first, others = block.entries[: block.most], block.entries[block.most :]
    rest = "".join(map(_as_html_entry, others[:_MOST_ITEMS]))
    return "".join(map(_as_html_entry, first)) + _folded(block.rest, rest)


@_html.register
def _(block: Table) -> str:
    first, others = block.rows[: block.most], block.rows[block.most :]
    rest = _table(block.headers, others[:_MOST_ITEMS])
    return _table(block.headers, first) + _folded(block.rest, rest)


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
    facts = "".join(
        f"<dt>{_cell(name)}:</dt><dd>{_cell(value)}</dd>"
        for name, value in entry.facts
    )
    listed = f"<dl>{facts}</dl>" if facts else ""
    return f"{before}<p><strong>{_cell(entry.head)}</strong></p>{listed}"


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{_cell(title)}</th>" for title in headers)
    body = "".join(_row(row) for row in rows)
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _row(cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in cells)}</tr>"


def _folded(title: str, inner: str) -> str:
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


def frame_of(records: list[dict[str, Any]]) -> pd.DataFrame:
    """
    Make a data frame of one plain dictionary per row.

    Raises:
        MissingDependencyError: *pandas* is not installed.
    """
    try:
        import pandas as pd
    except ImportError as exc:
        message = "a data frame needs pandas"
        remedy = 'pip install "distdebug[notebook]"'
        raise MissingDependencyError(message, remedy=remedy) from exc

    return pd.DataFrame.from_records(records)


class Shown:
    """
    Base of results that show themselves in a terminal, a notebook, a data frame.

    A subclass returns its blocks from ``_blocks_``.  It has ``to_dict``, and
    ``to_records`` if it is more than one row.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        # IPython prefers the ``__repr__`` of a class to what its bases have.
        cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]

    def _blocks_(self) -> Iterable[Block]:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        raise NotImplementedError

    def to_text(
        self, *, full: bool = False, paint: Paint | None = None
    ) -> str:
        """
        Return text for a terminal or a ticket; ``str()`` is the same.

        Args:
            full: Whether to show also what is cut at first.

            paint: Adds the terminal's codes to a text of some kind (``"head"``,
                ``"label"``, or ``"note"``), such as a color.
        """
        if paint is None:
            return blocks_text(self._blocks_(), full=full)

        return blocks_text(self._blocks_(), full=full, paint=paint)

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
        return blocks_html(self._blocks_())
