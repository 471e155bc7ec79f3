"""
Parse the answers of decoders into dumps that share their tables.

Each file numbers its operations, groups, and shapes on its own.  Here they get
numbers that all ranks share, so that ranks are compared by comparing integers.
"""

from __future__ import annotations

import json
import re
import struct

from array import array
from typing import Any

import attrs
import numpy as np

from numpy.typing import NDArray

from ..._text import clean
from ...errors import DumpFormatError
from ..sidecar import MAX_RANKS
from .columns import (
    COMPLETED,
    SCHEDULED,
    Entries,
    Frame,
    GroupConfig,
    GroupStatus,
    RankDump,
    Shapes,
)
from .decode import LENGTHS, Message
from .extract import COLUMNS, SHAPE_JSON
from .files import DumpFile


# Raised by answers of the sandbox that a malicious file has forged.
_INVALID_ERRORS = (
    *(IndexError, KeyError, OverflowError),
    *(RecursionError, TypeError, ValueError, struct.error),
)

_REASON_LIMIT = 1000
# The watchdog retires calls within 0.1 s of their end.  A call that took less may
# have ended just before the dump.
_UNWATCHED_NS = 5_000_000_000
_UNENDED = (
    ("state", SCHEDULED, np.int8),
    ("started_ns", 0, np.int64),
    ("completed_ns", 0, np.int64),
)

_DTYPES = {"i": "<i4", "q": "<i8", "d": "<f8"}

# Fields of the records that few values are shared for, in their order.
_KIND_DTYPES: dict[str, type] = {
    "group": np.int32,
    "pg_id": np.int32,
    "op": np.int32,
    "state": np.int8,
    "retired": np.bool_,
    "is_p2p": np.bool_,
    "timeout_ms": np.int64,
}

_COUNTERS = frozenset({"record_id", "seq", "p2p_seq", "op_id"})
_SMALL = 1 << 31

_RANKS_TEXT = re.compile(r"\[\s*(?:[0-9]{1,9}\s*(?:,\s*[0-9]{1,9}\s*)*)?\]")


class UnusableError(DumpFormatError):
    """
    A file is not a readable dump.

    Args:
        message: The reason.

        is_foreign: Whether it does not even look like a dump.
    """

    is_foreign: bool

    def __init__(self, message: str, *, is_foreign: bool) -> None:
        super().__init__(message)
        self.is_foreign = is_foreign


