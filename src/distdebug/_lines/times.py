"""
When was this line printed?

Frameworks write times in a dozen ways, some without a year.  Without a zone, a
time is taken for one of this machine.
"""

from __future__ import annotations

import re
import time

from datetime import UTC, datetime, timedelta, timezone


__all__ = ["parse_time"]

_CLOCK = (
    r"(?P<h>[01]\d|2[0-3]):(?P<m>[0-5]\d):(?P<s>[0-5]\d)"
    r"(?:[.,](?P<f>\d{1,9}))?"
)
_MONTHS = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_NAMES = "|".join(_MONTHS)
_FORMS = (
    # 2026-02-20 02:03:57,123 and all its relatives
    re.compile(
        r"(?<!\d)(?P<Y>20\d\d)[-/](?P<M>[01]?\d)[-/](?P<D>[0-3]?\d)[T _]"
        + _CLOCK
        + r"(?P<zone> ?Z|[+-]\d\d:?\d\d\b)?"
    ),
    # E321 02:07:08.408271257 of torch, whose month has no leading zero; I0220
    re.compile(
        r"(?:^|[\[\s:])[DIWEFCV](?P<M>1[0-2]|0?[1-9])(?P<D>[0-3]\d) " + _CLOCK
    ),
    # INFO 02-20 02:03:57 of vLLM, 02/20/2026 02:03:57 of transformers
    re.compile(
        r"(?:^|[\[\s(])(?P<M>[01]\d)[-/](?P<D>[0-3]\d)"
        r"(?:[-/](?P<Y>20\d\d))? (?:- )?" + _CLOCK
    ),
    # Fri Feb 20 02:03:57 2026, Feb 20 02:03:57
    re.compile(
        rf"\b(?P<name>{_NAMES}) {{1,2}}(?P<D>[0-3]?\d) {_CLOCK}"
        r"(?: (?:[A-Z]{3,4} )?(?P<Y>20\d\d)\b)?",
        re.IGNORECASE,
    ),
)
# Times stand at the beginning of lines.
_WITHIN = 120


def parse_time(text: str, *, now: float | None = None) -> float | None:
    """
    Find the time at the beginning of a line.

    Args:
        text: The line, without colors.

        now: The time by which a year is chosen where none is told; by default
            that of this machine.

    Returns:
        Seconds since the epoch, or ``None`` if no time is there.
    """
    head = text[:_WITHIN]
    if ":" not in head:
        return None

    for form in _FORMS:
        found = form.search(head)
        if found:
            return _seconds(found.groupdict(), now)
    return None


def _seconds(parts: dict[str, str | None], now: float | None) -> float | None:
    name = parts.get("name")
    month = _MONTHS.index(name.lower()) + 1 if name else int(parts["M"] or 0)
    year = parts.get("Y")
    limit = time.time() if now is None else now
    years = (
        [int(year)]
        if year
        else [datetime.fromtimestamp(limit, UTC).year + i for i in (1, 0, -1)]
    )
    zone = _zone(parts.get("zone"))
    fraction = float(f"0.{parts['f']}") if parts["f"] else 0.0
    hour, minute, second = (int(parts[x] or 0) for x in ("h", "m", "s"))
    clock = timedelta(hours=hour, minutes=minute, seconds=second)
    found = None
    for candidate in years:
        try:
            day = datetime(candidate, month, int(parts["D"] or 0), tzinfo=zone)
            found = (day + clock).timestamp() + fraction
        except (ValueError, OverflowError, OSError):
            continue
        # Who knows no year was printed before now; clocks differ a little.
        if year or found <= limit + 86_400:
            break
    return found


def _zone(text: str | None) -> timezone | None:
    if text is None:
        return None

    digits = text.strip().replace(":", "")
    if digits == "Z":
        return UTC
    sign = -1 if digits[0] == "-" else 1
    minutes = int(digits[1:3]) * 60 + int(digits[3:5])
    return timezone(sign * timedelta(minutes=min(minutes, 1439)))
