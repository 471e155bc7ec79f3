"""
Read the source code of lines that stacks show.
"""

from __future__ import annotations

import re

from functools import partial
from pathlib import Path

from .._proc import in_time


_LOOP = re.compile(r"\s*(async\s+for|for|while)\b")
_INLINE_LOOP = re.compile(r"\bfor\b.+\bin\b")
_DEFINITION = re.compile(r"\s*(async\s+def|def|class)\b")
_MOST_BODY = 500

_MOST_SOURCE = 1 << 22
_MOST_LINE = 500
_MOST_FILES = 10_000
_READ_TIMEOUT_S = 1.0


class SourceLines:
    """
    Reads lines of source code, each file once.

    After the first file that is not read in time, no other file is opened.

    Args:
        timeout_s: How long to wait for a file, in seconds.
    """

    def __init__(self, timeout_s: float = _READ_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._files: dict[str, list[bytes]] = {}
        self._has_timed_out = False

    def __call__(self, filename: str, line: int) -> str:
        """
        Return one line; ``""`` if it is not on this machine.

        Args:
            line: Counted from 1.
        """
        lines = self._files.get(filename)
        if lines is None and len(self._files) < _MOST_FILES:
            lines = self._files[filename] = self._read_in_time(filename)
        found = lines[line - 1] if lines and 0 < line <= len(lines) else b""
        return found[:_MOST_LINE].decode("utf-8", "replace")

    def is_in_loop(self, filename: str, line: int) -> bool | None:
        """
        Return whether a line can run repeatedly without a new call.

        Args:
            line: Counted from 1.

        Returns:
            ``None`` if the code is not on this machine.
        """
        code = self(filename, line)
        if not code.strip():
            return None

        # A comprehension loops within one line.
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
            if _DEFINITION.match(above):
                return False
        return False

    def _read_in_time(self, filename: str) -> list[bytes]:
        if self._has_timed_out or not Path(filename).is_absolute():
            # The process ran in another folder, which is unknown.
            return []

        # A read from a dead file server never returns.
        try:
            return in_time(partial(_read, filename), self._timeout_s)
        except TimeoutError:
            self._has_timed_out = True
            return []


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
