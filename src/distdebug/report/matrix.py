"""
Build the section with the call matrix: every call of every rank.

Adds lateness, code lines, and transfers to the views of
:mod:`~distdebug.report.call_matrix`, and packs them for the script that draws
them.
"""

from __future__ import annotations

import re
import zlib

from base64 import b64encode
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from numpy.typing import NDArray

from .._text import clean
from ..causes import Cause
from ..diagnosis import inputs_of
from ..findings import Diagnosis, Location
from ..flight_recorder import (
    Channel,
    Frame,
    clock_offsets_ns,
)
from .call_matrix import (
    Arrivals,
    RecordedCalls,
    View,
    build_views,
    find_focus_column,
    fold_tables,
    read_recorded_calls,
)
from .format import Section
from .graph import summarize_ranks


# Steps of the scale per factor of ten; it begins at 1 µs.
STEPS = 24
_FIRST_NS = 1e3


@attrs.frozen(kw_only=True, eq=False)
class Lateness:
    """
    Lateness of ranks; times are on the scale of `encode_durations`.

    Attributes:
        start: The first column with times.

        late: Delay after the first rank of the group; one row per row of the
            view.

        typical: The median of that; one row per group of the view.

        pause: Time since the call before, by the median of the group;
            likewise.

        clocks: Number of different clocks.

        doubt_ns: Remaining uncertainty between clocks.
    """

    start: int
    late: NDArray[np.uint8]
    typical: NDArray[np.uint8]
    pause: NDArray[np.uint8]
    clocks: int
    doubt_ns: float


