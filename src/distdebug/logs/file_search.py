"""
Search one part of a log file for lines and tracebacks that match rules.

Words that are frequent and match nothing are paused, so that a flood of lines
does not slow the scan down.
"""

from __future__ import annotations

import re

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import chain, islice, takewhile

import attrs

from .._search import find_each
from .engine import (
    BYTES_BEFORE,
    Block,
    FilePart,
    is_rank_label,
    line_bounds,
)
from .lines import LogLine, Origin, parse_line, strip_log_prefix
from .rules import (
    MOST_PER_RULE,
    NAMING_GROUPS,
    TRACEBACK_WORD,
    LogRule,
    RuleSet,
    exhausted_words,
    match_traceback,
)
from .tracebacks import TRACEBACK_HEADER, Trace, read_trace


# Launchers report on the job, not on the task with their label.
_LAUNCHER_PROGRAMS = ("slurmstepd: ", "srun: ", "mpirun", "mpiexec")


def parse_labelled(raw: str, label: re.Pattern[str] | None) -> LogLine:
    """
    Parse a line that may have the prefix of a log collector, or a rank label,
    which is the rank of its origin.

    Args:
        label: The pattern of :func:`find_rank_label`.
    """
    found = label.match(raw) if label else None
    if found is None:
        message = strip_log_prefix(raw)
        if len(message) == len(raw) or is_rank_label(raw):
            return parse_line(raw)
        stamp = raw[: len(raw) - len(message)]
        return parse_line(message)._replace(stamp=stamp)

    line = parse_line(raw[found.end() :])
    is_own = line.text.startswith(_LAUNCHER_PROGRAMS)
    if is_own or (line.origin and line.origin.rank is not None):
        return line
    return line._replace(origin=_with_rank(line.origin, int(found["rank"])))


@lru_cache(maxsize=4096)
def _with_rank(origin: Origin | None, rank: int) -> Origin:
    return attrs.evolve(origin or Origin(), rank=rank)


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
        raw = self.block.data[self.start : self.end]
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

    def lines_before(self) -> Iterator[LogLine]:
        """
        Yield some lines before it, the nearest first.
        """
        low = max(self.start - _BYTES_LOOKED_BACK, 0)
        raw = self.block.data[low : max(self.start - 1, 0)]
        rows = re.split(r"[\r\n]", raw.decode("utf-8", "replace"))
        for row in reversed(rows):
            if row.strip():
                yield parse_labelled(row, self.block.label)

    def following(self) -> Iterator[LinePosition]:
        """
        Yield the lines after it.
        """
        block, position = self.block, self
        for _ in range(_MOST_FOLLOWING):
            start = position.end + 1
            if start >= block.size:
                return
            high = min(start + BYTES_BEFORE, block.size)
            _, end = line_bounds(block.data, start, start, high)
            position = LinePosition(
                block=block, start=start, end=end, at=start
            )
            yield position

    def time(self, line: LogLine, *, is_detailed: bool) -> float | None:
        """
        Return the time of the line, in seconds since the epoch.

        Args:
            line: The line, parsed.

            is_detailed: Whether to search the lines before, too, if it has no
                time.
        """
        more = self.lines_before() if is_detailed else ()
        latest = self.block.latest
        times = (x.time_before(latest) for x in chain([line], more))
        return next((time for time in times if time is not None), None)


def lines_with_words(
    block: Block, found: Iterable[tuple[int, bytes]]
) -> Iterator[tuple[LinePosition, set[bytes]]]:
    """
    Find the lines that hold words.

    Args:
        found: The place and the word of each hit, by place.

    Yields:
        Each line once, with its words.
    """
    position: LinePosition | None = None
    words: set[bytes] = set()
    for at, word in found:
        if position is None or at >= position.end:
            if position is not None:
                yield position, words
            low = max(at - BYTES_BEFORE, position.end if position else 0)
            high = min(at + BYTES_BEFORE, block.size)
            start, end = line_bounds(block.data, at, low, high)
            position = LinePosition(block=block, start=start, end=end, at=at)
            words = set()
        words.add(word)
    if position is not None:
        yield position, words


