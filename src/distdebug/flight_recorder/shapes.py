"""
What went in and out of all calls, in little memory?

Where experts or packed sequences are exchanged, hardly two calls have the same
sizes, and a large job has ten million shapes.  As objects they would take most
of the memory and of the time, and hardly any is ever shown.  So each is kept
as a text, beside the few numbers by which calls are compared.
"""

from __future__ import annotations

import json

from collections.abc import Iterable, Sequence
from typing import Any, overload

import attrs
import numpy as np

from numpy.typing import NDArray

from .reading.sizes import count_elements, write_shape


__all__ = ["Shape", "Shapes", "as_shapes"]


@attrs.frozen
class Shape:
    """
    What went in and out of a call: sizes and types of its tensors.
    """

    input_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_sizes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[str, ...]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Shapes(Sequence[Shape]):
    """
    Many shapes, each of which becomes an object when somebody looks at it.

    Attributes:
        texts: Each as JSON: input sizes, input types, output sizes, and
            output types.

        elements: How many elements go in, and how many come out; one row for
            each.

        types: A number for each that is equal where the same types go in and
            out, in whatever order.
    """

    texts: tuple[str, ...]
    elements: NDArray[np.int64]
    types: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, at: int) -> Shape: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Shape, ...]: ...

    def __getitem__(self, at: int | slice) -> Shape | tuple[Shape, ...]:
        if isinstance(at, slice):
            return tuple(map(_shape, self.texts[at]))

        return _shape(self.texts[at])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shapes):
            return NotImplemented

        return self.texts == other.texts

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} shapes>"


def as_shapes(shapes: Iterable[Shape]) -> Shapes:
    """
    Keep shapes in little memory.

    Args:
        shapes: Any; those that are kept so already stay as they are.
    """
    if isinstance(shapes, Shapes):
        return shapes

    types: dict[object, int] = {}
    found = list(shapes)
    return Shapes(
        texts=tuple(write_shape(attrs.astuple(s)) for s in found),
        elements=np.array(
            [
                [count_elements(s.input_sizes), count_elements(s.output_sizes)]
                for s in found
            ],
            np.int64,
        ).reshape(-1, 2),
        types=np.array(
            [types.setdefault(_types(s), len(types)) for s in found], np.int64
        ),
    )


def _types(shape: Shape) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(shape.input_dtypes), frozenset(shape.output_dtypes)


def _shape(text: str) -> Shape:
    sizes_in, dtypes_in, sizes_out, dtypes_out = json.loads(text)
    return Shape(
        _sizes(sizes_in),
        tuple(dtypes_in),
        _sizes(sizes_out),
        tuple(dtypes_out),
    )


def _sizes(raw: Iterable[Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, raw))
