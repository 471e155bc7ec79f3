"""
Which files are in the places that somebody names?

Places may be anything: all of a disk, or what changes meanwhile.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import time

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..._text import reason_of
from ...findings import Missing
from ..sidecar import SIDECAR_SUFFIX


__all__ = ["Search", "walk"]

_DEPTH_LIMIT = 32
_KERNEL = ("/proc/", "/sys/", "/dev/")

_UNFINISHED = re.compile(
    r"^\.|\.(?:tmp|temp|part|partial|swp)\b|~$", re.IGNORECASE
)


class Search(NamedTuple):
    """
    How far to look.

    Attributes:
        deadline: When to stop, on the monotonic clock.

        most: How many files and folders to look at, in each place.

        starts: What the names of dumps start with, if that is known: then
            only the place itself is looked at, and of it only those, and what
            side-cars are about.  An empty one is that of names that are
            numbers.
    """

    deadline: float = float("inf")
    most: int = 10_000_000
    starts: tuple[str, ...] | None = None

    def wants(self, name: str, names: Iterable[str]) -> bool:
        """
        Whether this file may be a dump, or tell of one.
        """
        if self.starts is None:
            return True

        starts = tuple(filter(None, self.starts))
        return (
            name.endswith(SIDECAR_SUFFIX)
            or name + SIDECAR_SUFFIX in names
            or (bool(starts) and name.startswith(starts))
            or ("" in self.starts and name.isdigit())
        )


def walk(
    path: str,
    seen: set[tuple[int, int]],
    problems: list[Missing],
    search: Search,
) -> Iterator[tuple[str, float]]:
    """
    List regular files, each once.

    Args:
        path: A folder, which is searched with all that is in it, or a file.

        seen: Files and folders that were listed before; it grows.

        problems: What cannot be read; it grows.

        search: How far to look.

    Yields:
        Each with the time of its last change.
    """
    # Links come last, so that they are what is left out.
    links: list[tuple[str, int]] = []
    todo = [(path, 0)]
    while todo or links:
        reason = _reason_to_stop(search, len(todo) + len(links))
        if reason:
            problems.append(Missing(what="dump", reason=reason, source=path))
            return

        place, depth = todo.pop() if todo else links.pop()
        try:
            status = Path(place).stat()
        except (OSError, ValueError) as exc:
            if place == path:
                problems.append(_unreadable(place, exc))
            continue

        search = search._replace(most=search.most - 1)
        key = (status.st_dev, status.st_ino)
        if key in seen:
            continue

        seen.add(key)
        if stat.S_ISREG(status.st_mode):
            yield place, status.st_mtime
        elif stat.S_ISDIR(status.st_mode) and depth < _depth(search):
            inner, found = _inside(place, path, problems, search)
            todo += ((child, depth + 1) for child in inner)
            links += ((child, depth + 1) for child in found)


def _reason_to_stop(search: Search, waiting: int) -> str:
    if time.monotonic() > search.deadline:
        return "the time was over"
    if search.most <= 0 < waiting:
        return "there are too many files to look at all of them"
    return ""


def _depth(search: Search) -> int:
    return _DEPTH_LIMIT if search.starts is None else 1


def _inside(
    folder: str, root: str, problems: list[Missing], search: Search
) -> tuple[list[str], list[str]]:
    """
    What is in a folder, and which links.
    """
    entries = _listed(folder, problems, search.most)
    names = {entry.name for entry in entries}
    inner: list[str] = []
    links: list[str] = []
    for entry in entries:
        if not search.wants(entry.name, names):
            continue
        if not _is_link(entry):
            inner.append(entry.path)
        elif not _leads_out(entry.path, root):
            links.append(entry.path)
    return inner, links


def _is_link(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_symlink()
    except OSError:
        return True


def _leads_out(link: str, root: str) -> bool:
    """
    Whether a link leads to a folder around *root*, perhaps to all there is, or
    to what the kernel makes up, which may have no end.
    """
    try:
        target = os.path.realpath(link)
        around = os.path.commonpath([target, os.path.realpath(root)]) == target
        return around or f"{target}/".startswith(_KERNEL)
    except OSError:  # it may not be read, or is gone
        return True


def _listed(
    folder: str, problems: list[Missing], most: int
) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            # One more, so that it is seen that there are too many.
            some = itertools.islice(entries, most + 1)
            return [e for e in some if not _UNFINISHED.search(e.name)]
    except OSError as exc:
        problems.append(_unreadable(folder, exc))
        return []


def _unreadable(path: str, exc: Exception) -> Missing:
    reason = reason_of(exc)
    return Missing(
        what="dump", reason=f"cannot be read: {reason}", source=path
    )
