"""
How do results and progress leave the process?
"""

from __future__ import annotations

import json
import sys

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


__all__ = ["LiveLine", "counting", "print_json"]


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


class LiveLine:
    """
    One line on standard error that changes in place, if a person looks at it.

    What is worth a line of its own is written also where nobody looks.
    """

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._width = 0

    def show(self, text: str) -> None:
        """
        Put *text* into the live line.
        """
        if self._is_live:
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
def counting(title: str) -> Iterator[Callable[[int, int], None]]:
    """
    Show how many of how many are done, while a block runs.

    Args:
        title: What is counted.
    """
    line = LiveLine()
    try:
        yield lambda done, total: line.show(f"{title}: {done} of {total}")
    finally:
        line.clear()
