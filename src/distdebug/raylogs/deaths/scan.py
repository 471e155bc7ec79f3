"""
Which records of a large log of Ray hold one of these words?

A record begins with the time in brackets and may go on over many lines.  Only
blocks that hold a word are taken apart, so gigabytes pass as fast as they are
read.
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from ..._lines import open_log, parse_time, split_block
from ..._text import without_controls
from ...findings import Evidence


__all__ = ["Record", "decoded", "read_records"]

_BLOCK = 1 << 20
_MOST_LINES = 120
_BEGINS = re.compile(rb"\[(?:20\d\d-|state-dump)")
_QUOTED = 600
_LONGEST = 1 << 16
_CONTROLS = re.compile(rb"[^\t\n\x20-\x7e]")


@attrs.frozen(kw_only=True)
class Record:
    """
    What one record of a log says.

    Attributes:
        text: Its lines, without controls.

        number: The number of the first one, from 1.

        source: The file.
    """

    text: str
    number: int
    source: str

    @property
    def time(self) -> float | None:
        """
        When it was written, in seconds since the epoch.
        """
        return parse_time(self.text)

    @property
    def seen(self) -> Evidence:
        """
        The same as evidence.
        """
        return Evidence(
            kind="log",
            source=self.source,
            location=f"line {self.number}",
            quote=self.text[:_QUOTED],
        )


def read_records(path: Path, words: Sequence[bytes]) -> Iterator[Record]:
    """
    Find the records of a log that hold one of these words.

    Args:
        path: The log.

        words: What the first line of a record has to hold one of.

    Yields:
        The records, each at most 120 lines long.

    Raises:
        OSError: The log cannot be read.

        ValueError: It is no ordinary file.
    """
    source = os.fspath(path)
    kept: list[bytes] = []
    first = 0
    for number, line in _lines(path, words):
        if line is None or _BEGINS.match(line):
            if kept:
                yield _record(kept, first, source)
            is_wanted = line is not None and any(x in line for x in words)
            kept, first = ([line] if line and is_wanted else []), number
        elif kept and len(kept) < _MOST_LINES:
            kept.append(line)
    if kept:
        yield _record(kept, first, source)


def decoded(data: bytes) -> str:
    """
    What do these bytes of a log say?

    Args:
        data: Any bytes.

    Returns:
        The text, without controls.
    """
    text = data.decode("utf-8", "replace")
    # Most logs are plain, and are seen to be so far faster than cleaned.
    return without_controls(text) if _CONTROLS.search(data) else text


def _lines(
    path: Path, words: Sequence[bytes]
) -> Iterator[tuple[int, bytes | None]]:
    number, rest = 0, b""
    goes_on = False  # what follows a word belongs to its record
    with open_log(path) as file:
        while block := file.read(_BLOCK):
            lines, rest = split_block(rest, block)
            holds = any(word in block for word in words) or any(
                word in line for line in lines[:1] for word in words
            )
            if holds or goes_on:
                yield from enumerate(lines, number + 1)
            else:
                yield number, None  # nothing in here is wanted
            number += len(lines)
            goes_on = holds
    if rest:
        yield number + 1, rest


def _record(lines: list[bytes], number: int, source: str) -> Record:
    text = decoded(b"\n".join(lines)[:_LONGEST]).rstrip()
    return Record(text=text, number=number, source=source)
