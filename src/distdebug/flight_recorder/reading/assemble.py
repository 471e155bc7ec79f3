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
from ..sidecar import MOST_RANKS, Sidecar
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
from .extract import COLUMNS, SHAPE_TEXT
from .files import DumpFile, Found


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


_SECOND = 1_000_000_000

# Clocks differ by seconds, and what is written last may be a minute old.
_MARGIN_NS = 60 * _SECOND

# Where the ring lost the beginning, less is certain.
_WRAPPED_MARGIN_NS = 600 * _SECOND

# How long calls may wait for others if the dump does not say.
_PATIENCE_NS = 1800 * _SECOND

# A stale dump is compared with that many others.
_WITNESSES = 16


def current_job(sidecars: Iterable[Sidecar]) -> str:
    """
    Which run is the newest?

    Args:
        sidecars: Of any runs.

    Returns:
        Its identifier, or ``""`` if there is none.
    """
    started = defaultdict(list)
    for sidecar in sidecars:
        if sidecar.job:
            started[sidecar.job].append(sidecar.started)

    # The median, because the clock of one host may be wrong.
    return max(started, key=lambda job: median(started[job]), default="")


def find_stale(dumps: Sequence[RankDump]) -> dict[int, float]:
    """
    Find dumps of an earlier run by the times in them.

    The majority decides which run is the current one.

    Args:
        dumps: One per rank.

    Returns:
        By rank, how many seconds the dump is older than the others.
    """
    ends = {d.rank: last_activity(d) for d in dumps if len(d.entries)}
    if len(ends) < 3:
        return {}

    newest = median(ends.values())
    suspects = [
        d for d in dumps if 0 < ends.get(d.rank, 0) < newest - _MARGIN_NS
    ]
    others = [d for d in dumps if ends.get(d.rank, 0) >= newest - _MARGIN_NS]
    witnesses = others[:: len(others) // _WITNESSES + 1]
    return {
        d.rank: (newest - ends[d.rank]) / _SECOND
        for d in suspects
        if d.sidecar is None and _is_stale(d, ends[d.rank], witnesses)
    }


def last_activity(dump: RankDump) -> int:
    """
    When was the last thing recorded, in nanoseconds since the epoch?
    """
    e = dump.entries
    if not len(e):
        return 0

    return int(
        max(e.created_ns.max(), e.started_ns.max(), e.completed_ns.max())
    )


def _is_stale(dump: RankDump, end: int, witnesses: Sequence[RankDump]) -> bool:
    whole = [w for w in witnesses if not w.wrapped]
    margin = (
        _MARGIN_NS if len(whole) * 2 > len(witnesses) else _WRAPPED_MARGIN_NS
    )
    gaps = [_gap(dump.entries, w.entries) for w in witnesses]
    told = [gap for gap in gaps if gap is not None]
    if told:
        return bool(median(told) > margin)

    # They have no calls in common, so only the distance in time is left.
    firsts = [int(w.entries.created_ns[0]) for w in whole]
    return len(whole) * 2 > len(witnesses) and end + margin + _patience(
        dump.entries
    ) < median(firsts)


def _gap(one: Entries, other: Entries) -> int | None:
    """
    By how many nanoseconds did *one* enter the same calls earlier?

    A rank can enter one call long before the others, and wait there; so what
    counts is the call that they entered most closely together.  If that is
    the only one that was left, it may have waited as long as it had patience.
    """
    rows, other_rows = _common(one, other)
    if not len(rows):
        return None

    left = (one.state[rows] == COMPLETED) | one.retired[rows]
    seen = np.maximum(one.created_ns[rows], one.completed_ns[rows])
    gaps = other.created_ns[other_rows] - seen
    if np.count_nonzero(left) > 1:
        return int(gaps[left].min())

    return int(gaps.min()) - _patience(one)


def _common(one: Entries, other: Entries) -> tuple[NDArray[np.int64], ...]:
    """
    The rows at which two ranks recorded the same collectives.
    """
    _, rows, other_rows = np.intersect1d(
        _keys(one), _keys(other), return_indices=True
    )
    # What has no collective number was replaced by -1.
    is_call = (_keys(one)[rows] >= 0) if len(rows) else rows.astype(np.bool_)
    return rows[is_call], other_rows[is_call]


def _keys(entries: Entries) -> NDArray[np.int64]:
    keys = entries.group.astype(np.int64) << 40 | entries.seq & (1 << 40) - 1
    return np.where(entries.is_p2p, -1, keys)


def _patience(entries: Entries) -> int:
    """
    How long would its calls have waited for others, in nanoseconds?
    """
    limit = int(entries.timeout_ms.max(initial=0)) * 1_000_000
    return limit if limit > 0 else _PATIENCE_NS


class Plan(NamedTuple):
    """
    What should be read?

    Attributes:
        chains: Files of which the first readable one is wanted.

        sidecars: The newest side-car of each rank.

        earlier: Those that the same process wrote before, oldest first.

        problems: Why other files are not read.

        skipped: How many dumps belong to ranks that are not wanted.
    """

    chains: list[list[DumpFile]]
    sidecars: dict[int, Sidecar]
    earlier: dict[int, tuple[Sidecar, ...]]
    problems: list[Missing]
    skipped: int


class Decoded(NamedTuple):
    """
    A file that was read.

    Attributes:
        file: Where it lies.

        dump: What it holds.

        unreadable: How many of its records are not.

        damage: Why there are not more.
    """

    file: DumpFile
    dump: RankDump
    unreadable: int
    damage: str


def plan_reading(found: Found, wanted: Collection[int] | None) -> Plan:
    """
    Decide which files to read, by their names and side-cars.

    Args:
        found: What there is.

        wanted: The ranks to read; `None` for all.
    """
    job = current_job(found.sidecars)
    chains: dict[int | str, list[DumpFile]] = defaultdict(list)
    problems = []
    skipped = 0
    for file in found.files:
        if not _is_wanted(file.rank, wanted):
            skipped += file.is_expected
        elif file.sidecar is None:
            chains[file.path].append(file)
        elif file.sidecar.job in {"", job}:
            chains[file.sidecar.rank].append(file)
        else:
            problems.append(
                _problem(file, "stale: an earlier run of the job left it")
            )

    for chain in chains.values():
        chain.sort(key=lambda file: _age(file.sidecar), reverse=True)
        problems += [
            _problem(file, f"stale: {_name(chain[0])} is of a later process")
            for file in chain[1:]
            if _process(file) != _process(chain[0])
        ]

    notes: dict[int, list[Sidecar]] = defaultdict(list)
    for s in sorted(found.sidecars, key=lambda s: (s.rank, *_age(s))):
        if s.job in {"", job} and _is_wanted(s.rank, wanted):
            notes[s.rank].append(s)
    return Plan(
        chains=list(chains.values()),
        sidecars={rank: of_rank[-1] for rank, of_rank in notes.items()},
        earlier={
            rank: tuple(s for s in of_rank[:-1] if _is_same(s, of_rank[-1]))
            for rank, of_rank in notes.items()
        },
        problems=problems,
        skipped=skipped,
    )


def choose_dumps(
    decoded: Iterable[Decoded],
) -> tuple[dict[int, RankDump], list[Missing]]:
    """
    Choose one dump per rank, and none of an earlier run.

    Args:
        decoded: What was read.

    Returns:
        The dumps by ascending rank, and why others were not chosen.
    """
    problems = []
    claims = defaultdict(list)
    for one in decoded:
        rank = one.file.rank
        if rank is None:
            rank = infer_rank(one.dump)
        if rank is None:
            problems.append(_problem(one.file, _NO_RANK))
        else:
            dump = attrs.evolve(one.dump, rank=rank)
            claims[rank].append(one._replace(dump=dump))

    by_rank = {}
    for rank, rivals in sorted(claims.items()):
        best = max(rivals, key=_preference)
        by_rank[rank] = best.dump
        problems += [
            _problem(r.file, f"not used: {_name(best.file)} is newer", rank)
            for r in rivals
            if r is not best and not _is_same_dump(r, best)
        ]

    for rank, seconds in find_stale(list(by_rank.values())).items():
        reason = (
            f"stale: its last record is {seconds:,.0f} s before the others"
        )
        problems.append(
            Missing(
                what="dump",
                reason=reason,
                rank=rank,
                source=by_rank.pop(rank).path,
            )
        )
    return by_rank, problems


def announce_failures(
    failed: Sequence[tuple[DumpFile, UnusableError]],
    decoded: Sequence[Decoded],
) -> list[Missing]:
    """
    Say which files are broken, but not which are no dumps and need not be.

    Args:
        failed: What could not be read.

        decoded: What could; it tells how the dumps of this job are called.
    """
    families = {one.file.name.family for one in decoded}
    return [
        _problem(file, str(failure))
        for file, failure in failed
        if not failure.is_alien
        or file.sidecar is not None
        or file.name.family in families
        or (file.name.is_dump_like and not families)
    ]


def announce_losses(decoded: Iterable[Decoded]) -> list[Missing]:
    """
    Say which files were read, but not as a whole.
    """
    problems = []
    for one in decoded:
        count = len(one.dump.entries)
        if one.damage:
            reason = f"damaged: only {count:,} records could be read: "
            problems.append(_problem(one.file, reason + one.damage))
        if one.unreadable:
            reason = (
                f"{one.unreadable:,} of {count + one.unreadable:,} records "
                "cannot be read"
            )
            problems.append(_problem(one.file, reason))

    return problems


_NO_RANK = (
    "neither its name nor its content tells the rank: name it like rank_3"
)


def _is_wanted(rank: int | None, wanted: Collection[int] | None) -> bool:
    return wanted is None or rank is None or rank in wanted


def _age(sidecar: Sidecar | None) -> tuple[float, float]:
    return (sidecar.started, sidecar.written) if sidecar else (0.0, 0.0)


def _process(file: DumpFile) -> tuple[object, ...] | None:
    s = file.sidecar
    return None if s is None else (s.host, s.pid, s.started)


def _is_same(one: Sidecar, other: Sidecar) -> bool:
    """
    Whether one process wrote both.
    """
    return (one.host, one.pid, one.started) == (
        other.host,
        other.pid,
        other.started,
    )


def _preference(one: Decoded) -> tuple[object, ...]:
    return (
        *_age(one.file.sidecar),
        last_activity(one.dump),
        len(one.dump.entries),
        # The same dump as JSON has no stacks.
        ".json" not in one.file.path.lower(),
        one.file.modified,
        one.file.path,
    )


def _is_same_dump(one: Decoded, other: Decoded) -> bool:
    """
    Whether one file merely repeats the other in another form.
    """
    return _process(one.file) == _process(other.file) and (
        last_activity(one.dump),
        len(one.dump.entries),
    ) == (last_activity(other.dump), len(other.dump.entries))


def _problem(file: DumpFile, reason: str, rank: int | None = None) -> Missing:
    return Missing(
        what="dump",
        reason=clean(reason),
        rank=file.rank if rank is None else rank,
        source=file.path,
    )


def _name(file: DumpFile) -> str:
    return PurePath(file.path).name
