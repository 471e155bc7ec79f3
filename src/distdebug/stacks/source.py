"""
What stands at that line of source code?

Functions written in C leave no line in a Python stack; the line that calls
them tells.  The names may come from a forged stack, and the files may be on
the very file system that does not answer: only ordinary files are opened, and
nobody waits for them for long.
"""

from __future__ import annotations

import threading

from collections.abc import Callable
from pathlib import Path


__all__ = ["ReadLine", "SourceLines", "source_line"]

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


def _read(filename: str) -> list[bytes]:
    path = Path(filename)
    try:
        if not path.is_file():
            return []
        with path.open("rb") as file:
            return file.read(_MOST_SOURCE).splitlines()
    except (OSError, ValueError):
        return []
