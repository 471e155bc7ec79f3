"""
Assemble decoded files into dumps: choose one per rank, reject stale ones.

Each file numbers its operations, groups, and shapes on its own.  Here they get
numbers that all ranks share, so that ranks are compared by comparing integers.
"""

from __future__ import annotations

import json
import re
import struct

from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePath
from statistics import median
from typing import Any, NamedTuple

import attrs
import numpy as np

from numpy.typing import NDArray

from ..._text import clean
from ...errors import DumpFormatError
from ...findings import Missing
from ..sidecar import MAX_RANKS, Sidecar
from .columns import (
    COMPLETED,
    Entries,
    Frame,
    GroupConfig,
    GroupStatus,
    RankDump,
    Shapes,
)
from .decode import LENGTHS, Message
from .extract import COLUMNS, SHAPE_JSON
from .files import DumpFile, FoundFiles


# Raised by answers of the sandbox that a malicious file has forged.
_INVALID_ERRORS = (
    *(IndexError, KeyError, OverflowError),
    *(RecursionError, TypeError, ValueError, struct.error),
)

_REASON_LIMIT = 1000

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
        return Entries(
            shape=_expand(shapes, raw.pop("shape")),
            **{
                name: _expand(values.astype(dtype), kind)
                for (name, dtype), values in zip(
                    _KIND_DTYPES.items(), kinds.T, strict=True
                )
            },
            **{name: _compact_column(column) for name, column in raw.items()},
        )

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


def infer_rank(file: DumpFile, dump: RankDump) -> int | None:
    """
    Return the rank of a dump.

    A rank is in all process groups that its dump lists.  If the number in the
    name of the file is not, the files are numbered on each node anew.
    """
    if file.sidecar is not None:
        return file.rank

    members = [set(c.ranks) for c in dump.configs if c.ranks]
    common = set.intersection(*members) if members else set()
    if file.rank is not None and (file.rank in common or len(common) != 1):
        return file.rank
    return common.pop() if len(common) == 1 else None


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


def _compact_column(column: NDArray[Any]) -> NDArray[Any]:
    """
    Return a copy of a column; one with a single value takes no memory.
    """
    # Compare bits, as NaN (not measured) equals nothing.
    bits = column.view(f"i{column.itemsize}")
    is_one = len(column) and (bits == bits[0]).all()
    # A copy, because a view would keep the whole message alive.
    own = column[: 1 if is_one else None].astype(
        column.dtype.newbyteorder("=")
    )
    return np.broadcast_to(own, column.shape) if is_one else own


def _parse_ranks(text: str) -> tuple[int, ...]:
    if not _RANKS_TEXT.fullmatch(text):
        return ()

    ranks = tuple(int(rank) for rank in re.findall("[0-9]+", text))
    return ranks if max(ranks, default=0) < MAX_RANKS else ()


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

# Clocks differ by seconds, and the last record may be a minute old.
_STALE_MARGIN_NS = 60 * _NS_PER_S

# A larger margin where the ring lost the oldest records.
_WRAPPED_STALE_MARGIN_NS = 600 * _NS_PER_S

# Timeout of calls where the dump has none.
_DEFAULT_TIMEOUT_NS = 1800 * _NS_PER_S

# A suspect is compared with at most this many other dumps.
_MAX_REFERENCES = 16


def current_job(sidecars: Iterable[Sidecar]) -> str:
    """
    Return the identifier of the newest run, or ``""`` if there is none.
    """
    started = defaultdict(list)
    for sidecar in sidecars:
        if sidecar.job:
            started[sidecar.job].append(sidecar.started)

    # The median, because the clock of one host may be wrong.
    return max(started, key=lambda job: median(started[job]), default="")


