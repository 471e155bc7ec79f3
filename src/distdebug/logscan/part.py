"""
Which lines of this part of a file tell that something went wrong?
"""

from __future__ import annotations

import re

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import attrs

from .._lines import LogLine
from .._lines.grams import PADDING, find_words
from .blocks import BEHIND, Block, Part, read_blocks
from .place import Place, count_lines, lines_with_words
from .plan import HEADER_WORD, MOST_ALIKE, Plan, classify, without, words_of
from .reader import HEADER
from .rules import LogRule
from .trace import Trace, read_trace


__all__ = ["Event", "read_part"]

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
