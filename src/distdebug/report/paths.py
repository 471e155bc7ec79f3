"""
How is a file called by somebody who reads about it elsewhere?
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable

from .._text import clean


__all__ = ["given_name", "short_path"]

_HOME = re.compile(r"^(?:/home/|/Users/|/root(?=/))[^/]{0,64}(?=/)")


def given_name(path: str) -> str:
    """
    How is a file or folder called that somebody gave?

    Args:
        path: As it was given.

    Returns:
        The same if it lies below the current folder; else its last part.
    """
    plain = os.path.normpath(path)
    is_elsewhere = plain.startswith(("/", ".."))
    inside = plain.rpartition("/")[2] if is_elsewhere else plain
    return clean(inside or plain, limit=400)


def short_path(path: str, given: Iterable[str]) -> str:
    """
    How is a file called, seen from what was given?

    Nobody else needs to know the folders above it, such as whose home it is.

    Args:
        path: The file.

        given: The files and folders that were looked at.

    Returns:
        Its path from there; or all of it if it lies elsewhere, without home.
    """
    plain = os.path.normpath(path)
    for base in given:
        top = os.path.normpath(base)
        for start in (top, os.path.abspath(top)):  # noqa: PTH100 of text
            if plain == start:
                return given_name(base)
            if plain.startswith(f"{start.rstrip('/')}/"):
                rest = plain[len(start.rstrip("/")) :].lstrip("/")
                return clean(f"{given_name(base)}/{rest}", limit=400)

    return clean(_HOME.sub("~", plain), limit=400)
