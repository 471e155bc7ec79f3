"""
Which parts of a log are worth reading line by line?

A start-up stands at the beginning of a log, and how it goes at its end; what is
between may be gigabytes.  Of that, only blocks are read that hold a text which
matters.
"""

from __future__ import annotations

import os

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

import attrs
import numpy as np

from ..lines import BROKEN, open_log
from .framework_rules import Rule, RuleBook, Words, make_words
from .timeline import Story


_BLOCK = 1 << 18
# A line longer than this is cut.
_LONGEST = 1 << 16
# How much is read whole at the end.
_TAIL = 4 << 20
_END = ord("\n")


@attrs.frozen
class Block:
    """
    Some lines of a log.

    Attributes:
        data: The lines, in UTF-8; the last may have no end.

        number: The number of the first of them, from 1.
    """

    data: bytes
    number: int

    @property
    def text(self) -> str:
        """
        The lines; most blocks are never asked for them.
        """
        return self.data.decode("utf-8", "replace")


def read_blocks(
    source: str | os.PathLike[str] | Iterable[str],
    *,
    lose: Callable[[Exception], None] | None = None,
) -> Iterator[Block]:
    """
    Cut a log into blocks of lines.

    A progress bar writes over itself for hours without the end of a line, so
    blocks also end at carriage returns.

    Args:
        source: A path; or lines, such as a list of them or a text of several.

        lose: Called with the reason if the rest of a packed file cannot be
            read.

    Yields:
        The blocks.

    Raises:
        OSError: The file cannot be read.

        ValueError: It is no ordinary file, or is not packed as its name says.
    """
    if isinstance(source, str) and "\n" in source:
        yield from _numbered([source.encode("utf-8", "replace")])
    elif isinstance(source, str | os.PathLike):
        yield from _numbered(_of_file(source, lose))
    else:
        yield from _numbered(_of_lines(source))


def _numbered(blocks: Iterable[bytes]) -> Iterator[Block]:
    number = 1
    for data in blocks:
        yield Block(data, number)
        # Many times faster than to count in bytes.
        ends = np.frombuffer(data, np.uint8) == _END
        number += int(np.count_nonzero(ends))


def _of_lines(lines: Iterable[str]) -> Iterator[bytes]:
    some: list[str] = []
    size = 0
    for line in lines:
        some.append(line.rstrip("\n")[-_LONGEST:])
        size += len(some[-1]) + 1
        if size >= _BLOCK:
            yield _joined(some) + b"\n"
            some, size = [], 0
    if some:
        yield _joined(some)


def _joined(lines: list[str]) -> bytes:
    return "\n".join(lines).encode("utf-8", "replace")


def _of_file(
    path: str | os.PathLike[str], lose: Callable[[Exception], None] | None
) -> Iterator[bytes]:
    rest = b""
    with open_log(path) as file:
        try:
            while block := file.read(_BLOCK):
                cut = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
                if cut:
                    yield rest + block[:cut]
                    rest = block[cut:]
                else:
                    rest = (rest + block)[:_LONGEST]
        except BROKEN as exc:
            # Not finished, or it holds too much: its beginning is good.
            if isinstance(exc, OSError) and exc.errno is not None:
                raise
            if lose is not None:
                lose(exc)
    if rest:
        yield rest[:_LONGEST]


def passages(
    blocks: Iterable[Block], ask: Callable[[bytes], bool]
) -> Iterator[Block]:
    """
    Choose what is to be read line by line.

    Args:
        blocks: The log.

        ask: Is asked about what is not at its end: is that to be read?

    Yields:
        What is to be read, in its order.
    """
    held: deque[Block] = deque()
    size = 0
    for block in blocks:
        held.append(block)
        size += len(block.data)
        while size > _TAIL:
            first = held.popleft()
            size -= len(first.data)
            if ask(first.data):
                yield first
    yield from held


# A text that stands in so many blocks does not begin anything.
_TOO_COMMON = 8
# How much is read whole at the beginning, and once training has begun.
_HEAD = 16 << 20
_TRAINS = 1 << 20
_ALWAYS = frozenset({"start", "ending"})
_OF_PHASES = frozenset({"begin", "end", "end_part", "fail"})


@attrs.define(kw_only=True)
class Sieve:
    """
    Chooses blocks, in their order.

    Attributes:
        rules: All rules.

        story: What is known; it grows by what is let through.

        head: How many bytes more are let through unseen.
    """

    rules: RuleBook
    story: Story
    head: int = attrs.field(factory=lambda: _HEAD)
    _blocks: Counter[bytes] = attrs.field(factory=Counter)
    _by_text: dict[bytes, list[Rule]] = attrs.field(factory=dict)
    _words: Words | None = None
    _came: tuple[int, bool] | None = None

    def lets_through(self, data: bytes) -> bool:
        """
        Does this block matter?

        Args:
            data: The block.

        Returns:
            Whether it is to be read line by line.
        """
        if self.head > 0:
            self.head -= len(data)
            if self.story.trains:
                self.head = min(self.head, _TRAINS)
            return True

        there = self._telling().inside(data)
        self._blocks.update(there)
        if any(self._blocks[text] > _TOO_COMMON for text in there):
            self._words = None
        rules = (rule for text in there for rule in self._by_text[text])
        if any(rule.kind == "start" for rule in rules):
            self.head = _HEAD
        return bool(there)

    def _telling(self) -> Words:
        """
        The texts that tell of a change, as far as the job has come.
        """
        goes_on = self.story.trains and self.story.ending is None
        came = (len(self.story.hits), goes_on)
        if self._words is None or came != self._came:
            self._came = came
            self._by_text = {
                text.encode(): rules
                for text, rules in self.rules.by_text.items()
                if any(self._matters(rule, goes_on=goes_on) for rule in rules)
            }
            self._words = make_words(
                text
                for text in self._by_text
                if self._blocks[text] <= _TOO_COMMON
            )
        return self._words

    def _matters(self, rule: Rule, *, goes_on: bool) -> bool:
        if (
            rule.book.kind != "common"
            and rule.book.name not in self.story.hits
        ):
            return False
        if rule.kind == "failure":
            return rule.failure is not None and not rule.failure.harmless
        if rule.phase is not None and rule.phase.part_of:
            return False
        return rule.kind in _ALWAYS or (
            rule.kind in _OF_PHASES and not goes_on
        )
