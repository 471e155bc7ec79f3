"""
What did the logs complain of, and what of that matters?
"""

from __future__ import annotations

import re

from collections.abc import Iterable

from .._text import clean
from ..findings import Evidence, Finding
from .model import Harmless
from .story import Seen, Story


__all__ = ["failure_findings", "harmless_lines"]

_OPTIONAL = re.compile(r"\[([^\[\]]{0,200})\]")
_PLACE = re.compile(r"\{(\w{1,40})\}")


def failure_findings(stories: Iterable[Story]) -> tuple[Finding, ...]:
    """
    What went wrong, as lines of the logs say?

    Args:
        stories: What the logs tell.

    Returns:
        One finding per failure, in the order in which they were printed.
    """
    known: dict[tuple[str, str], Seen] = {}
    for story in stories:
        for seen in story.failures:
            who = (seen.failure.name, seen.facts.get("pid", ""))
            known.setdefault(who, seen)
    told = {seen.failure.name for seen in known.values() if seen.is_told}
    return tuple(
        _finding(seen)
        for seen in known.values()
        if seen.is_told or seen.failure.name not in told
    )


def harmless_lines(stories: Iterable[Story]) -> tuple[Harmless, ...]:
    """
    What only looks bad?

    Args:
        stories: What the logs tell.

    Returns:
        One per rule.
    """
    known: dict[str, Seen] = {}
    for story in stories:
        for seen in story.harmless:
            name = seen.failure.name
            if name in known:
                known[name].count += seen.count
            else:
                known[name] = seen
    return tuple(
        Harmless(
            name=name,
            summary=seen.failure.summary,
            why=seen.failure.reason,
            count=seen.count,
            line=seen.line,
        )
        for name, seen in known.items()
    )


def _finding(seen: Seen) -> Finding:
    failure = seen.failure
    summary = _filled(failure.summary, seen.facts)
    reason = f"; likely {failure.reason}" if failure.reason else ""
    line = seen.line
    return Finding(
        cause=failure.cause,
        ranks=_ranks(seen),
        summary=f"{summary}{reason}",
        remedy=_filled(failure.remedy, seen.facts) or None,
        confidence=failure.confidence,
        evidence=(
            Evidence(
                kind="log",
                source=line.source,
                location=f"line {line.number}",
                quote=clean(line.text),
            ),
        ),
    )


def _ranks(seen: Seen) -> tuple[int, ...]:
    origin = seen.line.origin
    return () if origin is None or origin.rank is None else (origin.rank,)


def _filled(text: str, facts: dict[str, str]) -> str:
    """
    Put in what is known, and leave out what needs more.
    """

    def optional(found: re.Match[str]) -> str:
        names = _PLACE.findall(found[1])
        return found[1] if all(name in facts for name in names) else ""

    return _PLACE.sub(
        lambda found: clean(facts.get(found[1], "?")),
        _OPTIONAL.sub(optional, text),
    )
