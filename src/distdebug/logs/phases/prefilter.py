"""
Prefilter blocks of a large log before they are read line by line.

A start-up stands at the beginning of a log, and the current state at its end;
between them may be gigabytes.  Of these, only blocks with a text of a relevant
rule are read.
"""

from __future__ import annotations

import os

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

import attrs
import numpy as np

from ..lines import READ_ERRORS, open_log
from .framework_rules import Rule, RuleIndex, TextIndex, make_text_index
from .timeline import Timeline


_BLOCK_BYTES = 1 << 18
# Longer lines are cut.
_LONGEST_LINE = 1 << 16
# Bytes at the end of a log that are read whole.
_TAIL_BYTES = 4 << 20
_NEWLINE = ord("\n")


@attrs.frozen
class Block:
    """
    A block of lines of a log.

    Attributes:
        data: The lines, in UTF-8; the last may have no end.

        number: The line number of the first of them, from 1.
    """

    data: bytes
    number: int

    @property
    def text(self) -> str:
        """
        Return the lines as text; most blocks never need it.
        """
        return self.data.decode("utf-8", "replace")


def read_blocks(
    source: str | os.PathLike[str] | Iterable[str],
    *,
    on_error: Callable[[Exception], None] | None = None,
) -> Iterator[Block]:
    """
    Read a log as blocks of whole lines.

    A progress bar may overwrite itself for hours without the end of a line, so
    blocks also end at carriage returns.

    Args:
        source: A path; or lines, such as a list of them or a text of several.

        on_error: Called with the error if the rest of a packed file cannot be
            read.

    Raises:
        OSError: The file cannot be read.

        ValueError: It is no ordinary file, or is not packed as its name says.
    """
    if isinstance(source, str) and "\n" in source:
        yield from _number_blocks([source.encode("utf-8", "replace")])
    elif isinstance(source, str | os.PathLike):
        yield from _number_blocks(_blocks_of_file(source, on_error))
    else:
        yield from _number_blocks(_blocks_of_lines(source))


def _number_blocks(blocks: Iterable[bytes]) -> Iterator[Block]:
    number = 1
    for data in blocks:
        yield Block(data, number)
        # numpy is many times faster than bytes.count.
        ends = np.frombuffer(data, np.uint8) == _NEWLINE
        number += int(np.count_nonzero(ends))


def _blocks_of_lines(lines: Iterable[str]) -> Iterator[bytes]:
    some: list[str] = []
    size = 0
    for line in lines:
        some.append(line.rstrip("\n")[-_LONGEST_LINE:])
        size += len(some[-1]) + 1
        if size >= _BLOCK_BYTES:
            yield _encode(some) + b"\n"
            some, size = [], 0
    if some:
        yield _encode(some)


def _encode(lines: list[str]) -> bytes:
    return "\n".join(lines).encode("utf-8", "replace")


def _blocks_of_file(
    path: str | os.PathLike[str], on_error: Callable[[Exception], None] | None
) -> Iterator[bytes]:
    rest = b""
    with open_log(path) as file:
        try:
            while block := file.read(_BLOCK_BYTES):
                cut = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
                if cut:
                    yield rest + block[:cut]
                    rest = block[cut:]
                else:
                    rest = (rest + block)[:_LONGEST_LINE]
        except READ_ERRORS as exc:
            # Truncated or too large: the beginning is still good.
            if isinstance(exc, OSError) and exc.errno is not None:
                raise
            if on_error is not None:
                on_error(exc)
    if rest:
        yield rest[:_LONGEST_LINE]


def select_blocks(
    blocks: Iterable[Block], is_relevant: Callable[[bytes], bool]
) -> Iterator[Block]:
    """
    Select the blocks to be read line by line, in their order.

    Args:
        is_relevant: Called for each block before the last 4 MiB, which are
            read whole.
    """
    pending: deque[Block] = deque()
    size = 0
    for block in blocks:
        pending.append(block)
        size += len(block.data)
        while size > _TAIL_BYTES:
            first = pending.popleft()
            size -= len(first.data)
            if is_relevant(first.data):
                yield first
    yield from pending


# A text in more blocks than this does not mark a change.
_MOST_BLOCKS_WITH_TEXT = 8
# Bytes at the beginning that are read whole, and after training has begun.
_HEAD_BYTES = 16 << 20
_HEAD_BYTES_IN_TRAINING = 1 << 20
_ALWAYS_RELEVANT = frozenset({"start", "ending"})
_STARTUP_KINDS = frozenset({"begin", "end", "end_part", "fail"})


@attrs.define(kw_only=True)
class Prefilter:
    """
    Select relevant blocks of a log, which must come in their order.

    Attributes:
        rules: The rules of all frameworks.

        timeline: What was read so far; it grows while selected blocks are
            read.

        unfiltered_bytes: How many more bytes are selected without a search.
    """

    rules: RuleIndex
    timeline: Timeline
    unfiltered_bytes: int = attrs.field(factory=lambda: _HEAD_BYTES)
    _blocks: Counter[bytes] = attrs.field(factory=Counter)
    _by_text: dict[bytes, list[Rule]] = attrs.field(factory=dict)
    _text_index: TextIndex | None = None
    _stage: tuple[int, bool] | None = None

    def is_relevant(self, data: bytes) -> bool:
        """
        Return whether a block is to be read line by line.
        """
        if self.unfiltered_bytes > 0:
            self.unfiltered_bytes -= len(data)
            if self.timeline.trains:
                self.unfiltered_bytes = min(
                    self.unfiltered_bytes, _HEAD_BYTES_IN_TRAINING
                )
            return True

        texts = self._relevant_texts().find_texts(data)
        self._blocks.update(texts)
        if any(self._blocks[text] > _MOST_BLOCKS_WITH_TEXT for text in texts):
            self._text_index = None
        rules = (rule for text in texts for rule in self._by_text[text])
        if any(rule.kind == "start" for rule in rules):
            self.unfiltered_bytes = _HEAD_BYTES
        return bool(texts)

    def _relevant_texts(self) -> TextIndex:
        """
        Return the texts of rules that can still change the timeline.
        """
        is_training = self.timeline.trains and self.timeline.ending is None
        stage = (len(self.timeline.hits), is_training)
        if self._text_index is None or stage != self._stage:
            self._stage = stage
            self._by_text = {
                text.encode(): rules
                for text, rules in self.rules.by_text.items()
                if any(
                    self._is_relevant_rule(rule, is_training=is_training)
                    for rule in rules
                )
            }
            self._text_index = make_text_index(
                text
                for text in self._by_text
                if self._blocks[text] <= _MOST_BLOCKS_WITH_TEXT
            )
        return self._text_index

    def _is_relevant_rule(self, rule: Rule, *, is_training: bool) -> bool:
        if (
            rule.framework.kind != "common"
            and rule.framework.name not in self.timeline.hits
        ):
            return False
        if rule.kind == "failure":
            return rule.failure is not None and not rule.failure.harmless
        if rule.phase is not None and rule.phase.part_of:
            return False
        return rule.kind in _ALWAYS_RELEVANT or (
            rule.kind in _STARTUP_KINDS and not is_training
        )
