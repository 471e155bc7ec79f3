"""
Read log files block by block, once for all readers that look for something.

A reader names words; each block is searched for the words of all readers at
once, and each of them parses only the lines in which its words stand.
"""

from __future__ import annotations

import os
import re
import time

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, islice
from typing import Any

import attrs
import numpy as np

from .._search import (
    PADDING,
    Places,
    WordIndex,
    build_index,
    find_places,
    in_order,
)
from ..findings import Missing
from ..identity import MPI_TAG, TASK_LABEL
from .lines import (
    LONGEST_LINE,
    NODE_LAUNCHER,
    PACKED_SUFFIXES,
    READ_ERRORS,
    LineBlock,
    LogLine,
    Origin,
    open_log,
    parse_line,
    strip_log_prefix,
)


# Context in bytes for lines, earlier times, and tracebacks.
BYTES_BEFORE = 1 << 15
BYTES_AFTER = 1 << 17
_BLOCK_BYTES = 1 << 22
# What is unpacked before damage is found is kept.
_READ_BYTES = 1 << 18
# A packed file may unpack to blanks that take days to read.
MOST_UNPACKED = 1 << 34
_LINES_AT_ONCE = 1 << 7
_NEWLINE = ord("\n")
_NOWHERE: Places = np.zeros(0, np.intp)


@attrs.frozen(kw_only=True)
class FilePart:
    """
    The part of a file that is read.

    Attributes:
        path: The file; ``""`` for lines that are in no file.

        start: The offset of its first byte, in the unpacked file.

        stop: The offset behind its last byte.

        lines: What is read instead of a file.

    Without numbers, a file is read up to the size that it has when its turn
    comes.
    """

    path: str
    start: int = 0
    stop: int = MOST_UNPACKED
    lines: Iterable[str] | None = None


@attrs.define(kw_only=True, eq=False)
class Block:
    """
    A block of whole lines of a file, with context on both sides.

    Attributes:
        data: The bytes with context and padding.

        own: Where in *data* the block itself begins.

        end: Where in *data* the block itself ends.

        size: Where in *data* the context behind it ends.

        offset: The offset of *data* in the file.

        label: The pattern of rank labels, if lines have them.

        latest: A time that no line of the file is after, which decides the
            year of times without one; ``None`` if unknown.

        number: The number of its first line in the part, from 1.

        places: Where in *data* each word stands that occurs in the block.

        line_ends: Where in *data* its lines end.
    """

    data: bytes
    own: int
    end: int
    size: int
    offset: int
    label: re.Pattern[str] | None = None
    latest: float | None = None
    number: int = 1
    places: dict[bytes, Places] = attrs.field(factory=dict)
    line_ends: Places = attrs.field(init=False)
    _words: frozenset[bytes] = frozenset()

    def line_number(self, at: int) -> int:
        """
        Return the number of the line at a place of the block.
        """
        return self.number + int(self.line_ends.searchsorted(at))

    def lines_at(self, places: Collection[int]) -> Iterator[tuple[int, bytes]]:
        """
        Yield the number and the bytes of the line at each place of the block.

        A line of more than 64 KiB, as of a bar, is divided at carriage returns.
        """
        before = self.line_ends.searchsorted(list(places))
        starts = np.append(self.own, self.line_ends + 1)[before].tolist()
        ends = np.append(self.line_ends, self.end)[before].tolist()
        for at, row, start, end in zip(
            places, before.tolist(), starts, ends, strict=True
        ):
            line = self.data[start:end]
            if len(line) > LONGEST_LINE:
                begin = line.rfind(b"\r", 0, at - start) + 1
                line = line[begin:].partition(b"\r")[0][:LONGEST_LINE]
            yield self.number + row, line

    def hits(self, words: AbstractSet[bytes]) -> list[tuple[int, bytes]]:
        """
        Return the place and the word of each hit of some words, by place.
        """
        present = self.places.keys() & words
        return in_order({word: self.places[word] for word in present})

    def lines_with(
        self, hits: Iterable[tuple[int, bytes]]
    ) -> Iterator[LinePosition]:
        """
        Yield the lines that hold words, each once, with its words.

        Args:
            hits: The place and the word of each hit, by place.
        """
        line: LinePosition | None = None
        for at, word in hits:
            if line is None or at >= line.end:
                if line is not None:
                    yield line
                low = max(at - BYTES_BEFORE, line.end if line else 0)
                high = min(at + BYTES_BEFORE, self.size)
                start, end = line_bounds(self.data, at, low, high)
                line = LinePosition(self, start, end, at)
            line.words.add(word)
        if line is not None:
            yield line

    def places_of(self, word: bytes, span: tuple[int, int]) -> Places:
        """
        Return where a word stands in a part of the block.
        """
        places = self.places.get(word, _NOWHERE)
        begin, end = places.searchsorted(span)
        return places[begin:end]

    def pieces(self, size: int) -> Iterator[tuple[int, int]]:
        """
        Yield where pieces of the block begin and end, each with a line.

        Args:
            size: How many bytes a piece has, at most.
        """
        start = self.own
        while start < self.end:
            stop = min(start + size, self.end)
            if stop < self.end:
                stop = _last_line_end(self.data, start, stop)
            yield start, stop
            start = stop

    def cut(self, start: int, stop: int) -> LineBlock:
        """
        Return a piece of the block, to be read line by line.
        """
        return LineBlock.cut(self.data[start:stop], self.line_number(start))

    def search(self, words: frozenset[bytes]) -> Block:
        """
        Find words and the ends of lines in the block itself.
        """
        own = np.frombuffer(self.data, np.uint8)[self.own : self.end]
        self.line_ends = np.flatnonzero(own == _NEWLINE) + self.own
        self.search_also(words)
        return self

    def search_also(self, words: AbstractSet[bytes]) -> None:
        """
        Find words in the block, but for those that were searched for before.
        """
        if more := frozenset(words - self._words):
            self._words |= more
            data = np.frombuffer(self.data, np.uint8)
            found = find_places(
                _index_of(more), data[self.own : self.end + PADDING]
            )
            self.places |= {x: at + self.own for x, at in found.items()}


