"""
Select the parts of a log that can change its timeline, and read these.

A start-up stands at the beginning of a log, and the current state at its end;
between them may be gigabytes, of which only the surroundings of lines that
match a relevant rule are read.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import chain
from pathlib import Path

import attrs

from ..._search import TextIndex, all_literals, make_text_index
from ...findings import Missing
from ..engine import Block, FilePart, line_bounds
from ..lines import LineBlock, parse_line, strip_log_prefix
from .framework_rules import (
    Failure,
    FrameworkRules,
    Phase,
    Rule,
    RuleIndex,
    make_rule_index,
)
from .progress_bars import LogClock
from .reader import ACTOR_KINDS, LogReader
from .timeline import Timeline


# Bytes that are read, or searched, at once.
_PIECE_BYTES = 1 << 16
# Bytes at the end of a log that are read whole.
_TAIL_BYTES = 1 << 18
# Bytes before and after a text of a relevant rule that are read with it.
_BYTES_BEFORE, _BYTES_AFTER = 1 << 13, 1 << 15
_LONGEST_PART = 1 << 12


def _surroundings(
    block: LineBlock, offsets: Iterable[int]
) -> Iterator[LineBlock]:
    """
    Yield the lines around some offsets, in order, as blocks of their own.
    """
    spans: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        begin, end = offset - _BYTES_BEFORE, offset + _BYTES_AFTER
        if spans and begin <= spans[-1][1]:
            begin = spans.pop()[0]
        spans.append((begin, end))
    data, counted, number = block.data, 0, block.number
    for begin, end in spans:
        start = data.rfind(b"\n", counted, max(begin, 0)) + 1 or counted
        stop = data.find(b"\n", end) + 1 or len(data)
        number += data.count(b"\n", counted, start)
        counted = start
        yield LineBlock(data[start:stop], number)


# What matches in more blocks than this does not mark a change.
_MOST_BLOCKS_OF_RULE = 4
# So many lines with a text are tried: millions may have it and not match.
_MOST_TRIES = 1 << 8
# Bytes at the beginning that are read whole, and after training has begun.
_HEAD_BYTES = 16 << 20
_HEAD_BYTES_IN_TRAINING = 1 << 16
# Shorter lines count as so many.
_BYTES_PER_HIT = 160
_ALWAYS_RELEVANT = frozenset({"start", "ending"})
_STARTUP_KINDS = frozenset({"begin", "end", "end_part", "fail"})


@attrs.define(kw_only=True)
class Prefilter:
    """
    Select relevant parts of a log, whose blocks must come in their order.

    Attributes:
        rules: The rules of all frameworks.

        timeline: What was read so far; it grows while selected blocks are
            read.

        unfiltered_bytes: How many more bytes are selected without a search.
    """

    rules: RuleIndex
    timeline: Timeline
    unfiltered_bytes: int = attrs.field(factory=lambda: _HEAD_BYTES)
    _blocks: Counter[Rule] = attrs.field(factory=Counter)
    _tries: Counter[bytes] = attrs.field(factory=Counter)
    _by_text: dict[bytes, list[Rule]] = attrs.field(factory=dict)
    _texts: TextIndex = attrs.field(factory=lambda: make_text_index(()))
    _stage: tuple[int, bool] | None = None

    def words(self) -> AbstractSet[bytes]:
        """
        Return the words that blocks should be searched for.
        """
        if self.unfiltered_bytes > 0:
            return frozenset()
        self._update_texts()
        return self._texts.by_word.keys()

    def select(
        self, block: Block, start: int, stop: int
    ) -> Iterable[LineBlock]:
        """
        Return the parts of a piece of a block that are read line by line.
        """
        if self.unfiltered_bytes > 0:
            self.unfiltered_bytes -= stop - start
            if self.timeline.trains:
                self.unfiltered_bytes = min(
                    self.unfiltered_bytes, _HEAD_BYTES_IN_TRAINING
                )
            return [block.cut(start, stop)]

        self._update_texts()
        found = [
            (offset - start, rule)
            for offset, text in self._find_texts(block, start, stop)
            if (rule := self._matching_rule(block.data, offset, text))
        ]
        if not found:
            return []
        rules = {rule for _, rule in found}
        self._blocks.update(rules)
        if any(self._blocks[x] > _MOST_BLOCKS_OF_RULE for x in rules):
            self._stage = None
        if any(rule.kind == "start" for rule in rules):
            self.unfiltered_bytes = _HEAD_BYTES
        piece = block.cut(start, stop)
        return _surroundings(piece, (offset for offset, _ in found))

    def _find_texts(
        self, block: Block, start: int, stop: int
    ) -> Iterator[tuple[int, bytes]]:
        """
        Return the place and the text of each hit in a piece of a block.
        """
        # A block may have been searched before its words were known.
        block.search_also(self._texts.by_word.keys())
        words = (
            (at, word)
            for word in self._texts.by_word.keys() & block.places.keys()
            for at in block.places_of(word, (start, stop)).tolist()
        )
        return self._texts.find_texts(block.data, words, start, stop)

    def _matching_rule(
        self, data: bytes, offset: int, text: bytes
    ) -> Rule | None:
        """
        Return a rule that may match the line with a text.
        """
        self._tries[text] += 1
        if self._tries[text] > _MOST_TRIES:  # look for other texts
            self._stage = None
        low, high = max(offset - _LONGEST_PART, 0), offset + _LONGEST_PART
        start, end = line_bounds(data, offset, low, high)
        line = data[start:end].decode("utf-8", "replace")
        plain = ""
        for rule in self._by_text[text]:
            if rule.kind in ACTOR_KINDS or rule.find(line):
                return rule
            # A pattern may only match at the beginning of a message.
            plain = plain or parse_line(strip_log_prefix(line)).text
            if rule.find(plain):
                return rule
        return None

    def _update_texts(self) -> None:
        """
        Choose the texts of rules that can still change the timeline.
        """
        is_training = self.timeline.trains and self.timeline.ending is None
        stage = (len(self.timeline.hits), is_training)
        if stage == self._stage:
            return
        self._stage = stage
        self._by_text = {}
        for rule in dict.fromkeys(chain(*self.rules.by_text.values())):
            if self._is_relevant_rule(rule, is_training=is_training):
                for text in self._texts_to_look_for(rule):
                    self._by_text.setdefault(text, []).append(rule)
        any_case = {text.encode() for text in self.rules.any_case}
        self._texts = make_text_index(self._by_text, any_case=any_case)

    def _texts_to_look_for(self, rule: Rule) -> list[bytes]:
        """
        Return texts of which one stands where a rule matches, and seldom else.
        """
        if rule.words:
            found = [text.encode() for text in rule.texts]
            return [x for x in found if self._tries[x] <= _MOST_TRIES]
        for texts in all_literals(rule.pattern):
            found = [text.encode() for text in texts]
            if all(self._tries[text] <= _MOST_TRIES for text in found):
                return found
        return []

    def _is_relevant_rule(self, rule: Rule, *, is_training: bool) -> bool:
        if self._blocks[rule] > _MOST_BLOCKS_OF_RULE or (
            rule.framework.kind != "common"
            and rule.framework.name not in self.timeline.hits
        ):
            return False
        if rule.kind == "failure":
            return isinstance(rule.owner, Failure) and not rule.owner.harmless
        if isinstance(rule.owner, Phase) and rule.owner.part_of:
            return False
        return rule.kind in _ALWAYS_RELEVANT or (
            rule.kind in _STARTUP_KINDS and not is_training
        )


class PhaseReader:
    """
    Read logs for phases; see ``engine.LogReader``.

    Args:
        now: The latest possible time, which decides the year of times without
            one.
    """

    def __init__(
        self, frameworks: tuple[FrameworkRules, ...], now: float | None = None
    ) -> None:
        #: What each log shows of its last attempt, by its path.
        self.timelines: dict[str, Timeline] = {}
        self.missing: list[Missing] = []
        self._rules = make_rule_index(frameworks)
        self._now = now

    def begin(self, part: FilePart) -> None:
        """
        Begin the timeline of a file.
        """
        self._path = part.path
        self._reader = LogReader(self._rules, LogClock(now=self._now))
        self._prefilter = Prefilter(
            rules=self._rules, timeline=self._reader.timeline
        )
        self._reader.timeline.source = part.path
        # The pieces that are read whole if nothing more comes.
        self._tail: deque[tuple[Block, int, int]] = deque()
        self._tail_size = 0

    def words(self, _stop: int) -> AbstractSet[bytes]:
        """
        Return the words of rules that can still change the timeline.
        """
        return self._prefilter.words()

    def read(self, block: Block) -> None:
        """
        Read what matters in a block, once it is not the end of the file.
        """
        if block.latest is not None and self._now is None:
            self._reader.clock.now = block.latest
        for start, stop in block.pieces(_PIECE_BYTES):
            self._tail.append((block, start, stop))
            self._tail_size += stop - start
            while self._tail_size > _TAIL_BYTES:
                first = self._tail.popleft()
                self._tail_size -= first[2] - first[1]
                for selected in self._prefilter.select(*first):
                    self._read_lines(selected)

    def end(self, error: Exception | None) -> None:
        """
        Read the end of the file, and keep its timeline.
        """
        timeline = self._reader.timeline
        if error is not None:
            self.missing.append(Missing.log(self._path, error))
        for block, start, stop in self._tail:
            self._read_lines(block.cut(start, stop))
        self._reader.finish()
        if self._reader.has_left_out:
            reason = "states of bars, or other short lines, were left out"
            self.missing.append(Missing.log(self._path, reason))
        if self._path:
            with suppress(OSError):
                timeline.mtime = Path(self._path).stat().st_mtime
        if error is None or self._reader.last is not None:
            self.timelines[self._path] = timeline

    def _read_lines(self, block: LineBlock) -> None:
        hits = self._reader.read(block)
        self._prefilter.unfiltered_bytes -= max(
            hits * _BYTES_PER_HIT - len(block.data), 0
        )
