"""
What is being printed now, to any of these files?
"""

from __future__ import annotations

import math
import os
import threading
import time

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import attrs

from .._files import is_folder, open_ordinary
from .._lines import PACKED, LogLine, parse_line, split_block, walk_logs
from ..errors import LogError
from .heads import MAGIC
from .listing import taken_apart
from .model import LogPart, WorkerLog
from .tails import paths_of


__all__ = ["follow_lines"]

Followed = str | os.PathLike[str] | LogPart | WorkerLog

_POLL_S = 0.2
_SEARCH_S = 2.0
_BLOCK = 1 << 18
# How much of one file is read before the others have their turn.
_BLOCKS = 4
_MOST_PARTS = 20


@attrs.frozen(kw_only=True)
class _Place:
    """
    How far a file was read.

    Attributes:
        inode: Which file it was, whatever it is called now.

        offset: Where the next block begins.

        rest: The beginning of a line whose end is not there yet.

        is_behind: Whether there is more to be read already.
    """

    inode: tuple[int, int] | None = None
    offset: int = 0
    rest: bytes = b""
    is_behind: bool = False


def follow_lines(
    paths: Followed | Iterable[Followed],
    *,
    stop: threading.Event | None = None,
    timeout_s: float | None = None,
    from_start: bool = False,
) -> Iterator[LogLine]:
    """
    Read what is appended to files, as ``tail -F`` does.

    Files may be rotated, cut, deleted, and appear again, and need not be
    there yet.  What was written to one shortly before it was rotated is read
    under its new name.  No file is kept open, so there may be thousands.

    Args:
        paths: Files, logs of workers (both streams), and folders, in which
            logs may appear.

        stop: Ends it when it is set, after one more look.

        timeout_s: When to end it, in seconds; by default never.

        from_start: Whether to give what is in the files already; what was
            rotated before is not read again.

    Yields:
        The lines, without those by which Ray marks jobs and actors, as soon as
        they are whole; progress bars state by state.  They have no numbers.

    Raises:
        LogError: There is nothing to follow.
    """
    wanted = _wanted(paths)
    if not wanted:
        msg = "no file to follow"
        raise LogError(msg, remedy="name files or folders")

    stop = stop or threading.Event()
    if timeout_s is not None and math.isnan(timeout_s):
        msg = "timeout_s is no number of seconds"
        raise LogError(msg)
    end = math.inf if timeout_s is None else time.monotonic() + timeout_s
    places = {x: _Place() if from_start else _end(x) for x in _files(wanted)}
    searched = time.monotonic()
    is_over = False
    while not is_over:
        now = time.monotonic()
        is_over = stop.is_set() or now >= end
        if is_over or now - searched > _SEARCH_S:
            searched = now
            places = {x: _Place() for x in _files(wanted)} | places
        for path, place in places.items():
            places[path], lines = _news(path, place)
            yield from _parsed(lines, path)
        if not is_over and not any(x.is_behind for x in places.values()):
            stop.wait(min(_POLL_S, end - now))
    for path, place in places.items():
        yield from _parsed([place.rest], path)


def _wanted(paths: Followed | Iterable[Followed]) -> list[Path]:
    if isinstance(paths, WorkerLog):
        return [x[-1].path for x in (paths.out, paths.err) if x]
    if isinstance(paths, (LogPart, str, os.PathLike)):
        return paths_of(paths)
    return [path for one in paths for path in _wanted(one)]


def _files(wanted: Iterable[Path]) -> Iterator[Path]:
    for path in wanted:
        if not is_folder(path):
            yield path
            continue
        for found in walk_logs(path):
            # Those are the same lines under another name.
            _, stream, index = taken_apart(found.name)
            is_old = found.parent.name == "old" or (stream and index)
            if not is_old and found.suffix not in PACKED:
                yield found


def _end(path: Path) -> _Place:
    status = _status(path)
    if status is None:
        return _Place()
    return _Place(inode=_inode(status), offset=status.st_size)


def _news(path: Path, place: _Place) -> tuple[_Place, list[bytes]]:
    status = _status(path)
    lines: list[bytes] = []
    if place.inode and (status is None or _inode(status) != place.inode):
        lines = _left(path, place)
        place = _Place()
    if status is None:
        return place, lines

    if status.st_size < place.offset:  # it was cut
        place = _Place()
    place = attrs.evolve(place, inode=_inode(status))
    place, more = _read(path, place)
    return place, lines + more


def _left(path: Path, place: _Place) -> list[bytes]:
    """
    What was not read yet of a file that has another name now.
    """
    names = [f"{path.name}.{n}" for n in range(1, _MOST_PARTS + 1)]
    moved = [path.parent / "old" / path.name, *map(path.with_name, names)]
    for other in moved:
        status = _status(other)
        if status and _inode(status) == place.inode:
            place, lines = _read(other, place)
            return [*lines, place.rest]
    return [place.rest]


def _read(path: Path, place: _Place) -> tuple[_Place, list[bytes]]:
    lines: list[bytes] = []
    offset, rest, block = place.offset, place.rest, b""
    with (
        suppress(OSError, ValueError),
        open_ordinary(path, "not an ordinary file") as file,
    ):
        file.seek(offset)
        for _ in range(_BLOCKS):
            block = file.read(_BLOCK)
            offset += len(block)
            whole, rest = split_block(rest, block.replace(b"\r", b"\n"))
            lines += whole
            if len(block) < _BLOCK:
                break
    is_behind = len(block) == _BLOCK
    return (
        attrs.evolve(place, offset=offset, rest=rest, is_behind=is_behind),
        lines,
    )


def _parsed(lines: Iterable[bytes], path: Path) -> Iterator[LogLine]:
    for raw in lines:
        text = raw.decode("utf-8", "replace")
        if text.strip():
            line = parse_line(text, source=str(path))
            if not line.text.startswith(MAGIC):
                yield line


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (OSError, ValueError):
        return None


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
