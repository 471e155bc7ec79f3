"""
What did a worker print, over all parts of its log, and what was the last of
it?
"""

from __future__ import annotations

import os

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from .._files import open_ordinary
from .._lines import BROKEN, PACKED, LogLine, parse_line, read_lines
from ..errors import LogError
from .heads import MAGIC
from .model import LogPart, WorkerLog


__all__ = ["Readable", "Stream", "paths_of", "read_parts", "read_tail"]

Stream = Literal["out", "err"]
One = WorkerLog | LogPart | str | os.PathLike[str]
Readable = One | Iterable[One]

_BLOCK = 1 << 16
_LONGEST = 1 << 16
_MOST_BYTES = 1 << 26
_MOST_OF_PACKED = 10_000


def read_parts(log: Readable, *, stream: Stream = "err") -> Iterator[LogLine]:
    """
    Read a log from its beginning, whatever it was rotated into.

    A part that is deleted meanwhile, or cannot be read, is left out.

    Args:
        log: The log of a worker, or parts or paths of one log, oldest first.

        stream: Which stream of a worker; ``logging`` goes to ``"err"``, and
            what is printed to ``"out"``.

    Yields:
        The lines, without those by which Ray marks jobs and actors; each with
        its file and number in that file.

    Raises:
        LogError: There is no such stream.
    """
    for path in paths_of(log, stream):
        try:
            for line in read_lines(path):
                if not line.text.startswith(MAGIC):
                    yield line
        except BROKEN:
            continue


def read_tail(
    log: Readable, *, lines: int = 20, stream: Stream = "err"
) -> tuple[LogLine, ...]:
    """
    Read the last lines of a log.

    Files are read from their end, at most 64 MiB in all, so that their size
    does not matter; therefore lines have no numbers.

    Args:
        log: The log of a worker, or parts or paths of one log, oldest first.

        lines: How many lines.

        stream: Which stream of a worker.

    Returns:
        At most so many, oldest first.

    Raises:
        LogError: There is no such stream.
    """
    found: deque[LogLine] = deque()
    budget = _MOST_BYTES
    for path in reversed(paths_of(log, stream)):
        try:
            for line in _backwards(path, budget):
                if len(found) >= lines:
                    return tuple(found)
                found.appendleft(line)
            budget -= path.stat().st_size
        except BROKEN:
            continue
        if budget <= 0:
            break
    return tuple(found)


def paths_of(log: Readable, stream: str = "err") -> list[Path]:
    """
    Which files are meant?

    Args:
        log: Workers, parts, or paths.

        stream: Which stream of workers.

    Returns:
        The files.

    Raises:
        LogError: There is no such stream.
    """
    if stream not in {"out", "err"}:
        msg = f"a worker has no stream {stream!r}"
        raise LogError(msg, remedy='give "out" or "err"')

    if isinstance(log, WorkerLog):
        return [x.path for x in (log.out if stream == "out" else log.err)]
    if isinstance(log, LogPart):
        return [log.path]
    if isinstance(log, (str, os.PathLike)):
        return [Path(log)]
    return [path for one in log for path in paths_of(one, stream)]


def _backwards(path: Path, most: int) -> Iterator[LogLine]:
    """
    The lines of a file, the last one first.
    """
    source = str(path)
    pieces = (
        # What is packed can only be read from its beginning.
        _last_of_packed(source)
        if path.suffix in PACKED
        else _pieces(path, most)
    )
    for piece in pieces:
        text = piece.decode("utf-8", "replace")
        if not text.strip():
            continue
        line = parse_line(text, source=source)
        if not line.text.startswith(MAGIC):
            yield line


def _pieces(path: Path, most: int) -> Iterator[bytes]:
    with open_ordinary(path, "not an ordinary file") as file:
        position = size = file.seek(0, os.SEEK_END)
        rest = b""
        while position > max(0, size - most):
            begin = max(0, position - _BLOCK)
            file.seek(begin)
            block = file.read(position - begin) + rest
            # A line may begin in the block before.
            rest, *whole = block.replace(b"\r", b"\n").split(b"\n")
            yield from (x[:_LONGEST] for x in reversed(whole))
            rest, position = rest[:_LONGEST], begin
        yield rest


def _last_of_packed(source: str) -> Iterator[bytes]:
    last = deque(read_lines(source), maxlen=_MOST_OF_PACKED)
    yield from (line.text.encode() for line in reversed(last))
