"""
Who printed this line, and what remains without the prefix?

Ray writes ``(Actor pid=1, ip=10.0.0.2)`` before what a process of another node
printed, torchrun ``[default3]:``, torch's own library ``[rank3]:``.  One of
them may stand inside another.
"""

from __future__ import annotations

import re

from .._text import without_controls
from .model import LogLine, Origin


__all__ = ["parse_line"]

# An actor may name itself NamedRepr(rank=0), so a name may hold brackets.
_RAY = re.compile(
    r"\((?P<name>[^\n]{0,200}?) ?\bpid=(?P<pid>\d{1,10})"
    r"(?:, ip=(?P<ip>[^)\s]{1,60}))?\) ?"
)
_COMPONENT = re.compile(
    r"\((?:pid=)?(?P<name>raylet|gcs_server|autoscaler|scheduler|dashboard)"
    r"(?: \+[\dhms]{1,20})?(?:, ip=(?P<ip>[^)\s]{1,60}))?\) ?"
)
_RANK = re.compile(r"\[rank(?P<rank>\d{1,7})\]: ?")
_LOCAL = re.compile(r"\[[A-Za-z_]{1,40}(?P<local_rank>\d{1,5})\]:")
_REPEATED = re.compile(
    r"\s*\[repeated (?P<count>\d{1,9})x across cluster\]"
    r"(?: \(Ray deduplicates logs[^\n]{0,300})?\s*$"
)
_PREFIXES = (_RAY, _COMPONENT, _RANK, _LOCAL)
_MOST_NESTED = 4


def parse_line(raw: str, *, number: int = 0, source: str = "") -> LogLine:
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
    text = text.rstrip()
    count = 1
    if text.endswith((")", "]")) and "x across cluster]" in text:
        found = _REPEATED.search(text[-400:])
        if found:
            count = int(found["count"])
            text = text[: len(text) - len(found[0])].rstrip()

    origin, text = _origin(text)
    return LogLine(
        text=text, number=number, source=source, origin=origin, count=count
    )


def _origin(text: str) -> tuple[Origin | None, str]:
    known: dict[str, str] = {}
    for _ in range(_MOST_NESTED):
        found = _prefix(text)
        if found is None:
            break
        known.update({k: v for k, v in found.groupdict().items() if v})
        text = text[found.end() :]
    if not known:
        return None, text

    numbers = {
        name: int(known[name])
        for name in ("pid", "rank", "local_rank")
        if name in known
    }
    name, ip = known.get("name", ""), known.get("ip")
    return Origin(name=name.strip(), ip=ip, **numbers), text


def _prefix(text: str) -> re.Match[str] | None:
    if not text.startswith(("(", "[")):
        return None
    matches = (prefix.match(text) for prefix in _PREFIXES)
    return next(filter(None, matches), None)
