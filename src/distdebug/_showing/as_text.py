"""
How do blocks look as text?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch

from .._text import clean, text_table
from .blocks import Block, Branch, Entries, Entry, Lines, Table, Tree


__all__ = ["Paint", "blocks_text", "plain_line"]

# Makes a terminal show a "head", a "label", a "note", or a fact (by its name,
# such as "cause") as what it is.
Paint = Callable[[str, str], str]

_WIDTH = 96
# What is longer is in the data, not on the terminal.
_LONGEST_HEAD, _LONGEST_FACT = 400, 2000


def blocks_text(
    blocks: Iterable[Block],
    *,
    full: bool = False,
    paint: Paint = lambda _kind, text: text,
) -> str:
    """
    How do these blocks look as text?

    Args:
        blocks: What there is to show.

        full: Whether to show all of what is long, too.

        paint: Makes a terminal show a text of some kind; what it adds takes
            no room.

    Returns:
        Lines, without a line break at the end.
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
    How does a line look that a terminal does not obey?

    Args:
        line: The line; blanks at its beginning are kept.
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
