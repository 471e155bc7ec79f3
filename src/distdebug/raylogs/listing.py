"""
Which files of a session belong to one log, and which part is the oldest?

Python's logs are rotated to ``NAME.out.1``, those of Ray's C++ programs to
``NAME.1.out``; the greatest number is the oldest.  Ray moves files of dead
processes into ``old/``, but only those that it had open at that time.
"""

from __future__ import annotations

import os
import stat

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from .._lines import PACKED
from ..findings import Missing
from .model import LogPart, RaySession


__all__ = ["Listed", "list_parts", "parts_of", "taken_apart"]

# Where parts of one log lie, below the folder of the logs.
_FOLDERS = ("old", "")
_STREAMS = frozenset({"out", "err", "log", "txt"})
_MOST_DIGITS = 4

# (stem, stream) → parts, oldest first
Listed = dict[tuple[str, str], tuple[LogPart, ...]]


def list_parts(
    session: RaySession, *prefixes: str
) -> tuple[Listed, list[Missing]]:
    """
    Find the logs of a session whose names begin in some way.

    Args:
        session: The session.

        prefixes: What the names begin with; all of them without any.

    Returns:
        The parts of each log, oldest first, by its name and stream such as
        ``("raylet", "out")``; and what could not be looked at.
    """
    found: dict[tuple[str, str], list[LogPart]] = defaultdict(list)
    missing: list[Missing] = []
    for name in _FOLDERS:
        folder = session.logs / name if name else session.logs
        try:
            for key, part in _parts_in(folder, session.root, prefixes):
                found[key].append(part)
        except FileNotFoundError:
            continue
        except OSError as exc:
            missing.append(Missing.log(folder, exc))

    # The sort is stable: of two with one number that in old/ is the older.
    return {
        key: tuple(sorted(parts, key=lambda x: -x.index))
        for key, parts in found.items()
    }, missing


def parts_of(session: RaySession, stem: str, stream: str) -> list[Path]:
    """
    Find the files of one log of Ray itself.

    Args:
        session: The session.

        stem: Such as ``"gcs_server"``.

        stream: Such as ``"out"``.

    Returns:
        Its parts, oldest first; none if there is no such log.
    """
    listed, _ = list_parts(session, f"{stem}.")
    return [part.path for part in listed.get((stem, stream), ())]


def taken_apart(name: str) -> tuple[str, str, int]:
    """
    Tell which part of which log a file is, by its name.

    Args:
        name: The name of the file, such as ``"raylet.1.out"``.

    Returns:
        The name of the log, its stream, and the number of the part, as in
        ``("raylet", "out", 1)``; the stream is ``""`` if it is no log.
    """
    # Sessions of 200,000 files exist, so this is no regular expression.
    words = name.split(".")
    if f".{words[-1]}" in PACKED:
        words.pop()
    index = _popped_index(words)
    stream = words.pop() if words else ""
    if stream not in _STREAMS:
        return name, "", 0

    index = index or _popped_index(words)
    return ".".join(words), stream, index


def _parts_in(
    folder: Path, root: Path, prefixes: tuple[str, ...]
) -> Iterator[tuple[tuple[str, str], LogPart]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if prefixes and not entry.name.startswith(prefixes):
                continue
            stem, stream, index = taken_apart(entry.name)
            part = _part(entry, folder, root, index) if stream else None
            if part:
                yield (stem, stream), part


def _popped_index(words: list[str]) -> int:
    last = words[-1] if len(words) > 1 else ""
    if last.isascii() and last.isdigit() and len(last) <= _MOST_DIGITS:
        return int(words.pop())
    return 0


def _part(
    entry: os.DirEntry[str], folder: Path, root: Path, index: int
) -> LogPart | None:
    path = folder / entry.name
    try:
        if entry.is_symlink():
            # Only those that stay in the session may be followed.
            path = path.resolve(strict=True)
            if not path.is_relative_to(root):
                return None
        status = entry.stat()
    except (OSError, RuntimeError):  # gone meanwhile, or a link to nothing
        return None

    if not stat.S_ISREG(status.st_mode):
        return None

    return LogPart(
        path=path, index=index, size=status.st_size, mtime=status.st_mtime
    )