# This many lines of a rule get a time and rank from the lines before.
_MOST_WITH_CONTEXT = 3
_MOST_RANK_LINES, _MOST_NAME_LINES, _MOST_RANKS_AFTER = 6, 60, 100
# What the message of an exception may show, besides the exception.
_TRACE_GROUPS = NAMING_GROUPS | {"ranks"}
_LONGEST_RANK_LINE = 300
# A word in this many lines of a block that match no rule is paused, twice as
# many bytes each time, up to a limit.
_MOST_IDLE = 4_000
_PAUSE, _LONGEST_PAUSE = 1 << 20, 1 << 25
# No words are paused at the end of a file, which shows how the job ended.
_FULLY_READ_END = 1 << 20
# What has matched often enough is looked at again after so many bytes.
_FORGOTTEN_AFTER = 1 << 27


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


class PartSearch:
    """
    Search the blocks of one part of a file for events, in their order.

    Lines of rules that have matched thousands of times are skipped, so that a
    flood of them takes hardly longer than other lines.
    """

    def __init__(self, part: FilePart, rule_set: RuleSet) -> None:
        self._start = part.start
        self._rule_set = rule_set
        # From here on, nothing is skipped.
        self._end = part.size - _FULLY_READ_END
        # By rule; tracebacks by their header.
        self._match_counts: Counter[str] = Counter()
        self._forgotten_at = part.start + _FORGOTTEN_AFTER
        # Words of rules that have matched often enough.
        self._dropped: frozenset[bytes] = frozenset()
        # Lines of this block without a match, by word.
        self._idle: Counter[bytes] = Counter()
        # The offset where the pause of a word ends, and how many it had.
        self._paused: dict[bytes, int] = {}
        self._pauses: Counter[bytes] = Counter()
        self._traceback_offsets: set[int] = set()

    @property
    def paused(self) -> list[str]:
        """
        Return the words that were paused: so many lines with them match no
        rule that some were skipped.
        """
        return sorted(word.decode() for word in self._pauses)

    def words(self, stop: int) -> frozenset[bytes]:
        """
        Return the words that are not skipped before an offset in the file.
        """
        paused = {x for x, end in self._paused.items() if end >= stop}
        return self._rule_set.words - self._dropped - paused

    def events(self, block: Block) -> Iterator[Event]:
        """
        Yield the events of a block, in the order of the file.
        """
        rule_set = self._rule_set
        if block.own and block.offset + block.own == self._start:
            self._traceback_offsets.update(
                _tracebacks_begun_before(block, rule_set)
            )
        # It may have been searched while words were skipped that count again.
        block.search_also(self.words(block.offset + block.end))
        for position, words in self._candidate_lines(block):
            event = _match_line(position, words, rule_set, self._match_counts)
            if event is None:
                self._count_idle(words, position)
                continue
            for word in words & self._idle.keys():
                del self._idle[word]
            # The lines before the part were not counted.
            number = 0 if self._start else block.line_number(position.start)
            is_last = self._count_match(event)
            yield attrs.evolve(event, number=number, is_last=is_last)
        self._end_block(block.offset + block.end)

    def _candidate_lines(
        self, block: Block
    ) -> Iterator[tuple[LinePosition, set[bytes]]]:
        """
        Yield the lines of a block with words that are not skipped.
        """
        wanted = (
            (at, word)
            for at, word in block.hits(self._rule_set.words - self._dropped)
            if not self._is_skipped(word, block.offset + at)
        )
        for position, words in lines_with_words(block, wanted):
            offset = block.offset + position.start
            if position.start < block.own or offset in self._traceback_offsets:
                continue
            if position.has_any(self._dropped):
                self._count_idle(words - self._dropped, position)
            else:
                yield position, words

    def _count_match(self, event: Event) -> bool:
        """
        Count an event; return whether it is the last of its kind.
        """
        kind = TRACEBACK_HEADER if event.trace else event.rule.name
        self._match_counts[kind] += 1
        self._traceback_offsets.update(event.traceback_offsets)
        count = self._match_counts[kind]
        if count == MOST_PER_RULE:
            self._dropped |= exhausted_words(
                self._rule_set, self._match_counts
            )
        return count >= MOST_PER_RULE

    def _count_idle(
        self, words: AbstractSet[bytes], position: LinePosition
    ) -> None:
        """
        Count a line without a match, and pause its words if there are many.
        """
        self._idle.update(words)
        offset = position.block.offset + position.start
        if offset >= self._end:
            return
        for word in words:
            if self._idle[word] >= _MOST_IDLE and word not in self._paused:
                longest = min(_PAUSE << self._pauses[word], _LONGEST_PAUSE)
                self._paused[word] = min(offset + longest, self._end)
                self._pauses[word] += 1

    def _is_skipped(self, word: bytes, offset: int) -> bool:
        """
        Return whether a word is skipped at an offset in the file.
        """
        stop = self._paused.get(word, 0)
        if word in self._dropped or offset < stop:
            return True
        if stop:
            del self._paused[word], self._idle[word]
        return False

    def _end_block(self, offset: int) -> None:
        """
        Drop what matters only before an offset in the file.
        """
        self._traceback_offsets = {
            x for x in self._traceback_offsets if x >= offset
        }
        self._idle.clear()
        if offset >= self._forgotten_at:
            self._forgotten_at = offset + _FORGOTTEN_AFTER
            self._match_counts.clear()
            self._dropped = frozenset()


