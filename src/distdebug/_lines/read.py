"""
What are the lines of this log?
"""

from __future__ import annotations

import os

from collections.abc import Iterable, Iterator

from .files import open_log
from .model import LogLine
from .parse import parse_line


__all__ = ["read_lines", "split_block"]

_BLOCK = 1 << 18
_LONGEST = 1 << 16


def read_lines(
    source: str | os.PathLike[str] | Iterable[str],
) -> Iterator[LogLine]:
    """
    Read a log line by line.

    Progress bars write over themselves by carriage returns: each state is a
    line of its own here, with the number of the line that it stands in.

    Args:
        source: A path; or lines, such as a list of them or a text of several.

    Yields:
        The lines that hold anything, each at most 64 KiB of it.

    Raises:
        OSError: The file cannot be read.

        ValueError: It is no ordinary file.
    """
    if isinstance(source, str) and "\n" in source:
        source = source.split("\n")
    if isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
        numbered = _of_file(name)
    else:
        name, numbered = "", enumerate(source, 1)
    for number, raw in numbered:
        for piece in raw.split("\r"):
            if piece and not piece.isspace():
                yield parse_line(piece, number=number, source=name)


def split_block(rest: bytes, block: bytes) -> tuple[list[bytes], bytes]:
    """
    Which lines end in this block?

    Args:
        rest: The beginning of a line, out of the blocks before.

        block: The next block.

    Returns:
        The lines without their ends, each cut at 64 KiB; and the beginning of
        the next.
    """
    *lines, last = block.split(b"\n")
    if lines:
        lines[0] = rest + lines[0]
        rest = b""
    # What is thrown away here is behind the longest line that is kept.
    return [x[:_LONGEST] for x in lines], (rest + last)[:_LONGEST]


def _of_file(path: str) -> Iterator[tuple[int, str]]:
    number, rest = 0, b""
    with open_log(path) as file:
        while block := file.read(_BLOCK):
            lines, rest = split_block(rest, block)
            for line in lines:
                number += 1
                yield number, line.decode("utf-8", "replace")
    if rest:
        yield number + 1, rest.decode("utf-8", "replace")
