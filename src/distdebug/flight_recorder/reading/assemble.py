"""
How do the columns of one file join those of the others?

Each file numbers its operations, groups, and shapes on its own.  Here they get
numbers that all ranks share, so that ranks are compared by comparing integers.
"""

from __future__ import annotations

import json
import re
import struct

from array import array
from typing import Any

import numpy as np

from numpy.typing import NDArray

from ..._text import clean
from ...errors import DumpFormatError
from ..columns import (
    Entries,
    Frame,
    GroupConfig,
    GroupStatus,
    RankDump,
    Shapes,
)
from ..sidecar import MOST_RANKS
from .decode import LENGTHS, Message
from .extract import COLUMNS, SHAPE_TEXT
from .files import DumpFile


__all__ = ["Tables", "UnusableError", "infer_rank", "parse_frames"]

# Of the sandbox, which answers with what a hostile file made of it.
_WRONG = (
    *(IndexError, KeyError, OverflowError),
    *(RecursionError, TypeError, ValueError, struct.error),
)

_LONGEST_REASON = 1000

_CODES = {"i": "i4", "q": "i8", "d": "f8"}

_RANKS = re.compile(r"\[\s*(?:[0-9]{1,9}\s*(?:,\s*[0-9]{1,9}\s*)*)?\]")


class UnusableError(DumpFormatError):
    """
    A file is no readable dump.

    Args:
        message: Why not.

        is_alien: Whether it does not even look like one.
    """

    is_alien: bool

    def __init__(self, message: str, *, is_alien: bool) -> None:
        super().__init__(message)
        self.is_alien = is_alien