def encode_durations(ns: NDArray[np.float64]) -> NDArray[np.uint8]:
    """
    Encode durations as one byte each, with a precision of about 5 %.

    Args:
        ns: Nanoseconds; NaN for unknown.

    Returns:
        0 for unknown, 1 for up to 1 µs, and one more for each 24th of a factor
        of ten.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        steps = np.round(
            np.log10(np.maximum(ns, _FIRST_NS) / _FIRST_NS) * STEPS
        )
    known = np.where(np.isnan(ns), 0, np.clip(steps, 0, 254) + 1)
    return np.minimum(known, 255).astype(np.uint8)


def decode_durations_ns(steps: NDArray[np.uint8]) -> NDArray[np.float64]:
    """
    Decode durations.

    Args:
        steps: From :func:`encode_durations`.

    Returns:
        Nanoseconds; NaN for unknown.
    """
    ns: NDArray[np.float64] = np.where(
        steps == 0, np.nan, _FIRST_NS * 10.0 ** ((steps - 1.0) / STEPS)
    )
    return ns


def compute_lateness(view: View, recorded: RecordedCalls) -> Lateness | None:
    """
    Compute the lateness of each rank in each call.

    Returns:
        Times of the newest columns; None if there are none.
    """
    pairs = zip(view.ranks.tolist(), view.group.tolist(), strict=True)
    found = filter(None, map(recorded.arrivals.get, pairs))
    first = min((x.seq[0] for x in found if len(x.seq)), default=None)
    if first is None:
        return None

    start = int(np.searchsorted(view.columns, first))
    columns = view.columns[start:]
    clocks = [_clock_host(rank, recorded) for rank in view.ranks.tolist()]
    late = np.zeros((len(view.ranks), len(columns)), np.uint8)
    typical, pauses, doubts = [], [], [0.0]
    for group in view.groups:
        at = np.flatnonzero(view.group == group)
        ranks = view.ranks[at].tolist()
        arrivals = [recorded.arrivals.get((rank, group)) for rank in ranks]
        hosts = [clocks[row] for row in at.tolist()]
        arrived, doubt = _arrival_matrix(arrivals, columns, hosts)
        doubts.append(doubt)
        after, middle, pause = _compare_arrivals(arrived)
        late[at] = encode_durations(after)
        typical.append(encode_durations(middle))
        pauses.append(encode_durations(pause))

    return Lateness(
        start=start,
        late=late,
        typical=np.array(typical),
        pause=np.array(pauses),
        clocks=len(set(clocks)),
        doubt_ns=max(doubts),
    )


def _clock_host(rank: int, recorded: RecordedCalls) -> object:
    dump = recorded.dumps.by_rank.get(rank)
    return (dump.host if dump else None) or rank


def _arrival_matrix(
    arrivals: Sequence[Arrivals | None],
    columns: NDArray[np.int64],
    hosts: Sequence[object],
) -> tuple[NDArray[np.float64], float]:
    """
    Return when each rank (row) entered each call (column), on one clock.
    """
    created = np.full((len(arrivals), len(columns)), np.nan)
    completed = np.zeros_like(created)
    for row, own in enumerate(arrivals):
        if own is not None:
            column_of = np.searchsorted(columns, own.seq)
            in_view = own.seq >= columns[0]
            created[row, column_of[in_view]] = own.created_ns[in_view]
            completed[row, column_of[in_view]] = own.completed_ns[in_view]
    known_rows = [row for row, own in enumerate(arrivals) if own is not None]
    if not known_rows:
        return created, 0.0

    offsets, doubt = clock_offsets_ns(
        completed[known_rows], [hosts[row] for row in known_rows]
    )
    created[known_rows] -= offsets[:, None]
    return created, doubt if np.isfinite(doubt) else 0.0


def _compare_arrivals(
    arrived: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """
    Return delays after the first rank, their median, and the pause before.
    """
    unknown = np.isnan(arrived)
    whole = ~unknown.any(axis=0)
    partly = ~whole & ~unknown.all(axis=0)
    first = np.where(unknown, np.inf, arrived).min(axis=0)
    first[~whole & ~partly] = np.nan
    after = arrived - first
    typical = np.full(len(first), np.nan)
    # nanmedian is much slower, so use it only for columns with gaps.
    typical[whole] = np.median(after[:, whole], axis=0)
    typical[partly] = np.nanmedian(after[:, partly], axis=0)
    middle = first + typical
    pause = np.diff(middle, prepend=np.nan)
    return after, typical, np.maximum(pause, 0)


_MAX_LATE_ROWS = 6


def summarize_lateness(
    views: Sequence[View],
    late: Sequence[Lateness | None],
    recorded: RecordedCalls,
) -> dict[str, Any] | None:
    """
    Summarize the lateness in the group of the verdict.

    Args:
        views: All views.

        late: Their times.

        recorded: Calls of all ranks.

    Returns:
        Template variables; None if the verdict is no straggler.
    """
    verdict = recorded.diagnosis.verdict
    if verdict.cause is not Cause.STRAGGLER or verdict.group is None:
        return None

    for view, times in zip(views, late, strict=True):
        for group in view.groups:
            known = recorded.groups[group]
            if times is not None and known.ref == verdict.group:
                rows = np.flatnonzero(view.group == group)
                return {
                    "name": clean(str(known.ref)),
                    "rows": _late_rows(view, times, rows, set(verdict.ranks)),
                }

    return None


def _late_rows(
    view: View,
    times: Lateness,
    rows: np.ndarray[tuple[int], np.dtype[np.int64]],
    culprits: set[int],
) -> list[dict[str, Any]]:
    ns = np.array([_mean_lateness_ns(times.late[row]) for row in rows])
    worst = decode_durations_ns(times.late[rows].max(axis=1))
    order = np.argsort(-np.nan_to_num(ns), kind="stable")[:_MAX_LATE_ROWS]
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


def _mean_lateness_ns(
    steps: np.ndarray[tuple[int], np.dtype[np.uint8]],
) -> float:
    # A straggler is late only in the first call of a step; a median hides it.
    known = steps[steps > 0]
    return float(decode_durations_ns(known).mean()) if len(known) else np.nan


def duration_text(ns: float) -> str:
    """
    Format a short duration, such as ``"1.2 ms"``.

    Args:
        ns: Nanoseconds; NaN for unknown.
    """
    if np.isnan(ns):
        return "?"
    if ns < 1e6:
        return f"{ns / 1e3:,.0f} µs"
    if ns < 1e9:
        return f"{ns / 1e6:,.1f} ms"

    return f"{ns / 1e9:,.1f} s"


_MAX_LINE_KINDS = 12
_MAX_FRAMES = 8
_MAX_STACKS = 1000
_TORCH_FILE = re.compile(r"(?:^|[\\/])torch[\\/]")


def read_call_lines(
    views: Sequence[View], recorded: RecordedCalls
) -> tuple[list[list[str]], list[dict[int, list[int]]]]:
    """
    Read the code lines at which ranks made their calls.

    Stacks are not in memory, so the files are read again; only for one rank of
    each of the largest kinds.

    Returns:
        All distinct stacks, innermost line first; and for each view, by kind
        of ranks, the stack (as index) of each column, -1 for none.
    """
    records_by_view = _select_records(views, recorded)
    rows_of_rank: dict[int, set[int]] = defaultdict(set)
    for by_kind in records_by_view:
        for rank, rows in by_kind.values():
            if present := {row for row in rows if row >= 0}:
                rows_of_rank[rank] |= present
    frames = recorded.dumps.frames_of(
        {r: sorted(w) for r, w in rows_of_rank.items()}
    )

    numbers: dict[tuple[str, ...], int] = {}
    number_at = {
        (rank, row): _stack_number(numbers, stack)
        for rank, stacks in frames.items()
        for row, stack in zip(sorted(rows_of_rank[rank]), stacks, strict=True)
    }
    lines = [_view_lines(by_kind, number_at) for by_kind in records_by_view]
    return [list(stack) for stack in numbers], lines


def _view_lines(
    records_by_view: Mapping[int, tuple[int, list[int]]],
    number_at: Mapping[tuple[int, int], int],
) -> dict[int, list[int]]:
    found = {
        kind: [number_at.get((rank, row), -1) for row in rows]
        for kind, (rank, rows) in records_by_view.items()
    }
    return {k: s for k, s in found.items() if max(s, default=-1) >= 0}


def _select_records(
    views: Sequence[View], recorded: RecordedCalls
) -> list[dict[int, tuple[int, list[int]]]]:
    """
    Select per view and kind one rank, and its records to read.
    """
    left = _MAX_LINE_KINDS
    records_by_view = []
    for view in views:
        members = np.bincount(view.kind, minlength=len(view.states))
        kinds = np.argsort(-members, kind="stable")[:left].tolist()
        left -= len(kinds)
        records_by_view.append(
            {k: _rank_records(view, k, recorded) for k in kinds}
        )
    return records_by_view


def _rank_records(
    view: View, kind: int, recorded: RecordedCalls
) -> tuple[int, list[int]]:
    """
    Return a rank of a kind, and its record per column; -1 for none.
    """
    at = int((view.kind == kind).argmax())
    rank, group = int(view.ranks[at]), int(view.group[at])
    if rank not in recorded.dumps.by_rank:
        return rank, []

    stream = recorded.job.streams(rank).get(group)
    if stream is None:
        return rank, []

    row_of = dict(zip(stream.seq.tolist(), stream.row.tolist(), strict=True))
    return rank, [row_of.get(seq, -1) for seq in view.columns.tolist()]


def _stack_number(
    numbers: dict[tuple[str, ...], int], frames: Sequence[Frame]
) -> int:
    """
    Return the number of a stack among distinct ones; -1 for none.
    """
    # Frames inside torch are the same for all ranks.
    user_frames = [
        f for f in frames if not _TORCH_FILE.search(f.filename)
    ] or frames
    stack = tuple(
        clean(str(Location(function=f.name, file=f.filename, line=f.line)))
        for f in user_frames[:_MAX_FRAMES]
    )
    if not stack or (stack not in numbers and len(numbers) >= _MAX_STACKS):
        return -1
    return numbers.setdefault(stack, len(numbers))


_MAX_TRANSFERS = 16


def collect_transfers(recorded: RecordedCalls) -> dict[str, Any] | None:
    """
    Collect the sends and receives of each pair of ranks and group.

    Returns:
        Template variables: the first pairs, those that wait and are at fault
        before the others, and how many wait, do not, and are left out; None if
        there are no transfers.
    """
    pairs = [_pair_entry(x, recorded) for x in recorded.job.channels]
    if not pairs:
        return None

    pairs.sort(
        key=lambda pair: (
            not pair["is_stuck"],
            recorded.culprits.isdisjoint((pair["source"], pair["target"])),
            pair["source"],
            pair["target"],
        )
    )
    stuck = sum(pair["is_stuck"] for pair in pairs)
    return {
        "shown": pairs[:_MAX_TRANSFERS],
        "stuck": stuck,
        "fine": len(pairs) - stuck,
        "left_out": max(len(pairs) - _MAX_TRANSFERS, 0),
    }


def _pair_entry(channel: Channel, recorded: RecordedCalls) -> dict[str, Any]:
    send, recv = channel.send, channel.recv
    return {
        "source": channel.source,
        "target": channel.target,
        "group": clean(str(recorded.groups[channel.group].ref)),
        "send": send and {"count": len(send.rows), "waiting": send.pending},
        "recv": recv and {"count": len(recv.rows), "waiting": recv.pending},
        "is_stuck": any(side and side.pending for side in (send, recv)),
    }


_MAX_CALLS = 20_000
_MAX_OTHERS = 20_000
_MAX_GROUPS = 4096


class _ArrayBlob:
    """
    Arrays in sequence, each aligned to four bytes.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, values: NDArray[Any], kind: str) -> list[Any]:
        """
        Add an array, and return its location for the script.
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
        Return everything, deflated, in base64.
        """
        packer = zlib.compressobj(6)
        data = b"".join(map(packer.compress, self._parts)) + packer.flush()
        return b64encode(data).decode()


