"""
Which lines of this part of a file tell that something went wrong?
"""

from __future__ import annotations

import os
import re

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import IO

import attrs
import numpy as np

from numpy.typing import NDArray

from .lines import (
    PACKED,
    PADDING,
    LogLine,
    Origin,
    find_words,
    open_log,
    parse_line,
    parse_time,
)
from .rules import (
    HEADER_WORD,
    MOST_ALIKE,
    LogRule,
    Plan,
    classify,
    without,
    words_of,
)
from .tracebacks import HEADER, Trace, read_trace


_RANK = r"(?P<rank>\d{1,7})"
_TAGGED = re.compile(rf"\[\d{{1,9}},{_RANK}\]<std(?:out|err|diag)>: ?")
_SHORT = (re.compile(rf" {{0,6}}{_RANK}: "), re.compile(rf"\[{_RANK}\] "))
_SAMPLE = 1 << 16
_LEAST_TAGGED, _LEAST_SHORT = 3, 8
_SHARE = 0.5
# So often each label occurs, on average.
_OFTEN = 2
# They tell what happens to the job, not to the task they run for.
_LAUNCHERS = ("slurmstepd: ", "srun: ", "mpirun", "mpiexec")


def find_label(data: bytes | memoryview) -> re.Pattern[str] | None:
    """
    What stands before the lines of a file, if most have a label?

    Args:
        data: Some of the file; its middle is looked at.

    Returns:
        A pattern for the label whose group ``rank`` is the number of the
        task, which is the global rank; or ``None``.
    """
    begin = max((len(data) - _SAMPLE) // 2, 0)
    text = str(data[begin : begin + _SAMPLE], "utf-8", "replace")
    lines = [line for line in text.split("\n") if line.strip()]
    if len(_numbers(_TAGGED, lines)) >= _LEAST_TAGGED:
        return _TAGGED

    least = max(_LEAST_SHORT, _SHARE * len(lines))
    for pattern in _SHORT:
        numbers = _numbers(pattern, lines)
        is_few = _OFTEN * len(set(numbers)) <= len(numbers)
        if len(numbers) >= least and is_few:
            return pattern
    return None


def parse_labelled(raw: str, label: re.Pattern[str] | None) -> LogLine:
    """
    Take a line apart that may have a label.

    Args:
        raw: The line.

        label: What the label looks like, if there are any.

    Returns:
        The line without it; the rank is told by its origin.
    """
    found = label.match(raw) if label else None
    if found is None:
        return parse_line(raw)

    line = parse_line(raw[found.end() :])
    is_own = line.text.startswith(_LAUNCHERS)
    if is_own or (line.origin and line.origin.rank is not None):
        return line
    return line._replace(origin=_ranked(line.origin, int(found["rank"])))


def _numbers(pattern: re.Pattern[str], lines: list[str]) -> list[str]:
    found = map(pattern.match, lines)
    return [label["rank"] for label in found if label]


@lru_cache(maxsize=4096)
def _ranked(origin: Origin | None, rank: int) -> Origin:
    return attrs.evolve(origin or Origin(), rank=rank)


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


# Of so many lines of a rule more is learned, at some cost.
_MOST_EXACT = 3
_ROWS_BEFORE = 6
_LONGEST_BEFORE = 300
# A word that was so often in nothing new, within one block, is not looked for
# in what follows: twice as much each time, up to a limit.
_MOST_IDLE = 4_000
_PAUSE, _LONGEST_PAUSE = 1 << 20, 1 << 25
# The end of a file tells how it ended, so that nothing is left out there.
_END = 1 << 20
# So much is searched for words in one go.
_PIECE = 1 << 19


@attrs.frozen(kw_only=True)
class Event:
    """
    A line that fits a rule, or a traceback.

    Attributes:
        rule: The rule.

        line: The line.

        number: Its number in the part, from 1.

        offset: Where it begins in the file.

        groups: What the pattern of the rule found.

        time: When it was printed, if that is told.

        trace: The traceback, if it is one.

        taken: Where the lines of the traceback begin in the file.

        is_last: Whether no more such lines of this part are looked at.
    """

    rule: LogRule
    line: LogLine
    number: int = 0
    offset: int
    groups: Mapping[str, str] = attrs.field(factory=dict)
    time: float | None = None
    trace: Trace | None = None
    taken: tuple[int, ...] = ()
    is_last: bool = False


def read_part(
    part: Part,
    plan: Plan,
    tell: Callable[[int, int], None],
    paused: set[bytes] | None = None,
) -> Iterator[Event]:
    """
    Look at part of a file.

    What would say the same thousands of times is not looked at, so that a
    flood of lines does not take much longer than other lines.

    Args:
        part: Which.

        plan: What to look for.

        tell: Is told how many bytes more were looked at, and how many lines
            end there.

        paused: Gets the words that stood in so many lines that fit no rule
            that not all of these lines were looked at.

    Yields:
        What was found, in the order of the file.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.

        EOFError: It is packed, and ends too early.
    """
    state = _State(end=part.size - _END)
    number = 0
    for block in read_blocks(part):
        counted, known = block.own, number
        if block.own and block.offset + block.own == part.start:
            state.taken.update(_begun_before(block, plan))
        for place, words in _places(block, plan, state):
            event = _event(place, words, plan, state.seen)
            if event is None:
                state.skip(words, place)
                continue
            state.heed(words)
            number += count_lines(block, counted, place.start)
            counted = place.start
            is_last = state.note(event, plan)
            yield attrs.evolve(event, number=number + 1, is_last=is_last)
        number += count_lines(block, counted, block.end)
        tell(block.end - block.own, number - known)
        state.forget(block.offset + block.end)
    if paused is not None:
        paused.update(state.pauses)


@attrs.define(kw_only=True)
class _State:
    """
    What is known of a part while it is read.

    Attributes:
        end: Where in the file nothing is left out any more.

        seen: How often rules fitted, by name; tracebacks by their header.

        dropped: Words of rules that fitted often enough.

        idle: In how many lines of a block that told nothing new a word was.

        paused: Words that are not looked for, with up to where in the file.

        pauses: How often that was so.

        taken: Where lines of tracebacks begin in the file.
    """

    end: int
    seen: Counter[str] = attrs.field(factory=Counter)
    dropped: frozenset[bytes] = frozenset()
    idle: Counter[bytes] = attrs.field(factory=Counter)
    paused: dict[bytes, int] = attrs.field(factory=dict)
    pauses: Counter[bytes] = attrs.field(factory=Counter)
    taken: set[int] = attrs.field(factory=set)

    def note(self, event: Event, plan: Plan) -> bool:
        """
        Count an event; say whether it is the last of its kind.
        """
        kind = HEADER if event.trace else event.rule.name
        self.seen[kind] += 1
        self.taken.update(event.taken)
        is_last = self.seen[kind] >= MOST_ALIKE
        if is_last:
            self.dropped |= words_of(plan, self.seen)
        return is_last

    def heed(self, words: AbstractSet[bytes]) -> None:
        """
        Count a line that told something as one that makes up for others.
        """
        for word in words & self.idle.keys():
            del self.idle[word]

    def skip(self, words: AbstractSet[bytes], place: Place) -> None:
        """
        Count a line that told nothing new.
        """
        self.idle.update(words)
        offset = place.block.offset + place.start
        if offset >= self.end:
            return
        for word in words:
            if self.idle[word] >= _MOST_IDLE and word not in self.paused:
                longest = min(_PAUSE << self.pauses[word], _LONGEST_PAUSE)
                self.paused[word] = min(offset + longest, self.end)
                self.pauses[word] += 1

    def unwanted(self, offset: int) -> frozenset[bytes]:
        """
        Which words are not looked for at a place in the file?
        """
        over = [w for w, stop in self.paused.items() if stop <= offset]
        for word in over:
            del self.paused[word], self.idle[word]
        return self.dropped | frozenset(self.paused)

    def forget(self, offset: int) -> None:
        """
        Keep what matters behind a place in the file.
        """
        self.taken = {x for x in self.taken if x >= offset}
        self.idle.clear()


def _places(
    block: Block, plan: Plan, state: _State
) -> Iterator[tuple[Place, frozenset[bytes]]]:
    """
    The lines of a block that may tell of something new.
    """
    for begin, end in _pieces(block):
        unwanted = state.unwanted(block.offset + begin)
        index = without(plan, unwanted) if unwanted else plan.index
        found = find_words(index, block.array[begin : end + PADDING])
        # What the padding reaches into is the next piece's.
        moved = [(at + begin, w) for at, w in found if at + begin < end]
        for place, words in lines_with_words(block, moved):
            is_own = block.own <= place.start < block.end
            if not is_own or block.offset + place.start in state.taken:
                continue
            if words <= state.paused.keys():
                continue
            if place.has_any(state.dropped):
                state.skip(words - state.dropped, place)
            else:
                yield place, words


def _pieces(block: Block) -> Iterator[tuple[int, int]]:
    """
    The lines that begin among the block's own bytes, many at a time.

    What is learned in one piece need not be looked for in the next.
    """
    begin, stop = block.own, min(block.end + BEHIND, block.size)
    while begin < stop:
        end = block.data.find(b"\n", min(begin + _PIECE, stop), stop) + 1
        yield begin, end or stop
        begin = end or stop


def _begun_before(block: Block, plan: Plan) -> Iterator[int]:
    """
    Where the lines are of tracebacks that begin before the part.
    """
    stop = min(block.own + BEHIND, block.size) + PADDING
    found = find_words(plan.index, block.array[:stop])
    for place, words in lines_with_words(block, found):
        event = None
        if HEADER_WORD in words and place.start < block.own:
            event = _traced(place, place.parse(), plan, Counter())
        if event is not None:
            yield from event.taken


def _event(
    place: Place,
    words: AbstractSet[bytes],
    plan: Plan,
    seen: Mapping[str, int],
) -> Event | None:
    """
    What a line tells of, if of anything.
    """
    line = place.parse()
    if HEADER_WORD in words:
        event = _traced(place, line, plan, seen)
        if event is not None:
            return event

    numbers = {n for word in words for n in plan.by_word.get(word, ())}
    for number in sorted(numbers):
        rule = plan.rules[number]
        groups = rule.match(line.text)
        if groups is None:
            continue
        is_exact = seen[rule.name] < _MOST_EXACT
        if rule.before and is_exact and "rank" not in groups:
            groups = {**groups, **_rank_before(place, rule.before)}
        return Event(
            rule=rule,
            line=line,
            offset=place.block.offset + place.start,
            groups=groups,
            time=place.time(line, is_exact=is_exact),
        )
    return None


def _traced(
    place: Place, line: LogLine, plan: Plan, seen: Mapping[str, int]
) -> Event | None:
    starts: list[int] = []

    def lines() -> Iterator[LogLine]:
        for start, row in place.following():
            starts.append(place.block.offset + start)
            yield row

    before = next((x.text for x in place.before()), "")
    trace = read_trace(lines(), before)
    if trace is None:
        return None

    return Event(
        rule=classify(trace, plan),
        line=line,
        offset=place.block.offset + place.start,
        time=place.time(line, is_exact=seen[HEADER] < _MOST_EXACT),
        trace=trace,
        taken=tuple(starts[n] for n in trace.lines),
    )


def _rank_before(place: Place, pattern: re.Pattern[str]) -> Mapping[str, str]:
    for row in place.before()[:_ROWS_BEFORE]:
        found = pattern.search(row.text[:_LONGEST_BEFORE])
        if found:
            return {"rank": found["rank"]}
    return {}
