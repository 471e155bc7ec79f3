"""
Search one part of a log file for lines and tracebacks that match rules.

Parts are read in blocks with some bytes around them, so that lines and
tracebacks at their borders are complete.  Words that are frequent and match
nothing are paused, so that a flood of lines does not slow the scan down.
"""

from __future__ import annotations

import os
import re

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import IO

import attrs
import numpy as np

from numpy.typing import NDArray

from .._search import PADDING, find_words
from ..identity import MPI_TAG, TASK_LABEL
from .lines import (
    PACKED_SUFFIXES,
    LogLine,
    Origin,
    open_log,
    parse_line,
)
from .rules import (
    MOST_PER_RULE,
    TRACEBACK_WORD,
    LogRule,
    RuleSet,
    exhausted_words,
    index_without,
    match_traceback,
)
from .tracebacks import TRACEBACK_HEADER, Trace, read_trace


_MPI_TAG = re.compile(MPI_TAG)
_SHORT_LABELS = (
    re.compile(TASK_LABEL),
    re.compile(r"\[(?P<rank>\d{1,7})\] "),
)
_SAMPLE_BYTES = 1 << 16
_LEAST_MPI_TAGS, _LEAST_SHORT_LABELS = 3, 8
_LEAST_SHARE = 0.5
# Each label must occur this often on average.
_LEAST_REPEATS = 2
# Launchers report on the job, not on the task with their label.
_LAUNCHER_PROGRAMS = ("slurmstepd: ", "srun: ", "mpirun", "mpiexec")


