"""
Which plain text has to stand in a line for a pattern to fit?

Looking for plain text is a hundred times faster than matching, so gigabytes
of lines are searched for that first.
"""

from __future__ import annotations

import re

from collections.abc import Iterable
from functools import cache
from typing import Any


__all__ = ["literals_of"]

_ONE = frozenset({"LITERAL"})
_GROUPS = frozenset({"SUBPATTERN", "ATOMIC_GROUP"})
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
_SHORTEST = 3


@cache
def literals_of(pattern: re.Pattern[str]) -> frozenset[str]:
    """
    Tell texts of which one stands wherever a pattern fits.

    Args:
        pattern: The pattern.

    Returns:
        The texts; none if nothing is known.
    """
    if pattern.flags & re.IGNORECASE:
        return frozenset()

    tree = re._parser.parse(pattern.pattern)  # type: ignore[attr-defined]  # noqa: SLF001 nothing else tells
    found = _of_sequence(tree)
    return frozenset(found) if _worth(found) >= _SHORTEST else frozenset()


def _worth(texts: Iterable[str]) -> int:
    return min(map(len, texts), default=0)


def _of_sequence(parts: Iterable[Any]) -> set[str]:
    """
    The best choice of those that the parts give, one after the other.
    """
    best: set[str] = set()
    run = ""
    for kind, body in [*parts, ("END", None)]:
        if str(kind) in _ONE:
            run += chr(body)
            continue
        choices = [{run}, _of_part(str(kind), body)]
        best = max([best, *choices], key=_worth)
        run = ""
    return best


def _of_part(kind: str, body: Any) -> set[str]:
    if kind in _GROUPS:
        return _of_sequence(body if kind == "ATOMIC_GROUP" else body[-1])
    if kind == "BRANCH":
        choices = [_of_sequence(branch) for branch in body[1]]
        return set().union(*choices) if all(map(_worth, choices)) else set()
    if kind in _REPEATS and int(body[0]) > 0:
        return _of_sequence(body[2])
    return set()
