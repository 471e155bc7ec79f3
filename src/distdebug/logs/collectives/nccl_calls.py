"""
Keep the last calls of each NCCL communicator: a log may print millions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from numpy.typing import NDArray

from ..._search import Places
from ..engine import Block
from ..lines import LONGEST_LINE


_MAX_CALLS = 32
_MAX_COMMUNICATORS = 1 << 16
_CALL = b" opcount "
_COMMUNICATOR = b" comm 0x"
#: The words by which calls are found.
CALL_WORDS = frozenset({_CALL, _COMMUNICATOR})
# A line is: host:pid:tid [device] NCCL INFO Name: opCount ... comm 0x1 ...
_NAME_BYTES, _PREFIX_BYTES = 32, 48
# Blanks between host and INFO.
_PREFIX_BLANKS = 3
_ARGUMENT_BYTES, _POINTER_BYTES = 256, 16
_BLANK = ord(" ")
_MULTIPLIERS = np.array(
    [
        *(0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9),
        *(0x27D4EB2F165667C5, 0x85EBCA77C2B2AE63, 0xFF51AFD7ED558CCD),
        *(0x94D049BB133111EB, 0xBF58476D1CE4E5B9),
    ],
    np.uint64,
)


class Call(NamedTuple):
    """
    A line about a call of NCCL.

    Attributes:
        number: The number of the line.

        line: The line, in bytes.

        source: The file.

        rank: The rank of the file; ``None`` if unknown.

        attempt: How many times the job was restarted before.
    """

    number: int
    line: bytes
    source: str
    rank: int | None
    attempt: int


def is_call(line: str) -> bool:
    """
    Return whether a line is about a call of NCCL.
    """
    # A message of a watchdog may quote a call.
    return " opCount " in line and "SeqNum=" not in line


class _Part(NamedTuple):
    """
    The last calls in a part of a block: where they stand, by communicator.
    """

    block: Block
    places: dict[bytes, list[int]]
    source: str
    rank: int | None
    attempt: int

    def supersedes(self, other: _Part, key: bytes) -> int:
        """
        Return how many calls of a communicator it has that come later.
        """
        is_same = self[2:] == other[2:]
        return len(self.places.get(key, ())) if is_same else 0


class LastCalls:
    """
    The last calls of each communicator, with bounded memory.

    Most calls of a part are superseded by those of the next one, and their
    lines are never cut out.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[int, bytes], deque[Call]] = {}
        self._part: _Part | None = None

    def __iter__(self) -> Iterator[Call]:
        self._keep(None)
        for calls in self._calls.values():
            yield from calls

    def add(
        self,
        block: Block,
        span: tuple[int, int],
        source: str,
        rank: int | None,
        attempt: int,
    ) -> None:
        """
        Add the calls in a part of a block.

        Args:
            span: Where the part begins and ends in the data of the block.
        """
        places = block.places_of(_CALL, span)
        if places.size:
            pointers = block.places_of(_COMMUNICATOR, span)
            last = dict(_last_of_communicators(block, places, pointers))
            self._keep(_Part(block, last, source, rank, attempt))

    def _keep(self, new: _Part | None) -> None:
        """
        Keep of the newest part what another one does not supersede.
        """
        old, self._part = self._part, new
        if old is None:
            return
        kept: list[tuple[int, deque[Call]]] = []
        for key, places in old.places.items():
            most = _MAX_CALLS - (new.supersedes(old, key) if new else 0)
            calls = self._calls.get((old.attempt, key))
            if calls is None and len(self._calls) < _MAX_COMMUNICATORS:
                calls = deque(maxlen=_MAX_CALLS)
                self._calls[old.attempt, key] = calls
            if calls is not None and most > 0:
                kept += ((at, calls) for at in places[-most:])
        kept.sort(key=lambda x: x[0])
        lines = old.block.lines_at([at for at, _ in kept], LONGEST_LINE)
        for (_, calls), (number, line) in zip(kept, lines, strict=True):
            calls.append(Call(number, line, *old[2:]))


def _last_of_communicators(
    block: Block, places: Places, pointers: Places
) -> Iterator[tuple[bytes, list[int]]]:
    """
    Yield a key of each communicator, and the places of its last calls.
    """
    rows = _keys(np.frombuffer(block.data, np.uint8), places, pointers)
    hashed = (rows.view(np.uint64) * _MULTIPLIERS).sum(axis=1, dtype=np.uint64)
    order = np.argsort(hashed, kind="stable")
    ends = np.flatnonzero(np.diff(hashed[order])) + 1
    for of_one in np.split(order, ends):
        key = rows[of_one[0]].tobytes()
        yield key, places[of_one[-_MAX_CALLS:]].tolist()


def _keys(
    data: NDArray[np.uint8], places: Places, pointers: Places
) -> NDArray[np.uint8]:
    """
    Return a row of bytes per call that identifies process and communicator.

    Before the process may stand a time, which does not count.
    """
    name = _window(data, places, -_NAME_BYTES)
    ends = places - np.argmax(name[:, ::-1] <= _BLANK, axis=1)
    prefix = _window(data, ends, -_PREFIX_BYTES)
    blanks = np.cumsum((prefix <= _BLANK)[:, ::-1], axis=1)[:, ::-1]
    following = np.append(pointers, data.size)
    starts = following[following.searchsorted(places)]
    pointer = _window(data, starts + len(_COMMUNICATOR), _POINTER_BYTES)
    is_behind = np.cumsum(pointer <= _BLANK, axis=1) > 0
    is_behind[starts - places > _ARGUMENT_BYTES] = True
    return np.concatenate(
        (
            np.where(blanks <= _PREFIX_BLANKS, prefix, 0),
            np.where(is_behind, 0, pointer),
        ),
        axis=1,
        dtype=np.uint8,
    )


def _window(
    data: NDArray[np.uint8], places: Places, size: int
) -> NDArray[np.uint8]:
    """
    Return the bytes behind some places, or before them if *size* is negative.
    """
    at = places[:, None] + np.arange(min(size, 0), max(size, 0))
    found: NDArray[np.uint8] = data.take(at, mode="clip")
    found[at < 0] = _BLANK
    return found
