"""
How do other tools get merged stacks?

As collapsed stacks, for flame graphs, and as a profile for speedscope.  What
counts in both is processes, and not time.
"""

from __future__ import annotations

import json

from typing import Any

from .._text import clean
from .merge import StackTree
from .model import StackFrame


__all__ = ["to_collapsed", "to_speedscope"]

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_MOST_NAME = 400


def to_collapsed(tree: StackTree, *, who: bool = False) -> str:
    """
    How do merged stacks look to a program that draws flame graphs?

    Args:
        tree: The merged stacks.

        who: Whether each stack begins with its processes, such as
            ``"ranks 0-2,4"``, so that they stay apart in the picture.

    Returns:
        One line per stack, with its frames, outermost first, between
        semicolons, and how many processes are there.
    """
    lines = []
    for node, ends in enumerate(tree.ends):
        if ends:
            names = [_escaped(str(f)) for f in reversed(tree.stack(node))]
            if who:
                names.insert(0, _escaped(tree.who(ends)))
            lines.append(f"{';'.join(names)} {len(set(ends))}\n")
    return "".join(sorted(lines))


def _escaped(name: str) -> str:
    # A blank followed by a number would end the line, a semicolon the frame.
    return clean(name, limit=_MOST_NAME).replace(";", ",") or "?"


def to_speedscope(tree: StackTree, *, name: str = "stacks") -> str:
    """
    How do merged stacks look to speedscope?

    Args:
        tree: The merged stacks.

        name: A title.

    Returns:
        JSON with one profile of all stacks, and one per place at which a
        stack ends, named after its processes.  A weight is a number of
        processes.
    """
    shared: dict[StackFrame, int] = {}
    stacks = []
    for node, ends in enumerate(tree.ends):
        if ends:
            frames = reversed(tree.stack(node))
            sample = [shared.setdefault(f, len(shared)) for f in frames]
            stacks.append((tree.who(ends), sample, len(set(ends))))
    stacks.sort(key=lambda stack: -stack[2])

    whole = _profile(
        "all", [s for _, s, _ in stacks], [count for _, _, count in stacks]
    )
    parts = [_profile(who, [stack], [count]) for who, stack, count in stacks]
    return json.dumps(
        {
            "$schema": _SCHEMA,
            "name": clean(name),
            "exporter": "distdebug",
            "activeProfileIndex": 0,
            "shared": {"frames": [_frame(frame) for frame in shared]},
            "profiles": [whole, *parts],
        }
    )


def _profile(
    name: str, samples: list[list[int]], weights: list[int]
) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": clean(name),
        "unit": "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _frame(frame: StackFrame) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": clean(frame.name, limit=_MOST_NAME)}
    if frame.filename:
        shown["file"] = clean(frame.filename, limit=_MOST_NAME)
    if frame.line:
        shown["line"] = frame.line
    return shown
