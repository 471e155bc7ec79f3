"""
How is it written down what went in and out of a call?

Each shape becomes a text, because a large job may have millions, and a few
numbers by which ranks are compared.

This runs in the child processes that decode dumps, and needs nothing but the
standard library.
"""

from __future__ import annotations

import json
import marshal
import re

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from .plain import number, sequence, text


__all__ = [
    "SHAPE_TEXT",
    "check_shape",
    "count_elements",
    "describe_shapes",
    "write_shape",
]

# More do not fit into 64 bits; who says so is hostile.
_MOST_ELEMENTS = 1 << 62

_NUMBERS = r"\[(?:-?\d{1,19}(?:,-?\d{1,19})*)?\]"
_STRING = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-f]{4}))*"'
_SIZES = rf"\[(?:{_NUMBERS}(?:,{_NUMBERS})*)?\]"
_DTYPES = rf"\[(?:{_STRING}(?:,{_STRING})*)?\]"

# Input sizes, input types, output sizes, and output types.
SHAPE_TEXT = re.compile(rf"\[{_SIZES},{_DTYPES},{_SIZES},{_DTYPES}\]")
# In what is longer, the name of a type may have to be cut.
_LONGEST = 1000

write_shape = json.JSONEncoder(separators=(",", ":")).encode


def describe_shapes(raws: Iterable[bytes]) -> dict[str, list[Any]]:
    """
    Write down some shapes.

    Args:
        raws: Each as a dump has it, by `marshal`.

    Returns:
        What is fit for JSON: *shapes*, the texts; *elements*, how many go in
        and how many come out of each; *types*, which of *dtypes* each has;
        and *dtypes*, the different types that go in and come out.
    """
    shapes, texts = [], []
    for raw in raws:
        shape = marshal.loads(raw)  # noqa: S302
        written = _written(shape)
        if len(written) > _LONGEST or not SHAPE_TEXT.fullmatch(written):
            shape = check_shape(shape)
            written = write_shape(shape)
        shapes.append(shape)
        texts.append(written)
    dtypes: dict[Any, int] = {}
    types = [
        dtypes.setdefault((tuple(given), tuple(got)), len(dtypes))
        for _, given, _, got in shapes
    ]
    return {
        "shapes": texts,
        "elements": [
            [count_elements(shape[0]) for shape in shapes],
            [count_elements(shape[2]) for shape in shapes],
        ],
        "types": types,
        "dtypes": list(dtypes),
    }


def count_elements(sizes: Iterable[Sequence[int]]) -> int:
    """
    How many elements do these tensors have together, if that can be?
    """
    count = sum(map(prod, sizes))
    return max(min(count, _MOST_ELEMENTS), -_MOST_ELEMENTS)


def _written(raw: Any) -> str:
    try:
        return write_shape(raw)
    except RecursionError:
        return ""


def check_shape(raw: Any) -> tuple[Any, ...]:
    """
    Look at every value of a shape, and cut long names.

    Args:
        raw: What a dump has.

    Raises:
        TypeError: It is something else.

        ValueError: It has more or fewer parts.
    """
    sizes_in, dtypes_in, sizes_out, dtypes_out = raw
    return (
        _sizes(sizes_in),
        [text(dtype) for dtype in sequence(dtypes_in)],
        _sizes(sizes_out),
        [text(dtype) for dtype in sequence(dtypes_out)],
    )


def _sizes(raw: Any) -> list[list[int]]:
    # Truths are numbers, too, but not in JSON.
    return [[int(number(n)) for n in sequence(size)] for size in sequence(raw)]
