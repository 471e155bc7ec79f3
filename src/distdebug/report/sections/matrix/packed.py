"""
How do millions of cells travel within a page?

Numbers are bytes, deflated and written in base64; texts are JSON.  Rows that
are alike are written once, so a thousand ranks take a few kilobytes.
"""

from __future__ import annotations

import zlib

from base64 import b64encode
from collections.abc import Iterable
from typing import Any

import numpy as np

from numpy.typing import NDArray

from ...._text import clean
from ....flight_recorder.tables import shape_texts
from ..graph.words import many_ranks
from .lateness import STEPS, Lateness
from .lines import Lines
from .recorded import Recorded
from .views import View


__all__ = ["packed_calls", "packed_view"]

_MOST_CALLS = 20_000
_MOST_OTHERS = 20_000
_MOST_GROUPS = 4096


class _Blob:
    """
    Arrays one after the other, each at a multiple of four bytes.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, values: NDArray[Any], kind: str) -> list[Any]:
        """
        Add an array; returns where it lies, for the script.
        """
        data = np.ascontiguousarray(
            values, {"u8": "u1", "u32": "<u4"}[kind]
        ).tobytes()
        place = [kind, self._size, values.size]
        self._parts += [data, bytes(-len(data) % 4)]
        self._size += len(data) + -len(data) % 4
        return place

    def text(self) -> str:
        """
        All of it, deflated, as text.
        """
        packer = zlib.compressobj(6)
        data = b"".join(map(packer.compress, self._parts)) + packer.flush()
        return b64encode(data).decode()


def packed_calls(
    views: Iterable[View], recorded: Recorded
) -> tuple[list[list[str]], NDArray[np.int64]]:
    """
    Which calls do the pictures mention?

    Args:
        views: All pictures.

        recorded: What all ranks recorded.

    Returns:
        Operation, inputs, and outputs of each; and the codes that stand for
        them in the views, ascending.
    """
    codes = np.unique(
        np.concatenate(
            [np.empty(0, np.int64)]
            + [view.programs.ravel() for view in views]
            + [
                np.fromiter(view.other_calls.values(), np.int64)
                for view in views
            ]
        )
    )
    codes = codes[codes >= 0][:_MOST_CALLS]
    dumps = recorded.dumps
    width = max(len(dumps.shapes), 1)
    return [
        [clean(dumps.ops[c // width]), *shape_texts(dumps.shapes[c % width])]
        for c in codes.tolist()
    ], codes


def packed_view(  # noqa: PLR0913
    view: View,
    recorded: Recorded,
    codes: NDArray[np.int64],
    *,
    lateness: Lateness | None,
    focus: tuple[int, int],
    lines: Lines,
) -> dict[str, Any]:
    """
    What does a script need to draw a picture?

    Args:
        view: The picture.

        recorded: What all ranks recorded.

        codes: What :func:`packed_calls` returned.

        lateness: How late ranks came, if that is known.

        focus: The row and the column to look at first.

        lines: Where the calls of some kinds of ranks were made.

    Returns:
        Plain data.
    """
    blob = _Blob()
    place_of = {group: i for i, group in enumerate(view.groups)}
    groups = np.vectorize(place_of.__getitem__, [np.int64])(view.group)
    return {
        "name": clean(view.name),
        "cut": view.cut,
        "rows": len(view.ranks),
        "kinds": len(view.states),
        "focus": list(focus),
        "columns": blob.add(view.columns, "u32"),
        "ranks": blob.add(view.ranks, "u32"),
        "group": blob.add(groups, "u32"),
        "kind": blob.add(view.kind, "u32"),
        "states": blob.add(view.states, "u8"),
        "program": list(view.program),
        "programs": blob.add(_renumbered(view.programs, codes), "u32"),
        "others": [
            [kind, column, int(_renumbered(np.array([call]), codes)[0])]
            for (kind, column), call in [*view.other_calls.items()][
                :_MOST_OTHERS
            ]
        ],
        "groups": _groups(view, recorded),
        "traced": list(lines.kinds),
        "stacks": blob.add(np.array(lines.stacks, np.int64), "u32"),
        "late": None if lateness is None else _late(lateness, blob),
        "blob": blob.text(),
    }


def _groups(view: View, recorded: Recorded) -> list[list[Any]]:
    known = recorded.membership.groups
    return [
        [
            clean(known[g].name),
            clean(str(known[g].ref)),
            many_ranks(sorted(known[g].order)) if i < _MOST_GROUPS else "",
        ]
        for i, g in enumerate(view.groups)
    ]


def _late(lateness: Lateness, blob: _Blob) -> dict[str, Any]:
    return {
        "start": lateness.start,
        "steps": STEPS,
        "late": blob.add(lateness.late, "u8"),
        "typical": blob.add(lateness.typical, "u8"),
        "pause": blob.add(lateness.pause, "u8"),
        "clocks": lateness.clocks,
        "doubt_ms": round(lateness.doubt_ns / 1e6, 3),
    }


def _renumbered(
    calls: NDArray[np.int64], codes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """
    Positions in *codes*; the largest number stands for none.
    """
    none = 0xFFFFFFFF
    if not len(codes):
        return np.full(calls.shape, none)

    at = np.minimum(np.searchsorted(codes, calls), len(codes) - 1)
    found: NDArray[np.int64] = np.where(codes[at] == calls, at, none)
    return found
