"""
Read from a long log only what may hold stacks.

A log of gigabytes may hold one stack dump.  Taking each of its lines for a
possible frame takes minutes; finding the texts that every dump has takes a
second.
"""

from __future__ import annotations

import os

from collections.abc import Iterator
from functools import cache
from typing import IO

from .._search import TextIndex, make_text_index


# Shorter files are read whole.
_WHOLE = 1 << 20
_BLOCK = 1 << 22
# Each dump has one of these texts for each thread, also behind the prefix of a
# log collector.
_TEXTS = (
    # py-spy
    *("(active", "(idle)", '"frames"'),
    # gdb and cuda-gdb
    *("(LWP ", "(process ", "[Switching to ", "Stack trace of thread"),
    *("#0  0x", "#1  0x", "#2  0x", "#0 0x"),
    *("CUDA kernel", "CUDA Kernel", "Parent Dev Grid"),
    # faulthandler, and gdb with the script of CPython
    "most recent call first",
    # pystack
    *("Traceback for thread", "The frame stack for thread"),
    # pytest-timeout
    "~~ Stack of ",
    # the end of an interrupted program
    *("KeyboardInterrupt", "Timed out waiting", "ait timeout after"),
    *("Timeout waiting for key", "Watchdog caught collective operation"),
)
_LONGEST_TEXT = max(map(len, _TEXTS))
# What is read around such a text: headings, the other frames, and the lines of
# other processes in between.
_BEFORE, _AFTER = 1 << 16, 1 << 17


@cache
def _index() -> TextIndex:
    return make_text_index(text.encode() for text in _TEXTS)


def read_excerpts(
    file: IO[bytes], most: int, *, is_document: bool = False
) -> bytes:
    """
    Read the lines of a file that may hold stacks; a short file whole.

    Args:
        file: An ordinary file, at its beginning.

        most: In bytes.

        is_document: Whether it is one document, and no log with a stack in it;
            then it is read whole, too.

    Raises:
        OSError: It cannot be read.

        ValueError: There is more to read than *most*.
    """
    size = os.fstat(file.fileno()).st_size
    # Files of the kernel have no size.
    is_whole = is_document or size <= _WHOLE
    spans = [(0, most + 1)] if is_whole else _find_spans(file, size)
    parts: list[bytes] = []
    left = most
    for start, end in list(spans):
        parts.append(_read_lines(file, start, end))
        left -= len(parts[-1])
        if left < 0:
            msg = f"larger than {most:,} bytes"
            raise ValueError(msg)
    return b"\n".join(parts)


def _find_spans(file: IO[bytes], size: int) -> Iterator[tuple[int, int]]:
    """
    Yield the parts of a file around the texts of stacks, in their order.
    """
    start = end = 0
    for at in _find_texts(file):
        if at - _BEFORE > end:
            if end:
                yield start, end
            start = at - _BEFORE
        end = min(max(at + _AFTER, end), size)
    if end:
        yield max(start, 0), end


def _find_texts(file: IO[bytes]) -> Iterator[int]:
    offset, tail = 0, b""
    while block := file.read(_BLOCK):
        data = tail + block
        for at, _ in _index().find(data):
            yield offset + at
        tail = data[-_LONGEST_TEXT:]
        offset += len(data) - len(tail)


def _read_lines(file: IO[bytes], start: int, end: int) -> bytes:
    """
    Read part of a file, without the line that begins before it.
    """
    file.seek(start)
    data = file.read(end - start)
    return data[data.find(b"\n") + 1 :] if start else data
