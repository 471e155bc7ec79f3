"""
Parse the answers of decoders into dumps that share their tables.

Each file numbers its operations, groups, and shapes on its own.  Here they get
numbers that all ranks share, so that ranks are compared by comparing integers.

All that NCCL Inspector knows are the ranks of communicators, which are mapped to
those of the job.  A process names its host, its PID, and its rank in each
communicator.  Sidecars know processes; otherwise the ranks of the communicator
that most processes have joined are those of the job.
"""

from __future__ import annotations

import json
import re
import struct

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np

from numpy.typing import NDArray

from ..._lazy import late_pattern
from ..._text import clean
from ...errors import DumpFormatError
from ...findings import Missing
from ...ranks import ranks_text
from ..sidecar import MAX_RANKS, Sidecar
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

_RANKS_TEXT = late_pattern(r"\[\s*(?:[0-9]{1,9}\s*(?:,\s*[0-9]{1,9}\s*)*)?\]")


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
        #: Number of each group, by name and description, and of each operation.
        self.groups: dict[tuple[str, str], int] = {}
        self.ops: dict[str, int] = {}
        self._shapes: dict[str, int] = {}
        # Per shape: input elements, output elements, and code of the types.
        self._elements_and_types = array("q")
        self._types: dict[object, int] = {}
        self._ranks: dict[str, tuple[int, ...]] = {}

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
        return self.groups.setdefault((name, desc), len(self.groups))

    def _op_code(self, op: str) -> int:
        return self.ops.setdefault(op, len(self.ops))

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
        columns[name] = np.frombuffer(message, f"<{code}", count, start)
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


_NS_PER_S = 1_000_000_000
# Clocks of hosts differ by less.
_MARGIN_NS = 60 * _NS_PER_S
_NOT_PLACED = (
    "which rank of the job this is, NCCL Inspector does not record, and its "
    "communicators do not show: none spans most processes; put the sidecars of "
    "enable_flight_recorder beside it"
)


class InspectedFile(NamedTuple):
    """
    A file of NCCL Inspector.

    Attributes:
        process: Host and PID.

        ranks: Communicator, rank in it, and number of its ranks.

        dump: Its calls; of no rank yet.
    """

    process: tuple[str, int]
    ranks: tuple[tuple[str, int, int], ...]
    dump: RankDump


def parse_inspected(
    header: Mapping[str, Any], dump: RankDump
) -> InspectedFile | None:
    """
    Return what the decoder says about a file, if it is one of NCCL Inspector.
    """
    try:
        raw = header["inspector"]
        process = str(raw["host"]), int(raw["pid"])
        ranks = tuple(
            (str(name), int(rank), int(size))
            for name, rank, size in raw["ranks"]
        )
    except (LookupError, OverflowError, TypeError, ValueError):
        return None  # a dump, or an answer that was forged

    possible = (own for own in ranks if 0 <= own[1] < own[2] <= MAX_RANKS)
    return InspectedFile(process, tuple(possible), dump)


def place_ranks(
    files: Sequence[InspectedFile],
    sidecars: Iterable[Sidecar],
    groups: Iterable[tuple[str, str]],
) -> tuple[dict[int, RankDump], list[Missing]]:
    """
    Find the rank of each file, and the members of each communicator.

    Args:
        files: All files, perhaps also of earlier runs.

        sidecars: The sidecars of processes.

        groups: Name and description of the groups that records refer to; a
            name begins with the communicator.

    Returns:
        The calls by ascending rank, and why other files are not used.
    """
    current, missing = _drop_earlier(files)
    known = {(s.host, s.pid): s.rank for s in sidecars}
    placed = _place(current, known)
    missing += [
        _missing(f, _NOT_PLACED) for f in current if f.dump.path not in placed
    ]
    by_rank = {
        placed[f.dump.path]: f for f in current if f.dump.path in placed
    }
    members = _find_members(by_rank)
    codes = {
        code: (name, desc, name.partition(" ")[0])
        for code, (name, desc) in enumerate(groups)
    }
    missing += _report_absent(members)
    return {
        rank: _placed_dump(rank, by_rank[rank], members, codes)
        for rank in sorted(by_rank)
    }, missing