def _tracebacks_begun_before(block: Block, rule_set: RuleSet) -> Iterator[int]:
    """
    Yield the offsets of lines of tracebacks that begin before the part.
    """
    stop = min(block.own + BYTES_BEFORE, block.size)
    before = block.data[:stop].lower()
    found = ((at, TRACEBACK_WORD) for at in find_each(before, TRACEBACK_WORD))
    for position, _ in lines_with_words(block, found):
        if position.start < block.own:
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
            groups = {
                **_names_in_lines_before(position, rule.before.compiled),
                **groups,
            }
        if rule.after:
            pattern = rule.after.compiled
            groups = {**groups, **_ranks_in_lines_after(position, pattern)}
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
        for row in chain([position], position.following()):
            starts.append(position.block.offset + row.start)
            yield row.parse()

    before = next((x.text for x in position.lines_before()), "")
    trace = read_trace(lines(), before)
    if trace is None:
        return None

    rule = match_traceback(trace, rule_set)
    texts = map(str, trace.errors)
    groups = next(filter(None, map(rule.match, texts)), {})
    return Event(
        rule=rule,
        line=line,
        offset=position.block.offset + position.start,
        groups={k: v for k, v in groups.items() if k in _TRACE_GROUPS},
        time=position.time(
            line,
            is_detailed=match_counts[TRACEBACK_HEADER] < _MOST_WITH_CONTEXT,
        ),
        trace=trace,
        traceback_offsets=tuple(starts[n] for n in trace.lines),
    )


def _names_in_lines_before(
    position: LinePosition, pattern: re.Pattern[str]
) -> Mapping[str, str]:
    has_rank = "rank" in pattern.groupindex
    most = _MOST_RANK_LINES if has_rank else _MOST_NAME_LINES
    for row in islice(position.lines_before(), most):
        if found := pattern.search(row.text[:_LONGEST_RANK_LINE]):
            return {k: v for k, v in found.groupdict().items() if v}
    return {}


def _ranks_in_lines_after(
    position: LinePosition, pattern: re.Pattern[str]
) -> Mapping[str, str]:
    rows = (x.parse().text for x in position.following())
    lines = islice(rows, _MOST_RANKS_AFTER)
    found = (pattern.match(text[:_LONGEST_RANK_LINE]) for text in lines)
    ranks = [x["rank"] for x in takewhile(bool, found) if x]
    return {"ranks": ",".join(ranks)} if ranks else {}