class Tables:
    """
    Tables of groups, operations, and shapes that all ranks share.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], int] = {}
        self._ops: dict[str, int] = {}
        self._shapes: dict[str, int] = {}
        # Per shape: input elements, output elements, and code of the types.
        self._elements_and_types = array("q")
        self._types: dict[object, int] = {}
        self._ranks: dict[str, tuple[int, ...]] = {}

    @property
    def groups(self) -> tuple[tuple[str, str], ...]:
        """
        Return name and description of each group.
        """
        return tuple(self._groups)

    @property
    def ops(self) -> tuple[str, ...]:
        """
        Return the operations.
        """
        return tuple(self._ops)

    @property
    def shapes(self) -> Shapes:
        """
        Return the shapes.
        """
        numbers = np.array(self._elements_and_types, np.int64).reshape(-1, 3)
        return Shapes(
            texts=tuple(self._shapes),
            elements=numbers[:, :2],
            types=numbers[:, 2],
        )

    def add(
        self, file: DumpFile, message: Message
    ) -> tuple[RankDump, dict[str, Any]]:
        """
        Parse the answer of a decoder into a dump.

        Args:
            file: The decoded file.  Without a rank, the dump has rank -1.

            message: The answer.

        Returns:
            The dump, and the header of the message.

        Raises:
            UnusableError: The file cannot be used.
        """
        try:
            header, start = _parse_header(message)
            return self._dump(file, header, message, start), header
        except UnusableError:
            raise
        except _INVALID_ERRORS as exc:
            why = clean(str(exc), limit=_REASON_LIMIT)
            msg = f"it was decoded to nonsense: {why}"
            raise UnusableError(msg, is_foreign=False) from None

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
                self._group_config(*config) for config in header["configs"]
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
        raw = _parse_columns(header["count"], message, start)
        kind = raw.pop("kind")
        shapes = self._shape_codes(header)
        kinds = np.array(
            [
                (self._group_code(name, desc), pg_id, self._op_code(op), *rest)
                for name, desc, pg_id, op, *rest in header["kinds"]
            ],
            np.int64,
        ).reshape(-1, len(_KIND_DTYPES))
        entries = Entries(
            shape=_expand(shapes, raw.pop("shape")),
            **{
                name: _expand(values.astype(dtype), kind)
                for (name, dtype), values in zip(
                    _KIND_DTYPES.items(), kinds.T, strict=True
                )
            },
            **{
                name: _compact_column(column, is_counter=name in _COUNTERS)
                for name, column in raw.items()
            },
        )
        return _with_unended_call(entries)

    def _group_code(self, name: str, desc: str) -> int:
        return self._groups.setdefault((name, desc), len(self._groups))

    def _op_code(self, op: str) -> int:
        return self._ops.setdefault(op, len(self._ops))

    def _shape_codes(self, header: dict[str, Any]) -> NDArray[np.int32]:
        types = [self._type_code(*pair) for pair in header["dtypes"]]
        found = zip(
            header["shapes"], *header["elements"], header["types"], strict=True
        )
        codes = []
        for text, inputs, outputs, kind in found:
            if (code := self._shapes.get(text)) is None:
                if not SHAPE_JSON.fullmatch(text):
                    msg = "no shape"
                    raise ValueError(msg)

                # A number out of range fails before anything is stored.
                self._elements_and_types += array(
                    "q", (inputs, outputs, types[kind])
                )
                code = self._shapes[text] = len(self._shapes)
            codes.append(code)
        return np.array(codes, np.int32)

    def _type_code(self, inputs: list[str], outputs: list[str]) -> int:
        key = frozenset(inputs), frozenset(outputs)
        return self._types.setdefault(key, len(self._types))

    def _group_config(self, name: str, desc: str, ranks: str) -> GroupConfig:
        # A large job repeats the same text thousands of times.
        if (members := self._ranks.get(ranks)) is None:
            members = self._ranks[ranks] = _parse_ranks(ranks)
        return GroupConfig(name, desc, members)


def parse_frames(message: Message, count: int) -> list[tuple[Frame, ...]]:
    """
    Parse the stacks of a decoder's answer; return empty ones if it failed.
    """
    try:
        header, _ = _parse_header(message)
        stacks = [
            tuple(Frame(str(n), str(f), int(line)) for n, f, line in stack)
            for stack in header["frames"]
        ]
    except _INVALID_ERRORS:
        stacks = []
    return stacks if len(stacks) == count else [()] * count


def _parse_header(message: Message) -> tuple[dict[str, Any], int]:
    size, _ = LENGTHS.unpack_from(message)
    start = LENGTHS.size + size
    header: dict[str, Any] = json.loads(message[LENGTHS.size : start])
    if "failure" in header:
        is_foreign = header["failure"] == "alien"
        # A malicious file may have taken over the child.
        reason = clean(str(header["reason"]), limit=_REASON_LIMIT)
        raise UnusableError(reason, is_foreign=is_foreign)

    return header, start


def _parse_columns(
    count: int, message: Message, start: int
) -> dict[str, NDArray[Any]]:
    columns = {}
    for name, code in COLUMNS.items():
        columns[name] = np.frombuffer(message, _DTYPES[code], count, start)
        start += columns[name].nbytes
    return columns


def _expand(values: NDArray[Any], codes: NDArray[np.int32]) -> NDArray[Any]:
    """
    Return the value of each record; one that all share takes no memory.
    """
    if len(codes) and (values == values[0]).all():
        return np.broadcast_to(values[0], codes.shape)

    return values[codes]


def _compact_column(column: NDArray[Any], *, is_counter: bool) -> NDArray[Any]:
    """
    Return a copy of a column that takes little memory.

    One with a single value takes none, and a counter half while it is small.
    """
    # Compare bits, as NaN (not measured) equals nothing.
    bits = column.view(f"i{column.itemsize}")
    is_one = len(column) and (bits == bits[0]).all()
    dtype = column.dtype.newbyteorder("=")
    is_small = (
        -_SMALL < column.min(initial=0) <= column.max(initial=0) < _SMALL
    )
    if is_counter and is_small:
        dtype = np.dtype(np.int32)
    # A copy, because a view would keep the whole message alive.
    own = column[: 1 if is_one else None].astype(dtype)
    return np.broadcast_to(own, column.shape) if is_one else own


def _parse_ranks(text: str) -> tuple[int, ...]:
    if not _RANKS_TEXT.fullmatch(text):
        return ()

    ranks = tuple(int(rank) for rank in re.findall("[0-9]+", text))
    return ranks if max(ranks, default=0) < MAX_RANKS else ()


def _with_unended_call(entries: Entries) -> Entries:
    """
    Correct the last call if NCCL still sets it up on the host.

    Its events are not recorded on the GPU yet, and CUDA reports such events as
    done: the dump, which asks, marks the call as completed.  The watchdog, which
    asks ten times a second, would have retired a call that ended.  Seen with
    torch 2.11 and NCCL 2.28 in receives without a sender.
    """
    if not len(entries) or not entries.retired.any():
        return entries

    took_ns = int(entries.completed_ns[-1]) - int(entries.created_ns[-1])
    if (
        entries.state[-1] != COMPLETED
        or entries.retired[-1]
        or took_ns < _UNWATCHED_NS
    ):
        return entries

    corrected: dict[str, Any] = {
        name: np.append(getattr(entries, name)[:-1], value).astype(dtype)
        for name, value, dtype in _UNENDED
    }
    return attrs.evolve(entries, **corrected)


def _is_wrapped(
    entries: Entries, status: dict[int, GroupStatus], *, is_numbered: bool
) -> bool:
    if not len(entries):
        # Idle ranks that dump only active calls write no records at all.
        return any(s.enqueued > 0 for s in status.values())

    if not is_numbered:
        _, first = np.unique(entries.group, return_index=True)
        return bool(entries.seq[first].max() > 1)

    return int(entries.record_id[-1]) >= len(entries)