# Of a very long line, the beginning and the text around a word are kept.
_KEPT_HEAD, _KEPT_AROUND_WORD = 300, 3_000
_BYTES_LOOKED_BACK = 4_000
_MOST_FOLLOWING = 800


@attrs.define(eq=False)
class LinePosition:
    """
    The position of a line in a block.

    Attributes:
        block: The block that it begins in.

        start: Where it begins in the data of the block.

        end: Where it ends there.

        at: Where its first word of a reader stands there.

        words: The words that stand in it.
    """

    block: Block
    start: int
    end: int
    at: int
    words: set[bytes] = attrs.field(factory=set)

    @property
    def offset(self) -> int:
        """
        Return the byte offset of the line in the file.
        """
        return self.block.offset + self.start

    @property
    def raw(self) -> bytes:
        """
        Return the line as it stands in the file.
        """
        return self.block.data[self.start : self.end]

    def parse(self) -> LogLine:
        """
        Parse the line; a very long one is shortened around its word.
        """
        raw = self.raw
        if len(raw) > _KEPT_HEAD + _KEPT_AROUND_WORD:
            begin = max(self.at - self.start - _KEPT_HEAD, _KEPT_HEAD)
            raw = (
                raw[:_KEPT_HEAD]
                + b" ... "
                + raw[begin : begin + _KEPT_AROUND_WORD]
            )
        return _parse_labelled(
            raw.decode("utf-8", "replace"), self.block.label
        )

    def lines_before(self) -> Iterator[LogLine]:
        """
        Yield some lines before it, the nearest first.
        """
        low = max(self.start - _BYTES_LOOKED_BACK, 0)
        raw = self.block.data[low : max(self.start - 1, 0)]
        rows = re.split(r"[\r\n]", raw.decode("utf-8", "replace"))
        for row in reversed(rows):
            if row.strip():
                yield _parse_labelled(row, self.block.label)

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
            position = LinePosition(block, start, end, start)
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