def pack_calls(
    views: Sequence[View], recorded: RecordedCalls
) -> tuple[list[list[str]], NDArray[np.int64]]:
    """
    Pack the distinct calls of all views.

    Returns:
        Operation, inputs, and outputs of each; and their codes in the views,
        ascending.
    """
    found = [view.programs.ravel() for view in views]
    found += [
        np.fromiter(view.other_calls.values(), np.int64) for view in views
    ]
    codes = np.unique(np.concatenate(found))
    codes = codes[codes >= 0][:_MAX_CALLS]
    calls = map(recorded.call_texts, codes.tolist())
    return [[clean(op), *shapes] for op, *shapes in calls], codes


def pack_view(  # noqa: PLR0913
    view: View,
    recorded: RecordedCalls,
    codes: NDArray[np.int64],
    *,
    lateness: Lateness | None,
    focus: tuple[int, int],
    lines: Mapping[int, list[int]],
) -> dict[str, Any]:
    """
    Pack a view for the script that draws it.

    Args:
        view: The view.

        recorded: Calls of all ranks.

        codes: From :func:`pack_calls`.

        lateness: Lateness of ranks, if it is known.

        focus: Row and column to show first.

        lines: Code lines of the calls.

    Returns:
        JSON data.
    """
    blob = _ArrayBlob()
    return {
        "name": clean(view.name),
        "cut": view.cut,
        "rows": len(view.ranks),
        "kinds": len(view.states),
        "focus": list(focus),
        "columns": blob.add(view.columns, "u32"),
        "ranks": blob.add(view.ranks, "u32"),
        "group": blob.add(_group_places(view), "u32"),
        "kind": blob.add(view.kind, "u32"),
        "states": blob.add(view.states, "u8"),
        "program": list(view.program),
        "programs": blob.add(_call_positions(view.programs, codes), "u32"),
        "others": _pack_others(view, codes),
        "groups": _group_rows(view, recorded),
        "traced": list(lines),
        "stacks": blob.add(np.array(list(lines.values()), np.int64), "u32"),
        "late": None if lateness is None else _pack_lateness(lateness, blob),
        "blob": blob.text(),
    }


