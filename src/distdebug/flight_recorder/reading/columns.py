"""
Flight Recorder dumps of all ranks as NumPy columns, and rows made from them.

Eight million records do not fit into objects.  Each rank keeps one NumPy array
per field; operations, shapes, and groups are codes into tables that all ranks
share, so that ranks are compared by comparing integers.
"""

from __future__ import annotations

import json

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import lru_cache
from itertools import chain, groupby, repeat
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import attrs
import numpy as np

from numpy.typing import NDArray

from ..._render import Block, Shown, Table, frame_of
from ..._text import clean
from ...findings import Missing, missing_block
from ...ranks import RankChoice, ranks_text, select_ranks
from ..sidecar import Sidecar, mesh_of
from .extract import STATES


if TYPE_CHECKING:
    import pandas as pd


@attrs.frozen
class Shape:
    """
    Sizes and types of the input and output tensors of a call.
    """

    input_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_sizes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[str, ...]


_NO_ELEMENTS = np.empty((0, 2), np.int64)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Shapes(Sequence[Shape]):
    """
    A sequence of shapes that are parsed only on access.

    Attributes:
        texts: Each as JSON: input sizes, input types, output sizes, and
            output types.

        elements: Number of input and output elements; one row per shape.

        types: A code per shape; equal codes mean equal sets of input and
            output types.
    """

    texts: tuple[str, ...] = ()
    elements: NDArray[np.int64] = _NO_ELEMENTS
    types: NDArray[np.int64] = _NO_ELEMENTS[:, 0]

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, index: int) -> Shape: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Shape, ...]: ...

    def __getitem__(self, index: int | slice) -> Shape | tuple[Shape, ...]:
        if isinstance(index, slice):
            return tuple(map(_parse_shape, self.texts[index]))

        return _parse_shape(self.texts[index])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shapes):
            return NotImplemented

        return self.texts == other.texts

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} shapes>"


def _parse_shape(text: str) -> Shape:
    sizes_in, dtypes_in, sizes_out, dtypes_out = json.loads(text)
    return Shape(
        tuple(map(tuple, sizes_in)),
        tuple(dtypes_in),
        tuple(map(tuple, sizes_out)),
        tuple(dtypes_out),
    )


# The codes of `extract.STATES`.
SCHEDULED, STARTED, COMPLETED, ISSUED = range(4)


@attrs.frozen
class Frame:
    """
    One line of a Python stack.
    """

    name: str
    filename: str
    line: int


@attrs.frozen
class GroupConfig:
    """
    One process group as a rank sees it.

    Attributes:
        name: Torch's name of the group.

        desc: Its description; ``""`` if unknown.

        ranks: Global ranks in group order; empty if unknown (as on Gloo).
    """

    name: str
    desc: str
    ranks: tuple[int, ...]


@attrs.frozen
class GroupStatus:
    """
    Torch's sequence counters of a group; -1 means none yet.
    """

    enqueued: int
    started: int
    completed: int


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Entries:
    """
    The records of one rank, oldest first: one array per field, equally long.

    What counts is of 32 bits while it is small: a job of 16,384 ranks has a
    hundred million numbers.

    Attributes:
        record_id: Number of the record in its process.

        pg_id: Number of the process group in this process.

        group: Code into ``Dumps.groups``.

        seq: Number of the collective in its group.

        p2p_seq: Number of the point-to-point operation in its group.

        op_id: Number of the operation in its group, of any kind.

        op: Code into ``Dumps.ops``.

        shape: Code into ``Dumps.shapes``.

        state: `SCHEDULED`, `STARTED`, `COMPLETED`, or `ISSUED`: entered, but
            its end is not recorded.

        created_ns: When the host enqueued it, by the clock of its host.

        started_ns: When torch noticed that it started; 0 if not.

        completed_ns: When torch noticed that it completed; 0 if not.

        duration_ms: Time on the device; NaN if not measured.

        retired: Whether torch stopped watching it.

        timeout_ms: Its timeout; 0 if not recorded.

        is_p2p: Whether it is point-to-point.
    """

    record_id: NDArray[np.integer[Any]]
    pg_id: NDArray[np.int32]
    group: NDArray[np.int32]
    seq: NDArray[np.integer[Any]]
    p2p_seq: NDArray[np.integer[Any]]
    op_id: NDArray[np.integer[Any]]
    op: NDArray[np.int32]
    shape: NDArray[np.int32]
    state: NDArray[np.int8]
    created_ns: NDArray[np.int64]
    started_ns: NDArray[np.int64]
    completed_ns: NDArray[np.int64]
    duration_ms: NDArray[np.float64]
    retired: NDArray[np.bool_]
    timeout_ms: NDArray[np.int64]
    is_p2p: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.record_id)

    def __repr__(self) -> str:
        return f"<Entries of {len(self):,} calls>"

    def take(self, rows: NDArray[Any]) -> Entries:
        """
        Return the records at *rows*: positions, or one boolean per record.
        """
        return Entries(
            **{
                f.name: getattr(self, f.name)[rows]
                for f in attrs.fields(Entries)
            }
        )