class LogReader(ABC):
    """
    Look for something in the blocks of logs: base class of all readers.

    Attributes:
        part: What is being read.

        missing: What could not be read, and why.
    """

    part: FilePart

    def __init__(self) -> None:
        self.missing: list[Missing] = []

    def begin(self, part: FilePart) -> None:
        """
        Begin with a file.
        """
        self.part = part

    def words(self, _stop: int) -> AbstractSet[bytes]:
        """
        Return the words whose hits it wants in the next block.

        Args:
            _stop: The offset in the file at which the block ends.
        """
        return frozenset()

    @abstractmethod
    def read(self, block: Block) -> None:
        """
        Read a block, which was searched for its words, and for others.
        """

    def end(self, error: Exception | None) -> None:
        """
        End the file.

        Args:
            error: What kept the rest of it from being read.
        """
        if error is not None:
            self.missing.append(Missing.log(self.part.path, error))


def is_packed(path: str | os.PathLike[str]) -> bool:
    """
    Return whether a file is packed, so that its size says nothing.
    """
    return os.fspath(path).endswith(tuple(PACKED_SUFFIXES))


def read_parts(
    parts: Iterable[tuple[FilePart, Collection[LogReader]]],
    *,
    threads: int = 1,
    on_progress: Callable[[int], object] | None = None,
) -> None:
    """
    Read parts of files, each block once for all of its readers.

    Args:
        parts: What to read, and for whom.

        threads: How many threads search blocks, while those before them are
            parsed.

        on_progress: Called with the number of bytes that were read.
    """
    parts = [*parts]
    latest = _find_latest_of_all([part for part, _ in parts])
    with ThreadPoolExecutor(threads, "distdebug-logs") as pool:
        for part, readers in parts:
            for reader in readers:
                reader.begin(part)
            errors: list[Exception] = []
            number = 1
            for block in _search_ahead(
                _blocks_of(part, latest), readers, pool, threads, errors.append
            ):
                block.number = number
                number += block.line_ends.size
                for reader in readers:
                    reader.read(block)
                if on_progress is not None:
                    on_progress(block.end - block.own)
            for reader in readers:
                reader.end(errors[0] if errors else None)


def read_lines_for(reader: LogReader, lines: Iterable[str] | str) -> None:
    """
    Read lines that are in no file, or a text of several.
    """
    if isinstance(lines, str):
        lines = lines.split("\n")
    read_parts([(FilePart(path="", lines=lines), [reader])])


