"""
How are results shown as text?

What a job wrote (names, titles, log lines) may hold anything, so it is cleaned
on its way to a terminal.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Sequence


# Colors and cursor movements (CSI), titles and links (OSC), short sequences.
_CSI = r"[0-?]*[ -/]*[@-~]"
_OSC = r"[^\x07\x1b\x9d]*(?:\x07|\x1b\\)"
# Python looks for the first character much faster if each way begins with one.
_ESCAPES = re.compile(
    rf"\x1b(?:\[{_CSI}|\]{_OSC}|[ -/]*[0-~])|\x9b{_CSI}|\x9d{_OSC}"
)
# Letters by their class, of which nothing is seen.
_FILLERS = dict.fromkeys((0x115F, 0x1160, 0x2800, 0x3164, 0xFFA0), " ")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# The last ones turn the direction of writing, so that lines read otherwise.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


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
    if not text.isascii():
        text = text.translate(_FILLERS)
    text = text.strip()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def list_text(items: Iterable[object], *, most: int = 4) -> str:
    """
    How are a few of many named in a sentence?

    Args:
        items: All of them.

        most: How many to name.

    Returns:
        Such as ``"a, b, and 7 more"``.
    """
    names = [str(item) for item in items]
    more = len(names) - most
    if more > 0:
        return f"{', '.join(names[:most])}, and {more} more"

    return ", ".join(names)


def reason_of(exc: BaseException) -> str:
    """
    Why did something fail?

    Args:
        exc: What was raised.

    Returns:
        What the system or the exception says, without numbers and names of
        files; the name of its class if it says nothing.
    """
    told: str | None = getattr(exc, "strerror", None)
    return told or str(exc) or type(exc).__name__


def size_text(size: float) -> str:
    """
    How is a number of bytes written in a sentence?

    Args:
        size: The number.

    Returns:
        Such as ``"1.5 GiB"``.
    """
    unit = 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{size:.{int(unit > 0 and size < 100)}f} {_UNITS[unit]}"


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


def time_text(seconds: float) -> str:
    """
    How is a duration told in a sentence?

    Args:
        seconds: The duration; less than none counts as none.

    Returns:
        Such as ``"45 s"``, ``"12 min"``, ``"3 h 5 min"``, or ``"2 d 4 h"``.
    """
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        hours, rest = divmod(minutes, 60)
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    days, rest = divmod(round(minutes / 60), 24)
    return f"{days} d {rest} h" if rest else f"{days} d"


def without_controls(text: str) -> str:
    """
    What is this text without what only a terminal understands?

    Escape sequences, control characters, and what changes the direction of
    writing are taken out, but for the ends of lines and tabulators.

    Args:
        text: Any text, of any number of lines.

    Returns:
        The same lines.
    """
    text = _ESCAPES.sub("", text)
    return text if text.isprintable() else _CONTROLS.sub("", text)
