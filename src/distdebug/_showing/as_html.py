"""
How do blocks look in a notebook?

Notebooks that are not trusted lose their styles; then the text shows, which is
hidden otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, singledispatch
from html import escape
from importlib.resources import files

from .._text import clean
from .as_text import blocks_text, plain_line
from .blocks import Block, Branch, Entries, Entry, Lines, Table, Tree


__all__ = ["blocks_html"]

# Whoever needs more than this has the data.
_MOST_ITEMS = 2_000
_MOST_CHARS = 2000
_DEEPEST = 64


def blocks_html(blocks: Iterable[Block]) -> str:
    """
    How do these blocks look in a notebook?

    Args:
        blocks: What there is to show.

    Returns:
        HTML without scripts, which needs no other file.
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
    rest = "".join(map(_entry, others[:_MOST_ITEMS]))
    return "".join(map(_entry, first)) + _folded(block.rest, rest)


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
        parts.append(_branch(branch))
        depth = level
    parts.append("</details>" * (depth + 1))
    return f'<div class="dd-tree">{"".join(parts)}</div>'


def _branch(branch: Branch) -> str:
    # What is own code of the user is marked as in text.
    frames = "".join(
        f"<li{' class=dd-own' if part.startswith('* ') else ''}>"
        f"{_cell(part)}</li>"
        for part in branch.parts
    )
    listed = f"<ol>{frames}</ol>" if frames else ""
    return f"<details open><summary>{_cell(branch.head)}</summary>{listed}"


def _entry(entry: Entry) -> str:
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
