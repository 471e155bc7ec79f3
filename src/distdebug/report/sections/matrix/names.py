"""
How is a call named?
"""

from __future__ import annotations

from ...._text import clean
from ....flight_recorder.tables import shape_texts
from .recorded import Recorded
from .views import View


__all__ = ["call_name", "other_call"]


def call_name(call: int, recorded: Recorded) -> str:
    """
    What is a call named, without its backend?

    Args:
        call: As in :class:`View`; -1 for none.

        recorded: What all ranks recorded.
    """
    if call < 0:
        return "another call"

    op = recorded.dumps.ops[call // max(len(recorded.dumps.shapes), 1)]
    return clean(op.partition(":")[2] or op)


def other_call(view: View, kind: int, column: int, recorded: Recorded) -> str:
    """
    What did a rank call that did not do as the others?

    Args:
        view: A picture.

        kind: The kind of the rank.

        column: The column, as index.

        recorded: What all ranks recorded.

    Returns:
        The operation; with its sizes if only these differ.
    """
    own = view.other_calls.get((kind, column), -1)
    usual = int(view.programs[view.program[kind], column])
    name = call_name(own, recorded)
    if own < 0 or name != call_name(usual, recorded):
        return name

    shapes = recorded.dumps.shapes
    inputs, _ = shape_texts(shapes[own % len(shapes)])
    return clean(f"{name} {inputs}", limit=60)
