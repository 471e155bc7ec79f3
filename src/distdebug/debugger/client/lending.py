"""
Which sources can be lent to ranks that do not have them?

A rank names files, and we must not send it whatever it asks for: only Python, of
bounded size, to a process that could read the file itself.
"""

from __future__ import annotations

import os

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ..._files import read_ordinary


__all__ = ["sources_to_lend"]

_MOST_BYTES = 400_000  # JSON needs more than one byte for some
_MOST_FILES = 20


def sources_to_lend(uid: int, files: object) -> Iterator[dict[str, Any]]:
    """
    What can be sent to a rank that misses some files?

    Args:
        uid: Its user.

        files: Their names, as it says.

    Yields:
        A request for each that is here.
    """
    # Root could read more than the user whose job it debugs.
    if not isinstance(files, list) or uid != os.geteuid():
        return

    for file in files[:_MOST_FILES]:
        if isinstance(file, str) and file.endswith(".py"):
            with suppress(OSError, ValueError):
                text = read_ordinary(file, _MOST_BYTES).decode()
                yield {"op": "source", "file": file, "text": text}
