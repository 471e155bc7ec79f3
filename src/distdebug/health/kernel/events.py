"""
Which lines of the kernel's log tell of trouble?

The rules are data, in ``rules.toml`` beside this file.
"""

from __future__ import annotations

import re
import tomllib

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import attrs

from ...findings import Cause, Confidence
from .log import KernelLine


__all__ = ["EventRule", "KernelEvent", "find_events", "is_suspicious"]

# Of a line that comes again and again, the last ones.
_MOST = 256


@attrs.frozen(kw_only=True)
class EventRule:
    """
    How does the kernel say this, and what does it mean?

    Attributes:
        name: What the rule is called.

        words: A line has one of them, in small letters.

        pattern: What is searched for in the line.  Its groups tell the
            process (``pid``, ``name``), the place on the PCI bus (``bus``),
            the ``device``, and the number of the ``xid``.

        cause: What is wrong.

        says: One sentence about it, with the groups in braces.

        remedy: What to do about it.

        confidence: How sure this is.

        over: What is searched for in a later line that takes it back, for the
            same ``device``.

        lasting: Whether it is of interest also if it happened before the job.

        ours: Whether it is of interest only for processes of the job.
    """

    name: str
    words: tuple[str, ...] = attrs.field(converter=tuple)
    pattern: re.Pattern[str] = attrs.field(converter=re.compile)
    cause: Cause = attrs.field(converter=Cause)
    says: str
    remedy: str
    confidence: Confidence = "likely"
    over: re.Pattern[str] | None = attrs.field(
        converter=attrs.converters.optional(re.compile), default=None
    )
    lasting: bool = False
    ours: bool = False


@attrs.frozen(kw_only=True)
class KernelEvent:
    """
    One kind of trouble that the kernel told of.

    Attributes:
        rule: The name of the rule that knows it.

        time: When it was told last, in seconds since the epoch; ``None`` if
            unknown.

        count: How often.

        pid: The process concerned, as the node numbers it.

        name: What the kernel calls that process, or its control group.

        bus_id: The place of the device on the PCI bus.

        device: The disk, interface, or server.

        xid: The number of an Xid.

        seconds: For how long, if it tells.

        quote: The line.
    """

    rule: str
    time: float | None = None
    count: int = 1
    pid: int | None = None
    name: str = ""
    bus_id: str = ""
    device: str = ""
    xid: int | None = None
    seconds: str = ""
    quote: str = ""


def is_suspicious(line: str) -> bool:
    """
    Whether a line may tell of trouble, or that it is over.
    """
    small = line.lower()
    return any(word in small for word in _words())


def find_events(lines: Iterable[KernelLine]) -> tuple[KernelEvent, ...]:
    """
    Find what tells of trouble, and is not over.

    Args:
        lines: What the kernel said, in order.

    Returns:
        One event for each thing that happened to each process or device, the
        last ones if there are very many.
    """
    found: dict[tuple[object, ...], KernelEvent] = {}
    for line in lines:
        if not is_suspicious(line.text):
            continue
        _forget(found, line.text)
        event = _event(line)
        if event is None:
            continue
        key = (event.rule, event.pid, event.bus_id, event.device, event.xid)
        before = found.pop(key, None)
        if before is not None:
            event = _joined(before, event)
        found[key] = event
        if len(found) > _MOST:
            del found[next(iter(found))]
    return tuple(found.values())


@cache
def event_rules() -> dict[str, EventRule]:
    """
    The rules by name, in the order in which they are tried.
    """
    text = Path(__file__).with_name("rules.toml").read_text("utf-8")
    rules = (EventRule(**rule) for rule in tomllib.loads(text)["rule"])
    return {rule.name: rule for rule in rules}


@cache
def _words() -> frozenset[str]:
    words = {word for rule in event_rules().values() for word in rule.words}
    return frozenset({*words, "link is up", "link up", "connection restored"})


def _event(line: KernelLine) -> KernelEvent | None:
    small = line.text.lower()
    for rule in event_rules().values():
        if not any(word in small for word in rule.words):
            continue
        found = rule.pattern.search(line.text)
        if found is None:
            continue
        told = {k: v for k, v in found.groupdict().items() if v}
        pid = told.get("pid") or told.get("victim")
        return KernelEvent(
            rule=rule.name,
            time=line.time,
            pid=int(pid) if pid else None,
            name=told.get("name") or told.get("task", ""),
            bus_id=told.get("bus") or "",
            device=told.get("device") or told.get("other", ""),
            xid=int(told["xid"]) if "xid" in told else None,
            seconds=told.get("seconds", ""),
            quote=line.text,
        )
    return None


def _joined(before: KernelEvent, event: KernelEvent) -> KernelEvent:
    # Two lines tell of one process that was killed, and one has no name.
    is_same = event.pid is not None and event.rule == "out of memory"
    return attrs.evolve(
        event,
        count=before.count + (not is_same),
        name=event.name or before.name,
        time=before.time if event.time is None else event.time,
    )


def _forget(found: dict[tuple[object, ...], KernelEvent], text: str) -> None:
    for rule in event_rules().values():
        over = rule.over.search(text) if rule.over else None
        if over is not None:
            key = (rule.name, None, "", over["device"], None)
            found.pop(key, None)