@attrs.frozen(kw_only=True, eq=False)
class RankDump:
    """
    The dump of one rank.

    Attributes:
        rank: Global rank.

        path: The file it was read from.

        version: Version of the format; ``""`` for torch ≤ 2.2.

        entries: Its records.

        configs: The process groups this rank knows.

        status: The counters of each group, by its number in this process.

        comm_lib_version: Version of NCCL or a similar library; ``""`` on Gloo.

        host: Name of the node, if known.

        sidecar: The sidecar beside the dump, if there is one.

        written_ns: When the dump was taken, in nanoseconds since the epoch, by
            its sidecar, or by the time of the file; 0 if unknown.

        wrapped: Whether older records are not in the file: the ring lost
            them, or only active ones were written.

        truncated: Whether only the beginning of the file could be read.
    """

    rank: int
    path: str
    version: str
    entries: Entries
    configs: tuple[GroupConfig, ...] = ()
    status: Mapping[int, GroupStatus] = attrs.field(factory=dict)
    comm_lib_version: str = ""
    host: str | None = None
    sidecar: Sidecar | None = None
    written_ns: int = 0
    wrapped: bool = False
    truncated: bool = False

    def __repr__(self) -> str:
        return f"<Dump of rank {self.rank}: {len(self.entries):,} calls>"

    @property
    def is_filtered(self) -> bool:
        """
        Return whether only active calls were dumped.

        Their numbers have gaps then.
        """
        ids = self.entries.record_id
        return bool(len(ids)) and int(ids[-1]) - int(ids[0]) >= len(ids)

    @property
    def is_whole(self) -> bool:
        """
        Return whether it holds all records of its rank.
        """
        return not self.wrapped and not self.is_filtered

    @property
    def last_activity_ns(self) -> int:
        """
        Return the time of the newest event on record; 0 if there is none.

        In nanoseconds since the epoch, by the clock of its host.
        """
        e = self.entries
        times = e.created_ns, e.started_ns, e.completed_ns
        return max(int(column.max(initial=0)) for column in times)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Dumps(Shown):
    """
    The dumps of one job.

    Attributes:
        by_rank: The dump of each rank, by ascending rank.

        groups: The (name, description) pairs that records refer to.

        ops: The operations that records refer to, with backend, such as
            ``"nccl:all_reduce"`` or ``"nccl:send 0->1"``.

        shapes: The sizes and types that records refer to.

        sidecars: The newest sidecar of each rank, also of ranks without a
            dump.

        inspector: What NCCL Inspector recorded, by rank: calls that completed,
            and how long each took on the device.

        earlier: Earlier sidecars of the same processes, oldest first.

        problems: Files and ranks that could not be read, and why.

        world_size: Number of ranks of the job, if known.
    """

    by_rank: Mapping[int, RankDump]
    groups: tuple[tuple[str, str], ...]
    ops: tuple[str, ...]
    shapes: Shapes = attrs.field(factory=Shapes)
    sidecars: Mapping[int, Sidecar] = attrs.field(factory=dict)
    inspector: Mapping[int, RankDump] = attrs.field(factory=dict)
    earlier: Mapping[int, tuple[Sidecar, ...]] = attrs.field(factory=dict)
    problems: tuple[Missing, ...] = ()
    world_size: int | None = None
    _read_frames: (
        Callable[
            [Mapping[str, Sequence[int]]],
            Mapping[str, Sequence[tuple[Frame, ...]]],
        ]
        | None
    ) = attrs.field(default=None, alias="read_frames")

    @property
    def ranks(self) -> tuple[int, ...]:
        """
        Return the ranks with a readable dump, ascending.
        """
        return tuple(self.by_rank)

    def __getitem__(self, rank: int) -> RankDump:
        return self.by_rank[rank]

    def __iter__(self) -> Iterator[RankDump]:
        return iter(self.by_rank.values())

    def __len__(self) -> int:
        return len(self.by_rank)

    def __repr__(self) -> str:
        return f"<Dumps of {len(self):,} ranks>"

    def select_ranks(self, ranks: RankChoice | None) -> frozenset[int] | None:
        """
        Return the global ranks that a parameter *ranks* means; None for all.

        Raises:
            DistdebugError: A selection is malformed, or selects nothing.
        """
        if ranks is None:
            return None

        mesh = mesh_of(self.sidecars.values())
        world_size = self.world_size or max(self.ranks, default=-1) + 1
        return frozenset(select_ranks(ranks, mesh, world_size))

    def calls(
        self,
        *,
        ranks: RankChoice | None = None,
        groups: Collection[str] | None = None,
        stack_traces: bool = False,
    ) -> pd.DataFrame:
        """
        Return a data frame of *pandas* with one row per recorded call.

        Args:
            ranks: The ranks, or a selection; by default all.

            groups: Names or descriptions of the process groups; by default
                all.

            stack_traces: Whether to read the Python stacks, which takes longer.

        Raises:
            MissingDependencyError: *pandas* is not installed.
        """
        rows = entry_rows(
            self, ranks=ranks, groups=groups, stack_traces=stack_traces
        )
        frame = frame_of([row.to_dict() for row in rows])
        if frame.empty:
            return frame
        frame = frame.astype({"took_ms": float})  # NaN, not None
        return frame if stack_traces else frame.drop(columns="frames")

    def match_groups(
        self, selected: Iterable[str] | None
    ) -> NDArray[np.bool_]:
        """
        Return which groups are selected, one value per code in the records.

        Args:
            selected: Names or descriptions of groups; `None` for all.
        """
        names = None if selected is None else frozenset(selected)
        return np.array(
            [
                names is None or not names.isdisjoint(pair)
                for pair in self.groups
            ],
            np.bool_,
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data about each dump, without its records.
        """
        return {
            "world_size": self.world_size,
            "ranks": self.to_records(),
            "missing": [attrs.asdict(problem) for problem in self.problems],
        }

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per rank; see `entry_rows` for the records.
        """
        return [
            {
                "rank": dump.rank,
                "host": dump.host,
                "records": len(dump.entries),
                "groups": len(np.unique(dump.entries.group)),
                "newest": self._newest_call(dump.entries),
                "wrapped": dump.wrapped,
                "file": dump.path,
            }
            for dump in self
        ]

    def _newest_call(self, entries: Entries) -> str:
        """
        Return the last call of a rank; ``""`` if there is none.
        """
        if not len(entries):
            return ""

        numbers = entries.p2p_seq if entries.is_p2p[-1] else entries.seq
        return f"{self.ops[entries.op[-1]]} #{numbers[-1]}"

    def _blocks_(self) -> Iterator[Block]:
        records = self.to_records()
        calls = sum(record["records"] for record in records)
        yield f"dumps of {len(self):,} ranks, {calls:,} records"
        rows = [
            (
                record["rank"],
                record["host"] or "-",
                f"{record['records']:,}",
                record["groups"],
                record["newest"] or "-",
                "yes" if record["wrapped"] else "no",
                PurePath(record["file"]).name,
            )
            for record in records
        ]
        yield Table(list(records[0]) if records else (), rows, more="ranks")
        if self.inspector:
            ranks = ranks_text(sorted(self.inspector))
            yield f"files of NCCL Inspector of {ranks}"
        yield missing_block(self.problems)

    def frames(
        self, rank: int, rows: Sequence[int]
    ) -> list[tuple[Frame, ...]]:
        """
        Read the Python stacks of some records from the file.

        Stacks are not held in memory.

        Args:
            rows: Positions in ``RankDump.entries``.

        Returns:
            One stack per row, innermost line first; empty where none was
            recorded, or if the file can no longer be read.
        """
        return self.frames_of({rank: rows})[rank]

    def frames_of(
        self, wanted: Mapping[int, Sequence[int]]
    ) -> dict[int, list[tuple[Frame, ...]]]:
        """
        Read the Python stacks of some records of several ranks at once.

        This takes little longer than one rank, as most of the time is spent on
        starting child processes.

        Args:
            wanted: Positions in ``RankDump.entries``, by rank.

        Returns:
            By rank, what `frames` returns for it.
        """
        paths = {
            self.by_rank[rank].path: rows
            for rank, rows in wanted.items()
            if len(rows)
        }
        found = self._read_frames(paths) if self._read_frames else {}
        return {
            rank: list(found.get(self.by_rank[rank].path, [()] * len(rows)))
            for rank, rows in wanted.items()
        }


_MAX_FRAMES = 64

_SHAPE_CACHE_SIZE = 10_000


@attrs.frozen(kw_only=True)
class EntryRow:
    """
    One record with text fields that are safe to print.

    Attributes:
        rank: Global rank.

        record: Its number in the process.

        group: Name of the process group.

        desc: Description of the process group.

        op: The operation, such as ``"nccl:all_reduce"``.

        seq: Its number in the group; that of point-to-point operations if it
            is one.

        p2p: Whether it is point-to-point.

        inputs: Sizes and types of the inputs, such as ``"[3, 4] Float"``.

        outputs: Sizes and types of the outputs.

        state: ``"completed"``, ``"returned"`` (completed or failed),
            ``"started"``, or ``"scheduled"``.

        created_ns: When it was enqueued, in nanoseconds since the epoch by
            the clock of its host.

        took_ms: Time until torch noticed that it completed; ``None`` if it
            did not.

        frames: The Python stack, innermost line first; empty if it was not
            requested.
    """

    rank: int
    record: int
    group: str
    desc: str
    op: str
    seq: int
    p2p: bool
    inputs: str
    outputs: str
    state: str
    created_ns: int
    took_ms: float | None
    frames: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data, for JSON.
        """
        return attrs.asdict(self)


def entry_rows(
    dumps: Dumps,
    *,
    ranks: RankChoice | None = None,
    groups: Collection[str] | None = None,
    stack_traces: bool = False,
) -> Iterator[EntryRow]:
    """
    Return the calls of each rank, one row per record.

    Args:
        ranks: The ranks, or a selection; by default all.

        groups: Names or descriptions of the process groups; by default all.

        stack_traces: Whether to read the Python stacks, which takes longer.

    Returns:
        The rows by rank, oldest first.  They are made one at a time, because
        there may be millions.
    """
    labels, is_selected = Labels.of(dumps), dumps.match_groups(groups)
    selected = dumps.select_ranks(ranks)
    for dump in dumps:
        if selected is not None and dump.rank not in selected:
            continue
        rows = np.flatnonzero(is_selected[dump.entries.group]).tolist()
        stacks: Iterable[tuple[Frame, ...]] = (
            dumps.frames(dump.rank, rows) if stack_traces else [()] * len(rows)
        )
        for row, frames in zip(rows, stacks, strict=True):
            yield _make_row(dump, row, frames, labels)


class Labels(NamedTuple):
    """
    Texts for the codes in records, made once for all records.

    Attributes:
        groups: Name and description by group code, safe to print.

        ops: Operation by code, safe to print.

        shape: Returns the result of :func:`shape_texts` for a shape code.
    """

    groups: Sequence[tuple[str, str]]
    ops: Sequence[str]
    shape: Callable[[int], tuple[str, str]]

    @classmethod
    def of(cls, dumps: Dumps) -> Labels:
        """
        Clean all texts that come from the job.
        """
        cached = lru_cache(_SHAPE_CACHE_SIZE)
        return cls(
            groups=[(clean(name), clean(desc)) for name, desc in dumps.groups],
            ops=[clean(op) for op in dumps.ops],
            shape=cached(lambda code: shape_texts(dumps.shapes[code])),
        )


def _make_row(
    dump: RankDump, row: int, frames: Sequence[Frame], labels: Labels
) -> EntryRow:
    e = dump.entries
    group, desc = labels.groups[e.group[row]]
    inputs, outputs = labels.shape(int(e.shape[row]))
    is_p2p = bool(e.is_p2p[row])
    created, completed = int(e.created_ns[row]), int(e.completed_ns[row])
    return EntryRow(
        rank=dump.rank,
        record=int(e.record_id[row]),
        group=group,
        desc=desc,
        op=labels.ops[e.op[row]],
        seq=int((e.p2p_seq if is_p2p else e.seq)[row]),
        p2p=is_p2p,
        inputs=inputs,
        outputs=outputs,
        state=state_text(int(e.state[row]), retired=bool(e.retired[row])),
        created_ns=created,
        took_ms=(completed - created) / 1e6 if completed else None,
        frames=tuple(
            clean(f"{f.name} ({f.filename}:{f.line})")
            for f in frames[:_MAX_FRAMES]
        ),
    )


def state_text(state: int, *, retired: bool) -> str:
    """
    Return the name of the state of a record.

    Args:
        state: Its code.

        retired: Whether torch stopped watching it.
    """
    if retired and state not in {COMPLETED, ISSUED}:
        return "returned"

    return STATES[state]


def shape_texts(shape: Shape) -> tuple[str, str]:
    """
    Format the inputs and outputs of a call.

    Returns:
        Two texts such as ``"2x[3, 4] Float"``, safe to print.
    """
    return (
        _format_tensors(shape.input_sizes, shape.input_dtypes),
        _format_tensors(shape.output_sizes, shape.output_dtypes),
    )


def _format_tensors(
    sizes: Sequence[tuple[int, ...]], dtypes: Sequence[str]
) -> str:
    """
    Format tensors as ``2x[3, 4] Float, [5] Int``: runs of equal ones folded.
    """
    padded = chain(dtypes, repeat(""))
    texts = [
        f"{list(size)} {dtype}".rstrip()
        for size, dtype in zip(sizes, padded, strict=False)
    ]
    runs = ((text, len(list(run))) for text, run in groupby(texts))
    return clean(", ".join(t if n == 1 else f"{n}x{t}" for t, n in runs))
