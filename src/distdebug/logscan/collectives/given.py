"""
Are these paths, or lines?
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable


__all__ = ["PathsOrLines", "attempt_of", "told_apart"]

PathsOrLines = (
    str
    | os.PathLike[str]
    | Iterable[str]
    | Iterable[os.PathLike[str]]
    | Iterable[str | os.PathLike[str]]
)
_LONGEST_PATH = 256


def told_apart(
    given: PathsOrLines,
) -> tuple[list[str | os.PathLike[str]] | None, Iterable[str]]:
    """
    Tell paths from lines.

    Args:
        given: Either of them.

    Returns:
        The paths, or ``None`` and the lines.
    """
    if isinstance(given, str) and "\n" in given:
        return None, given.split("\n")
    if isinstance(given, (str, os.PathLike)):
        return [given], ()
    if isinstance(given, (list, tuple, set, frozenset)):
        items = list(given)
        if items and all(map(_is_path, items)):
            return items, ()
        return None, items
    return None, given  # type: ignore[return-value]


def _is_path(item: object) -> bool:
    if isinstance(item, os.PathLike):
        return True

    text = str(item)
    if " " not in text and "/" in text:
        return len(text) < _LONGEST_PATH
    # A line is no path that is too long, or has other faults.
    return os.path.exists(text)  # noqa: PTH110 that of a path raises


def attempt_of(path: str) -> int:
    """
    How often had torchrun restarted the job, by the name of a log?

    Args:
        path: Such as ``attempt_1/3/stderr.log``.
    """
    _, found, rest = path.rpartition("attempt_")
    digits = re.split(r"[/\\]", rest)[0]
    return (
        int(digits) if found and digits.isdecimal() and len(digits) < 5 else 0
    )
