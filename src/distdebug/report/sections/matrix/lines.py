"""
At which line of code did ranks make the calls that matter?
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Sequence

import numpy as np

from ...._text import clean
from ....findings import Location
from ....flight_recorder.analysis.operations import Signatures
from ....flight_recorder.analysis.streams import collective_streams
from .recorded import Recorded, State
from .views import View


__all__ = ["lines_of"]

_MOST = 12
_MOST_FRAMES = 8
_OF_TORCH = re.compile(r"(?:^|[\\/])torch[\\/]")


def lines_of(
    views: Sequence[View], recorded: Recorded
) -> list[list[tuple[int, int, list[str]]]]:
    """
    At which line did ranks make the calls that matter?

    Each answer costs reading a file once more, so that only one rank of each
    kind is asked, and not of all kinds if there are many.

    Args:
        views: All pictures.

        recorded: What all ranks recorded.

    Returns:
        For each view: kind of rank, column, and stack, innermost line first.
    """
    signatures = Signatures(recorded.dumps.ops, recorded.dumps.shapes)
    left = _MOST
    found = []
    for view in views:
        own = [
            (kind, column, stack)
            for kind, column in list(_wanted(view))[:left]
            if (stack := _stack(view, kind, column, recorded, signatures))
        ]
        left -= len(own)
        found.append(own)

    return found


def _wanted(view: View) -> Iterable[tuple[int, int]]:
    """
    For each kind of rank, the first call that is not well; or the newest.
    """
    order = np.argsort(-np.bincount(view.kind, minlength=len(view.states)))
    for kind in order.tolist():
        states = view.states[kind]
        entered = (
            (states & State.DIFFERS > 0)
            | (states == State.STARTED)
            | (states == State.SCHEDULED)
            | (states == State.FAILED)
        )
        if entered.any():
            yield kind, int(entered.argmax())
        elif (done := states == State.COMPLETED).any():
            yield kind, int(np.flatnonzero(done)[-1])


def _stack(
    view: View,
    kind: int,
    column: int,
    recorded: Recorded,
    signatures: Signatures,
) -> list[str]:
    at = int((view.kind == kind).argmax())
    rank, group = int(view.ranks[at]), int(view.group[at])
    codes = recorded.membership.by_code[rank]
    stream = collective_streams(recorded.dumps[rank], codes, signatures)[group]
    row = int(stream.row[np.searchsorted(stream.seq, view.columns[column])])
    frames = recorded.dumps.frames(rank, [row])[0]
    # What torch does within a call is the same for everyone.
    own = [f for f in frames if not _OF_TORCH.search(f.filename)] or frames
    return [
        clean(str(Location(function=f.name, file=f.filename, line=f.line)))
        for f in own[:_MOST_FRAMES]
    ]
