"""
How are results shown as text?

What a job wrote (names, titles, log lines) may hold anything, so it is cleaned
on its way to a terminal.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Sequence


__all__ = ["clean", "text_table", "without_controls"]

# Colors and cursor movements (CSI), titles and links (OSC), short sequences.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9d]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def clean(text: str, *, limit: int = 200) -> str:
    """
    How can a text from outside be shown in one line of a terminal?

    Escape sequences, control characters, and characters that are invisible or
    change the direction of writing are taken out; line breaks become blanks.

    Args:
        text: Any text.

        limit: How many characters to keep; what is longer ends in ``…``.

    Returns:
        One line that prints as it reads.
    """
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() else " " if char.isspace() else ""
            for char in _ESCAPES.sub("", text)
        )
    text = text.strip()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def text_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]]
) -> str:
    """
    How do rows look as a table?

    Args:
        headers: Titles of the columns.

        rows: Cells; each is cleaned and shown by its ``str()``.

    Returns:
        The lines of the table, without a line break at the end.
    """
    from tabulate import tabulate

    cells = [[clean(str(cell)) for cell in row] for row in rows]
    # Numbers stay as they are: 0012 is a name here, and 1e5 may be a hash.
    table: str = tabulate(cells, headers=headers, disable_numparse=True)
    return table


def without_controls(text: str) -> str:
    """
    What is this text without what only a terminal understands?

    Escape sequences and control characters are taken out, but for the ends of
    lines and tabulators.

    Args:
        text: Any text, of any number of lines.

    Returns:
        The same lines.
    """
    return _CONTROLS.sub("", _ESCAPES.sub("", text))
