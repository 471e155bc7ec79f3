"""
What does a progress bar say?

The bars of tqdm, with or without the bar itself, also several in one line;
those of rich; and the numbers that a pattern found in a line.
"""

from __future__ import annotations

import re

from collections.abc import Iterator

import attrs


__all__ = ["BAR_LITERALS", "Progress", "parse_bars", "parse_number"]

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
