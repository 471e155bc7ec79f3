"""
Which parts of which files are read, and by how many threads?
"""

from __future__ import annotations

import os

from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from .._lines import walk_logs
from ..findings import Missing
from .blocks import Part, is_packed


__all__ = ["Found", "find_files", "find_parts"]

_PART = 1 << 27
# A packed file may hold nothing but blanks, for days.
_MOST_UNPACKED = 1 << 34


@attrs.frozen(kw_only=True)
class Found:
    """
    Files to be read.

    Attributes:
        sizes: How many bytes each has, by path.

        missing: What cannot be looked at, and why.
    """

    sizes: dict[str, int]
    missing: tuple[Missing, ...] = ()


def find_files(
    paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
) -> Found:
    """
    Find the logs below some paths.

    Args:
        paths: Files and folders.
    """
    walk = walk_logs(paths)
    sizes, missing = {}, []
    for path in walk:
        try:
            sizes[str(path)] = Path(path).stat().st_size
        except OSError as exc:  # rotated away meanwhile
            missing.append(Missing.log(path, exc))
    return Found(sizes=sizes, missing=(*walk.missing, *missing))


def find_parts(
    found: Found, most_bytes: int | None
) -> tuple[list[Part], list[Missing]]:
    """
    Divide files among threads.

    Args:
        found: The files.

        most_bytes: How many bytes to read.  Where that is too little, small
            files are read whole, and of large ones the end.

    Returns:
        The parts, in the order of the files, and what is left out.
    """
    parts, missing = [], []
    shares = _shares(list(found.sizes.values()), most_bytes)
    for (path, size), share in zip(found.sizes.items(), shares, strict=True):
        if is_packed(path):
            most = _MOST_UNPACKED if most_bytes is None else share
            parts.append(Part(path=path, start=0, stop=most, size=most))
            continue
        begin = size - share
        if begin:
            reason = f"its first {begin:,} bytes were not read"
            missing.append(Missing.log(path, reason))
        parts += [
            Part(path=path, start=x, stop=min(x + _PART, size), size=size)
            for x in range(begin, size, _PART)
        ]
    return parts, missing


def _shares(sizes: Sequence[int], most: int | None) -> list[int]:
    if most is None or sum(sizes) <= most:
        return list(sizes)

    shares = [0] * len(sizes)
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    for done, number in enumerate(order):
        shares[number] = min(sizes[number], most // (len(sizes) - done))
        most -= shares[number]
    return shares
