"""
Which lines of a log could be about a collective?

Most lines of gigabytes are not, so whole blocks are searched for words that
such lines hold, and only what stands around a hit is ever taken apart.
"""

from __future__ import annotations

import os

from collections.abc import Generator, Iterable, Iterator

import attrs
import numpy as np

from ..._lines import open_log
from ..._lines.grams import PADDING, build_index, find_words


__all__ = ["AFTER", "Row", "rows_of_file", "rows_of_lines"]

# A message that a terminal broke goes on in the lines after it.
AFTER = 8

_BLOCK = 1 << 22
_LONGEST = 1 << 16
_BEFORE = 200
_PADDING = bytes(PADDING)

_WORDS = (
    *("atchdog", "SeqNum=", "NCCL work", "ast enqueued", "dump signal"),
    *("ProcessGroup", "in blocking wait", "FingerPrint", "onitoredBarrier"),
    *("clients joined", "waiting for clients", "client socket has "),
    *("wait timeout after", "gloo/", "Gloo connectFullMesh", "ncclUniqueId"),
    *("store based barrier", "collective #", "joined any collectives"),
    *("NCCL WARN", " - Init ", "Using network", "Bootstrap", " : Using "),
    *("opCount", "NCCL version", "restart worker group", "Socket Timeout"),
    *("TCP client failed", "connect() timed out", "RendezvousTimeoutError"),
    *("server socket has failed", "remote process exited"),
)
_INDEX = build_index(word.encode() for word in _WORDS)
# They are looked for in whatever case, but stand in these lines as here.
_EXACT = {word.lower().encode(): word.encode() for word in _WORDS}


@attrs.frozen
class Row:
    """
    One line as it stands in a file.

    Attributes:
        number: From 1.

        text: What stands there.

        is_hit: Whether it holds one of the words; other lines only matter
            because a message may go on in them.

        before: The end of the line before, of a hit: a message may have begun
            there.
    """

    number: int
    text: str
    is_hit: bool
    before: str = ""


def rows_of_file(path: str | os.PathLike[str]) -> Iterator[Row]:
    """
    Find the lines of a file that could be about a collective.

    Args:
        path: The file, packed or not.

    Yields:
        Hits, each with the lines in which it may go on, in their order.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.
    """
    number, owed, rest, last = 1, 0, b"", b""
    with open_log(path) as file:
        while block := file.read(_BLOCK):
            text = b"".join((rest, block, _PADDING))
            end = text.rfind(b"\n") + 1
            if end:
                number, owed = yield from _near(text, end, number, owed, last)
                last = _line_before(text, end)
            # What is thrown away is behind the longest line that is kept.
            rest = text[end:-PADDING][:_LONGEST]
    if rest:
        text = rest + b"\n" + _PADDING
        yield from _near(text, len(rest) + 1, number, owed, last)


def rows_of_lines(lines: Iterable[str]) -> Iterator[Row]:
    """
    Mark the lines that could be about a collective.

    Args:
        lines: Lines of a log, in their order.

    Yields:
        All of them.
    """
    before = ""
    for number, line in enumerate(lines, 1):
        text = line[:_LONGEST].rstrip("\n")
        is_hit = any(word in line for word in _WORDS)
        yield Row(number, text, is_hit, before if is_hit else "")
        before = text[-_BEFORE:]


def _near(
    text: bytes, end: int, number: int, owed: int, last: bytes
) -> Generator[Row, None, tuple[int, int]]:
    """
    The lines of a block that may matter, without looking at the others.
    """
    at = 0
    for hit in [*_hits(text, end), end]:
        while owed and at < hit:
            row, at = _row(text, at, number)
            yield row
            number, owed = number + 1, owed - 1
        if at < hit:
            number += text.count(b"\n", at, hit)
        if hit < end:
            row, at = _row(text, hit, number)
            before = _line_before(text, hit) if hit else last
            yield attrs.evolve(
                row, is_hit=True, before=_decoded(before[-_BEFORE:])
            )
            number, owed = number + 1, AFTER
    return number, owed


def _hits(text: bytes, end: int) -> list[int]:
    """
    Where the lines begin that hold one of the words.
    """
    found = find_words(_INDEX, np.frombuffer(text, np.uint8, end + PADDING))
    starts = {
        text.rfind(b"\n", 0, at) + 1
        for at, word in found
        if at < end and text.startswith(_EXACT[word], at)
    }
    return sorted(starts)


def _row(text: bytes, start: int, number: int) -> tuple[Row, int]:
    end = text.find(b"\n", start)
    line = text[start : min(end, start + _LONGEST)]
    return Row(number, _decoded(line), is_hit=False), end + 1


def _line_before(text: bytes, start: int) -> bytes:
    return text[text.rfind(b"\n", 0, start - 1) + 1 : start - 1]


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "replace")
