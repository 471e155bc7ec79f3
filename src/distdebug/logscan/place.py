"""
What does a line within a block say, and what stands around it?
"""

from __future__ import annotations

import re

from collections.abc import Collection, Iterator

import attrs
import numpy as np

from .._lines import LogLine, parse_time
from .blocks import BEHIND, Block
from .labels import parse_labelled


__all__ = ["Place", "count_lines", "lines_with_words"]

_NEWLINE = ord("\n")
# What is kept of a very long line: its beginning, and what is around a word.
_HEAD, _TAIL = 300, 3_000
_LOOK_BACK = 4_000
_MOST_LINES = 800


@attrs.frozen(kw_only=True, eq=False)
class Place:
    """
    Where a line is.

    Attributes:
        block: The block that it begins in.

        start: Where it begins there.

        end: Where it ends there.

        at: Where the first word is that was looked for.
    """

    block: Block
    start: int
    end: int
    at: int

    def parse(self) -> LogLine:
        """
        Take the line apart.
        """
        raw = bytes(self.block.data[self.start : self.end])
        if len(raw) > _HEAD + _TAIL:
            begin = max(self.at - self.start - _HEAD, _HEAD)
            raw = raw[:_HEAD] + b" ... " + raw[begin : begin + _TAIL]
        return parse_labelled(raw.decode("utf-8", "replace"), self.block.label)

    def has_any(self, words: Collection[bytes]) -> bool:
        """
        Whether one of some words, in small letters, is in the line.
        """
        if not words:
            return False

        raw = self.block.data[self.start : self.end].lower()
        return any(word in raw for word in words)

    def before(self) -> list[LogLine]:
        """
        Some lines before it, the nearest first.
        """
        low = max(self.start - _LOOK_BACK, 0)
        raw = bytes(self.block.data[low : max(self.start - 1, 0)])
        rows = re.split(r"[\r\n]", raw.decode("utf-8", "replace"))
        label = self.block.label
        return [
            parse_labelled(row, label) for row in rows[::-1] if row.strip()
        ]

    def following(self) -> Iterator[tuple[int, LogLine]]:
        """
        The line and those behind it, each with where it begins.
        """
        data, place = self.block.data, self
        for _ in range(_MOST_LINES):
            yield place.start, place.parse()
            start = place.end + 1
            if start >= self.block.size:
                return
            _, end = _bounds(data, start, self.block.size)
            place = Place(block=self.block, start=start, end=end, at=start)

    def time(self, line: LogLine, *, is_exact: bool) -> float | None:
        """
        When it was printed, if that is told.

        Args:
            line: The line, parsed.

            is_exact: Whether to look at the lines before, too, if it does not
                tell itself.
        """
        told = line.time
        if told is not None or not is_exact:
            return told

        times = (parse_time(x.text) for x in self.before())
        return next((time for time in times if time is not None), None)


def count_lines(block: Block, start: int, end: int) -> int:
    """
    How many lines end between two places of a block.
    """
    piece = block.array[min(start, end) : end]
    return int(np.count_nonzero(piece == _NEWLINE))


def lines_with_words(
    block: Block, found: list[tuple[int, bytes]]
) -> Iterator[tuple[Place, frozenset[bytes]]]:
    """
    Which lines hold words?

    Args:
        block: Where they are.

        found: Where each word begins, and which, by place.

    Yields:
        Each line once, with its words.
    """
    words: set[bytes] = set()
    start = end = first = -1
    for at, word in found:
        if at >= end:
            if words:
                place = Place(block=block, start=start, end=end, at=first)
                yield place, frozenset(words)
            start, end = _bounds(block.data, at, block.size)
            words, first = set(), at
        words.add(word)
    if words:
        place = Place(block=block, start=start, end=end, at=first)
        yield place, frozenset(words)


def _bounds(data: bytearray, at: int, size: int) -> tuple[int, int]:
    """
    Where the line begins and ends that a place is in.
    """
    low, high = max(at - BEHIND, 0), min(at + BEHIND, size)
    start = max(data.rfind(b"\n", low, at), data.rfind(b"\r", low, at))
    end = data.find(b"\n", at, high)
    end = high if end < 0 else end
    bar = data.find(b"\r", at, end)
    return (start + 1 if start >= 0 else low), (end if bar < 0 else bar)
