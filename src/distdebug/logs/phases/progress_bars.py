"""
Parse progress bars of tqdm and rich, and estimate the times of their lines.

The bars of tqdm may come without the bar itself, and several in one line.
"""

from __future__ import annotations

import re

from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

import attrs
import numpy as np

from ..lines import LineBlock, LogLine, parse_time


# Every bar holds one of these.
BAR_LITERALS = ("%|", "% ", "━")

_NUMBER = r"\d{1,15}(?:[.,]\d{1,3})?[kKMGTP]?"
_TQDM_BAR = re.compile(
    r"(?P<percent>\d{1,3})%(?:\|[^|\r\n]{0,300}\||\s?Completed\s?\||(?= ))"
    rf"\s{{0,4}}(?P<done>{_NUMBER})(?:i?B)?/(?P<total>{_NUMBER})(?:i?B)?"
    r"(?:\s{1,3}\[(?P<times>[^\]\r\n]{0,300})\]?)?"
)
_TQDM_TIMES = re.compile(
    r"(?P<elapsed>[\d:]{4,12})<(?P<left>[\d:?]{1,12})(?:,\s{0,4}(?P<rate>[\d.]"
    r"{1,12}[kKMGTP]?) {0,2}(?P<unit>[^\s,\]]{1,30}))?"
)
_RICH_BAR = re.compile(
    r"(?:^|[^━\w])(?P<name>[A-Za-z][^━\r\n]{0,80}?)\s{1,3}[━╸╺]"
    r"[━╸╺ ]{2,200} {1,3}(?P<done>\d{1,12})/(?P<total>\d{1,12})(?![\w.])"
    r"(?: {1,3}(?P<elapsed>\d{1,3}:\d\d:\d\d) • (?P<left>[\d:-]{4,12}))?"
)
_LONGEST_NAME = 160
_MOST_IN_LINE = 100_000
_SUFFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


@attrs.frozen(kw_only=True)
class Progress:
    """
    The progress of a phase or a progress bar.

    Attributes:
        name: The name of the bar, or ``""``.

        done: How much is done, in the unit of the bar.

        total: How much there is in all, if known.

        rate: How much is done per second, if known.

        left_s: How many seconds remain, as the bar shows.

        elapsed_s: How many seconds it has run, as the bar shows.
    """

    name: str = ""
    done: float
    total: float | None = None
    rate: float | None = None
    left_s: float | None = None
    elapsed_s: float | None = None

    @property
    def percent(self) -> float | None:
        """
        Return how much is done in percent; ``None`` without a total.
        """
        if not self.total:
            return None

        return min(100.0 * self.done / self.total, 100.0)

    @property
    def is_full(self) -> bool:
        """
        Return whether all is done.
        """
        return self.total is not None and self.done >= self.total

    def __str__(self) -> str:
        if self.total is None:
            return f"{self.done:.0f}"

        # Rounding up would show 99.6 % as complete.
        percent = int(self.percent or 0.0)
        return f"{percent} % ({self.done:.0f}/{self.total:.0f})"


def parse_bars(text: str) -> Iterator[Progress]:
    """
    Parse the progress bars of a line, which has no colors any more.
    """
    end = 0
    for found in islice(_TQDM_BAR.finditer(text), _MOST_IN_LINE):
        name = text[end : found.start()][-_LONGEST_NAME:].strip()
        end = found.end()
        times = _TQDM_TIMES.search(found["times"] or "")
        yield Progress(
            name=name.removesuffix(":").rstrip(),
            done=parse_number(found["done"]),
            total=parse_number(found["total"]),
            rate=_parse_rate(times["rate"], times["unit"]) if times else None,
            left_s=_parse_duration(times["left"]) if times else None,
            elapsed_s=_parse_duration(times["elapsed"]) if times else None,
        )
    if end or "━" not in text:
        return

    for found in _RICH_BAR.finditer(text):
        yield Progress(
            name=found["name"].strip(),
            done=parse_number(found["done"]),
            total=parse_number(found["total"]),
            left_s=_parse_duration(found["left"] or "?"),
            elapsed_s=_parse_duration(found["elapsed"] or "?"),
        )


def parse_number(text: str) -> float:
    """
    Parse a number as bars write it, such as ``1,024`` or ``1.2G``.

    Raises:
        ValueError: It is not a number.
    """
    factor = _SUFFIXES.get(text[-1:], 1.0)
    plain = text.rstrip("kKMGTP").replace(",", "")
    return float(plain) * factor


def _parse_duration(text: str) -> float | None:
    total = 0.0
    for part in text.split(":"):
        if not part.isdecimal():
            return None
        total = total * 60 + int(part)
    return total


def _parse_rate(number: str | None, unit: str | None) -> float | None:
    """
    Return units per second; slow bars show seconds per unit.
    """
    if number is None or unit is None:
        return None

    try:
        value = parse_number(number)
    except ValueError:
        return None
    if unit.startswith("s/"):
        return 1.0 / value if value else None
    return value if unit.endswith("/s") else None


_RANK_IN_NAME = re.compile(
    r"(?i:\b(?:rank|worker|gpu|engine|replica|node|[tpde]p)[ _=:#-]{0,2}\d{1,7})"
)
_CHANGING_PART = re.compile(r"\([^()]{0,200}\)|\d{1,20}(?:\.\d{1,20})?")


