"""
Who printed this line, and what remains without the prefix?

Ray writes ``(Actor pid=1, ip=10.0.0.2)`` before what a process of another node
printed, torchrun ``[default3]:``, torch's own library ``[rank3]:``.  One of
them may stand inside another.
"""

from __future__ import annotations

import re

from functools import lru_cache

from .._text import without_controls
from .model import LogLine, Origin


__all__ = ["parse_clean_line", "parse_line"]

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
