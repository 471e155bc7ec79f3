"""
At which lines of code did ranks make their calls?
"""

from __future__ import annotations

import re

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...._text import clean
from ....findings import Location
from ....flight_recorder.analysis.operations import Signatures
from ....flight_recorder.analysis.streams import collective_streams
from ....flight_recorder.columns import Frame
from .recorded import Recorded
from .views import View


__all__ = ["Lines", "lines_of"]

_MOST = 12
_MOST_FRAMES = 8
_MOST_STACKS = 1000
_OF_TORCH = re.compile(r"(?:^|[\\/])torch[\\/]")


class Lines(NamedTuple):
    """
    Where the calls of one picture were made, as far as that is known.

    Attributes:
        kinds: Kinds of ranks.

        stacks: For each of them and each column, which of all stacks it is;
            -1 if there is none.
    """

    kinds: tuple[int, ...]
    stacks: tuple[list[int], ...]


def lines_of(
    views: Sequence[View], recorded: Recorded
) -> tuple[list[list[str]], list[Lines]]:
    """
    At which lines did ranks make their calls?

    Stacks are not in memory, and files have to be read once more.  So one rank
    of each kind is asked, and not of all kinds if there are many.

    Args:
        views: All pictures.

        recorded: What all ranks recorded.

    Returns:
        All stacks that differ, innermost line first; and the lines of each
        view.
    """
    asked = _asked(views, recorded)
    wanted: dict[int, set[int]] = defaultdict(set)
    for by_kind in asked:
        for rank, rows in by_kind.values():
            if made := {row for row in rows if row >= 0}:
                wanted[rank] |= made
    frames = recorded.dumps.frames_of(
        {r: sorted(w) for r, w in wanted.items()}
    )

    numbers: dict[tuple[str, ...], int] = {}
    number_at = {
        (rank, row): _number(numbers, stack)
        for rank, stacks in frames.items()
        for row, stack in zip(sorted(wanted[rank]), stacks, strict=True)
    }
    lines = [_lines(by_kind, number_at) for by_kind in asked]
    return [list(stack) for stack in numbers], lines


def _lines(
    asked: Mapping[int, tuple[int, list[int]]],
    number_at: Mapping[tuple[int, int], int],
) -> Lines:
    found = {
        kind: [number_at.get((rank, row), -1) for row in rows]
        for kind, (rank, rows) in asked.items()
    }
    known = {k: s for k, s in found.items() if max(s, default=-1) >= 0}
    return Lines(tuple(known), tuple(known.values()))


def _asked(
    views: Sequence[View], recorded: Recorded
) -> list[dict[int, tuple[int, list[int]]]]:
    """
    Whom to ask for what: for each view, by kind, a rank and its records.
    """
    signatures = Signatures(recorded.dumps.ops, recorded.dumps.shapes)
    left = _MOST
    asked = []
    for view in views:
        members = np.bincount(view.kind, minlength=len(view.states))
        kinds = np.argsort(-members, kind="stable")[:left].tolist()
        left -= len(kinds)
        asked.append({k: _rows(view, k, recorded, signatures) for k in kinds})
    return asked


def _rows(
    view: View, kind: int, recorded: Recorded, signatures: Signatures
) -> tuple[int, list[int]]:
    """
    A rank of this kind, and its record for each column; -1 if it has none.
    """
    at = int((view.kind == kind).argmax())
    rank, group = int(view.ranks[at]), int(view.group[at])
    if rank not in recorded.dumps.by_rank:
        return rank, []

    codes = recorded.membership.by_code[rank]
    streams = collective_streams(recorded.dumps[rank], codes, signatures)
    if group not in streams:
        return rank, []

    stream = streams[group]
    row_of = dict(zip(stream.seq.tolist(), stream.row.tolist(), strict=True))
    return rank, [row_of.get(seq, -1) for seq in view.columns.tolist()]


def _number(
    numbers: dict[tuple[str, ...], int], frames: Sequence[Frame]
) -> int:
    """
    The number of a stack among the different ones; -1 if it is empty.
    """
    # What torch does within a call is the same for everyone.
    own = [f for f in frames if not _OF_TORCH.search(f.filename)] or frames
    stack = tuple(
        clean(str(Location(function=f.name, file=f.filename, line=f.line)))
        for f in own[:_MOST_FRAMES]
    )
    if not stack or (stack not in numbers and len(numbers) >= _MOST_STACKS):
        return -1
    return numbers.setdefault(stack, len(numbers))
