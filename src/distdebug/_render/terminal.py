"""
Print blocks in a terminal: colors, wrapped facts, tables that fit.
"""

from __future__ import annotations

import re
import shutil

from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from .._lazy import late_pattern
from .._text import clean
from .blocks import Block, Line, Table, block_lines


if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text


_STYLES = {"label": "dim", "note": "dim", "cause": "yellow"}
_STYLES_OF_GOOD_NEWS = {**_STYLES, "head": "bold green", "cause": "dim"}
_RANKS = late_pattern(r"\branks? [0-9][0-9,-]{0,200}")


def print_blocks(
    blocks: Iterable[Block],
    stream: TextIO,
    *,
    is_fine: bool,
    full: bool = False,
    colors: bool = True,
) -> None:
    """
    Print blocks with the colors of a terminal, and no wider than it is.

    Args:
        blocks: What to print.

        stream: Where to.

        is_fine: Whether they report that all is well.

        full: Whether to print them without cuts, however wide they are.

        colors: Whether to use colors.
    """
    is_fitted = stream.isatty() and not full
    width = shutil.get_terminal_size().columns
    console = make_console(stream, width=width, colors=colors)
    texts = (list(block_lines(block, full=full)) for block in blocks)
    for i, lines in enumerate(filter(_is_text, texts)):
        if i:
            console.print()
        for line in lines:
            if isinstance(line, Table) and is_fitted:
                console.print(_table(line))
                continue

            text = _styled(line, is_fine=is_fine)
            if is_fitted and isinstance(line, Line):
                text = _fitted(text, line, width)
            console.print(text, soft_wrap=True)
    stream.flush()


def make_console(
    stream: TextIO, *, colors: bool, width: int | None = None
) -> Console:
    """
    Return a console that prints texts as they are.

    Args:
        stream: Where to print.

        colors: Whether to use colors.

        width: In characters; by default that of the terminal.
    """
    from rich.console import Console

    return Console(
        file=stream,
        width=width,
        color_system="standard" if colors else None,
        force_terminal=colors or None,
        no_color=not colors,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _is_text(lines: list[Line | Table]) -> bool:
    return any(isinstance(x, Table) or str(x) for x in lines)


def _styled(line: Line | Table, *, is_fine: bool) -> Text:
    from rich.text import Text

    if isinstance(line, Table):
        return Text(str(line))

    styles = _STYLES_OF_GOOD_NEWS if is_fine else _STYLES
    text = Text()
    for kind, part in line.parts:
        if kind == "head" and not is_fine:
            text.append_text(_alarming(part))
        else:
            text.append(part, styles.get(kind))
    return text


def _alarming(head: str) -> Text:
    """
    Return a sentence in which the first ranks stand out; all of it if none is.
    """
    from rich.text import Text

    text = Text()
    begin, end = m.span() if (m := _RANKS.search(head)) else (0, len(head))
    for part, style in (
        (head[:begin], "bold"),
        (head[begin:end], "bold red"),
        (head[end:], "bold"),
    ):
        text.append(part, style)
    return text


def _fitted(text: Text, line: Line, width: int) -> Text:
    if line.cut and text.cell_len > width:
        return _cut(text, line, width)
    return text if line.indent is None else _wrapped(text, line.indent, width)


# A place of this length is never cut.
_LEAST_PLACE = 24


def _cut(text: Text, line: Line, width: int) -> Text:
    """
    Cut a line to one line of the terminal: first the folders of its place.

    Of a stack, whole frames are cut in front, so that the last can be read.
    """
    from rich.text import Text

    place, quote = (len(part) for _, part in line.parts[-2:])
    head, where, last = text.divide(
        [len(text) - quote - place, len(text) - quote]
    )
    most = max(width // 3, _LEAST_PLACE)
    if place > most:
        where = Text.assemble(" …", where[place - most :])
    if line.cut == "front":
        room = max(width - len(head) - len(where) - 2, 1)
        before, arrow, rest = last.plain[-room:].partition("→ ")
        if len(last) > room:
            last = Text(f"… → {rest}" if arrow else f"…{before}")
    shown = Text.assemble(head, where, last)
    shown.truncate(width, overflow="ellipsis")
    return shown


def _wrapped(text: Text, indent: int, width: int) -> Text:
    """
    Wrap a line at blanks; a word that is longer than a line stays whole.
    """
    from rich.cells import cell_len
    from rich.text import Text

    offsets: list[int] = []
    begin, room = 0, width
    for word in re.finditer(r"\S+", text.plain):
        so_far = text.plain[begin : word.start()]
        if so_far.strip() and cell_len(f"{so_far}{word[0]}") > room:
            begin, room = word.start(), width - indent
            offsets.append(begin)
    lines = text.divide(offsets)
    for i, line in enumerate(lines):
        line.rstrip()
        line.pad_left(indent if i else 0)
    return Text("\n").join(lines)


def _table(table: Table) -> RichTable:
    """
    Return a table of which the widest columns are cut until it fits.
    """
    from rich import box
    from rich.table import Table as RichTable

    shown = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for header in table.headers:
        shown.add_column(_cell(header), overflow="ellipsis")
    for row in table.rows:
        shown.add_row(*map(_cell, row))
    return shown


def _cell(value: object) -> Text:
    from rich.text import Text

    return Text(clean(str(value)), no_wrap=True, overflow="ellipsis")
