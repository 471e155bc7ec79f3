"""
Which sources can be lent to ranks that do not have them?

A rank names files, and we must not send it whatever it asks for: only Python, of
bounded size, to a process that could read the file itself.  What another node says
of its users cannot be checked, so that it gets no more than the sources of the job:
those below the folder where the client was started.
"""

from __future__ import annotations

import os

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..._files import read_ordinary


__all__ = ["sources_to_lend"]

_MOST_BYTES = 400_000  # JSON needs more than one byte for some
_MOST_FILES = 20


def sources_to_lend(
    uid: int, files: object, *, is_elsewhere: bool = False
) -> Iterator[dict[str, Any]]:
    """
    What can be sent to a rank that misses some files?

    Args:
        uid: Its user.

        files: Their names, as it says.

        is_elsewhere: Whether it runs on another node.

    Yields:
        A request for each that is here.
    """
    # Root could read more than the user whose job it debugs.
    if not isinstance(files, list) or uid != os.geteuid():
        return

    for file in files[:_MOST_FILES]:
        if isinstance(file, str) and file.endswith(".py"):
            with suppress(OSError, ValueError):
                if is_elsewhere and not _is_below(file):
                    continue
                text = read_ordinary(file, _MOST_BYTES).decode()
                yield {"op": "source", "file": file, "text": text}


def _is_below(file: str) -> bool:
    return Path(file).resolve().is_relative_to(Path.cwd())