class _Lines:
    """
    Lines that are in no file, to be read like one.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._rest = memoryview(b"")

    def read1(self, most: int) -> bytes:
        """
        Return the next bytes, at most so many.
        """
        if not self._rest:
            lines = islice(self._lines, _LINES_AT_ONCE)
            whole = (line.rstrip("\n") for line in lines)
            text = "".join(f"{line}\n" for line in whole)
            # A view, as one line may be as large as a log.
            self._rest = memoryview(text.encode("utf-8", "replace"))
        data, self._rest = self._rest[:most], self._rest[most:]
        return bytes(data)


def _search_ahead(
    blocks: Iterator[Block],
    readers: Collection[LogReader],
    pool: ThreadPoolExecutor,
    most: int,
    on_error: Callable[[Exception], object],
) -> Iterator[Block]:
    """
    Yield the blocks in their order, searched; the next ones are in work.
    """
    pending: deque[Future[Block]] = deque()
    while True:
        try:
            block = next(blocks, None)
        except READ_ERRORS as exc:
            block = None
            on_error(exc)
        if block is not None:
            stop = block.offset + block.end
            words = frozenset[bytes]().union(*(x.words(stop) for x in readers))
            pending.append(_submit(pool, block, words))
        while pending and (block is None or len(pending) > most):
            yield pending.popleft().result()
        if block is None:
            return


def _submit(
    pool: ThreadPoolExecutor, block: Block, words: frozenset[bytes]
) -> Future[Block]:
    try:
        return pool.submit(block.search, words)
    except RuntimeError:  # the limit of threads is reached
        done: Future[Block] = Future()
        done.set_result(block.search(words))
        return done


@lru_cache(maxsize=32)
def _index_of(words: frozenset[bytes]) -> WordIndex:
    return build_index(words)


def _blocks_of(part: FilePart, latest: float | None) -> Iterator[Block]:
    if part.lines is not None:
        yield from _read_blocks(_Lines(part.lines), part, latest)
        return
    with open_log(part.path) as file:
        if not is_packed(part.path):
            size = os.fstat(file.fileno()).st_size
            part = attrs.evolve(part, stop=min(part.stop, size))
        yield from _read_blocks(file, part, latest)


def _read_blocks(
    file: Any, part: FilePart, latest: float | None
) -> Iterator[Block]:
    offset = max(part.start - BYTES_BEFORE, 0)
    if offset:
        file.seek(offset)
    own, kept, asked = part.start - offset, b"", _BLOCK_BYTES + BYTES_AFTER
    label = None
    while True:
        most = part.stop - offset - len(kept)
        data, is_whole, error = _read_on(file, kept, min(asked, most))
        is_last = asked >= most or not is_whole
        size = len(data) - PADDING
        label = label or _find_label(memoryview(data)[:size])
        if not kept:  # the first block
            sample = data[: min(size, _SAMPLE_BYTES)]
            latest = _find_latest_time(sample) or latest
        end = size
        if not is_last:
            end = _last_line_end(data, own, size - BYTES_AFTER)
        if end > own:
            yield Block(
                data=data,
                own=own,
                end=end,
                size=size,
                offset=offset,
                label=label,
                latest=latest,
            )
        if error is not None:
            raise error
        if is_last:
            return
        dropped = max(end - BYTES_BEFORE, 0)
        own, kept, offset = end - dropped, data[dropped:size], offset + dropped
        asked = _BLOCK_BYTES


def _read_on(
    file: Any, kept: bytes, most: int
) -> tuple[bytes, bool, Exception | None]:
    """
    Read so many bytes.

    Returns:
        *kept* with the next bytes and padding, whether these are all, and the
        error that ended the reading.
    """
    pieces, size, error = [kept], 0, None
    try:
        while size < most and (
            piece := file.read1(min(most - size, _READ_BYTES))
        ):
            pieces.append(piece)
            size += len(piece)
    except READ_ERRORS as exc:
        error = exc
    pieces.append(bytes(PADDING))
    return b"".join(pieces), size >= most, error


def line_bounds(data: bytes, at: int, low: int, high: int) -> tuple[int, int]:
    """
    Return where the line around a place begins and ends.

    Args:
        low: Where it may begin at the earliest.

        high: Where it may end at the latest.
    """
    start = max(data.rfind(b"\n", low, at), data.rfind(b"\r", low, at))
    end = data.find(b"\n", at, high)
    end = high if end < 0 else end
    carriage_return = data.find(b"\r", at, end)
    return (start + 1 if start >= 0 else low), (
        end if carriage_return < 0 else carriage_return
    )


def _last_line_end(data: bytes, start: int, end: int) -> int:
    """
    Return where the last line ends; of a bar, its last state before *end*.
    """
    return (
        data.rfind(b"\n", start, end) + 1
        or data.rfind(b"\r", start, end) + 1
        or end
    )


_DATE = re.compile(rb"(?<!\d)(20\d\d)[-/](\d\d)[-/](\d\d)[ T]\d\d:")
# No job takes longer.
_LONGEST_JOB_S = 200 * 86_400.0


def _find_latest_time(data: bytes) -> float | None:
    """
    Return a time that no line of a file is after, by its first date.

    Libraries print times without a year beside those of others with one.

    Returns:
        Seconds since the epoch; ``None`` if no date with a time of the day is
        in *data*, or if it is so near that this machine's clock serves.
    """
    found = _DATE.search(data)
    if found is None:
        return None
    year, month, day_of_month = map(int, found.groups())
    try:
        day = datetime(year, month, day_of_month, tzinfo=UTC)
    except ValueError:
        return None
    latest = day.timestamp() + _LONGEST_JOB_S
    return latest if latest < time.time() else None


# A job writes files with and without dates; in so many, one is looked for.
_MOST_SAMPLED = 8


def _find_latest_of_all(parts: Sequence[FilePart]) -> float | None:
    """
    Return a time that no line is after, for files without a date of their own.
    """
    if len(parts) < 2:
        return None
    step = -(-len(parts) // _MOST_SAMPLED)
    for part in parts[::step]:
        with suppress(*READ_ERRORS), open_log(part.path) as file:
            latest = _find_latest_time(file.read(_SAMPLE_BYTES))
            if latest is not None:
                return latest
    return None


_MPI_TAG = re.compile(MPI_TAG)
_SHORT_LABELS = (
    re.compile(TASK_LABEL),
    re.compile(r"\[(?P<rank>\d{1,7})\] "),
)
_NODE_LABEL = re.compile(TASK_LABEL.replace("<rank>", "<node_rank>"))
_SAMPLE_BYTES = 1 << 16
_LEAST_MPI_TAGS, _LEAST_SHORT_LABELS = 3, 8
_LEAST_SHARE = 0.5
# Each label must occur this often on average.
_LEAST_REPEATS = 2


# Programs that start the ranks of a node, in the lines that they log: behind
# the number of a task, or behind the name of the node (pdsh).
_NODE_LAUNCHER = re.compile(
    rb"^(?: {0,6}\d{1,7}|([A-Za-z][\w.-]{1,80})): [^\n:]{0,60}[\d:,. ]{0,24}"
    rb"[^\n:]{0,60}" + NODE_LAUNCHER.encode(),
    re.MULTILINE,
)


def _find_label(data: bytes | memoryview) -> re.Pattern[str] | None:
    """
    Return the pattern of the labels of lines, if most lines have one.

    ``srun --label``, ``mpirun --tag-output``, and ``pdsh`` write such labels.

    Args:
        data: Some bytes of the file; a sample out of the middle is searched.

    Returns:
        A pattern with one group, an attribute of :class:`Origin`: ``rank`` is
        the number of the task, which is the global rank; ``node_rank``, if
        each task launches the ranks of a node; ``ip``, the name of the node.
        Or ``None``.
    """
    begin = max((len(data) - _SAMPLE_BYTES) // 2, 0)
    text = str(data[begin : begin + _SAMPLE_BYTES], "utf-8", "replace")
    lines = [line for line in text.split("\n") if line.strip()]
    if len(_labels(_MPI_TAG, lines)) >= _LEAST_MPI_TAGS:
        return _MPI_TAG

    hosts = dict.fromkeys(_NODE_LAUNCHER.findall(data))
    patterns: Sequence[re.Pattern[str]] = _SHORT_LABELS
    if names := "|".join(re.escape(x.decode()) for x in hosts if x):
        patterns = (re.compile(f"(?P<ip>{names}): "),)
    least = max(_LEAST_SHORT_LABELS, _LEAST_SHARE * len(lines))
    for pattern in patterns:
        labels = _labels(pattern, lines)
        is_repeated = _LEAST_REPEATS * len(set(labels)) <= len(labels)
        if len(labels) >= least and is_repeated:
            return _NODE_LABEL if b"" in hosts else pattern
    return None


def _labels(pattern: re.Pattern[str], lines: list[str]) -> list[str]:
    return [label[1] for label in map(pattern.match, lines) if label]


# Launchers report on the job, not on the task with their label.
_LAUNCHER_PROGRAMS = ("slurmstepd: ", "srun: ", "mpirun", "mpiexec")


def _parse_labelled(raw: str, label: re.Pattern[str] | None) -> LogLine:
    """
    Parse a line that may have the prefix of a log collector, or a label, which
    is the rank of its origin, or that of the node.

    Args:
        label: The pattern of :func:`_find_label`.
    """
    found = label.match(raw) if label else None
    if found is None:
        message = strip_log_prefix(raw)
        labels = (_MPI_TAG, *_SHORT_LABELS)
        if len(message) == len(raw) or any(x.match(raw) for x in labels):
            return parse_line(raw)
        stamp = raw[: len(raw) - len(message)]
        return parse_line(message)._replace(stamp=stamp)

    line = parse_line(raw[found.end() :])
    if line.text.startswith(_LAUNCHER_PROGRAMS):
        return line
    [(name, text)] = found.groupdict().items()
    if line.origin and getattr(line.origin, name) is not None:
        return line
    return line._replace(origin=_with_label(line.origin, name, text))


@lru_cache(maxsize=4096)
def _with_label(origin: Origin | None, name: str, text: str) -> Origin:
    changes: dict[str, Any] = {name: text if name == "ip" else int(text)}
    return attrs.evolve(origin or Origin(), **changes)
