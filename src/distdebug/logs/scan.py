"""
Scan logs of any size for known errors, with threads and bounded memory.
"""

from __future__ import annotations

import os
import time

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, islice, takewhile
from re import Pattern

from .._search import find_each
from .._text import list_text
from ..errors import LogError
from ..findings import Missing
from .engine import (
    BYTES_BEFORE,
    MOST_UNPACKED,
    Block,
    FilePart,
    LinePosition,
    LogReader,
    is_packed,
    read_parts,
)
from .event_groups import EventGroups, make_finding
from .events import Event
from .lines import LogLine, LogWalk, find_file_ranks, no_logs_error
from .model import ScanReport, TraceGroup
from .process_ranks import NO_PROCESSES, ProcessRanks
from .rules import (
    TRACEBACK_WORD,
    RuleSet,
    first_match,
    make_rule_set,
    match_traceback,
    read_rules,
)
from .tracebacks import TRACEBACK_HEADER, Trace, read_trace


def select_parts(
    sizes: Mapping[str, int], most_bytes: int | None
) -> tuple[list[FilePart], list[Missing]]:
    """
    Select what to read of each file.

    Args:
        sizes: The size of each file in bytes.

        most_bytes: How many bytes to read in all.  Where that is too little,
            small files are read whole, and of large ones the end.

    Returns:
        The parts, in the order of the files, and what is left out.
    """
    parts, missing = [], []
    shares = _shares(list(sizes.values()), most_bytes)
    for (path, size), share in zip(sizes.items(), shares, strict=True):
        if is_packed(path):
            most = MOST_UNPACKED if most_bytes is None else share
            parts.append(FilePart(path=path, stop=most))
            continue
        begin = size - share
        if begin:
            reason = f"its first {begin:,} bytes were not read"
            missing.append(Missing.log(path, reason))
        if share:
            parts.append(FilePart(path=path, start=begin, stop=size))
    return parts, missing