def _group_places(view: View) -> NDArray[np.int64]:
    place_of = {group: i for i, group in enumerate(view.groups)}
    return np.array([place_of[group] for group in view.group.tolist()])


def _pack_others(view: View, codes: NDArray[np.int64]) -> list[list[int]]:
    others = [*view.other_calls.items()][:_MAX_OTHERS]
    calls = np.array([call for _, call in others], np.int64)
    positions = _call_positions(calls, codes).tolist()
    places = [place for place, _ in others]
    return [[*xy, at] for xy, at in zip(places, positions, strict=True)]


def _group_rows(view: View, recorded: RecordedCalls) -> list[list[Any]]:
    known = recorded.groups
    return [
        [
            clean(known[g].name),
            clean(str(known[g].ref)),
            summarize_ranks(sorted(known[g].order)) if i < _MAX_GROUPS else "",
        ]
        for i, g in enumerate(view.groups)
    ]


def _pack_lateness(lateness: Lateness, blob: _ArrayBlob) -> dict[str, Any]:
    return {
        "start": lateness.start,
        "steps": STEPS,
        "late": blob.add(lateness.late, "u8"),
        "typical": blob.add(lateness.typical, "u8"),
        "pause": blob.add(lateness.pause, "u8"),
        "clocks": lateness.clocks,
        "doubt_ms": round(lateness.doubt_ns / 1e6, 3),
    }


