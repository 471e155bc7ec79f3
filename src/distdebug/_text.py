"""
Clean text from outside for a terminal, and format sizes, times, and tables.

Names, titles, and log lines of a job may hold anything, so they are cleaned on
their way to a terminal.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Sequence


# Colors and cursor movements (CSI), titles and links (OSC), short sequences.
_CSI = r"[0-?]*[ -/]*[@-~]"
_OSC = r"[^\x07\x1b\x9d]*(?:\x07|\x1b\\)"
# The search is much faster if each alternative begins with a literal.
# Jobs load this module and rarely clean a text: patterns are compiled in use.
_ESCAPES = rf"\x1b(?:\[{_CSI}|\]{_OSC}|[ -/]*[0-~])|\x9b{_CSI}|\x9d{_OSC}"
# Unicode counts these as letters, yet they are invisible.
_FILLERS = dict.fromkeys((0x115F, 0x1160, 0x2800, 0x3164, 0xFFA0), " ")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# The last two ranges change the direction of writing, which can disguise a line.
_CONTROLS = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"


def clean(text: str, *, limit: int = 200) -> str:
    """
    Return *text* as one printable line of at most *limit* characters.

    Escape sequences, control characters, and characters that are invisible or
    change the direction of writing are removed; line breaks become blanks.  A
    longer text is cut and ends in ``…``.
    """
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() else " " if char.isspace() else ""
            for char in re.sub(_ESCAPES, "", text)
        )
    if not text.isascii():
        text = text.translate(_FILLERS)
    text = text.strip()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def list_text(items: Iterable[object], *, most: int = 4) -> str:
    """
    Name the first *most* items: ``"a, b, and 7 more"``.
    """
    names = [str(item) for item in items]
    more = len(names) - most
    if more > 0:
        return f"{', '.join(names[:most])}, and {more} more"

    return ", ".join(names)


def reason_of(exc: BaseException) -> str:
    """
    Return why something failed, without error numbers and file names.

    It is what the system or the exception says, or the name of its class.
    """
    told: str | None = getattr(exc, "strerror", None)
    return told or str(exc) or type(exc).__name__


def size_text(size: float) -> str:
    """
    Format a number of bytes: ``"1.5 GiB"``.
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
    Format rows as a table; each cell is cleaned.
    """
    from tabulate import tabulate

    cells = [[clean(str(cell)) for cell in row] for row in rows]
    # Numbers stay as they are: 0012 is a name here, and 1e5 may be a hash.
    table: str = tabulate(cells, headers=headers, disable_numparse=True)
    return table


def time_text(seconds: float) -> str:
    """
    Format a duration in seconds: ``"45 s"``, ``"12 min"``, ``"3 h 5 min"``,
    ``"2 d 4 h"``.
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
    Remove escape sequences and control characters from a text of any size.

    Line ends and tabs stay; characters that change the direction of writing go.
    """
    text = re.sub(_ESCAPES, "", text)
    return text if text.isprintable() else re.sub(_CONTROLS, "", text)


def count_text(count: int, noun: str) -> str:
    """
    Format a number of things: ``"1 node"``, ``"3 processes with stacks"``.
    """
    head, blank, rest = noun.partition(" ")
    if rest and not rest.startswith(("of ", "with ")):
        head, blank, rest = noun, "", ""
    end = "es" if head.endswith(("s", "ch")) else "s"
    many = f"{head}{end}{blank}{rest}"
    return f"{count:,} {noun if count == 1 else many}"
