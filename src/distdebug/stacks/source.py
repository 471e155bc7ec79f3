"""
What stands at that line of source code?

Functions written in C leave no line in a Python stack; the line that calls
them tells.  The names may come from a forged stack, and the files may be on
the very file system that does not answer: only ordinary files are opened, and
nobody waits for them for long.
"""

from __future__ import annotations

import re
import threading

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


__all__ = ["ReadLine", "SourceLines", "source_line"]

_LOOP = re.compile(r"\s*(async\s+for|for|while)\b")
_INLINE_LOOP = re.compile(r"\bfor\b.+\bin\b")
_FUNCTION = re.compile(r"\s*(async\s+def|def|class)\b")
_MOST_BODY = 500

ReadLine = Callable[[str, int], str]

_MOST_SOURCE = 1 << 22
_MOST_LINE = 500
_MOST_FILES = 10_000
_PATIENCE_S = 1.0


class SourceLines:
    """
    Reads lines of source code, each file once.

    After the first file that does not come in time, no other is opened.

    Args:
        patience_s: How long to wait for a file, in seconds.
    """

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._files: dict[str, list[bytes]] = {}
        self._gave_up = False

    def __call__(self, filename: str, line: int) -> str:
        """
        Read one line; ``""`` if it is not on this machine.

        Args:
            filename: The file.

            line: Its number, counted from 1.
        """
        lines = self._files.get(filename)
        if lines is None and len(self._files) < _MOST_FILES:
            lines = self._files[filename] = self._read_in_time(filename)
        found = lines[line - 1] if lines and 0 < line <= len(lines) else b""
        return found[:_MOST_LINE].decode("utf-8", "replace")

    def is_in_loop(self, filename: str, line: int) -> bool | None:
        """
        Tell whether a line can run again and again without a new call.

        Args:
            filename: The file.

            line: Its number, counted from 1.

        Returns:
            ``None`` if the code is not on this machine.
        """
        code = self(filename, line)
        if not code.strip():
            return None

        # A generator or a list that is made in one line loops, too.
        if _LOOP.match(code) or _INLINE_LOOP.search(code):
            return True
        indent = _indent(code)
        for number in range(line - 1, max(0, line - _MOST_BODY), -1):
            above = self(filename, number)
            if not above.strip() or _indent(above) >= indent:
                continue
            indent = _indent(above)
            if _LOOP.match(above):
                return True
            if _FUNCTION.match(above):
                return False
        return False

    def _read_in_time(self, filename: str) -> list[bytes]:
        if self._gave_up or not Path(filename).is_absolute():
            # Relative to where?  The process ran in another folder.
            return []

        found: list[list[bytes]] = []
        # A thread that reads from a dead file server never returns, and must
        # not keep us from ending.
        reader = threading.Thread(
            target=lambda: found.append(_read(filename)),
            name="distdebug source",
            daemon=True,
        )
        with suppress(RuntimeError):  # no more threads can be had
            reader.start()
            reader.join(self._patience_s)
        self._gave_up = not found
        return found[0] if found else []


def source_line(filename: str, line: int) -> str:
    """
    Read one line of source code; ``""`` if it is not on this machine.

    Args:
        filename: The file.

        line: Its number, counted from 1.
    """
    return SourceLines()(filename, line)


def _indent(code: str) -> int:
    return len(code) - len(code.lstrip())


def _read(filename: str) -> list[bytes]:
    path = Path(filename)
    try:
        if not path.is_file():
            return []
        with path.open("rb") as file:
            return file.read(_MOST_SOURCE).splitlines()
    except (OSError, ValueError):
        return []
