"""
What follows from lines that tell of the same?
"""

from __future__ import annotations

from .._text import clean
from ..findings import Evidence, Finding, Location
from ..ranks import ranks_text
from .model import Hit, LogGroup, TraceGroup
from .plan import EXCEPTION
from .rules import LogRule


__all__ = ["conclude"]

_LONGEST = 160
_MOST_ERRORS = 4


def conclude(rule: LogRule, found: LogGroup | TraceGroup) -> Finding:
    """
    Make a finding of lines that tell of the same.

    Args:
        rule: The rule that they fit.

        found: The lines.

    Returns:
        The finding.
    """
    group = found.group if isinstance(found, TraceGroup) else found
    hits = [group.first]
    if group.last != group.first:
        hits.append(group.last)
    return Finding(
        cause=rule.cause,
        ranks=group.ranks,
        summary=_summary(rule, found, group),
        confidence="possible" if group.is_survived else rule.confidence,
        remedy=rule.remedy or None,
        location=_location(found),
        evidence=tuple(map(_evidence, hits)),
    )


def _summary(
    rule: LogRule, found: LogGroup | TraceGroup, group: LogGroup
) -> str:
    says = rule.says
    if isinstance(found, TraceGroup) and found.root:
        told = clean(str(found.root), limit=_LONGEST)
        says = (
            f"raised {told}"
            if rule.name == EXCEPTION.name
            else f"{says}: {told}"
        )
    elif group.key:
        says = f"{says} ({group.key})"
    who = _who(group)
    if rule.name == EXCEPTION.name and isinstance(found, TraceGroup):
        says = f"{who or 'a process'} {says}"
    elif who:
        says = f"{who}: {says}"
    more = "at least " if group.is_more else ""
    unit = "times" if isinstance(found, TraceGroup) else "lines"
    times = f" ({more}{group.count:,} {unit})" if group.count > 1 else ""
    then = "; the job went on afterwards" if group.is_survived else ""
    return says[:1].upper() + says[1:] + times + then


def _who(group: LogGroup) -> str:
    if group.ranks:
        return ranks_text(group.ranks)

    names = dict.fromkeys(
        f"{clean(x.name, limit=60)}{f' (pid {x.pid})' if x.pid else ''}"
        for x in group.origins
        if x.name
    )
    return next(iter(names)) if len(names) == 1 else ""


def _location(found: LogGroup | TraceGroup) -> Location | None:
    root = found.root if isinstance(found, TraceGroup) else None
    place = root.place if root else None
    if place is None:
        return None

    return Location(function=place.function, file=place.file, line=place.line)


def _evidence(hit: Hit) -> Evidence:
    return Evidence(
        kind="log",
        source=hit.source,
        location=hit.location,
        quote=clean(hit.text, limit=2 * _LONGEST),
    )