def find_stale(dumps: Sequence[RankDump]) -> dict[int, float]:
    """
    Find dumps of an earlier run by their timestamps.

    The majority decides which run is the current one.

    Args:
        dumps: One per rank.

    Returns:
        By rank, how many seconds the dump is older than the others.
    """
    ends = {d.rank: d.last_activity_ns for d in dumps if len(d.entries)}
    if len(ends) < 3:
        return {}

    newest = median(ends.values())
    suspects = [
        d for d in dumps if 0 < ends.get(d.rank, 0) < newest - _STALE_MARGIN_NS
    ]
    others = [
        d for d in dumps if ends.get(d.rank, 0) >= newest - _STALE_MARGIN_NS
    ]
    references = others[:: len(others) // _MAX_REFERENCES + 1]
    return {
        d.rank: (newest - ends[d.rank]) / _NS_PER_S
        for d in suspects
        if d.sidecar is None and _is_stale(d, ends[d.rank], references)
    }


def _is_stale(
    dump: RankDump, end: int, references: Sequence[RankDump]
) -> bool:
    whole = [w for w in references if not w.wrapped]
    margin = (
        _STALE_MARGIN_NS
        if len(whole) * 2 > len(references)
        else _WRAPPED_STALE_MARGIN_NS
    )
    gaps = [_entry_gap_ns(dump.entries, w.entries) for w in references]
    known_gaps = [gap for gap in gaps if gap is not None]
    if known_gaps:
        return bool(median(known_gaps) > margin)

    # Without common calls, only the distance in time is left.
    firsts = [int(w.entries.created_ns[0]) for w in whole]
    return len(whole) * 2 > len(references) and end + margin + _timeout_ns(
        dump.entries
    ) < median(firsts)


def _entry_gap_ns(one: Entries, other: Entries) -> int | None:
    """
    Return by how many nanoseconds *one* entered the same calls earlier.

    A rank can enter one call long before the others, and wait there; so the
    call that they entered most closely together counts.  If the rank left only
    that one, it may have waited there until the timeout.
    """
    keys, rows, other_rows = np.intersect1d(
        _collective_keys(one), _collective_keys(other), return_indices=True
    )
    rows, other_rows = rows[keys >= 0], other_rows[keys >= 0]
    if not len(rows):
        return None

    left = (one.state[rows] == COMPLETED) | one.retired[rows]
    seen = np.maximum(one.created_ns[rows], one.completed_ns[rows])
    gaps = other.created_ns[other_rows] - seen
    if np.count_nonzero(left) > 1:
        return int(gaps[left].min())

    return int(gaps.min()) - _timeout_ns(one)


def _collective_keys(entries: Entries) -> NDArray[np.int64]:
    """
    Return a number per call that all ranks share; -1 for point-to-point calls.
    """
    keys = entries.group.astype(np.int64) << 40 | entries.seq & (1 << 40) - 1
    return np.where(entries.is_p2p, -1, keys)


def _timeout_ns(entries: Entries) -> int:
    """
    Return how long the calls wait for other ranks, in nanoseconds.
    """
    limit = int(entries.timeout_ms.max(initial=0)) * 1_000_000
    return limit if limit > 0 else _DEFAULT_TIMEOUT_NS


class ReadPlan(NamedTuple):
    """
    The files to read.

    Attributes:
        chains: Lists of files; the first readable one of each is used.

        sidecars: The newest sidecar of each rank.

        earlier: Earlier sidecars of the same process, oldest first.

        problems: Why other files are not read.

        skipped: How many dumps belong to ranks that are not selected.
    """

    chains: list[list[DumpFile]]
    sidecars: dict[int, Sidecar]
    earlier: dict[int, tuple[Sidecar, ...]]
    problems: list[Missing]
    skipped: int


class DecodedFile(NamedTuple):
    """
    A file that was read.

    Attributes:
        file: Its path and name.

        dump: Its content.

        unreadable: How many of its records could not be read.

        damage: Why decoding stopped early, or ``""``.
    """

    file: DumpFile
    dump: RankDump
    unreadable: int
    damage: str


def plan_reading(found: FoundFiles, ranks: Collection[int] | None) -> ReadPlan:
    """
    Choose the files to read, by their names and sidecars.

    Args:
        ranks: The ranks to read; `None` for all.
    """
    jobs = {"", current_job(found.sidecars)}
    selected = [f for f in found.files if _is_selected(f.rank, ranks)]
    sidecars: dict[int, list[Sidecar]] = defaultdict(list)
    for s in sorted(found.sidecars, key=lambda s: (s.rank, *_recency(s))):
        if s.job in jobs and _is_selected(s.rank, ranks):
            sidecars[s.rank].append(s)
    chains, problems = _chain_files(selected, jobs)
    return ReadPlan(
        chains=chains,
        sidecars={rank: of_rank[-1] for rank, of_rank in sidecars.items()},
        earlier={
            rank: tuple(s for s in older if s.process == newest.process)
            for rank, (*older, newest) in sidecars.items()
        },
        problems=problems,
        skipped=sum(
            f.is_expected
            for f in found.files
            if not _is_selected(f.rank, ranks)
        ),
    )


def _chain_files(
    files: Iterable[DumpFile], jobs: Collection[str]
) -> tuple[list[list[DumpFile]], list[Missing]]:
    """
    Return the files of each rank, newest first, and why others are stale.
    """
    chains: dict[int | str, list[DumpFile]] = defaultdict(list)
    problems = []
    for file in files:
        if file.sidecar is None:
            chains[file.path].append(file)
        elif file.sidecar.job in jobs:
            chains[file.sidecar.rank].append(file)
        else:
            reason = "stale: an earlier run of the job left it"
            problems.append(_missing_dump(file, reason))

    for chain in chains.values():
        chain.sort(key=lambda file: _recency(file.sidecar), reverse=True)
        reason = f"stale: {_file_name(chain[0])} is of a later process"
        problems += [
            _missing_dump(file, reason)
            for file in chain[1:]
            if _process(file) != _process(chain[0])
        ]
    return list(chains.values()), problems


def choose_dumps(
    decoded: Iterable[DecodedFile],
) -> tuple[dict[int, RankDump], list[Missing]]:
    """
    Choose one dump per rank, and none of an earlier run.

    Returns:
        The dumps by ascending rank, and why others were not chosen.
    """
    problems = []
    candidates = defaultdict(list)
    for one in decoded:
        rank = infer_rank(one.file, one.dump)
        if rank is None:
            problems.append(_missing_dump(one.file, _NO_RANK))
        else:
            dump = attrs.evolve(one.dump, rank=rank)
            candidates[rank].append(one._replace(dump=dump))

    by_rank = {}
    for rank, rivals in sorted(candidates.items()):
        best = max(rivals, key=_preference)
        by_rank[rank] = best.dump
        problems += [
            _missing_dump(r.file, _reason_against(r.file, best.file), rank)
            for r in rivals
            if r is not best and not _is_same_dump(r, best)
        ]

    for rank, seconds in find_stale(list(by_rank.values())).items():
        reason = (
            f"stale: its last record is {seconds:,.0f} s before the others"
        )
        path = by_rank.pop(rank).path
        problems.append(
            Missing(what="dump", reason=reason, rank=rank, source=path)
        )
    return by_rank, problems


def report_failures(
    failed: Sequence[tuple[DumpFile, UnusableError]],
    decoded: Sequence[DecodedFile],
) -> list[Missing]:
    """
    List files that are broken, but not foreign files, which need not be dumps.

    Args:
        failed: Files that could not be read.

        decoded: Files that could; they show the naming pattern of the job.
    """
    families = {one.file.name.family for one in decoded}
    return [
        _missing_dump(file, str(failure))
        for file, failure in failed
        if not failure.is_foreign
        or file.sidecar is not None
        or file.name.family in families
        or (file.name.is_dump_like and not families)
    ]


def report_damage(decoded: Iterable[DecodedFile]) -> list[Missing]:
    """
    List files of which only a part could be read.
    """
    problems = []
    for one in decoded:
        count = len(one.dump.entries)
        if one.damage:
            reason = f"damaged: only {count:,} records could be read: "
            problems.append(_missing_dump(one.file, reason + one.damage))
        if one.unreadable:
            reason = (
                f"{one.unreadable:,} of {count + one.unreadable:,} records "
                "cannot be read"
            )
            problems.append(_missing_dump(one.file, reason))

    return problems


_NO_RANK = (
    "neither its name nor its content tells the rank: name it like rank_3"
)


def _is_selected(rank: int | None, ranks: Collection[int] | None) -> bool:
    return ranks is None or rank is None or rank in ranks


def _recency(sidecar: Sidecar | None) -> tuple[float, float]:
    return (sidecar.started, sidecar.written) if sidecar else (0.0, 0.0)


def _process(file: DumpFile) -> tuple[object, ...] | None:
    return file.sidecar.process if file.sidecar else None


def _preference(one: DecodedFile) -> tuple[object, ...]:
    return (
        *_recency(one.file.sidecar),
        one.dump.last_activity_ns,
        len(one.dump.entries),
        # A copy of the dump in JSON has no stacks.
        ".json" not in one.file.path.lower(),
        one.file.modified,
        one.file.path,
    )


def _is_same_dump(one: DecodedFile, other: DecodedFile) -> bool:
    """
    Return whether one file only repeats the other in another format.
    """
    first, second = (
        (_process(d.file), d.dump.last_activity_ns, len(d.dump.entries))
        for d in (one, other)
    )
    return first == second


def _missing_dump(
    file: DumpFile, reason: str, rank: int | None = None
) -> Missing:
    return Missing(
        what="dump",
        reason=clean(reason),
        rank=file.rank if rank is None else rank,
        source=file.path,
    )


def _reason_against(file: DumpFile, best: DumpFile) -> str:
    """
    Return why a dump is not used where there is another one of the same rank.
    """
    is_elsewhere = PurePath(file.path).parent != PurePath(best.path).parent
    if is_elsewhere and not (file.sidecar or best.sidecar):
        return (
            f"not used: {best.path} is newer; if that is of another node, name "
            "the files by their rank in the whole job"
        )
    return f"not used: {_file_name(best)} is newer"


def _file_name(file: DumpFile) -> str:
    return PurePath(file.path).name
