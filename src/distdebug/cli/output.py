"""
How do results and progress leave the process?
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .._text import time_text
from .terminal import (
    fit_facts,
    fit_tables,
    has_colors,
    paint_fine,
    paint_wrong,
    plain,
    width_of,
)


if TYPE_CHECKING:
    from .._showing import Block, Shown


__all__ = [
    "LiveLine",
    "counting",
    "print_json",
    "print_result",
    "rest_text",
    "shown_text",
    "telling",
    "waiting",
]

# A terminal needs no more, and a network between may not bear it.
_BETWEEN_S = 0.05
_TICK_S = 0.5
# Before that, a speed says little.
_KNOWN_AFTER_S = 1.0


def print_json(
    command: str, data: Mapping[str, Any], *, in_one_line: bool = False
) -> None:
    """
    Print a result for programs, in the layout that all commands share.

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
    Print a result for people: in color and no wider than where they look.

    Args:
        result: The result, or what there is to show of it.

        is_fine: Whether it tells that all is well.

        full: Whether to show all of what is long, too, however wide it is.
    """
    print(shown_text(result, is_fine=is_fine, full=full), flush=True)


def shown_text(
    result: Shown | Iterable[Block], *, is_fine: bool, full: bool = False
) -> str:
    """
    How does a result look where it is printed?

    Args:
        result: The result, or what there is to show of it.

        is_fine: Whether it tells that all is well.

        full: Whether to show all of what is long, too, however wide it is.
    """
    from .._showing import Shown, blocks_text

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
    One line on standard error that changes in place, if a person looks at it.

    What is worth a line of its own is written also where nobody looks.
    """

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._width = 0

    @property
    def is_live(self) -> bool:
        """
        Whether anybody looks at it.
        """
        return self._is_live

    def show(self, text: str) -> None:
        """
        Put *text* into the live line.
        """
        if self._is_live:
            # What is longer than the terminal cannot be taken away again.
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
        Take the live line away.
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
    Show what is being done, how far it is, and how long the rest may take.

    Args:
        unit: What is counted, where that is not clear.

        scale: How many make up one of these.

    Yields:
        Takes a stage, how many are done, and how many there are.
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
    How fast is it, and how long does the rest take at that speed?

    Args:
        done: How many are done.

        total: How many there are.

        seconds: Since when.

        unit: What is counted.

    Returns:
        Such as ``", 12/s, 40 s left"``; ``""`` as long as nobody knows.
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

    Args:
        title: What is counted.
    """
    with telling() as tell:
        yield lambda done, total: tell(title, done, total)


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """
    Show for how long a block has been running that does not tell how far it is.

    Args:
        title: What it does.
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
