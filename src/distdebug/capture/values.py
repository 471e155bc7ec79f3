"""
Did a thread go on, although it is at the same lines as before?

A loop that calls one function of C looks the same at every look.  But each
time round its variables get new values.  The values themselves are nobody's
business: all that is kept of them, and only in memory, is one number.
"""

from __future__ import annotations

import json
import re

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


__all__ = ["Digest", "digests_of"]

_FRAMES = 8
_VARIABLES = 64
_MOST_TEXT = 64
# What cannot change while it stays in its place in memory; others may be
# changed by another thread.
_NUMBER = re.compile(r"-?\d[\d.]*(?:e[+-]?\d+)?|True|False|None")
_MALFORMED = (
    AttributeError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)


class Digest(NamedTuple):
    """
    What stands for the variables of a thread.

    Attributes:
        whole: For those of its innermost functions.

        callers: For the same, but of the innermost one, which sets its own
            also if it never returns.
    """

    whole: int
    callers: int


def digests_of(output: str) -> tuple[Digest, ...]:
    """
    What stands for the local variables of each thread?

    Args:
        output: What ``py-spy dump --json --locals`` wrote.

    Returns:
        Numbers per thread, in the order of py-spy.  In this process, they are
        others if a variable of the innermost frames was set anew.
        Nothing if the output is not what was expected.
    """
    try:
        threads = json.loads(output)
        return tuple(_digest(t["frames"]) for t in threads)
    except _MALFORMED:
        return ()


def _digest(frames: list[Mapping[str, Any]]) -> Digest:
    return Digest(
        whole=hash(tuple(_variables(frames))),
        callers=hash(tuple(_variables(frames[1:]))),
    )


def _variables(frames: list[Mapping[str, Any]]) -> Iterator[object]:
    for frame in frames[:_FRAMES]:
        yield frame["name"], frame["line"]
        for variable in (frame.get("locals") or ())[:_VARIABLES]:
            text = variable.get("repr") or ""
            is_number = _NUMBER.fullmatch(text[:_MOST_TEXT])
            value = text[:_MOST_TEXT] if is_number else ""
            yield variable["name"], variable["addr"], value
