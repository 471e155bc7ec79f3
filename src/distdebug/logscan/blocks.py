"""
How is a part of a large file read, so that no line is lost at a border?
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterator
from typing import IO

import attrs
import numpy as np

from numpy.typing import NDArray

from .._lines import PACKED, open_log
from .._lines.grams import PADDING
from .labels import find_label


__all__ = ["AHEAD", "BEHIND", "Block", "Part", "is_packed", "read_blocks"]

# How far a line, a time before it, and a traceback behind it may reach.
BEHIND = 1 << 15
AHEAD = 1 << 17
_SIZE = 1 << 22


@attrs.frozen(kw_only=True)
class Part:
    """
    What one thread reads in one go.

    Attributes:
        path: The file.

        start: Its first byte, of the unpacked file.

        stop: The one behind its last.

        size: How many bytes the file had when it was seen.
    """

    path: str
    start: int
    stop: int
    size: int


@attrs.frozen(kw_only=True, eq=False)
class Block:
    """
    Some bytes of a file, with what is around them.

    Attributes:
        data: The bytes, with some before and behind, and padding.

        own: Where in *data* those begin that nobody else looks at.

        end: Where those end.

        size: Where what was read ends.

        offset: The place of the first byte of *data* in the file.

        label: What stands before each line, if a launcher labels them.
    """

    data: bytearray
    own: int
    end: int
    size: int
    offset: int
    label: re.Pattern[str] | None = None

    @property
    def array(self) -> NDArray[np.uint8]:
        """
        The same memory, as numbers, from the first own byte on.
        """
        return np.frombuffer(self.data, np.uint8)[: self.size + PADDING]


def is_packed(path: str | os.PathLike[str]) -> bool:
    """
    Whether the size of this file tells nothing about what it holds.

    Args:
        path: The file.
    """
    return os.fspath(path).endswith(tuple(PACKED))


def read_blocks(part: Part) -> Iterator[Block]:
    """
    Read part of a file.

    Args:
        part: Which.

    Yields:
        Blocks, all of them in the same memory: use one before the next.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.

        EOFError: It is packed, and ends too early.
    """
    first = max(part.start - BEHIND, 0)
    # What others own is read too, since a traceback may reach there.
    last = min(part.stop + AHEAD, part.size)
    data = bytearray(min(BEHIND + _SIZE + AHEAD, last - first) + PADDING)
    with open_log(part.path) as file:
        if first:
            file.seek(first)
        own, size, offset = part.start - first, 0, first
        label = None
        while True:
            size, is_last = _fill(file, data, size, last - offset)
            label = label or find_label(memoryview(data)[:size])
            end = min(size if is_last else size - AHEAD, part.stop - offset)
            if end > own:
                yield Block(
                    data=data,
                    own=own,
                    end=end,
                    size=size,
                    offset=offset,
                    label=label,
                )
            if is_last or end >= part.stop - offset:
                return

            gone = max(end - BEHIND, 0)
            data[: size - gone] = data[gone:size]
            own, size, offset = end - gone, size - gone, offset + gone


def _fill(
    file: IO[bytes], data: bytearray, size: int, most: int
) -> tuple[int, bool]:
    """
    Read on, behind what is there.
    """
    limit = min(len(data) - PADDING, most)
    view = memoryview(data)
    while size < limit:
        got = file.readinto(view[size:limit])  # type: ignore[attr-defined]
        if not got:
            break
        size += got
    is_last = size < limit or limit == most
    view[size : size + PADDING] = bytes(PADDING)
    return size, is_last
