"""
Which calls did each rank make, one by one?
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from functools import lru_cache
from typing import Any, NamedTuple

import attrs
import numpy as np

from .._text import clean
from .columns import COMPLETED, STARTED, Dumps, Frame, RankDump, Shape


__all__ = [
    "EntryRow",
    "entry_rows",
    "shape_texts",
    "shape_words",
    "state_text",
]

_MOST_FRAMES = 64

_MOST_KEPT = 10_000


@attrs.frozen(kw_only=True)
class EntryRow:
    """
    One record, in words; they are cleaned and fit for a terminal.

    Attributes:
        rank: Global rank.

        record: Its number in the process.

        group: Name of the process group.

        desc: Description of the process group.

        op: The operation, such as ``"nccl:all_reduce"``.

        seq: Its number in the group; that of point-to-point operations if it
            is one.

        p2p: Whether it is point-to-point.

        inputs: Sizes and types of what went in, such as ``"[3, 4] Float"``.

        outputs: Sizes and types of what came out.

        state: ``"completed"``, ``"returned"`` (completed or failed),
            ``"started"``, or ``"scheduled"``.

        created_ns: When it was enqueued, in nanoseconds since the epoch by
            the clock of its host.

        took_ms: Until torch noticed that it completed; ``None`` if it did
            not.

        frames: The Python stack, innermost line first; empty if it was not
            asked for.
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
        Plain data, for JSON.
        """
        return attrs.asdict(self)


def entry_rows(
    dumps: Dumps,
    *,
    ranks: Collection[int] | None = None,
    groups: Collection[str] | None = None,
    stack_traces: bool = False,
) -> Iterator[EntryRow]:
    """
    Which calls did each rank make?

    Args:
        dumps: What the ranks recorded.

        ranks: Whose calls; by default everybody's.

        groups: In which process groups, by name or description; by default
            in all.

        stack_traces: Whether to read the Python stacks, which takes longer.

    Returns:
        One row per record, by rank, oldest first.  They are made one at a
        time, because there may be millions.
    """
    names = dumps.groups
    wanted = np.array(
        [groups is None or bool({*pair} & set(groups)) for pair in names],
        np.bool_,
    )
    words = _Words(
        groups=[(clean(name), clean(desc)) for name, desc in names],
        ops=[clean(op) for op in dumps.ops],
        shape=shape_words(dumps.shapes),
    )
    for dump in dumps:
        if ranks is not None and dump.rank not in ranks:
            continue
        at = np.flatnonzero(wanted[dump.entries.group]) if len(wanted) else ()
        rows: list[int] = [int(row) for row in at]
        stacks: Iterable[tuple[Frame, ...]] = (
            dumps.frames(dump.rank, rows) if stack_traces else [()] * len(rows)
        )
        for row, frames in zip(rows, stacks, strict=True):
            yield _row(dump, row, frames, words)


class _Words(NamedTuple):
    """
    What the codes stand for, in words that are made once for all rows.
    """

    groups: Sequence[tuple[str, str]]
    ops: Sequence[str]
    shape: Callable[[int], tuple[str, str]]


def _row(
    dump: RankDump, row: int, frames: Sequence[Frame], words: _Words
) -> EntryRow:
    e = dump.entries
    group, desc = words.groups[e.group[row]]
    inputs, outputs = words.shape(int(e.shape[row]))
    is_p2p = bool(e.is_p2p[row])
    created, completed = int(e.created_ns[row]), int(e.completed_ns[row])
    return EntryRow(
        rank=dump.rank,
        record=int(e.record_id[row]),
        group=group,
        desc=desc,
        op=words.ops[e.op[row]],
        seq=int((e.p2p_seq if is_p2p else e.seq)[row]),
        p2p=is_p2p,
        inputs=inputs,
        outputs=outputs,
        state=state_text(int(e.state[row]), retired=bool(e.retired[row])),
        created_ns=created,
        took_ms=(completed - created) / 1e6 if completed else None,
        frames=tuple(
            clean(f"{f.name} ({f.filename}:{f.line})")
            for f in frames[:_MOST_FRAMES]
        ),
    )


def state_text(state: int, *, retired: bool) -> str:
    """
    How is the state of a record called?

    Args:
        state: Its code.

        retired: Whether torch stopped watching it.
    """
    if state == COMPLETED:
        return "completed"
    if retired:
        return "returned"

    return "started" if state == STARTED else "scheduled"


def shape_words(
    shapes: Sequence[Shape],
) -> Callable[[int], tuple[str, str]]:
    """
    Put shapes into words, one at a time, as there may be millions.

    Args:
        shapes: What records refer to.

    Returns:
        What `shape_texts` returns for a code.
    """
    return lru_cache(_MOST_KEPT)(lambda code: shape_texts(shapes[code]))


def shape_texts(shape: Shape) -> tuple[str, str]:
    """
    What went in and out of a call, in words?

    Args:
        shape: Sizes and types.

    Returns:
        Two texts such as ``"2x[3, 4] Float"``, cleaned.
    """
    return (
        _tensors(shape.input_sizes, shape.input_dtypes),
        _tensors(shape.output_sizes, shape.output_dtypes),
    )


def _tensors(sizes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> str:
    """
    Write tensors as ``2x[3, 4] Float, [5] Int``: runs of equal ones folded.
    """
    parts: list[list[Any]] = []
    for i, size in enumerate(sizes):
        dtype = dtypes[i] if i < len(dtypes) else ""
        text = f"{list(size)} {dtype}".rstrip()
        if parts and parts[-1][1] == text:
            parts[-1][0] += 1
        else:
            parts.append([1, text])

    return clean(
        ", ".join(text if n == 1 else f"{n}x{text}" for n, text in parts)
    )
