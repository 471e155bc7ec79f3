"""
Print results and progress: colors, the width of the terminal, JSON, live lines.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
import time

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TextIO

from .._text import time_text


if TYPE_CHECKING:
    from .._render import Block, Shown


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
    Return whether to color what is written to *stream*.

    As for the tracebacks of Python: ``NO_COLOR``, then ``FORCE_COLOR``, and
    otherwise only on a terminal that is not dumb.
    """
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True

    return environ.get("TERM") != "dumb" and stream.isatty()


def width_of(stream: TextIO) -> int | None:
    """
    Return the width of the terminal in characters; ``None`` if there is none.
    """
    return shutil.get_terminal_size().columns if stream.isatty() else None


def plain(kind: str, text: str) -> str:  # noqa: ARG001
    """
    Return a part of a result unchanged.
    """
    return text


def paint_wrong(kind: str, text: str) -> str:
    """
    Color a part of a result that reports something wrong.

    Args:
        kind: The kind of the part, such as ``"head"``.

        text: The part.
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
    Color a part of a result that reports that all is well.

    Args:
        kind: The kind of the part, such as ``"head"``.

        text: The part.
    """
    if kind == "head":
        return _colored(f"1;{_FINE}", text)

    return _colored("2" if kind == "cause" else _STYLES.get(kind, ""), text)


def _colored(style: str, text: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text


def fit_tables(text: str, width: int) -> str:
    """
    Make the tables in a text fit into a terminal by cutting cells.

    Args:
        text: A result; a table is known by the rule below its headers.

        width: Of the terminal, in characters.
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
    # Wide characters take two columns, and would be cut at the wrong place.
    if any(
        row[b:c].strip() for row in rows for (_, b), (c, _) in pairwise(spans)
    ):
        return list(rows)

    texts = [[len(row[a:b].rstrip()) for a, b in spans] for row in rows]
    cells = [max(column) for column in zip(*texts[2:], strict=True)]
    titles = [*map(max, texts[0], cells or texts[0])]
    widths = [b - a for a, b in spans]
    # Take room from between the columns first, then from titles, then from cells.
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
    Narrow the widest column that may get narrower until all fit.
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
    Wrap long facts of a text into indented lines.

    Args:
        text: A result; a fact is a line such as ``"  next: look at …"``.

        width: Of the terminal, in characters; a longer word stays whole.
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


# Enough for a terminal; more could be too much for a slow connection.
_BETWEEN_S = 0.05
_TICK_S = 0.5
# Before that, a speed says little.
_KNOWN_AFTER_S = 1.0


def print_json(
    command: str, data: Mapping[str, Any], *, in_one_line: bool = False
) -> None:
    """
    Print a result as JSON, in the layout that all commands share.

    Args:
        command: The command that was run.

        data: Its result.

        in_one_line: Whether other results may follow.
    """
    import distdebug

    head = {
        "schema": 1,
        "tool": "distdebug",
        "version": distdebug.__version__,
        "command": command,
    }
    indent = None if in_one_line else 2
    print(json.dumps({**head, **data}, indent=indent), flush=True)


def print_result(
    result: Shown | Iterable[Block], *, is_fine: bool, full: bool = False
) -> None:
    """
    Print a result for people: in color, and no wider than the terminal.

    Args:
        result: The result, or its blocks.

        is_fine: Whether it reports that all is well.

        full: Whether to print it without cuts, however wide it is.
    """
    print(shown_text(result, is_fine=is_fine, full=full), flush=True)


def shown_text(
    result: Shown | Iterable[Block], *, is_fine: bool, full: bool = False
) -> str:
    """
    Return a result as it is to be printed.

    Args:
        result: The result, or its blocks.

        is_fine: Whether it reports that all is well.

        full: Whether to show it without cuts, however wide it is.
    """
    from .._render import Shown, blocks_text

    paint = paint_fine if is_fine else paint_wrong
    if not has_colors(sys.stdout):
        paint = plain
    text = (
        result.to_text(full=full, paint=paint)
        if isinstance(result, Shown)
        else blocks_text(result, full=full, paint=paint)
    )
    width = width_of(sys.stdout)
    if full or width is None:
        return text

    return fit_facts(fit_tables(text, width), width)


class LiveLine:
    """
    One line on standard error that changes in place, if that is a terminal.

    Lines that stay are written also where it is none.
    """

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._width = 0

    @property
    def is_live(self) -> bool:
        """
        Return whether standard error is a terminal.
        """
        return self._is_live

    def show(self, text: str) -> None:
        """
        Replace the live line by *text*.
        """
        if self._is_live:
            # A longer line wraps, and could not be removed again.
            text = text[: max(shutil.get_terminal_size().columns - 1, 1)]
            padded = text.ljust(self._width)
            print(f"\r{padded}", end="", file=sys.stderr, flush=True)
            self._width = len(text)

    def write(self, text: str) -> None:
        """
        Write *text* as a line that stays.
        """
        self.clear()
        print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """
        Remove the live line.
        """
        if self._width:
            blank = " " * self._width
            print(f"\r{blank}\r", end="", file=sys.stderr, flush=True)
            self._width = 0


@contextmanager
def telling(
    *, unit: str = "", scale: float = 1.0
) -> Iterator[Callable[[str, float, float], None]]:
    """
    Show a stage, its progress, and the time left, while the block runs.

    Args:
        unit: The noun for what is counted, where that is not clear.

        scale: How many make up one of these.

    Yields:
        A function that takes a stage, how many are done, and how many there are.
    """
    line = LiveLine()
    begun: dict[str, float] = {}
    latest = "", 0.0

    def tell(stage: str, done: float, total: float) -> None:
        nonlocal latest
        now = time.monotonic()
        is_same = latest[0] == stage
        if is_same and done < total and now - latest[1] < _BETWEEN_S:
            return
        latest = stage, now
        start = begun.setdefault(stage, now)
        count = f"{done / scale:,.0f} of {total / scale:,.0f}"
        rest = rest_text(done / scale, total / scale, now - start, unit)
        line.show(f"{stage}: {count}{unit and f' {unit}'}{rest}")

    try:
        yield tell
    finally:
        line.clear()


def rest_text(done: float, total: float, seconds: float, unit: str) -> str:
    """
    Format speed and time left.

    Args:
        done: How many are done.

        total: How many there are.

        seconds: How long they took.

        unit: The noun for what is counted.

    Returns:
        Such as ``", 12/s, 40 s left"``; ``""`` as long as it cannot be known.
    """
    if seconds < _KNOWN_AFTER_S or not 0 < done < total:
        return ""

    rate = done / seconds
    told = f"{rate:,.0f}" if rate >= 10 else f"{rate:,.1f}"
    left = time_text((total - done) / rate)
    return f", {told}{unit and f' {unit}'}/s, {left} left"


@contextmanager
def counting(title: str) -> Iterator[Callable[[float, float], None]]:
    """
    Show how many of how many are done, while a block runs.
    """
    with telling() as tell:
        yield lambda done, total: tell(title, done, total)


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """
    Show the time that a block has been running, where no progress is known.
    """
    line = LiveLine()
    if not line.is_live:
        yield
        return

    is_over = threading.Event()
    begun = time.monotonic()

    def tick() -> None:
        while not is_over.wait(_TICK_S):
            line.show(f"{title}: {time_text(time.monotonic() - begun)}")

    thread = threading.Thread(target=tick, name="distdebug clock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        line.clear()