def _drop_earlier(
    files: Sequence[InspectedFile],
) -> tuple[list[InspectedFile], list[Missing]]:
    """
    Return the files of the newest run, and why others are not used.
    """
    current: list[InspectedFile] = []
    missing: list[Missing] = []
    timed: list[InspectedFile] = []
    for f in files:
        if len({name for name, *_ in f.ranks}) < len(f.ranks):
            reason = "its process had several ranks of one communicator"
            missing.append(_missing(f, reason))
        elif f.ranks and len(f.dump.entries):
            timed.append(f)
    newest = _newest_start_ns(timed)
    for f in timed:
        if _end_ns(f) < newest - _MARGIN_NS:
            reason = "stale: it ends before other processes begin"
            missing.append(_missing(f, reason))
        else:
            current.append(f)
    return current, missing


def _newest_start_ns(files: Sequence[InspectedFile]) -> int:
    """
    Return since when the newest run is on record; 0 if that is not known.

    Processes that share a communicator are of one run; the clock of a single
    one may be wrong.
    """
    starts: dict[str, list[int]] = defaultdict(list)
    for f in files:
        for name, *_ in f.ranks:
            starts[name].append(int(f.dump.entries.created_ns[0]))
    shared = {name: min(x) for name, x in starts.items() if len(x) > 1}
    own = [[shared.get(name, 0) for name, *_ in f.ranks] for f in files]
    return max((min(filter(None, x), default=0) for x in own), default=0)


def _end_ns(file: InspectedFile) -> int:
    return int(file.dump.entries.created_ns.max(initial=0))


def _place(
    files: Sequence[InspectedFile], known: Mapping[tuple[str, int], int]
) -> dict[str, int]:
    """
    Return the rank of each file by its path, as far as it is known.
    """
    # In containers, all processes of a host may have the same PID.
    seen = Counter(f.process for f in files)
    placed = {
        f.dump.path: known[f.process]
        for f in files
        if f.process in known and seen[f.process] == 1
    }
    if placed:
        return placed
    joined = Counter((name, size) for f in files for name, _, size in f.ranks)
    world = max(joined, key=lambda x: (joined[x], x[1]), default=("", 0))
    if 2 * joined[world] <= len(files):
        return {}
    return {
        f.dump.path: rank
        for f in files
        for name, rank, size in f.ranks
        if (name, size) == world
    }


# By communicator: its known ranks in order, and how many it has.
_Members = dict[str, tuple[tuple[int, ...], int]]


def _find_members(by_rank: Mapping[int, InspectedFile]) -> _Members:
    found: dict[str, dict[int, int]] = defaultdict(dict)
    sizes: dict[str, int] = {}
    for rank, file in by_rank.items():
        for name, own, size in file.ranks:
            found[name][own] = rank
            sizes[name] = size
    return {
        name: (tuple(rank for _, rank in sorted(ranks.items())), sizes[name])
        for name, ranks in found.items()
    }


def _placed_dump(
    rank: int,
    file: InspectedFile,
    members: _Members,
    codes: Mapping[int, tuple[str, str, str]],
) -> RankDump:
    """
    Return the calls of a rank, with the members of its groups.
    """
    entries = file.dump.entries
    used = {
        code: members.get(codes[code][2], ((), 1))
        for code in np.unique(entries.group).tolist()
    }
    whole = [code for code, (x, size) in used.items() if len(x) == size]
    # A transfer names its peer by its rank in the communicator.
    is_kept = ~entries.is_p2p | np.isin(entries.group, whole)
    return attrs.evolve(
        file.dump,
        rank=rank,
        host=file.process[0],
        sidecar=None,
        entries=entries if is_kept.all() else entries.take(is_kept),
        configs=tuple(
            GroupConfig(*codes[code][:2], ranks)
            for code, (ranks, _) in used.items()
        ),
    )


def _report_absent(members: _Members) -> Iterator[Missing]:
    """
    Yield a note for the largest communicator of which files are not there.
    """
    absent = {
        name: size for name, (x, size) in members.items() if len(x) < size
    }
    if absent:
        name = max(absent, key=lambda name: absent[name])
        yield Missing(
            what="calls",
            reason=f"NCCL Inspector left files of "
            f"{ranks_text(sorted(members[name][0]))} only, of {absent[name]:,} "
            f"ranks of communicator {clean(name)}: whether one of the others "
            "is slow is not known",
        )


def _missing(file: InspectedFile, reason: str) -> Missing:
    return Missing(what="calls", reason=reason, source=file.dump.path)
