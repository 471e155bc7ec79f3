"""
What does a call ask of all members of its group?
"""

from __future__ import annotations

import attrs

from ..reading.sizes import count_elements
from ..shapes import Shape
from .operations import Operation


__all__ = ["Call", "describe_call"]


@attrs.frozen
class Call:
    """
    What one rank called, as far as all members have to agree.

    ``None`` stands for "nothing was passed", which agrees with anything: only
    the root of a scatter has an input.
    """

    op: str
    sent: int | None
    sent_dtypes: frozenset[str] | None
    received: int | None
    received_dtypes: frozenset[str] | None

    def agrees(self, other: Call) -> bool:
        """
        Whether both could be the same call.
        """
        return self.op == other.op and all(
            mine is None or theirs is None or mine == theirs
            for mine, theirs in zip(
                attrs.astuple(self, recurse=False)[1:],
                attrs.astuple(other, recurse=False)[1:],
                strict=True,
            )
        )

    def __str__(self) -> str:
        parts = [self.op]
        if self.sent is not None or self.received is not None:
            count = self.sent or self.received or 0
            parts.append(f"of {count:,} element{'s' if count != 1 else ''}")
        dtypes = self.sent_dtypes or self.received_dtypes
        if dtypes:
            parts.append(f"({', '.join(sorted(dtypes))})")

        return " ".join(parts)


def describe_call(operation: Operation, shape: Shape) -> Call:
    """
    Reduce one record to what all members have to agree on.

    Args:
        operation: What it called.

        shape: What went in and out.

    Returns:
        The call; without sizes where ranks may rightly pass different ones.
    """
    if not operation.is_even:
        return Call(operation.name, None, None, None, None)

    return Call(
        operation.name,
        *_amount(shape.input_sizes, shape.input_dtypes),
        *_amount(shape.output_sizes, shape.output_dtypes),
    )


def _amount(
    sizes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
) -> tuple[int | None, frozenset[str] | None]:
    count = count_elements(sizes)
    return (count, frozenset(dtypes)) if count else (None, None)