def find_rank_label(data: bytes | memoryview) -> re.Pattern[str] | None:
    """
    Return the pattern of the rank labels of a file, if most lines have one.

    ``srun --label`` and ``mpirun --tag-output`` write such labels.

    Args:
        data: Some bytes of the file; a sample out of the middle is searched.

    Returns:
        A pattern whose group ``rank`` is the number of the task, which is the
        global rank; or ``None``.
    """
    begin = max((len(data) - _SAMPLE_BYTES) // 2, 0)
    text = str(data[begin : begin + _SAMPLE_BYTES], "utf-8", "replace")
    lines = [line for line in text.split("\n") if line.strip()]
    if len(_labelled_ranks(_MPI_TAG, lines)) >= _LEAST_MPI_TAGS:
        return _MPI_TAG

    least = max(_LEAST_SHORT_LABELS, _LEAST_SHARE * len(lines))
    for pattern in _SHORT_LABELS:
        numbers = _labelled_ranks(pattern, lines)
        is_repeated = _LEAST_REPEATS * len(set(numbers)) <= len(numbers)
        if len(numbers) >= least and is_repeated:
            return pattern
    return None


def parse_labelled(raw: str, label: re.Pattern[str] | None) -> LogLine:
    """
    Parse a line that may have a rank label, and set the rank of its origin.

    Args:
        label: The pattern of :func:`find_rank_label`.
    """
    found = label.match(raw) if label else None
    if found is None:
        return parse_line(raw)

    line = parse_line(raw[found.end() :])
    is_own = line.text.startswith(_LAUNCHER_PROGRAMS)
    if is_own or (line.origin and line.origin.rank is not None):
        return line
    return line._replace(origin=_with_rank(line.origin, int(found["rank"])))


def _labelled_ranks(pattern: re.Pattern[str], lines: list[str]) -> list[str]:
    found = map(pattern.match, lines)
    return [label["rank"] for label in found if label]


@lru_cache(maxsize=4096)
def _with_rank(origin: Origin | None, rank: int) -> Origin:
    return attrs.evolve(origin or Origin(), rank=rank)


# Context in bytes for lines, earlier times, and tracebacks.
BYTES_BEFORE = 1 << 15
BYTES_AFTER = 1 << 17
_BLOCK_BYTES = 1 << 22


@attrs.frozen(kw_only=True)
class FilePart:
    """
    A part of a file, which one thread reads.

    Attributes:
        path: The file.

        start: The offset of its first byte, in the unpacked file.

        stop: The offset behind its last byte.

        size: The size of the file in bytes when it was found.
    """

    path: str
    start: int
    stop: int
    size: int


@attrs.frozen(kw_only=True, eq=False)
class Block:
    """
    A block of bytes of a file, with context on both sides.

    Attributes:
        data: The bytes with context and padding.

        own: Where in *data* the block itself begins.

        end: Where in *data* the block itself ends.

        size: Where in *data* the context behind it ends.

        offset: The offset of *data* in the file.

        label: The pattern of rank labels, if lines have them.
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
        Return the same memory as an array of bytes, with the padding.
        """
        return np.frombuffer(self.data, np.uint8)[: self.size + PADDING]


def is_packed(path: str | os.PathLike[str]) -> bool:
    """
    Return whether a file is packed, so that its size says nothing.
    """
    return os.fspath(path).endswith(tuple(PACKED_SUFFIXES))


def read_blocks(part: FilePart) -> Iterator[Block]:
    """
    Read part of a file.

    Yields:
        Blocks, all of them in the same memory: use one before the next.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.

        EOFError: It is packed, and ends too early.
    """
    first = max(part.start - BYTES_BEFORE, 0)
    # Bytes of other parts are read too: a traceback may reach into them.
    last = min(part.stop + BYTES_AFTER, part.size)
    data = bytearray(
        min(BYTES_BEFORE + _BLOCK_BYTES + BYTES_AFTER, last - first) + PADDING
    )
    with open_log(part.path) as file:
        if first:
            file.seek(first)
        own, size, offset = part.start - first, 0, first
        label = None
        while True:
            size, is_last = _fill_block(file, data, size, last - offset)
            label = label or find_rank_label(memoryview(data)[:size])
            end = min(
                size if is_last else size - BYTES_AFTER, part.stop - offset
            )
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

            dropped_bytes = max(end - BYTES_BEFORE, 0)
            data[: size - dropped_bytes] = data[dropped_bytes:size]
            own, size, offset = (
                end - dropped_bytes,
                size - dropped_bytes,
                offset + dropped_bytes,
            )


def _fill_block(
    file: IO[bytes], data: bytearray, size: int, most: int
) -> tuple[int, bool]:
    """
    Fill *data* from the file, behind the first *size* bytes.
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


_NEWLINE = ord("\n")
# Of a very long line, the beginning and the text around a word are kept.
_KEPT_HEAD, _KEPT_AROUND_WORD = 300, 3_000
_BYTES_LOOKED_BACK = 4_000
_MOST_FOLLOWING = 800


@attrs.frozen(kw_only=True, eq=False)
class LinePosition:
    """
    The position of a line in a block.

    Attributes:
        block: The block that it begins in.

        start: Where it begins in the data of the block.

        end: Where it ends there.

        at: Where its first word of a rule stands there.
    """

    block: Block
    start: int
    end: int
    at: int

    def parse(self) -> LogLine:
        """
        Parse the line; a very long one is shortened around its word.
        """
        raw = bytes(self.block.data[self.start : self.end])
        if len(raw) > _KEPT_HEAD + _KEPT_AROUND_WORD:
            begin = max(self.at - self.start - _KEPT_HEAD, _KEPT_HEAD)
            raw = (
                raw[:_KEPT_HEAD]
                + b" ... "
                + raw[begin : begin + _KEPT_AROUND_WORD]
            )
        return parse_labelled(raw.decode("utf-8", "replace"), self.block.label)

    def has_any(self, words: Collection[bytes]) -> bool:
        """
        Return whether the line has one of *words*, which are in small letters.
        """
        raw = self.block.data[self.start : self.end].lower() if words else b""
        return any(word in raw for word in words)

    def lines_before(self) -> list[LogLine]:
        """
        Return some lines before it, the nearest first.
        """
        low = max(self.start - _BYTES_LOOKED_BACK, 0)
        raw = bytes(self.block.data[low : max(self.start - 1, 0)])
        rows = re.split(r"[\r\n]", raw.decode("utf-8", "replace"))
        return [
            parse_labelled(row, self.block.label)
            for row in rows[::-1]
            if row.strip()
        ]

    def following_lines(self) -> Iterator[tuple[int, LogLine]]:
        """
        Yield the line and those after it, each with where it begins.
        """
        data, position = self.block.data, self
        for _ in range(_MOST_FOLLOWING):
            yield position.start, position.parse()
            start = position.end + 1
            if start >= self.block.size:
                return
            _, end = _line_bounds(data, start, self.block.size)
            position = LinePosition(
                block=self.block, start=start, end=end, at=start
            )

    def time(self, line: LogLine, *, is_detailed: bool) -> float | None:
        """
        Return the time of the line, in seconds since the epoch.

        Args:
            line: The line, parsed.

            is_detailed: Whether to search the lines before, too, if it has no
                time.
        """
        lines = [line, *self.lines_before()] if is_detailed else [line]
        times = (x.time for x in lines)
        return next((time for time in times if time is not None), None)


def count_lines(block: Block, start: int, end: int) -> int:
    """
    Return how many lines end between two places of a block.
    """
    piece = block.array[min(start, end) : end]
    return int(np.count_nonzero(piece == _NEWLINE))


def lines_with_words(
    block: Block, found: Iterable[tuple[int, bytes]]
) -> list[tuple[LinePosition, set[bytes]]]:
    """
    Find the lines that hold words.

    Args:
        found: The place and the word of each hit, by place.

    Returns:
        Each line once, with its words.
    """
    lines: list[tuple[LinePosition, set[bytes]]] = []
    end = -1
    for at, word in found:
        if at >= end:
            start, end = _line_bounds(block.data, at, block.size)
            position = LinePosition(block=block, start=start, end=end, at=at)
            lines.append((position, set()))
        lines[-1][1].add(word)
    return lines


def _line_bounds(data: bytearray, at: int, size: int) -> tuple[int, int]:
    """
    Return where the line around a place begins and ends.
    """
    low, high = max(at - BYTES_BEFORE, 0), min(at + BYTES_BEFORE, size)
    start = max(data.rfind(b"\n", low, at), data.rfind(b"\r", low, at))
    end = data.find(b"\n", at, high)
    end = high if end < 0 else end
    carriage_return = data.find(b"\r", at, end)
    return (start + 1 if start >= 0 else low), (
        end if carriage_return < 0 else carriage_return
    )


# This many lines of a rule get a time and rank from the lines before.
_MOST_WITH_CONTEXT = 3
_MOST_RANK_LINES = 6
_LONGEST_RANK_LINE = 300
# A word in this many lines of a block that match no rule is paused, twice as
# many bytes each time, up to a limit.
_MOST_IDLE = 4_000
_PAUSE, _LONGEST_PAUSE = 1 << 20, 1 << 25
# No words are paused at the end of a file, which shows how the job ended.
_FULLY_READ_END = 1 << 20
# Bytes that are searched for words at once.
_PIECE_BYTES = 1 << 19


@attrs.frozen(kw_only=True)
class Event:
    """
    A line or a traceback that matches a rule.

    Attributes:
        rule: The rule.

        line: The line.

        number: The line number in the part, from 1.

        offset: The byte offset of the line in the file.

        groups: The named groups that the pattern of the rule matched.

        time: The time of the line, in seconds since the epoch.

        trace: The traceback, if it is one.

        traceback_offsets: The byte offsets of the lines of the traceback.

        is_last: Whether no more events of this kind are reported for this
            part.
    """

    rule: LogRule
    line: LogLine
    number: int = 0
    offset: int
    groups: Mapping[str, str] = attrs.field(factory=dict)
    time: float | None = None
    trace: Trace | None = None
    traceback_offsets: tuple[int, ...] = ()
    is_last: bool = False


def read_part(
    part: FilePart,
    rule_set: RuleSet,
    on_progress: Callable[[int, int], None],
    paused: set[bytes] | None = None,
) -> Iterator[Event]:
    """
    Search part of a file for events.

    Lines of rules that have matched thousands of times are skipped, so that a
    flood of them takes hardly longer than other lines.

    Args:
        on_progress: Called with how many bytes more were read, and how many
            lines end in them.

        paused: Receives the words that were paused: so many lines hold them
            and match no rule that some of these lines were skipped.

    Yields:
        The events, in the order of the file.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.

        EOFError: It is packed, and ends too early.
    """
    state = _PartState(end=part.size - _FULLY_READ_END)
    number = 0
    for block in read_blocks(part):
        counted, known = block.own, number
        if block.own and block.offset + block.own == part.start:
            state.traceback_offsets.update(
                _tracebacks_begun_before(block, rule_set)
            )
        for position, words in _candidate_lines(block, rule_set, state):
            event = _match_line(position, words, rule_set, state.match_counts)
            if event is None:
                state.count_idle(words, position)
                continue
            state.reset_idle(words)
            number += count_lines(block, counted, position.start)
            counted = position.start
            is_last = state.count_match(event, rule_set)
            yield attrs.evolve(event, number=number + 1, is_last=is_last)
        number += count_lines(block, counted, block.end)
        on_progress(block.end - block.own, number - known)
        state.end_block(block.offset + block.end)
    if paused is not None:
        paused.update(state.pauses)


@attrs.define(kw_only=True)
class _PartState:
    """
    The state of the search in one part.

    Attributes:
        end: The offset in the file from which nothing is skipped.

        match_counts: The number of matches by rule; tracebacks by their
            header.

        dropped: Words of rules that have matched often enough.

        idle: The number of lines of this block without a match, by word.

        paused: Paused words, each with the offset in the file where that ends.

        pauses: The number of pauses, by word.

        traceback_offsets: The offsets of lines of tracebacks in the file.
    """

    end: int
    match_counts: Counter[str] = attrs.field(factory=Counter)
    dropped: frozenset[bytes] = frozenset()
    idle: Counter[bytes] = attrs.field(factory=Counter)
    paused: dict[bytes, int] = attrs.field(factory=dict)
    pauses: Counter[bytes] = attrs.field(factory=Counter)
    traceback_offsets: set[int] = attrs.field(factory=set)

    def count_match(self, event: Event, rule_set: RuleSet) -> bool:
        """
        Count an event; return whether it is the last of its kind.
        """
        kind = TRACEBACK_HEADER if event.trace else event.rule.name
        self.match_counts[kind] += 1
        self.traceback_offsets.update(event.traceback_offsets)
        is_last = self.match_counts[kind] >= MOST_PER_RULE
        if is_last:
            self.dropped |= exhausted_words(rule_set, self.match_counts)
        return is_last

    def reset_idle(self, words: AbstractSet[bytes]) -> None:
        """
        Reset the idle counts of the words of a line that matched.
        """
        for word in words & self.idle.keys():
            del self.idle[word]

    def count_idle(
        self, words: AbstractSet[bytes], position: LinePosition
    ) -> None:
        """
        Count a line without a match, and pause its words if there are many.
        """
        self.idle.update(words)
        offset = position.block.offset + position.start
        if offset >= self.end:
            return
        for word in words:
            if self.idle[word] >= _MOST_IDLE and word not in self.paused:
                longest = min(_PAUSE << self.pauses[word], _LONGEST_PAUSE)
                self.paused[word] = min(offset + longest, self.end)
                self.pauses[word] += 1

    def skipped_words(self, offset: int) -> frozenset[bytes]:
        """
        Return the words that are skipped at an offset in the file.
        """
        over = [w for w, stop in self.paused.items() if stop <= offset]
        for word in over:
            del self.paused[word], self.idle[word]
        return self.dropped | frozenset(self.paused)

    def end_block(self, offset: int) -> None:
        """
        Drop what matters only before an offset in the file.
        """
        self.traceback_offsets = {
            x for x in self.traceback_offsets if x >= offset
        }
        self.idle.clear()


def _candidate_lines(
    block: Block, rule_set: RuleSet, state: _PartState
) -> Iterator[tuple[LinePosition, set[bytes]]]:
    """
    Yield the lines of a block with words that are not skipped.
    """
    for begin, end in _pieces(block):
        skipped = state.skipped_words(block.offset + begin)
        index = index_without(rule_set, skipped) if skipped else rule_set.index
        found = find_words(index, block.array[begin : end + PADDING])
        # Hits in the padding belong to the next piece.
        hits = [(at + begin, w) for at, w in found if at + begin < end]
        for position, words in lines_with_words(block, hits):
            offset = block.offset + position.start
            if (
                not block.own <= position.start < block.end
                or offset in state.traceback_offsets
                or words <= state.paused.keys()
            ):
                continue
            if position.has_any(state.dropped):
                state.count_idle(words - state.dropped, position)
            else:
                yield position, words


def _pieces(block: Block) -> Iterator[tuple[int, int]]:
    """
    Yield the bounds of pieces of a block that end at line ends.

    Words that one piece exhausts are skipped in the next.
    """
    begin, stop = block.own, min(block.end + BYTES_BEFORE, block.size)
    while begin < stop:
        end = block.data.find(b"\n", min(begin + _PIECE_BYTES, stop), stop) + 1
        yield begin, end or stop
        begin = end or stop


def _tracebacks_begun_before(block: Block, rule_set: RuleSet) -> Iterator[int]:
    """
    Yield the offsets of lines of tracebacks that begin before the part.
    """
    stop = min(block.own + BYTES_BEFORE, block.size) + PADDING
    found = find_words(rule_set.index, block.array[:stop])
    for position, words in lines_with_words(block, found):
        if TRACEBACK_WORD in words and position.start < block.own:
            line = position.parse()
            event = _match_traceback_line(position, line, rule_set, Counter())
            yield from event.traceback_offsets if event else ()


def _match_line(
    position: LinePosition,
    words: AbstractSet[bytes],
    rule_set: RuleSet,
    match_counts: Mapping[str, int],
) -> Event | None:
    """
    Return the event of a line, if a rule matches.
    """
    line = position.parse()
    if TRACEBACK_WORD in words:
        event = _match_traceback_line(position, line, rule_set, match_counts)
        if event is not None:
            return event

    numbers = {n for word in words for n in rule_set.by_word.get(word, ())}
    for number in sorted(numbers):
        rule = rule_set.rules[number]
        groups = rule.match(line.text)
        if groups is None:
            continue
        is_detailed = match_counts[rule.name] < _MOST_WITH_CONTEXT
        if rule.before and is_detailed and "rank" not in groups:
            groups = {**groups, **_rank_in_lines_before(position, rule.before)}
        return Event(
            rule=rule,
            line=line,
            offset=position.block.offset + position.start,
            groups=groups,
            time=position.time(line, is_detailed=is_detailed),
        )
    return None


def _match_traceback_line(
    position: LinePosition,
    line: LogLine,
    rule_set: RuleSet,
    match_counts: Mapping[str, int],
) -> Event | None:
    starts: list[int] = []

    def lines() -> Iterator[LogLine]:
        for start, row in position.following_lines():
            starts.append(position.block.offset + start)
            yield row

    before = next((x.text for x in position.lines_before()), "")
    trace = read_trace(lines(), before)
    if trace is None:
        return None

    return Event(
        rule=match_traceback(trace, rule_set),
        line=line,
        offset=position.block.offset + position.start,
        time=position.time(
            line,
            is_detailed=match_counts[TRACEBACK_HEADER] < _MOST_WITH_CONTEXT,
        ),
        trace=trace,
        traceback_offsets=tuple(starts[n] for n in trace.lines),
    )


def _rank_in_lines_before(
    position: LinePosition, pattern: re.Pattern[str]
) -> Mapping[str, str]:
    for row in position.lines_before()[:_MOST_RANK_LINES]:
        found = pattern.search(row.text[:_LONGEST_RANK_LINE])
        if found:
            return {"rank": found["rank"]}
    return {}
