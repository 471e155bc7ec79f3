"""
Render blocks as Markdown, for issues, chats, and tickets.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Sequence
from functools import singledispatch

from .._lazy import late_pattern
from .._text import clean
from .blocks import Block, Entries, Entry, Lines, Table, blocks_text


_MOST_CHARS = 1000
_MOST_ROWS = 50
# Also what would call a person or a command by name in a chat.
_SPECIAL = late_pattern(r"([\\`*_\[\]<>#|~@$])")


def blocks_markdown(blocks: Iterable[Block]) -> str:
    """
    Render blocks as Markdown, as GitHub shows it: quotes and notes are folded.

    Args:
        blocks: What to render.
    """
    return "\n\n".join(filter(None, map(_markdown, blocks)))


@singledispatch
def _markdown(block: Block) -> str:
    text = blocks_text([block])
    return _fence(text) if "\n" in text else _escape(text)


@_markdown.register
def _(block: Lines) -> str:
    listed = "\n".join(f"- {_escape(x)}" for x in block.lines[:_MOST_ROWS])
    rest = len(block.lines) - _MOST_ROWS
    more = f"\n- … and {rest:,} more" if rest > 0 else ""
    return f"{listed}{more}" if len(block.lines) > 1 else listed[2:]


@_markdown.register
def _(block: Entries) -> str:
    first = block.entries[: block.most]
    rest = len(block.entries) - len(first)
    parts = [_as_entry(entry) for entry in first]
    parts += [f"… and {rest:,} more {block.more}"] if rest else []
    return "\n\n".join(parts)


@_markdown.register
def _(block: Table) -> str:
    from tabulate import tabulate

    rows = [[_escape(str(cell)) for cell in row] for row in block.rows]
    table = tabulate(
        rows[:_MOST_ROWS],
        headers=list(block.headers),
        tablefmt="github",
        disable_numparse=True,
    )
    rest = len(rows) - _MOST_ROWS
    return (
        f"{table}\n\n… and {rest:,} more {block.more}" if rest > 0 else table
    )


def _as_entry(entry: Entry) -> str:
    parts = [_escape(entry.before)] if entry.before else []
    parts.append(f"**{_escape(entry.head)}**")
    facts = [f"- {_escape(k)}: {_escape(v)}" for k, v in entry.facts]
    parts += ["\n".join(facts)] if facts else []
    if entry.quotes:
        parts.append(_folded("evidence", _quote_lines(entry)))
    return "\n\n".join(parts)


def _quote_lines(entry: Entry) -> Sequence[str]:
    return [
        f"{name}: {place}: {text}" if place else f"{name}: {text}"
        for name, place, text in entry.quotes
    ]


def _folded(title: str, lines: Sequence[str]) -> str:
    count = f" ({len(lines)})"
    body = _fence("\n".join(clean(x, limit=_MOST_CHARS) for x in lines))
    return (
        f"<details><summary>{title}{count}</summary>\n\n{body}\n\n</details>"
    )


def _fence(text: str) -> str:
    runs = re.findall(r"`{3,}", text)
    fence = "`" * max([3, *(len(run) + 1 for run in runs)])
    return f"{fence}text\n{text}\n{fence}"


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", clean(text, limit=_MOST_CHARS))