def _shares(sizes: Sequence[int], most: int | None) -> list[int]:
    if most is None or sum(sizes) <= most:
        return list(sizes)

    shares = [0] * len(sizes)
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    for done, number in enumerate(order):
        shares[number] = min(sizes[number], most // (len(sizes) - done))
        most -= shares[number]
    return shares


_MOST_THREADS = 4
_PROGRESS_SECONDS = 0.2


def scan_logs(
    paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    rules: Iterable[str | os.PathLike[str]] = (),
    tell: Callable[[int, int], None] | None = None,
    most_bytes: int | None = None,
    threads: int | None = None,
) -> ScanReport:
    """
    Scan logs of any size for known errors.

    Files are read up to the size that they have in the beginning, in bounded
    memory, while threads search what was read; those that end in ``.gz``,
    ``.bz2``, or ``.xz`` are unpacked.  A file that cannot be read is reported, and the others are
    read.  Of a flood of lines that match the same rule only some are read, and
    the count is then a lower bound; of a flood of lines with a word of a rule
    that match none, too, which ``missing`` reports.

    Example::

        report = distdebug.scan_logs("train.log")
        print(report.findings[0])

    Args:
        paths: Files, and folders to be searched for logs.  Links out of a
            folder are not followed.

        rules: Files of rules of your own, which are tried first; see
            :func:`~distdebug.logs.rules.load_rules`.

        tell: Called a few times per second with the number of bytes that were
            read and the number of all bytes.

        most_bytes: How many bytes to read at most.  Where there are more, the
            ends of large files are read.

        threads: How many threads search; by default one per core, at most 4.

    Returns:
        What was found, the first cause first.

    Raises:
        NoLogsError: There is no log.

        LogError: *most_bytes* or *threads* is less than one.

        RulesError: One of the files of rules cannot be used.
    """
    _check_positive(most_bytes=most_bytes, threads=threads)
    paths = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
    sizes, missing = find_logs(paths)
    if not sizes:
        raise no_logs_error(paths, missing)
    scan = ErrorScan(find_file_ranks([*sizes]), rules)
    parts, skipped = select_parts(sizes, most_bytes)
    read_parts(
        [(part, [scan]) for part in parts],
        threads=threads or default_threads(),
        on_progress=Progress(tell, parts, sizes).add,
    )
    return scan.report((*missing, *skipped))


class ErrorScan(LogReader):
    """
    Read logs for known errors.

    Args:
        ranks: The ranks of files, as far as they are known.
    """

    def __init__(
        self,
        ranks: Mapping[str, int],
        rules: Iterable[str | os.PathLike[str]] = (),
    ) -> None:
        super().__init__()
        self._rule_set = make_rule_set(read_rules(rules))
        self._ranks = ranks
        self._groups = EventGroups()
        self._files = 0
        self._size = 0

    def begin(self, part: FilePart) -> None:
        """
        Begin with a file.
        """
        super().begin(part)
        self._files += 1
        self._part_size = 0
        self._search = PartSearch(part, self._rule_set)
        self._groups.begin(part.path, self._ranks.get(part.path))

    def words(self, stop: int) -> frozenset[bytes]:
        """
        Return the words of rules that are not skipped.
        """
        return self._search.words(stop)

    def read(self, block: Block) -> None:
        """
        Find the events of a block.
        """
        for event in self._search.events(block):
            self._groups.add(event)
        self._part_size += block.end - block.own

    def end(self, error: Exception | None) -> None:
        """
        Note what was not read of the file.
        """
        super().end(error)
        part = self.part
        self._size += self._part_size
        if self._search.paused:
            words = list_text(map(repr, self._search.paused))
            reason = f"there are too many lines with {words} to look at each"
            self.missing.append(
                Missing(what="lines", reason=reason, source=part.path)
            )
        if is_packed(part.path) and self._part_size >= part.stop:
            reason = f"only its first {part.stop:,} bytes, unpacked, were read"
            self.missing.append(Missing.log(part.path, reason))

    def report(
        self,
        missing: Iterable[Missing] = (),
        processes: ProcessRanks = NO_PROCESSES,
    ) -> ScanReport:
        """
        Return what was found, the first cause first.

        Args:
            missing: What was not read.

            processes: The known ranks of processes, nodes, and GPUs.
        """
        groups = self._groups.build(processes)
        return ScanReport(
            findings=tuple(make_finding(*pair) for pair in groups),
            groups=tuple(group for x, group in groups if not x.shape),
            tracebacks=tuple(
                TraceGroup(errors=x.errors, group=group)
                for x, group in groups
                if x.shape
            ),
            harmless=self._groups.count_harmless(),
            missing=(*missing, *self.missing),
            files=self._files,
            bytes_read=self._size,
        )


# At most this many lines of a rule are reported per part of a file.
_MOST_PER_RULE = 2_000
# This many lines of a rule get a time and rank from the lines before.
_MOST_WITH_CONTEXT = 3
_MOST_RANK_LINES, _MOST_NAME_LINES, _MOST_RANKS_AFTER = 6, 60, 100
_LONGEST_RANK_LINE = 300
# A word in this many lines of a block that match no rule is paused, twice as
# many bytes each time, up to a limit.
_MOST_IDLE = 4_000
_PAUSE, _LONGEST_PAUSE = 1 << 20, 1 << 25
# No words are paused at the end of a file, which shows how the job ended.
_FULLY_READ_END = 1 << 20
# What has matched often enough is looked at again after so many bytes.
_FORGOTTEN_AFTER = 1 << 27


class PartSearch:
    """
    Search the blocks of one part of a file for events, in their order.

    Lines of rules that have matched thousands of times are skipped, so that a
    flood of them takes hardly longer than other lines; and words that are
    frequent and match nothing are paused.
    """

    def __init__(self, part: FilePart, rule_set: RuleSet) -> None:
        self._start = part.start
        self._rule_set = rule_set
        # From here on, nothing is skipped.
        self._end = part.stop - _FULLY_READ_END
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
        if block.own and block.offset + block.own == self._start:
            self._skip_tracebacks_begun_before(block)
        # It may have been searched while words were skipped that count again.
        block.search_also(self.words(block.offset + block.end))
        for line in self._candidate_lines(block):
            event = self._match(line)
            if event is None:
                self._count_idle(line.words, line.offset)
                continue
            for word in line.words & self._idle.keys():
                del self._idle[word]
            yield event
        self._end_block(block.offset + block.end)

    def _skip_tracebacks_begun_before(self, block: Block) -> None:
        stop = min(block.own + BYTES_BEFORE, block.size)
        places = find_each(block.data[:stop].lower(), TRACEBACK_WORD)
        for line in block.lines_with((at, TRACEBACK_WORD) for at in places):
            if line.start < block.own:
                self._read_trace(line)

    def _candidate_lines(self, block: Block) -> Iterator[LinePosition]:
        """
        Yield the lines of a block with words that are not skipped.
        """
        wanted = (
            (at, word)
            for at, word in block.hits(self._rule_set.words - self._dropped)
            if not self._is_skipped(word, block.offset + at)
        )
        for line in block.lines_with(wanted):
            if (
                line.start < block.own
                or line.offset in self._traceback_offsets
            ):
                continue
            raw = line.raw.lower() if self._dropped else b""
            if any(word in raw for word in self._dropped):
                self._count_idle(line.words - self._dropped, line.offset)
            else:
                yield line

    def _match(self, position: LinePosition) -> Event | None:
        """
        Return the event of a line, and count it, if a rule matches.
        """
        line, block, trace = position.parse(), position.block, None
        if TRACEBACK_WORD in position.words:
            trace = self._read_trace(position)
        rules = self._rule_set.having(position.words)
        found = (
            match_traceback(trace, self._rule_set)
            if trace
            else first_match(rules, line.text)
        )
        if found is None:
            return None
        rule, groups = found
        kind = TRACEBACK_HEADER if trace else rule.name
        is_detailed = self._match_counts[kind] < _MOST_WITH_CONTEXT
        if not trace:
            is_asked = is_detailed and "rank" not in groups
            groups = {
                **_names_before(position, rule.before if is_asked else None),
                **groups,
                **_ranks_after(position, rule.after),
            }
        # The lines before the part were not counted.
        number = 0 if self._start else block.line_number(position.start)
        return Event(
            rule=rule,
            line=line,
            number=number,
            offset=position.offset,
            groups=groups,
            time=position.time(line, is_detailed=is_detailed),
            trace=trace,
            is_last=self._count_match(kind),
        )

    def _read_trace(self, position: LinePosition) -> Trace | None:
        """
        Read the traceback whose header stands in a line; skip its lines.
        """
        offsets: list[int] = []

        def lines() -> Iterator[LogLine]:
            for row in chain([position], position.following()):
                offsets.append(row.offset)
                yield row.parse()

        before = next((x.text for x in position.lines_before()), "")
        trace = read_trace(lines(), before)
        if trace is not None:
            self._traceback_offsets.update(offsets[n] for n in trace.lines)
        return trace

    def _count_match(self, kind: str) -> bool:
        """
        Count an event; return whether it is the last of its kind.
        """
        self._match_counts[kind] += 1
        count = self._match_counts[kind]
        if count == _MOST_PER_RULE:
            self._dropped |= set(self._exhausted_words())
        return count >= _MOST_PER_RULE

    def _exhausted_words(self) -> Iterator[bytes]:
        """
        Yield the words of which all rules have matched often enough.
        """
        counts, rules = self._match_counts, self._rule_set.rules
        for word, numbers in self._rule_set.by_word.items():
            if all(counts[rules[n].name] >= _MOST_PER_RULE for n in numbers):
                yield word
        if counts[TRACEBACK_HEADER] >= _MOST_PER_RULE:
            yield TRACEBACK_WORD

    def _count_idle(self, words: AbstractSet[bytes], offset: int) -> None:
        """
        Count a line without a match, and pause its words if there are many.
        """
        self._idle.update(words)
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


def _names_before(
    position: LinePosition, pattern: Pattern[str] | None
) -> Mapping[str, str]:
    if pattern is None:
        return {}
    has_rank = "rank" in pattern.groupindex
    most = _MOST_RANK_LINES if has_rank else _MOST_NAME_LINES
    for row in islice(position.lines_before(), most):
        if found := pattern.search(row.text[:_LONGEST_RANK_LINE]):
            return {k: v for k, v in found.groupdict().items() if v}
    return {}


def _ranks_after(
    position: LinePosition, pattern: Pattern[str] | None
) -> Mapping[str, str]:
    if pattern is None:
        return {}
    rows = (x.parse().text for x in position.following())
    lines = islice(rows, _MOST_RANKS_AFTER)
    match = pattern.match
    found = (match(text[:_LONGEST_RANK_LINE]) for text in lines)
    ranks = [x["rank"] for x in takewhile(bool, found) if x]
    return {"ranks": ",".join(ranks)} if ranks else {}


def _check_positive(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            msg = f"{name} is at least 1: {value}"
            raise LogError(msg)


def find_logs(
    paths: Iterable[str | os.PathLike[str]],
) -> tuple[dict[str, int], tuple[Missing, ...]]:
    """
    Return the size of each log below *paths*, and what cannot be read.
    """
    walk = LogWalk(paths)
    sizes, gone = {}, []
    for path in walk:
        try:
            sizes[str(path)] = path.stat().st_size
        except OSError as exc:  # rotated away meanwhile
            gone.append(Missing.log(path, exc))
    return sizes, (*walk.missing, *gone)


def default_threads() -> int:
    """
    Return how many threads search logs: one per core, at most 4.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        count = os.cpu_count() or 1
    return min(count, _MOST_THREADS)


class Progress:
    """
    Report how far logs are read, a few times per second.
    """

    def __init__(
        self,
        on_progress: Callable[[int, int], None] | None,
        parts: Iterable[FilePart],
        sizes: Mapping[str, int],
    ) -> None:
        self._on_progress = on_progress
        self._total = sum(
            sizes[x.path] if is_packed(x.path) else x.stop - x.start
            for x in parts
        )
        self._size = 0
        self._reported = 0.0

    def add(self, size: int) -> None:
        """
        Count bytes that were read.
        """
        self._size += size
        now = time.monotonic()
        is_last = self._size >= self._total
        if self._on_progress and (
            is_last or now - self._reported > _PROGRESS_SECONDS
        ):
            self._reported = now
            self._on_progress(min(self._size, self._total), self._total)