# A log has many states of few bars.
@lru_cache(maxsize=4096)
def bar_name(name: str) -> str:
    """
    Return the name of a bar, without the prefix of a logger.

    Args:
        name: All that stands before the percentage.
    """
    for sign in ("] ", " - ", ">> ", "| "):
        name = name.rpartition(sign)[2] or name
    return re.sub(r"^[\d:.,]{1,12}:? {1,4}(?=\D)", "", name).strip()


@lru_cache(maxsize=4096)
def bar_series(name: str) -> tuple[str, str]:
    """
    Return what the bars of one loop have in common.

    A loop may write its state into the name of its bar, such as ``Capturing
    batches (bs=8 avail_mem=9.2 GB)``; numbers of ranks distinguish loops.

    Args:
        name: All that stands before the percentage.

    Returns:
        The ranks in the name, and the name without what changes.
    """
    ranks = " ".join(_RANK_IN_NAME.findall(name))
    return ranks, _CHANGING_PART.sub("", bar_name(name))


_MOST_UNREAD = 400
_MOST_BARS = 4096


_NEWLINE, _RETURN, _BLANK = b"\n\r "


class BlockLines:
    """
    The lines of a block that are not empty, decoded one by one.

    Each state of a progress bar is a line of its own.
    """

    def __init__(self, block: LineBlock) -> None:
        data = np.frombuffer(block.data, np.uint8)
        ends = np.flatnonzero((data == _NEWLINE) | (data == _RETURN))
        starts = np.concatenate(([0], ends + 1))
        numbers = np.cumsum(data[ends] == _NEWLINE, dtype=np.int64)
        ends = np.append(ends, data.size)
        visible = np.flatnonzero(data > _BLANK)
        is_line = (
            np.diff(np.searchsorted(visible, [starts, ends]), axis=0)[0] > 0
        )
        self._data = block.data
        self._starts, self._ends = starts[is_line], ends[is_line]
        self._numbers = np.concatenate(([0], numbers))[is_line] + block.number

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> str:
        line = self._data[self._starts[index] : self._ends[index]]
        return line.decode("utf-8", "replace")

    def number(self, index: int) -> int:
        """
        Return the number of a line in the file, from 1.
        """
        return int(self._numbers[index])

    def first_state(self, index: int) -> int:
        """
        Return the index of the first state of the bar that a line belongs to.
        """
        start = self._starts[index]
        if self._data[start - 1 : start] != b"\r":
            return index
        return int(np.searchsorted(self._numbers, self._numbers[index]))

    def at(self, offsets: Sequence[int]) -> list[int]:
        """
        Return the index of the line at each offset in the block.
        """
        found: list[int] = np.searchsorted(
            self._starts, offsets, "right"
        ).tolist()
        return [index - 1 for index in found]


@attrs.define
class LogClock:
    """
    Track the newest time in a log.

    To parse times takes longer than all else, so lines are kept, and only
    parsed when a time is needed.

    Attributes:
        now: The latest possible time, which decides the year of times without
            one.

        time: The newest time, in seconds since the epoch.

        is_exact: Whether the last line that was asked for had a time of its
            own.
    """

    now: float | None = None
    time: float | None = None
    is_exact: bool = False
    _last_timed: LogLine | None = None
    # The newest lines since a time was asked for.
    _unread: deque[tuple[BlockLines, int]] = attrs.field(
        factory=lambda: deque(maxlen=_MOST_UNREAD)
    )
    _anchors: dict[tuple[object, str], tuple[float, float]] = attrs.field(
        factory=dict
    )

    def add(self, lines: BlockLines, first: int, stop: int) -> None:
        """
        Add the lines of a block from index *first* to before *stop*.
        """
        newest = range(max(first, stop - _MOST_UNREAD), stop)
        self._unread.extend((lines, index) for index in newest)

    def line_time(self, line: LogLine) -> float | None:
        """
        Return the time of the line that was added last, or of one before it.
        """
        if line is self._last_timed:
            return self.time
        self._last_timed = line
        time = parse_time(line.text, now=self.now)
        back = (
            parse_time(lines[index], now=self.now)
            for lines, index in reversed(self._unread)
        )
        if time is None:
            # The time may stand before the prefix of a launcher.
            time = next(back, None)
        self.is_exact = time is not None
        if time is None:
            time = next((x for x in back if x is not None), None)
        self._unread.clear()
        if time is not None and (self.is_exact or time > (self.time or 0.0)):
            self.time = time
        return self.time

    def bar_time(
        self, line: LogLine, name: str, bar: Progress
    ) -> float | None:
        """
        Return the time of a bar, by the seconds for which it has run.
        """
        time = self.line_time(line)
        if time is None or bar.elapsed_s is None:
            return time

        key = (line.origin, name)
        begun_at, elapsed = self._anchors.get(key, (0.0, float("inf")))
        if bar.elapsed_s < elapsed:
            begun_at = time - bar.elapsed_s
        if key in self._anchors or len(self._anchors) < _MOST_BARS:
            self._anchors[key] = (begun_at, bar.elapsed_s)
            self.time = max(time, begun_at + bar.elapsed_s)
        return self.time
