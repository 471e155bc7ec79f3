"""
Which rank made which call, and what became of it?

From records to what each rank did (`recorded`), from there to one picture per
kind of process group (`views`, `usual`, `lateness`), and from pictures to what
the page holds: a folded table (`folded`), transfers (`pairs`), and numbers that
a script draws (`packed`).
"""

from __future__ import annotations

import re
import zlib

from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np

from numpy.typing import NDArray

from .._text import clean
from ..diagnosis import seen_by
from ..findings import Cause, Diagnosis, Location
from ..flight_recorder import (
    Channel,
    FlightReport,
    Frame,
    Side,
    Signatures,
    clock_offsets_ns,
    collective_streams,
    find_channels,
    shape_texts,
)
from .format import Section
from .graph import many_ranks
from .matrix_cells import (
    Arrivals,
    Recorded,
    View,
    focus_of,
    folded_tables,
    look_at,
    views_of,
)


# A factor of ten is so many steps of the scale, which begins at 1 µs.
STEPS = 24
_FIRST_NS = 1e3


@attrs.frozen(kw_only=True, eq=False)
class Lateness:
    """
    How late ranks came; all times are numbers on a scale, see `on_scale`.

    Attributes:
        start: The first column that has times.

        late: After the first one of the group: one row per row of the view.

        typical: The median of that: one row per group of the view.

        pause: Since the call before, by the median of the group; likewise.

        clocks: By how many clocks the times were taken; 1 if all agree.

        doubt_ns: By how much clocks may still be apart.
    """

    start: int
    late: NDArray[np.uint8]
    typical: NDArray[np.uint8]
    pause: NDArray[np.uint8]
    clocks: int
    doubt_ns: float