def _call_positions(
    calls: NDArray[np.int64], codes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """
    Return positions in *codes*; the largest number stands for none.
    """
    none = 0xFFFFFFFF
    if not len(codes):
        return np.full(calls.shape, none)

    at = np.minimum(np.searchsorted(codes, calls), len(codes) - 1)
    found: NDArray[np.int64] = np.where(codes[at] == calls, at, none)
    return found


# Name, sign, and text of each state, in the order of their numbers.
_STATE_LABELS = (
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
    Return the section with the call matrix; None if there are no dumps.
    """
    flight = inputs_of(diagnosis).flight
    if flight is None or not len(flight.dumps):
        return None

    recorded = read_recorded_calls(diagnosis, flight)
    views = build_views(recorded)
    transfers = collect_transfers(recorded)
    if not views and transfers is None:
        return None

    late = [compute_lateness(view, recorded) for view in views]
    latest = summarize_lateness(views, late, recorded)
    tables, more = fold_tables(views, recorded)
    # These tables show neither lateness nor transfers.
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
            "pairs": transfers,
            "states": _STATE_LABELS,
            "has_views": bool(views),
        },
        data=_script_data(views, late, recorded) if views else None,
    )


def _script_data(
    views: Sequence[View],
    late: Sequence[Lateness | None],
    recorded: RecordedCalls,
) -> dict[str, Any]:
    verdict = recorded.diagnosis.verdict
    calls, codes = pack_calls(views, recorded)
    stacks, lines = read_call_lines(views, recorded)
    return {
        "states": [list(state) for state in _STATE_LABELS],
        "color": "late" if verdict.cause is Cause.STRAGGLER else "state",
        "blamed": list(verdict.ranks),
        "calls": calls,
        "stacks": stacks,
        "views": [
            pack_view(
                view,
                recorded,
                codes,
                lateness=times,
                focus=_focus_cell(view, recorded),
                lines=view_lines,
            )
            for view, times, view_lines in zip(views, late, lines, strict=True)
        ],
    }


def _focus_cell(view: View, recorded: RecordedCalls) -> tuple[int, int]:
    """
    Return the cell to show first: of a culprit, in the call of the verdict.
    """
    blamed = np.flatnonzero(np.isin(view.ranks, [*recorded.culprits]))
    row = int(blamed[0]) if len(blamed) else 0
    group = int(view.group[row])
    return row, find_focus_column(view, group, recorded)


def _summary(views: Sequence[View]) -> str:
    ranks = max(len(view.ranks) for view in views)
    columns = sum(len(view.columns) for view in views)
    return f"{ranks:,} ranks, {columns:,} calls"
