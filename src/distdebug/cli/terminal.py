"""
What does a terminal show better than plain text?

Results are plain text.  Here, and only where a person looks, they get colors,
and tables and facts get as narrow as the terminal.
"""

from __future__ import annotations

import os
import re
import shutil

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TextIO


__all__ = [
    "fit_facts",
    "fit_tables",
    "has_colors",
    "paint_fine",
    "paint_wrong",
    "plain",
    "width_of",
]

_STYLES = {
    "label": "2",  # faint
    "note": "2",
    "cause": "33",  # yellow
}
_WRONG, _FINE = "31", "32"  # red, green
_RANKS = re.compile(r"\branks? [0-9][0-9,-]{0,200}")

_RULE = re.compile(r"-+(?:  -+)+")
_NARROWEST = 6

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
# Such as "  stack: rank 3: …", as one of the facts below a sentence.
_FACT = re.compile(r"  (?:\x1b\[[0-9;]*m)?[a-z][a-z _-]{0,40}:")


def has_colors(
    stream: TextIO, environ: Mapping[str, str] = os.environ
) -> bool:
    """
    Is what is written here to be colored?

    As the interpreter does it for its own tracebacks: ``NO_COLOR``, then
    ``FORCE_COLOR``, and otherwise only on a terminal that is not dumb.

    Args:
        stream: Where it is written.

        environ: The environment.
    """
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True

    return environ.get("TERM") != "dumb" and stream.isatty()


def width_of(stream: TextIO) -> int | None:
    """
    How wide is the terminal that shows this?

    Args:
        stream: Where it is written.

    Returns:
        In characters; ``None`` if it is none.
    """
    return shutil.get_terminal_size().columns if stream.isatty() else None


def plain(kind: str, text: str) -> str:  # noqa: ARG001
    """
    Leave a part of a result as it is.

    Args:
        kind: What it is, such as ``"head"``.

        text: What it says.
    """
    return text


def paint_wrong(kind: str, text: str) -> str:
    """
    Color a part of a result that tells of something wrong.

    Args:
        kind: What it is, such as ``"head"``.

        text: What it says.

    Returns:
        The same with colors, which are reset at its end.
    """
    if kind != "head":
        return _colored(_STYLES.get(kind, ""), text)

    culprit = _RANKS.search(text)
    if culprit is None:
        return _colored(f"1;{_WRONG}", text)

    a, b = culprit.span()
    parts = (("1", text[:a]), (f"1;{_WRONG}", text[a:b]), ("1", text[b:]))
    return "".join(_colored(style, part) for style, part in parts)


def paint_fine(kind: str, text: str) -> str:
    """
    Color a part of a result that tells that all is well.

    Args:
        kind: What it is, such as ``"head"``.

        text: What it says.
    """
    if kind == "head":
        return _colored(f"1;{_FINE}", text)

    return _colored("2" if kind == "cause" else _STYLES.get(kind, ""), text)


def _colored(style: str, text: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text


def fit_tables(text: str, width: int) -> str:
    """
    Make the tables in a text as narrow as a terminal, by cutting their cells.

    Args:
        text: A result; tables are known by the line below their titles.

        width: Of the terminal, in characters.

    Returns:
        The same text, with ``…`` where a cell was cut.
    """
    lines = text.split("\n")
    for i, rule in enumerate(lines):
        if i and len(rule) > width and _RULE.fullmatch(rule):
            end = i + 1
            while end < len(lines) and _belongs(lines[end]):
                end += 1
            lines[i - 1 : end] = _fitted(lines[i - 1 : end], rule, width)
    return "\n".join(lines)


def _belongs(line: str) -> bool:
    return bool(line) and "… and " not in line[:12]


def _fitted(rows: Sequence[str], rule: str, width: int) -> list[str]:
    spans = [match.span() for match in re.finditer("-+", rule)]
    # Characters of two columns would be cut at the wrong place.
    if any(
        row[b:c].strip() for row in rows for (_, b), (c, _) in pairwise(spans)
    ):
        return list(rows)

    texts = [[len(row[a:b].rstrip()) for a, b in spans] for row in rows]
    cells = [max(column) for column in zip(*texts[2:], strict=True)]
    titles = [*map(max, texts[0], cells or texts[0])]
    widths = [b - a for a, b in spans]
    # Room between columns goes first, then titles, then what they say.
    for least in (titles, cells, []):
        widths = _narrowed(widths, least or [_NARROWEST] * len(spans), width)
    return [
        "  ".join(
            _cut(row[a:b], size)
            for (a, b), size in zip(spans, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _narrowed(
    widths: Sequence[int], least: Sequence[int], room: int
) -> list[int]:
    """
    Take from the widest column that may get narrower until all fit.
    """
    narrow = list(widths)
    excess = sum(narrow) + 2 * (len(narrow) - 1) - room
    for _ in range(excess):
        spare = [
            (width, -at)
            for at, width in enumerate(narrow)
            if width > max(least[at], _NARROWEST)
        ]
        if not spare:
            break
        narrow[-max(spare)[1]] -= 1
    return narrow


def _cut(cell: str, size: int) -> str:
    text = cell.rstrip()
    if len(text) <= size:
        return text.ljust(size)
    if set(text) == {"-"}:
        return "-" * size

    return f"{text[: size - 1]}…"


def fit_facts(text: str, width: int) -> str:
    """
    Let long facts of a text go on in lines that are set in.

    Args:
        text: A result; a fact is a line such as ``"  next: look at …"``.

        width: Of the terminal, in characters.

    Returns:
        The same words; what is longer than a line without a blank stays whole.
    """
    return "\n".join(
        _set_in(line, width) if _FACT.match(line) else line
        for line in text.split("\n")
    )


def _set_in(fact: str, width: int) -> str:
    begun, *words = fact[2:].split(" ")
    lines = [f"  {begun}"]
    for word in words:
        longer = f"{lines[-1]} {word}"
        if len(_COLOR.sub("", longer)) <= width:
            lines[-1] = longer
        else:
            lines.append(f"    {word}")
    return "\n".join(lines)