class Tables:
    """
    The tables that all ranks share, growing file by file.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], int] = {}
        self._ops: dict[str, int] = {}
        self._shapes: dict[str, int] = {}
        # Of each shape: elements that go in and come out, and types.
        self._numbers = array("q")
        self._types: dict[object, int] = {}
        self._ranks: dict[str, tuple[int, ...]] = {}

    @property
    def groups(self) -> tuple[tuple[str, str], ...]:
        """
        Name and description of each group.
        """
        return tuple(self._groups)

    @property
    def ops(self) -> tuple[str, ...]:
        """
        The operations.
        """
        return tuple(self._ops)

    @property
    def shapes(self) -> Shapes:
        """
        The shapes.
        """
        numbers = np.array(self._numbers, np.int64).reshape(-1, 3)
        return Shapes(
            texts=tuple(self._shapes),
            elements=numbers[:, :2],
            types=numbers[:, 2],
        )

    def add(
        self, file: DumpFile, message: Message
    ) -> tuple[RankDump, dict[str, Any]]:
        """
        Make a dump of what the sandbox answered.

        Args:
            file: Where it comes from.  Without a rank, the dump has rank -1.

            message: The answer.

        Returns:
            The dump, and the header of the message.

        Raises:
            UnusableError: The file cannot be used.
        """
        try:
            header, start = _header(message)
            dump = self._dump(file, header, message, start)
        except _WRONG as exc:
            if isinstance(exc, UnusableError):
                raise

            why = clean(str(exc), limit=_LONGEST_REASON)
            msg = f"it was decoded to nonsense: {why}"
            raise UnusableError(msg, is_alien=False) from None

        return dump, header

    def _dump(
        self,
        file: DumpFile,
        header: dict[str, Any],
        message: Message,
        start: int,
    ) -> RankDump:
        entries = self._entries(header, message, start)
        status = {
            int(pg_id): GroupStatus(*map(int, counters))
            for pg_id, counters in dict(header["status"]).items()
        }
        return RankDump(
            rank=-1 if file.rank is None else file.rank,
            path=file.path,
            version=str(header["version"]),
            entries=entries,
            configs=tuple(
                self._config(*config) for config in header["configs"]
            ),
            status=status,
            comm_lib_version=str(header["comm_lib_version"]),
            host=file.host,
            sidecar=file.sidecar,
            written_ns=int(
                1e9 * (file.sidecar.written if file.sidecar else file.modified)
            ),
            wrapped=_is_wrapped(
                entries, status, is_numbered=header["is_numbered"]
            ),
            truncated=bool(header["damage"]),
        )

    def _entries(
        self, header: dict[str, Any], message: Message, start: int
    ) -> Entries:
        raw = _raw_columns(header["count"], message, start)
        kind = raw.pop("kind")
        shapes = self._shape_codes(header)
        kinds = np.array(
            [self._kind(*kind) for kind in header["kinds"]], np.int64
        ).reshape(-1, 7)
        group, pg_id, op, state, retired, is_p2p, timeout_ms = kinds.T
        return Entries(
            shape=_spread(shapes, raw.pop("shape")),
            group=_spread(group.astype(np.int32), kind),
            pg_id=_spread(pg_id.astype(np.int32), kind),
            op=_spread(op.astype(np.int32), kind),
            state=_spread(state.astype(np.int8), kind),
            retired=_spread(retired.astype(np.bool_), kind),
            is_p2p=_spread(is_p2p.astype(np.bool_), kind),
            timeout_ms=_spread(timeout_ms, kind),
            **{name: _kept(column) for name, column in raw.items()},
        )

    def _kind(  # noqa: PLR0913, PLR0917
        self,
        name: str,
        desc: str,
        pg_id: int,
        op: str,
        state: int,
        retired: bool,  # noqa: FBT001
        is_p2p: bool,  # noqa: FBT001
        timeout_ms: int,
    ) -> tuple[int, ...]:
        group = self._groups.setdefault((name, desc), len(self._groups))
        code = self._ops.setdefault(op, len(self._ops))
        return group, pg_id, code, state, retired, is_p2p, timeout_ms

    def _shape_codes(self, header: dict[str, Any]) -> NDArray[np.int32]:
        types = [self._type(*pair) for pair in header["dtypes"]]
        found = zip(
            header["shapes"], *header["elements"], header["types"], strict=True
        )
        codes = []
        for text, given, got, kind in found:
            code = self._shapes.get(text)
            if code is None:
                if not SHAPE_TEXT.fullmatch(text):
                    msg = "no shape"
                    raise ValueError(msg)

                # What does not fit fails before anything is kept of it.
                self._numbers += array("q", (given, got, types[kind]))
                code = self._shapes[text] = len(self._shapes)
            codes.append(code)
        return np.array(codes, np.int32)

    def _type(self, given: list[str], got: list[str]) -> int:
        key = frozenset(given), frozenset(got)
        return self._types.setdefault(key, len(self._types))

    def _config(self, name: str, desc: str, ranks: str) -> GroupConfig:
        # A large job says the same thousands of times.
        members = self._ranks.get(ranks)
        if members is None:
            members = self._ranks[ranks] = _parse_ranks(ranks)

        return GroupConfig(name, desc, members)


def infer_rank(dump: RankDump) -> int | None:
    """
    Whose dump is it, if only one rank is in all of its process groups?
    """
    members = [set(c.ranks) for c in dump.configs if c.ranks]
    common = set.intersection(*members) if members else set()
    return common.pop() if len(common) == 1 else None


def parse_frames(message: Message, count: int) -> list[tuple[Frame, ...]]:
    """
    Make stacks of what the sandbox answered, empty ones if it could not.
    """
    try:
        header, _ = _header(message)
        stacks = [
            tuple(Frame(str(n), str(f), int(line)) for n, f, line in stack)
            for stack in header["frames"]
        ]
    except _WRONG:
        stacks = []
    return stacks if len(stacks) == count else [()] * count


def _header(message: Message) -> tuple[dict[str, Any], int]:
    size, _ = LENGTHS.unpack_from(message)
    start = LENGTHS.size + size
    header: dict[str, Any] = json.loads(message[LENGTHS.size : start])
    if "failure" in header:
        is_alien = header["failure"] == "alien"
        # A hostile file may have taken the child over.
        reason = clean(str(header["reason"]), limit=_LONGEST_REASON)
        raise UnusableError(reason, is_alien=is_alien)

    return header, start


def _raw_columns(
    count: int, message: Message, start: int
) -> dict[str, NDArray[Any]]:
    columns = {}
    for name, code in COLUMNS.items():
        dtype = np.dtype(f"<{_CODES[code]}")
        columns[name] = np.frombuffer(message, dtype, count, start)
        start += count * dtype.itemsize

    return columns


def _spread(values: NDArray[Any], codes: NDArray[np.int32]) -> NDArray[Any]:
    """
    The value of each record; one that all share takes no memory.
    """
    if len(codes) and (values == values[0]).all():
        return np.broadcast_to(values[0], codes.shape)

    return values[codes]


def _kept(column: NDArray[Any]) -> NDArray[Any]:
    """
    A column as it is kept: without memory, if all records have the same.
    """
    # By their bits, as nothing equals what was not measured.
    bits = column.view(f"i{column.itemsize}")
    is_one = len(column) and (bits == bits[0]).all()
    # A copy, because a view would keep the whole message alive.
    own = column[: 1 if is_one else None].astype(
        column.dtype.newbyteorder("=")
    )
    return np.broadcast_to(own, column.shape) if is_one else own


def _parse_ranks(text: str) -> tuple[int, ...]:
    if not _RANKS.fullmatch(text):
        return ()

    ranks = tuple(int(rank) for rank in re.findall("[0-9]+", text))
    return ranks if max(ranks, default=0) < MOST_RANKS else ()


def _is_wrapped(
    entries: Entries, status: dict[int, GroupStatus], *, is_numbered: bool
) -> bool:
    if not len(entries):
        # Idle ranks that dump only what is active write no records at all.
        return any(s.enqueued > 0 for s in status.values())

    if not is_numbered:
        _, first = np.unique(entries.group, return_index=True)
        return bool(entries.seq[first].max() > 1)

    return int(entries.record_id[-1]) >= len(entries)