def on_scale(ns: NDArray[np.float64]) -> NDArray[np.uint8]:
    """
    Write durations as one byte each, to a twentieth of their size.

    Args:
        ns: Nanoseconds; NaN for unknown.

    Returns:
        0 for unknown, 1 for up to 1 µs, and one more for each
        24th of a factor of ten.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        steps = np.round(
            np.log10(np.maximum(ns, _FIRST_NS) / _FIRST_NS) * STEPS
        )
    known = np.where(np.isnan(ns), 0, np.clip(steps, 0, 254) + 1)
    found: NDArray[np.uint8] = np.where(known > 255, 255, known).astype(
        np.uint8
    )
    return found


def from_scale_ns(steps: NDArray[np.uint8]) -> NDArray[np.float64]:
    """
    Which durations do these bytes stand for?

    Args:
        steps: What :func:`on_scale` returned.

    Returns:
        Nanoseconds; NaN for unknown.
    """
    ns: NDArray[np.float64] = np.where(
        steps == 0, np.nan, _FIRST_NS * 10.0 ** ((steps - 1.0) / STEPS)
    )
    return ns


def lateness_of(view: View, recorded: Recorded) -> Lateness | None:
    """
    How late did each rank come?

    Args:
        view: A picture.

        recorded: What all ranks recorded.

    Returns:
        The times of its newest columns; None if there are none.
    """
    known = [
        a
        for pair in zip(view.ranks.tolist(), view.group.tolist(), strict=True)
        if (a := recorded.arrivals.get(pair)) is not None and len(a.seq)
    ]
    if not known:
        return None

    first = min(int(a.seq[0]) for a in known)
    start = int(np.searchsorted(view.columns, first))
    columns = view.columns[start:]
    late = np.zeros((len(view.ranks), len(columns)), np.uint8)
    by_group = []
    doubts = [0.0]
    hosts: set[object] = set()
    for group in view.groups:
        at = np.flatnonzero(view.group == group)
        own = [
            recorded.arrivals.get((rank, group))
            for rank in view.ranks[at].tolist()
        ]
        names = [_host(rank, recorded) for rank in view.ranks[at].tolist()]
        arrived, doubt = _arrived(own, columns, names)
        hosts.update(names)
        doubts.append(doubt)
        after, typical, pause = _compared(arrived)
        late[at] = on_scale(after)
        by_group.append((on_scale(typical), on_scale(pause)))

    return Lateness(
        start=start,
        late=late,
        typical=np.array([typical for typical, _ in by_group]),
        pause=np.array([pause for _, pause in by_group]),
        clocks=len(hosts),
        doubt_ns=max(doubts),
    )


def _host(rank: int, recorded: Recorded) -> object:
    dump = recorded.dumps.by_rank.get(rank)
    return (dump.host if dump else None) or rank


def _arrived(
    arrivals: Sequence[Arrivals | None],
    columns: NDArray[np.int64],
    hosts: Sequence[object],
) -> tuple[NDArray[np.float64], float]:
    """
    When each rank (row) came to each call (column), by one clock.
    """
    created = np.full((len(arrivals), len(columns)), np.nan)
    completed = np.zeros_like(created)
    for row, own in enumerate(arrivals):
        if own is not None:
            there = np.searchsorted(columns, own.seq)
            kept = own.seq >= columns[0]
            created[row, there[kept]] = own.created_ns[kept]
            completed[row, there[kept]] = own.completed_ns[kept]
    seen = [row for row, own in enumerate(arrivals) if own is not None]
    if not seen:
        return created, 0.0

    offsets, doubt = clock_offsets_ns(
        completed[seen], [hosts[row] for row in seen]
    )
    created[seen] -= offsets[:, None]
    return created, doubt if np.isfinite(doubt) else 0.0


def _compared(
    arrived: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """
    After the first one, the median of that, and since the call before.
    """
    unknown = np.isnan(arrived)
    whole = ~unknown.any(axis=0)
    partly = ~whole & ~unknown.all(axis=0)
    first = np.where(unknown, np.inf, arrived).min(axis=0)
    first[~whole & ~partly] = np.nan
    after = arrived - first
    typical = np.full(len(first), np.nan)
    # Medians among gaps are much slower, and gaps are few.
    typical[whole] = np.median(after[:, whole], axis=0)
    typical[partly] = np.nanmedian(after[:, partly], axis=0)
    middle = first + typical
    pause = np.diff(middle, prepend=np.nan)
    return after, typical, np.maximum(pause, 0)


_MOST = 6


def latest_of(
    views: Sequence[View],
    late: Sequence[Lateness | None],
    recorded: Recorded,
    diagnosis: Diagnosis,
) -> dict[str, Any] | None:
    """
    Who comes late to the calls of the group that the verdict names?

    Args:
        views: All pictures.

        late: Their times.

        recorded: What all ranks recorded.

        diagnosis: What is wrong with the job.

    Returns:
        What the template shows; None if nobody is said to be late.
    """
    verdict = diagnosis.verdict
    if verdict.cause is not Cause.STRAGGLER or verdict.group is None:
        return None

    for view, times in zip(views, late, strict=True):
        for group in view.groups:
            known = recorded.membership.groups[group]
            if times is not None and known.ref == verdict.group:
                rows = np.flatnonzero(view.group == group)
                return {
                    "name": clean(str(known.ref)),
                    "rows": _rows(view, times, rows, set(verdict.ranks)),
                }

    return None


def _rows(
    view: View,
    times: Lateness,
    rows: np.ndarray[tuple[int], np.dtype[np.int64]],
    culprits: set[int],
) -> list[dict[str, Any]]:
    ns = np.array([_mean_ns(times.late[row]) for row in rows])
    worst = from_scale_ns(times.late[rows].max(axis=1))
    order = np.argsort(-np.nan_to_num(ns), kind="stable")[:_MOST]
    longest = float(np.nan_to_num(ns).max(initial=0)) or 1.0
    return [
        {
            "rank": int(view.ranks[rows[at]]),
            "is_culprit": int(view.ranks[rows[at]]) in culprits,
            "mean": duration_text(float(ns[at])),
            "worst": duration_text(float(worst[at])),
            "share": round(float(np.nan_to_num(ns[at])) / longest * 100, 1),
        }
        for at in order.tolist()
    ]


def _mean_ns(steps: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> float:
    # Of several calls in a step, it is late in the first: no median shows it.
    known = steps[steps > 0]
    return float(from_scale_ns(known).mean()) if len(known) else np.nan


def duration_text(ns: float) -> str:
    """
    How is a short duration written?

    Args:
        ns: Nanoseconds; NaN for unknown.

    Returns:
        Such as ``"1.2 ms"``.
    """
    if np.isnan(ns):
        return "?"
    if ns < 1e6:
        return f"{ns / 1e3:,.0f} µs"
    if ns < 1e9:
        return f"{ns / 1e6:,.1f} ms"

    return f"{ns / 1e9:,.1f} s"


_LINES_MOST = 12
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
    left = _LINES_MOST
    asked = []
    for view in views:
        members = np.bincount(view.kind, minlength=len(view.states))
        kinds = np.argsort(-members, kind="stable")[:left].tolist()
        left -= len(kinds)
        asked.append(
            {k: _lines_rows(view, k, recorded, signatures) for k in kinds}
        )
    return asked


def _lines_rows(
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


_PAIRS_MOST = 16


@attrs.frozen(kw_only=True)
class Pair:
    """
    What one rank sent to another in a group.

    Attributes:
        source: Who sends.

        target: Who receives.

        group: The group, by name or description.

        sent: How many sends are on record.

        sending: How many of these are not complete.

        received: How many receives are on record.

        receiving: How many of these are not complete.

        has_source: Whether the sender recorded any.

        has_target: Whether the receiver recorded any.
    """

    source: int
    target: int
    group: str
    sent: int = 0
    sending: int = 0
    received: int = 0
    receiving: int = 0
    has_source: bool = True
    has_target: bool = True

    @property
    def is_stuck(self) -> bool:
        """
        Whether one of both waits.
        """
        return bool(self.sending or self.receiving)


@attrs.frozen(kw_only=True)
class Pairs:
    """
    All transfers.

    Attributes:
        shown: The pairs that are shown, those that wait first.

        stuck: How many pairs wait.

        fine: How many do not.
    """

    shown: tuple[Pair, ...]
    stuck: int
    fine: int

    @property
    def left_out(self) -> int:
        """
        How many pairs are not shown.
        """
        return self.stuck + self.fine - len(self.shown)


def pairs_of(recorded: Recorded, culprits: Sequence[int]) -> Pairs | None:
    """
    Which transfers are there?

    Args:
        recorded: What all ranks recorded.

        culprits: The ranks at fault; their transfers come first.

    Returns:
        The pairs; None if nothing was sent.
    """
    dumps, membership = recorded.dumps, recorded.membership
    signatures = Signatures(dumps.ops, dumps.shapes)
    names = [clean(str(group.ref)) for group in membership.groups]
    pairs = [
        _pair(channel, names[channel.group])
        for channel in find_channels(dumps, membership, signatures)
    ]
    if not pairs:
        return None

    blamed = set(culprits)
    pairs.sort(
        key=lambda p: (
            not p.is_stuck,
            blamed.isdisjoint((p.source, p.target)),
            p.source,
            p.target,
        )
    )
    stuck = sum(pair.is_stuck for pair in pairs)
    return Pairs(
        shown=tuple(pairs[:_PAIRS_MOST]), stuck=stuck, fine=len(pairs) - stuck
    )


def _pair(channel: Channel, group: str) -> Pair:
    sent, sending = _counts(channel.send)
    received, receiving = _counts(channel.recv)
    return Pair(
        source=channel.source,
        target=channel.target,
        group=group,
        sent=sent,
        sending=sending,
        received=received,
        receiving=receiving,
        has_source=channel.send is not None,
        has_target=channel.recv is not None,
    )


def _counts(side: Side | None) -> tuple[int, int]:
    return (0, 0) if side is None else (len(side.rows), side.pending)


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


# A sign and a word for each state, in the order of their numbers.
_STATES = (
    ("lost", "·", "not recorded"),
    ("done", "✓", "completed"),
    ("started", "▶", "started"),
    ("scheduled", "…", "entered, waits"),
    ("ended", "✕", "failed"),
    ("absent", "○", "not entered"),
    ("away", "◌", "waits elsewhere"),
    ("none", "?", "no dump"),
)


def matrix_section(diagnosis: Diagnosis) -> Section | None:
    """
    Which rank made which call, and what became of it?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        The calls that matter as a table, and all of them for a script; None
        if there are no dumps.
    """
    flight = seen_by(diagnosis).flight
    if flight is None or not len(flight.dumps):
        return None

    recorded = look_at(flight.dumps)
    views = views_of(recorded, diagnosis, flight)
    pairs = pairs_of(recorded, diagnosis.verdict.ranks)
    if not views and pairs is None:
        return None

    late = [lateness_of(view, recorded) for view in views]
    latest = latest_of(views, late, recorded, diagnosis)
    tables, more = folded_tables(views, recorded, diagnosis, flight)
    # Of who is late, or in a transfer, these tables know nothing.
    call = diagnosis.verdict.collective
    is_in_tables = latest is None and not (call is not None and call.p2p)
    return Section(
        name="matrix",
        title="Every call of every rank",
        summary=_summary(views) if views else "only from rank to rank",
        values={
            "tables": tables if is_in_tables else (),
            "late": latest,
            "more": more,
            "pairs": pairs,
            "states": _STATES,
            "has_views": bool(views),
        },
        data=_data(views, late, recorded, diagnosis, flight)
        if views
        else None,
    )


def _data(
    views: Sequence[View],
    late: Sequence[Lateness | None],
    recorded: Recorded,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> dict[str, Any]:
    calls, codes = packed_calls(views, recorded)
    stacks, lines = lines_of(views, recorded)
    return {
        "states": [list(state) for state in _STATES],
        "color": "late"
        if diagnosis.verdict.cause is Cause.STRAGGLER
        else "state",
        "blamed": list(diagnosis.verdict.ranks),
        "calls": calls,
        "stacks": stacks,
        "views": [
            packed_view(
                view,
                recorded,
                codes,
                lateness=times,
                focus=_focus(view, recorded, diagnosis, flight),
                lines=own,
            )
            for view, times, own in zip(views, late, lines, strict=True)
        ],
    }


def _focus(
    view: View,
    recorded: Recorded,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> tuple[int, int]:
    """
    The cell to look at first: a culprit's, in the call of the verdict.
    """
    blamed = np.flatnonzero(np.isin(view.ranks, diagnosis.verdict.ranks))
    row = int(blamed[0]) if len(blamed) else 0
    group = int(view.group[row])
    return row, focus_of(view, group, recorded, diagnosis, flight)


def _summary(views: Sequence[View]) -> str:
    ranks = max(len(view.ranks) for view in views)
    columns = sum(len(view.columns) for view in views)
    return f"{ranks:,} ranks, {columns:,} calls"
