"""
What does a line complain of?
"""

from __future__ import annotations

import re

from .._lines import LogLine
from .rulebook import Rule
from .story import Seen, Story


__all__ = ["note_failure", "note_more"]

_MORE_LINES = 20
_MOST = 64


def note_failure(
    story: Story, rule: Rule, found: re.Match[str], line: LogLine, lines: int
) -> None:
    """
    A text was printed that tells of a failure, or only looks so.

    Args:
        story: What is known.

        rule: Whose text it is.

        found: Where it fits.

        line: The line.

        lines: How many lines were read.
    """
    failure = rule.failure
    if failure is None:
        return

    known = story.harmless if failure.harmless else story.failures
    same = [seen for seen in known if seen.failure is failure]
    for seen in reversed(same):
        if _is_same(seen, found, line, lines):
            if seen.last != lines:  # two patterns may fit one line
                seen.count += line.count
            seen.last = lines
            return
    if len(known) < _MOST:
        known.append(
            Seen(failure, line, line.count, lines + _MORE_LINES, lines)
        )
        known[-1].learn(found)


def note_more(
    story: Story, rule: Rule, found: re.Match[str], line: LogLine, lines: int
) -> None:
    """
    A text was printed that may tell more about a failure just before it.

    Args:
        story: What is known.

        rule: Whose text it is.

        found: Where it fits.

        line: The line.

        lines: How many lines were read.
    """
    for seen in reversed(story.failures):
        if seen.failure is not rule.failure:
            continue
        if seen.line.origin != line.origin or lines > seen.open_until:
            continue
        if seen.line.number == line.number and seen.last == lines:
            seen.open_until = lines  # it told all in one line
        elif seen.differs(found):
            seen.open_until = 0  # that is about another one
            return
        seen.learn(found)
        return


def _is_same(
    seen: Seen, found: re.Match[str], line: LogLine, lines: int
) -> bool:
    """
    Does a line go on with what an earlier one complained of?

    Where more is told, as of an actor that died, what comes after that is
    about another one.
    """
    if not seen.failure.more or seen.last == lines:
        return True
    if seen.line.origin != line.origin or lines > seen.open_until:
        return False
    return not seen.is_told or bool(found.groupdict().get("again"))
