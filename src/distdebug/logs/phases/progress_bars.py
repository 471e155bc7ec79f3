"""
What does a progress bar say?

The bars of tqdm, with or without the bar itself, also several in one line;
those of rich; and the numbers that a pattern found in a line.
"""

from __future__ import annotations

import re

from collections import deque
from collections.abc import Iterator

import attrs

from ..lines import LogLine, parse_time


# One of them stands in every bar.
BAR_LITERALS = ("%|", "% ", "━")

_NUMBER = r"\d{1,15}(?:[.,]\d{1,3})?[kKMGTP]?"
_TQDM = re.compile(
    r"(?P<percent>\d{1,3})%(?:\|[^|\r\n]{0,300}\||\s?Completed\s?\||(?= ))"
    rf"\s{{0,4}}(?P<done>{_NUMBER})(?:i?B)?/(?P<total>{_NUMBER})(?:i?B)?"
    r"(?:\s{1,3}\[(?P<times>[^\]\r\n]{0,300})\]?)?"
)
_TIMES = re.compile(
    r"(?P<elapsed>[\d:]{4,12})<(?P<left>[\d:?]{1,12})(?:,\s{0,4}(?P<rate>[\d.]"
    r"{1,12}[kKMGTP]?) {0,2}(?P<unit>[^\s,\]]{1,30}))?"
)
_RICH = re.compile(
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
    How far something is.

    Attributes:
        name: What the bar is called, or ``""``.

        done: How much is done, in whatever it counts.

        total: Of how much, if that is known.

        rate: How much is done per second, if that is known.

        left_s: How many seconds remain, as the bar tells.

        elapsed_s: How many seconds it took, as the bar tells.
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
        How much is done, of 100; ``None`` without a total.
        """
        if not self.total:
            return None

        return min(100.0 * self.done / self.total, 100.0)

    @property
    def is_full(self) -> bool:
        """
        Whether all is done.
        """
        return self.total is not None and self.done >= self.total

    def __str__(self) -> str:
        if self.total is None:
            return _short(self.done)

        done, total = _short(self.done), _short(self.total)
        # 99.6 % is not all yet.
        return f"{int(self.percent or 0.0)} % ({done}/{total})"


def parse_bars(text: str) -> Iterator[Progress]:
    """
    Read the progress bars of a line.

    Args:
        text: The line, without colors.

    Yields:
        Each bar, in its order.
    """
    end = 0
    for _, found in zip(
        range(_MOST_IN_LINE), _TQDM.finditer(text), strict=False
    ):
        name = text[end : found.start()][-_LONGEST_NAME:].strip()
        end = found.end()
        times = _TIMES.search(found["times"] or "")
        yield Progress(
            name=name.removesuffix(":").rstrip(),
            done=parse_number(found["done"]),
            total=parse_number(found["total"]),
            rate=_rate(times["rate"], times["unit"]) if times else None,
            left_s=_seconds(times["left"]) if times else None,
            elapsed_s=_seconds(times["elapsed"]) if times else None,
        )
    if end or "━" not in text:
        return

    for found in _RICH.finditer(text):
        yield Progress(
            name=found["name"].strip(),
            done=parse_number(found["done"]),
            total=parse_number(found["total"]),
            left_s=_seconds(found["left"] or "?"),
            elapsed_s=_seconds(found["elapsed"] or "?"),
        )


def parse_number(text: str) -> float:
    """
    Read a number as bars write it, such as ``1,024`` or ``1.2G``.

    Args:
        text: The number.

    Returns:
        Its value.

    Raises:
        ValueError: It is none.
    """
    factor = _SUFFIXES.get(text[-1:], 1.0)
    plain = text.rstrip("kKMGTP").replace(",", "")
    return float(plain) * factor


def _short(number: float) -> str:
    return f"{number:.0f}"


def _seconds(text: str) -> float | None:
    total = 0.0
    for part in text.split(":"):
        if not part.isdecimal():
            return None
        total = total * 60 + int(part)
    return total


def _rate(number: str | None, unit: str | None) -> float | None:
    """
    Units per second; slow bars tell seconds per unit.
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


_RANKS = re.compile(
    r"(?i:\b(?:rank|worker|gpu|engine|replica|node|[tpde]p)[ _=:#-]{0,2}\d{1,7})"
)
_CHANGES = re.compile(r"\([^()]{0,200}\)|\d{1,20}(?:\.\d{1,20})?")


def plain_name(name: str) -> str:
    """
    The name of a bar, without what a logger wrote before it.

    Args:
        name: All that stands before the percentage.

    Returns:
        The name.
    """
    for sign in ("] ", " - ", ">> ", "| "):
        name = name.rpartition(sign)[2] or name
    return re.sub(r"^[\d:.,]{1,12}:? {1,4}(?=\D)", "", name).strip()


def series_of(name: str) -> tuple[str, str]:
    """
    What the bars of one loop have in common.

    A loop may write what it is about into the name of its bar, such as
    ``Capturing batches (bs=8 avail_mem=9.2 GB)``; numbers of ranks tell loops
    apart.

    Args:
        name: All that stands before the percentage.

    Returns:
        Whose it is, as the name tells, and the name without what changes.
    """
    ranks = " ".join(_RANKS.findall(name))
    return ranks, _CHANGES.sub("", plain_name(name))


_MOST_UNREAD = 400
_MOST_BARS = 4096


@attrs.define
class Clock:
    """
    The time in a log, as far as it was read.

    Looking for times takes longer than all else, so lines are only looked at
    once somebody asks.

    Attributes:
        now: The time by which years are chosen where none are told.

        time: The newest time, in seconds since the epoch.

        is_told: Whether the line that was asked for last told its own.
    """

    now: float | None = None
    time: float | None = None
    is_told: bool = False
    _asked: LogLine | None = None
    _unread: deque[str] = attrs.field(
        factory=lambda: deque(maxlen=_MOST_UNREAD)
    )
    _anchors: dict[tuple[object, str], tuple[float, float]] = attrs.field(
        factory=dict
    )

    def add(self, raw: str) -> None:
        """
        A line was read.
        """
        self._unread.append(raw)

    def of_line(self, line: LogLine) -> float | None:
        """
        When was the line printed that was read last?
        """
        if line is self._asked:
            return self.time
        self._asked = line
        time = parse_time(line.text, now=self.now)
        if time is None and self._unread:
            # Before what a launcher wrote.
            time = parse_time(self._unread.pop(), now=self.now)
        self.is_told = time is not None
        while time is None and self._unread:
            time = parse_time(self._unread.pop(), now=self.now)
        self._unread.clear()
        if time is not None and (self.is_told or time > (self.time or 0.0)):
            self.time = time
        return self.time

    def of_bar(self, line: LogLine, name: str, bar: Progress) -> float | None:
        """
        The same for a bar: it tells for how long it has run.
        """
        time = self.of_line(line)
        if time is None or bar.elapsed_s is None:
            return time

        key = (line.origin, name)
        began, elapsed = self._anchors.get(key, (0.0, float("inf")))
        if bar.elapsed_s < elapsed:
            began = time - bar.elapsed_s
        if key in self._anchors or len(self._anchors) < _MOST_BARS:
            self._anchors[key] = (began, bar.elapsed_s)
            self.time = max(time, began + bar.elapsed_s)
        return self.time
