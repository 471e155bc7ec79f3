"""
What are the lines of this log?
"""

from __future__ import annotations

import os
import re

from collections.abc import Callable, Iterable, Iterator

from .files import open_log
from .model import LogLine
from .parse import parse_clean_line, parse_line


__all__ = ["read_lines", "split_block"]

_BLOCK = 1 << 18
_LONGEST = 1 << 16
_COLORS = re.compile(rb"\x1b\[[0-9;]*m")
# A line or a state of a bar counts even if it has nothing else.
_ONLY_COLORS = re.compile(
    rb"\x1b(?<![!-~]\x1b)\[[0-9;]*m(?:[\t ]|\x1b\[[0-9;]*m)*(?:[\r\n]|$)"
)
_ORDINARY = b"\t\n\r" + bytes(range(0x20, 0x7F))

# Lines, and how to take them apart.
_Block = tuple[Iterable[str], Callable[[str, int, str], LogLine]]


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
        blocks = _blocks(name)
    else:
        name, blocks = "", iter([(source, parse_line)])
    number = 0
    for lines, parse in blocks:
        for line in lines:
            number += 1
            for piece in line.split("\r") if "\r" in line else (line,):
                if piece and not piece.isspace():
                    yield parse(piece, number, name)


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


def _blocks(path: str) -> Iterator[_Block]:
    rest = b""
    with open_log(path) as file:
        while block := file.read(_BLOCK):
            lines, rest = split_block(rest, block)
            if lines:
                yield _block(lines)
    if rest:
        yield _block([rest])


def _block(lines: list[bytes]) -> _Block:
    # Most blocks are ASCII and have no controls but colors.  To see that for
    # all of their lines at once takes a fraction of the time.
    data = b"\n".join(lines)
    clean = _COLORS.sub(b"", data)
    is_plain = not clean.translate(None, _ORDINARY)
    if is_plain and (clean == data or not _ONLY_COLORS.search(data)):
        return clean.decode("ascii").split("\n"), parse_clean_line
    return [x.decode("utf-8", "replace") for x in lines], parse_line
