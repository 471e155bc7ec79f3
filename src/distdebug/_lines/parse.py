"""
Who printed this line, and what remains without the prefix?

Ray writes ``(Actor pid=1, ip=10.0.0.2)`` before what a process of another node
printed, torchrun ``[default3]:``, torch's own library ``[rank3]:``.  One of
them may stand inside another.
"""

from __future__ import annotations

import re
import time

from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import NamedTuple

import attrs

from .._text import without_controls


@attrs.frozen(kw_only=True)
class Origin:
    """
    Who printed a line, as the prefix of a launcher tells?

    Attributes:
        name: The actor, task, or component, such as ``"SglEngine"`` or
            ``"raylet"``; of an actor with a ``__repr__`` what that returns.

        pid: The number of its process, on its node.

        ip: The address of its node; Ray leaves out that of the driver.

        rank: The global rank, of ``[rank3]:``.

        local_rank: The rank on its node, of torchrun's ``[default3]:``.
    """

    name: str = ""
    pid: int | None = None
    ip: str | None = None
    rank: int | None = None
    local_rank: int | None = None


class LogLine(NamedTuple):
    """
    One line, without what a launcher and a terminal added.

    A tuple, because millions of them are made: one takes a quarter of the time
    that a frozen class of attrs does.

    Attributes:
        text: What was printed, without colors, controls, and prefixes.

        number: Its number in the file, from 1; the parts of a line that
            carriage returns divide have the same one.

        source: The file, or ``""``.

        origin: Who printed it, if a prefix tells.

        count: How many lines it stands for: Ray folds what several processes
            print into one line.
    """

    text: str
    number: int = 0
    source: str = ""
    origin: Origin | None = None
    # (in place of a method of tuples that nobody needs here)
    count: int = 1  # type: ignore[assignment]

    @property
    def time(self) -> float | None:
        """
        When it was printed, in seconds since the epoch, if it tells.
        """

        return parse_time(self.text)


# An actor may name itself NamedRepr(rank=0), so a name may hold brackets.
_RAY = (
    r"\((?P<name>[^\n]{0,200}?) ?\bpid=(?P<pid>\d{1,10})"
    r"(?:, ip=(?P<ip>[^)\s]{1,60}))?\) ?"
)
_COMPONENT = (
    r"\((?:pid=)?"
    r"(?P<component>raylet|gcs_server|autoscaler|scheduler|dashboard)"
    r"(?: \+[\dhms]{1,20})?(?:, ip=(?P<its_ip>[^)\s]{1,60}))?\) ?"
)
_RANK = r"\[rank(?P<rank>\d{1,7})\]: ?"
_LOCAL = r"\[[A-Za-z_]{1,40}(?P<local_rank>\d{1,5})\]:"
_PREFIX = re.compile(f"{_RAY}|{_COMPONENT}|{_RANK}|{_LOCAL}")
# Most names hold no "=", so that the first one is behind "pid".  That is found
# in half the time.
_USUAL = r"\([^=\n]{0,200}(?<=\bpid)=\d{1,10}(?:, ip=[^)\s]{1,60})?\) ?"
_PREFIXES = re.compile(f"(?:{_USUAL}|{_PREFIX.pattern}){{1,4}}")
_REPEATED = re.compile(
    r"\s*\[repeated (?P<count>\d{1,9})x across cluster\]"
    r"(?: \(Ray deduplicates logs[^\n]{0,300})?\s*$"
)


def parse_line(raw: str, number: int = 0, source: str = "") -> LogLine:
    """
    Take a line apart.

    Args:
        raw: The line as it stands in a file or came from a terminal.

        number: Its number in the file, from 1.

        source: The file.

    Returns:
        What was printed, by whom, and how often.
    """
    text = raw if raw.isprintable() else without_controls(raw)
    return parse_clean_line(text, number, source)


def parse_clean_line(text: str, number: int, source: str) -> LogLine:
    """
    Take a line apart that holds no controls.

    Args:
        text: The line.

        number: Its number in the file, from 1.

        source: The file.

    Returns:
        What was printed, by whom, and how often.
    """
    text = text.rstrip()
    count = 1
    if text.endswith((")", "]")) and "x across cluster]" in text:
        found = _REPEATED.search(text[-400:])
        if found:
            count = int(found["count"])
            text = text[: len(text) - len(found[0])].rstrip()

    origin = None
    if text.startswith(("(", "[")) and (prefixes := _PREFIXES.match(text)):
        origin, text = _origin(prefixes[0]), text[prefixes.end() :]
    return LogLine(text, number, source, origin, count)


# A log has many lines, and few who write them.
@lru_cache(maxsize=4096)
def _origin(prefixes: str) -> Origin:
    name, ip = "", None
    numbers: dict[str, int] = {}
    for found in _PREFIX.finditer(prefixes):
        name = found["name"] or found["component"] or name
        ip = found["ip"] or found["its_ip"] or ip
        for key in ("pid", "rank", "local_rank"):
            if found[key]:
                numbers[key] = int(found[key])
    return Origin(name=name.strip(), ip=ip, **numbers)


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
