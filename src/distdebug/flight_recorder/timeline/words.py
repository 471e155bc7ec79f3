"""
What does a slice say of its call?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..._text import clean
from ...location import user_location
from ..columns import Dumps
from ..tables import shape_words, state_text
from .drawing import Drawing
from .ends import End


__all__ = ["Words", "lines_of_code", "say"]

# So many different ones are kept: in a job that is repeated, nearly all.
_MOST_KEPT = 1 << 16


class Words(NamedTuple):
    """
    What can be said once for all slices of the same kind.

    Attributes:
        groups: Name and description behind each code, cleaned.

        ops: The operation behind each code, cleaned.

        shape: Tells what goes in and out behind a code.
    """

    groups: Sequence[tuple[str, str]]
    ops: Sequence[str]
    shape: Callable[[int], tuple[str, str]]

    @classmethod
    def of(cls, dumps: Dumps) -> Words:
        """
        Clean all that comes from the job, once.
        """
        return cls(
            groups=[(clean(name), clean(desc)) for name, desc in dumps.groups],
            ops=[clean(op) for op in dumps.ops],
            shape=shape_words(dumps.shapes),
        )


Kind = tuple[int, int, int, int, bool, int, int, bool]
T = TypeVar("T")


def say(
    drawing: Drawing,
    words: Words,
    write: Callable[[str, Mapping[str, Any]], T],
    kept: dict[Kind, T],
) -> list[T]:
    """
    Say of each slice what it has in common with others of its kind.

    Args:
        drawing: The slices.

        words: What the codes stand for.

        write: Turns a name and its arguments into what a format wants.

        kept: What was written already.

    Returns:
        One of what *write* returns per slice.
    """
    e = drawing.entries
    columns = (
        *(e.op, e.shape, e.group, e.state, e.retired),
        *(drawing.end, e.timeout_ms, e.is_p2p),
    )
    said: list[T] = []
    for kind in zip(*(c.tolist() for c in columns), strict=True):
        if kind not in kept:
            if len(kept) >= _MOST_KEPT:
                kept.clear()
            kept[kind] = write(*_name_and_args(kind, words))
        said.append(kept[kind])
    return said


def _name_and_args(kind: Kind, words: Words) -> tuple[str, dict[str, Any]]:
    op, shape, group, state, retired, ended, timeout_ms, p2p = kind
    end = End(ended)
    name, desc = words.groups[group]
    inputs, outputs = words.shape(shape)
    short = words.ops[op].partition(":")[2] or words.ops[op]
    mark = {End.OPEN: ": not complete", End.ABORTED: ": timed out"}
    args = {
        "op": words.ops[op],
        "group": name,
        "desc": desc,
        "p2p": p2p or None,
        "in": inputs,
        "out": outputs,
        "state": state_text(state, retired=retired),
        "end": end.words,
        "timeout_ms": timeout_ms,
    }
    return (
        short + mark.get(end, ""),
        {key: value for key, value in args.items() if value},
    )


def lines_of_code(dumps: Dumps, drawing: Drawing) -> list[str]:
    """
    Read where each call of a rank was made, which takes its file once more.

    Args:
        dumps: What the ranks recorded.

        drawing: The slices of the rank.

    Returns:
        One text per slice; empty where that is not on record.
    """
    order = np.argsort(drawing.rows)
    stacks = dumps.frames(drawing.rank, drawing.rows[order].tolist())
    lines = [""] * len(order)
    for at, stack in zip(order.tolist(), stacks, strict=True):
        where = user_location(stack)
        lines[at] = clean(str(where), limit=400) if where else ""
    return lines
