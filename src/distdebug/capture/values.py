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
from typing import Any


__all__ = ["digests_of"]

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


def digests_of(output: str) -> tuple[int, ...]:
    """
    What stands for the local variables of each thread?

    Args:
        output: What ``py-spy dump --json --locals`` wrote.

    Returns:
        A number per thread, in the order of py-spy.  In this process, it is
        another one if a variable of the innermost frames was set anew.
        Nothing if the output is not what was expected.
    """
    try:
        threads = json.loads(output)
        return tuple(hash(tuple(_variables(t["frames"]))) for t in threads)
    except _MALFORMED:
        return ()


def _variables(frames: list[Mapping[str, Any]]) -> Iterator[object]:
    for frame in frames[:_FRAMES]:
        yield frame["name"], frame["line"]
        for variable in (frame.get("locals") or ())[:_VARIABLES]:
            text = variable.get("repr") or ""
            is_number = _NUMBER.fullmatch(text[:_MOST_TEXT])
            value = text[:_MOST_TEXT] if is_number else ""
            yield variable["name"], variable["addr"], value
