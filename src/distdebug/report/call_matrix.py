"""
Build the call matrix: state of every call per rank and group.

Equal records are stored once, so a thousand ranks give few records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from numpy.typing import NDArray

from .._text import clean
from ..findings import Diagnosis
from ..flight_recorder import (
    COMPLETED,
    STARTED,
    Dumps,
    FlightReport,
    Group,
    Membership,
    RankDump,
    Signatures,
    Stream,
    collective_streams,
    find_groups,
    group_status,
    shape_texts,
)
from ..ranks import ranks_text


# Limit of arrival times, the newest of each rank.
_MAX_TIMES = 1 << 21


class State:
    """
    State of a call.
    """

    NOT_RECORDED = 0
    COMPLETED = 1
    STARTED = 2
    SCHEDULED = 3
    FAILED = 4
    NOT_ENTERED = 5
    ELSEWHERE = 6
    NO_DUMP = 7
    # Flag on top of a state: the call differs from that of the others.
    DIFFERS = 8


@attrs.frozen(kw_only=True, eq=False)
class Record:
    """
    Calls that ranks recorded in a group, one element per call.

    Attributes:
        seq: Sequence numbers, ascending.

        signature: Identifies the call, comparable between ranks.

        call: Operation and shape, as ``op * number of shapes + shape``.

        state: See :class:`State`.
    """

    seq: NDArray[np.int64]
    signature: NDArray[np.int64]
    call: NDArray[np.int64]
    state: NDArray[np.uint8]


@attrs.frozen(kw_only=True, eq=False)
class Arrivals:
    """
    Times of the newest calls of one rank in a group.

    Attributes:
        seq: Sequence numbers, ascending.

        created_ns: When the rank entered, by the clock of its host.

        completed_ns: When the watchdog noticed the end; 0 if it did not.
    """

    seq: NDArray[np.int64]
    created_ns: NDArray[np.int64]
    completed_ns: NDArray[np.int64]


@attrs.frozen(kw_only=True, eq=False)
class RecordedCalls:
    """
    Calls that all ranks recorded.

    Attributes:
        dumps: The dumps.

        membership: The groups of the job.

        records: All distinct records.

        record_of: Record (as index) by rank and group (as index).

        enqueued: By rank and group without a record: number of calls that
            torch counted.

        arrivals: Arrival times by rank and group.
    """

    dumps: Dumps
    membership: Membership
    records: tuple[Record, ...]
    record_of: Mapping[tuple[int, int], int]
    enqueued: Mapping[tuple[int, int], int]
    arrivals: Mapping[tuple[int, int], Arrivals]


def read_recorded_calls(
    dumps: Dumps, *, max_times: int = _MAX_TIMES
) -> RecordedCalls:
    """
    Read the recorded calls of each rank in each group.

    Takes time linear in the number of calls.

    Args:
        dumps: The dumps of all ranks.

        max_times: Limit of arrival times, for all ranks.
    """
    membership = find_groups(dumps)
    signatures = Signatures(dumps.ops, dumps.shapes)
    total = sum(len(dump.entries) for dump in dumps)
    share = min(1.0, max_times / max(total, 1))
    known: dict[tuple[bytes, ...], int] = {}
    records: list[Record] = []
    record_of: dict[tuple[int, int], int] = {}
    enqueued: dict[tuple[int, int], int] = {}
    arrivals: dict[tuple[int, int], Arrivals] = {}
    for dump in dumps:
        codes = membership.by_code[dump.rank]
        for group, stream in collective_streams(
            dump, codes, signatures
        ).items():
            state = _call_states(dump, stream)
            parts = stream.seq, stream.signature, state
            key = tuple(part.tobytes() for part in parts)
            if key not in known:
                known[key] = len(records)
                records.append(
                    _build_record(dump, stream, state, len(dumps.shapes))
                )
            record_of[dump.rank, group] = known[key]
            arrivals[dump.rank, group] = _build_arrivals(dump, stream, share)
        if any(
            (dump.rank, g) not in record_of
            for g in _member_groups(dump, membership)
        ):
            for group, status in group_status(dump, membership).items():
                enqueued[dump.rank, group] = max(status.enqueued, 0)

    return RecordedCalls(
        dumps=dumps,
        membership=membership,
        records=tuple(records),
        record_of=record_of,
        enqueued=enqueued,
        arrivals=arrivals,
    )


def _member_groups(dump: RankDump, membership: Membership) -> set[int]:
    return set(membership.by_name[dump.rank].values())


def _call_states(dump: RankDump, stream: Stream) -> NDArray[np.uint8]:
    e, rows = dump.entries, stream.row
    recorded = e.state[rows]
    over = e.retired[rows] | (recorded == COMPLETED)
    pending = np.where(recorded == STARTED, State.STARTED, State.SCHEDULED)
    state = np.where(over, State.FAILED, pending)
    found: NDArray[np.uint8] = np.where(
        stream.done, State.COMPLETED, state
    ).astype(np.uint8)
    return found


def _build_record(
    dump: RankDump, stream: Stream, state: NDArray[Any], shapes: int
) -> Record:
    e = dump.entries
    op = e.op[stream.row].astype(np.int64)
    return Record(
        seq=stream.seq,
        signature=stream.signature,
        call=op * max(shapes, 1) + e.shape[stream.row],
        state=state,
    )


def _build_arrivals(dump: RankDump, stream: Stream, share: float) -> Arrivals:
    newest = slice(len(stream.seq) - int(len(stream.seq) * share), None)
    rows = stream.row[newest]
    return Arrivals(
        seq=stream.seq[newest],
        created_ns=dump.entries.created_ns[rows],
        completed_ns=dump.entries.completed_ns[rows],
    )


# Ranks at fault hardly count for the majority.
_BLAMED_WEIGHT = 1e-3


@attrs.frozen(kw_only=True, eq=False)
class Program:
    """
    Calls of the majority of a group, one element per column.

    Attributes:
        signature: Identifies the call, comparable between ranks; 0 for no
            call.

        call: Operation and shape; -1 for no call.
    """

    signature: NDArray[np.int64]
    call: NDArray[np.int64]


def align_calls(
    values: NDArray[np.generic],
    record: Record,
    columns: NDArray[np.int64],
    fill: int,
) -> NDArray[np.int64]:
    """
    Align the calls of a record with columns.

    Args:
        values: One per call of the record.

        record: The record.

        columns: The sequence number of each column, ascending.

        fill: Value for columns without a call.
    """
    found = np.full(len(columns), fill, np.int64)
    at = np.searchsorted(columns, record.seq)
    there = at < len(columns)
    there[there] = columns[at[there]] == record.seq[there]
    found[at[there]] = values[there]
    return found


def majority_program(
    records: Mapping[int, Record],
    ranks: Mapping[int, Sequence[int]],
    columns: NDArray[np.int64],
    blamed: frozenset[int],
) -> Program:
    """
    Return the call of the majority in each column.

    Args:
        records: Records of the members, by number.

        ranks: The ranks of each record.

        columns: The sequence number of each column, ascending.

        blamed: Ranks at fault; they hardly count.
    """
    weights = {
        i: sum(_BLAMED_WEIGHT if r in blamed else 1.0 for r in ranks[i])
        for i in records
    }
    count = np.zeros(len(columns))
    signature = np.zeros(len(columns), np.int64)
    call = np.full(len(columns), -1, np.int64)
    # Boyer-Moore majority vote: one pass for any number of variants.
    for i in sorted(records, key=lambda i: (-weights[i], i)):
        other = align_calls(records[i].signature, records[i], columns, 0)
        called = align_calls(records[i].call, records[i], columns, -1)
        agrees = other == signature
        count += np.where(called < 0, 0, np.where(agrees, 1, -1)) * weights[i]
        wins = count < 0
        signature[wins], call[wins] = other[wins], called[wins]
        count = np.abs(count)

    return Program(signature=signature, call=call)


@attrs.frozen(kw_only=True)
class Absences:
    """
    Facts that explain missing records.

    Attributes:
        blamed: Ranks at fault.

        dumped: Ranks with a dump.

        busy: Groups (as index) that each rank waits in; -1 for a transfer.

        outdated: Ranks with a dump older than the others.
    """

    blamed: frozenset[int]
    dumped: frozenset[int]
    busy: Mapping[int, frozenset[int]]
    outdated: frozenset[int]

    def state(self, rank: int, group: int) -> int:
        """
        Return the state of a call that a rank has no record of.
        """
        if rank not in self.dumped:
            return State.NO_DUMP
        if rank in self.outdated:
            return State.NOT_RECORDED
        if self.busy.get(rank, frozenset()) - {group}:
            return State.ELSEWHERE

        return State.NOT_ENTERED


def collect_absences(
    recorded: RecordedCalls, diagnosis: Diagnosis, flight: FlightReport
) -> Absences:
    """
    Collect the facts that explain missing records.
    """
    names: dict[tuple[str, tuple[int, ...]], int] = {}
    for i, group in enumerate(recorded.membership.groups):
        for rank in group.order:
            names[group.name, (rank,)] = i
    busy: dict[int, set[int]] = defaultdict(set)
    for wait in flight.waits:
        for rank in wait.waiting:
            # A transfer has no column: it blocks the rank in all groups.
            at = -1 if wait.p2p else names.get((wait.group, (rank,)), -1)
            busy[rank].add(at)

    return Absences(
        blamed=frozenset(diagnosis.verdict.ranks),
        dumped=frozenset(recorded.dumps.by_rank),
        busy={rank: frozenset(groups) for rank, groups in busy.items()},
        outdated=frozenset(flight.outdated),
    )


_MAX_CELLS = 1 << 25
_MAX_COLUMNS = 16_384
# Limit per kind of rank; a rank out of step differs to the end.
_MAX_DIFFERENCES = 256


@attrs.frozen
class RowKey:
    """
    Key of a row; ranks with equal keys have equal rows.

    Attributes:
        record: Record, as index; -1 for none.

        counted: Without a record, the number of calls that torch counted.

        absence: State of calls without a record.

        program: Program to compare with, as index.
    """

    record: int
    counted: int
    absence: int
    program: int


def select_columns(
    records: Sequence[Record], rows: int
) -> tuple[NDArray[np.int64], int]:
    """
    Select the sequence numbers to show.

    Args:
        records: All records.

        rows: Number of rows.

    Returns:
        The numbers, ascending, and the number of older ones left out.
    """
    if not records:
        return np.empty(0, np.int64), 0

    most = min(max(_MAX_CELLS // rows, 64), _MAX_COLUMNS)
    columns = records[0].seq
    for record in records[1:]:
        if not np.array_equal(record.seq, columns):
            columns = np.union1d(columns, record.seq)
    return columns[-most:], max(len(columns) - most, 0)


def build_states(
    row_keys: Iterable[RowKey],
    records: Mapping[int, Record],
    programs: Sequence[Program],
    columns: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], dict[tuple[int, int], int]]:
    """
    Build a row of states for each key.

    Args:
        row_keys: All distinct keys.

        records: Their records, by index.

        programs: Their programs.

        columns: The sequence number of each column, ascending.

    Returns:
        A row of states (see :class:`State`) per key; and the differing calls,
        by row and column.
    """
    rows: list[NDArray[np.uint8]] = []
    others: dict[tuple[int, int], int] = {}
    for row, row_key in enumerate(row_keys):
        record = records.get(row_key.record)
        cells = _row_cells(record, row_key, columns)
        if record is not None:
            others |= {
                (row, column): call
                for column, call in _differences(
                    cells, record, columns, programs[row_key.program]
                )
            }
        rows.append(cells)

    return np.array(rows, np.uint8), others


def _row_cells(
    record: Record | None, row_key: RowKey, columns: NDArray[np.int64]
) -> NDArray[np.uint8]:
    if row_key.absence == State.NO_DUMP:
        return np.full(len(columns), State.NO_DUMP, np.uint8)

    newest = int(record.seq[-1]) if record is not None else row_key.counted
    cells = np.where(columns > newest, row_key.absence, State.NOT_RECORDED)
    if record is not None:
        own = align_calls(record.state, record, columns, -1)
        cells = np.where(own >= 0, own, cells)
    found: NDArray[np.uint8] = cells.astype(np.uint8)
    return found


def _differences(
    cells: NDArray[np.uint8],
    record: Record,
    columns: NDArray[np.int64],
    program: Program,
) -> Iterable[tuple[int, int]]:
    """
    Mark the calls that differ from the program, and yield them by column.
    """
    call = align_calls(record.call, record, columns, -1)
    signature = align_calls(record.signature, record, columns, 0)
    differs = (call >= 0) & (signature != program.signature)
    cells[differs] |= State.DIFFERS
    for column in np.flatnonzero(differs)[:_MAX_DIFFERENCES].tolist():
        yield column, int(call[column])


_MAX_VIEWS = 16


@attrs.frozen(kw_only=True, eq=False)
class View:
    """
    One matrix: rows are ranks, columns are calls.

    Attributes:
        name: Common name of its groups.

        groups: Its groups, as index.

        columns: The sequence number of each column, ascending.

        cut: Number of older calls without a column.

        ranks: The rank of each row.

        group: The group (as index) of each row.

        kind: Row of *states* for each row.

        states: One row per kind of rank, one column per call; see
            :class:`State`.

        program: Row of *programs* for each kind.

        programs: Calls of the majority, as ``op * shapes + shape``.

        other_calls: Differing calls, by kind and column.
    """

    name: str
    groups: tuple[int, ...]
    columns: NDArray[np.int64]
    cut: int
    ranks: NDArray[np.int64]
    group: NDArray[np.int64]
    kind: NDArray[np.int64]
    states: NDArray[np.uint8]
    program: tuple[int, ...]
    programs: NDArray[np.int64]
    other_calls: Mapping[tuple[int, int], int]


def build_views(
    recorded: RecordedCalls, diagnosis: Diagnosis, flight: FlightReport
) -> list[View]:
    """
    Build the views, the one of the verdict first.
    """
    absences = collect_absences(recorded, diagnosis, flight)
    found = [
        view
        for name, groups in _group_views(recorded.membership.groups)
        if (view := _build_view(name, groups, recorded, absences)) is not None
    ]
    stuck = {(w.group, w.desc) for w in flight.waits}
    group = diagnosis.verdict.group
    named = recorded.membership.groups

    def importance(view: View) -> tuple[bool, bool, int]:
        names = {(named[g].name, named[g].desc) for g in view.groups}
        of_verdict = group is not None and (group.name, group.desc) in names
        return not of_verdict, names.isdisjoint(stuck), -len(view.ranks)

    return sorted(found, key=importance)[:_MAX_VIEWS]


def _group_views(groups: Sequence[Group]) -> Iterable[tuple[str, list[int]]]:
    """
    Sort groups into views in which no rank occurs twice.
    """
    found: list[tuple[str, list[int], set[int]]] = []
    by_name: dict[str, list[int]] = defaultdict(list)
    for i, group in enumerate(groups):
        name = str(group.ref) if group.desc not in {"", "undefined"} else ""
        for at in by_name[name]:
            if found[at][2].isdisjoint(group.order):
                found[at][1].append(i)
                found[at][2].update(group.order)
                break
        else:
            by_name[name].append(len(found))
            found.append((name, [i], set(group.order)))

    for name, members, _ in found:
        only = groups[members[0]]
        yield name or f"group {only.name}", members


def _build_view(
    name: str,
    groups: Sequence[int],
    recorded: RecordedCalls,
    absences: Absences,
) -> View | None:
    rank_groups = _rank_groups(groups, recorded)
    records = {
        n: recorded.records[n]
        for pair in rank_groups
        if (n := recorded.record_of.get(pair)) is not None
    }
    columns, cut = select_columns(list(records.values()), len(rank_groups))
    if not len(columns):
        return None

    programs = _ProgramTable()
    of_group = {
        g: programs.add(_group_program(g, recorded, columns, absences.blamed))
        for g in groups
    }
    row_keys = [
        _row_key(rank, group, of_group[group], recorded, absences)
        for rank, group in rank_groups
    ]
    kinds = {
        row_key: kind for kind, row_key in enumerate(dict.fromkeys(row_keys))
    }
    states, others = build_states(kinds, records, programs.all, columns)
    return View(
        name=name,
        groups=tuple(groups),
        columns=columns,
        cut=cut,
        ranks=np.array([rank for rank, _ in rank_groups]),
        group=np.array([group for _, group in rank_groups]),
        kind=np.array([kinds[row_key] for row_key in row_keys]),
        states=states,
        program=tuple(row_key.program for row_key in kinds),
        programs=np.array([program.call for program in programs.all]),
        other_calls=others,
    )


def _rank_groups(
    groups: Iterable[int], recorded: RecordedCalls
) -> list[tuple[int, int]]:
    """
    Return all pairs of rank and group, sorted by rank.
    """
    order = recorded.membership.groups
    return sorted((rank, g) for g in groups for rank in order[g].order)


def _row_key(
    rank: int,
    group: int,
    program: int,
    recorded: RecordedCalls,
    absences: Absences,
) -> RowKey:
    record = recorded.record_of.get((rank, group), -1)
    counted = recorded.enqueued.get((rank, group), 0) if record < 0 else 0
    return RowKey(record, counted, absences.state(rank, group), program)


def _group_program(
    group: int,
    recorded: RecordedCalls,
    columns: NDArray[np.int64],
    blamed: frozenset[int],
) -> Program:
    ranks: dict[int, list[int]] = defaultdict(list)
    for rank in recorded.membership.groups[group].order:
        number = recorded.record_of.get((rank, group))
        if number is not None:
            ranks[number].append(rank)
    records = {number: recorded.records[number] for number in ranks}
    return majority_program(records, ranks, columns, blamed)


class _ProgramTable:
    """
    Distinct programs.
    """

    def __init__(self) -> None:
        self.all: list[Program] = []
        self._known: dict[tuple[bytes, bytes], int] = {}

    def add(self, program: Program) -> int:
        key = program.signature.tobytes(), program.call.tobytes()
        if key not in self._known:
            self._known[key] = len(self.all)
            self.all.append(program)
        return self._known[key]


def call_title(call: int, recorded: RecordedCalls) -> str:
    """
    Return the name of a call without its backend.

    Args:
        call: As in :class:`View`; -1 for none.

        recorded: Calls of all ranks.
    """
    if call < 0:
        return "another call"

    op = recorded.dumps.ops[call // max(len(recorded.dumps.shapes), 1)]
    return clean(op.partition(":")[2] or op)


def differing_call(
    view: View, kind: int, column: int, recorded: RecordedCalls
) -> str:
    """
    Return the name of a call that differs from the majority.

    Returns:
        The operation; with its sizes if only these differ.
    """
    own = view.other_calls.get((kind, column), -1)
    usual = int(view.programs[view.program[kind], column])
    name = call_title(own, recorded)
    if own < 0 or name != call_title(usual, recorded):
        return name

    shapes = recorded.dumps.shapes
    inputs, _ = shape_texts(shapes[own % len(shapes)])
    return clean(f"{name} {inputs}", limit=60)


def select_groups(
    views: Sequence[View],
    recorded: RecordedCalls,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> list[tuple[View, int]]:
    """
    Select the groups that matter most, with their views.

    Returns:
        The group (as index) of the verdict, and stuck groups; else the largest
        one.
    """
    view_of = {group: view for view in views for group in view.groups}
    found = dict.fromkeys(
        _relevant_groups(view_of, recorded, diagnosis, flight)
    )
    if not found and views:
        order = recorded.membership.groups
        largest = max(views[0].groups, key=lambda i: len(order[i].order))
        found[largest] = None
    # Show one group of each view before a second of the same view.
    view_counts: dict[int, int] = defaultdict(int)
    order_keys: list[tuple[bool, int, int]] = []
    for i in found:
        view_counts[id(view_of[i])] += 1
        order_keys.append(
            (view_counts[id(view_of[i])] > 1, len(order_keys), i)
        )
    return [(view_of[i], i) for _, _, i in sorted(order_keys)]


def _relevant_groups(
    groups: Iterable[int],
    recorded: RecordedCalls,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> Iterable[int]:
    order = recorded.membership.groups
    verdict = diagnosis.verdict.group
    stuck = {
        (w.group, rank)
        for w in flight.waits
        if not w.p2p
        for rank in w.waiting
    }
    groups = list(groups)
    for i in groups:
        if verdict is not None and order[i].ref == verdict:
            yield i
    blamed = frozenset(diagnosis.verdict.ranks)
    yield from sorted(
        (
            i
            for i in groups
            if any((order[i].name, rank) in stuck for rank in order[i].order)
        ),
        key=lambda i: blamed.isdisjoint(order[i].order),
    )


def find_focus_column(
    view: View,
    group: int,
    recorded: RecordedCalls,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> int:
    """
    Find the column of a group that matters most.

    Returns:
        The column (as index) of a call that findings name, that is stuck, or
        that differs; else the newest.
    """
    known = recorded.membership.groups[group]
    named = [
        f.collective.seq
        for f in (diagnosis.verdict, *diagnosis.findings)
        if f.group == known.ref and f.collective and not f.collective.p2p
    ]
    members = set(known.order)
    named += [
        w.seq
        for w in flight.waits
        if w.group == known.name and not w.p2p and members & set(w.waiting)
    ]
    for seq in named:
        at = int(np.searchsorted(view.columns, seq))
        if at < len(view.columns) and view.columns[at] == seq:
            return at

    kinds = np.unique(view.kind[view.group == group])
    odd = (view.states[kinds] & State.DIFFERS).any(axis=0)
    return int(odd.argmax()) if odd.any() else len(view.columns) - 1


_COLUMNS_BEFORE, _COLUMNS_AFTER = 3, 2
_MAX_TABLES = 3
_MAX_ROWS = 12
_MAX_RANKS_TEXT = 60


@attrs.frozen(kw_only=True)
class Cell:
    """
    State of a call, and its name if it differs.
    """

    state: int
    instead: str = ""


@attrs.frozen(kw_only=True)
class Column:
    """
    Sequence number and majority call of a column.
    """

    seq: int
    op: str
    is_focus: bool


@attrs.frozen(kw_only=True)
class Row:
    """
    Ranks with equal cells: number, text, and the first one.
    """

    count: int
    ranks: str
    first: int
    is_culprit: bool
    cells: tuple[Cell, ...]


@attrs.frozen(kw_only=True)
class Table:
    """
    Folded table of one group around the call that matters most.

    Attributes:
        name: Display name of the group.

        group: Its name in torch.

        size: Number of members.

        columns: The calls.

        rows: Kinds of ranks, those at fault first.

        more: Number of kinds left out.
    """

    name: str
    group: str
    size: int
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    more: int


def fold_tables(
    views: Sequence[View],
    recorded: RecordedCalls,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> tuple[list[Table], int]:
    """
    Fold the groups that matter most into small tables.

    Returns:
        The tables, and the number of further stuck groups.
    """
    chosen = select_groups(views, recorded, diagnosis, flight)
    tables = [
        _fold_table(view, group, recorded, diagnosis, flight)
        for view, group in chosen[:_MAX_TABLES]
    ]
    return tables, len(chosen) - len(tables)


def _fold_table(
    view: View,
    group: int,
    recorded: RecordedCalls,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> Table:
    focus = find_focus_column(view, group, recorded, diagnosis, flight)
    known = recorded.membership.groups[group]
    at = int(view.kind[int((view.group == group).argmax())])
    program = view.programs[view.program[at]]
    # Other groups of the view may have other columns.
    own = np.union1d(np.flatnonzero(program >= 0), [focus])
    place = int(np.searchsorted(own, focus))
    window = own[max(place - _COLUMNS_BEFORE, 0) : place + _COLUMNS_AFTER + 1]
    culprits = frozenset(diagnosis.verdict.ranks)
    rows = _fold_rows(view, group, window, recorded, culprits)
    return Table(
        name=clean(str(known.ref)),
        group=clean(known.name),
        size=len(known.order),
        columns=tuple(
            Column(
                seq=int(view.columns[c]),
                op=call_title(int(program[c]), recorded),
                is_focus=c == focus,
            )
            for c in window.tolist()
        ),
        rows=tuple(rows[:_MAX_ROWS]),
        more=max(len(rows) - _MAX_ROWS, 0),
    )


def _fold_rows(
    view: View,
    group: int,
    window: np.ndarray[tuple[int], np.dtype[np.int64]],
    recorded: RecordedCalls,
    culprits: frozenset[int],
) -> list[Row]:
    alike: dict[object, list[int]] = defaultdict(list)
    cells_of: dict[object, tuple[Cell, ...]] = {}
    cells = {
        kind: _fold_cells(view, kind, window.tolist(), recorded)
        for kind in np.unique(view.kind[view.group == group]).tolist()
    }
    for at in np.flatnonzero(view.group == group).tolist():
        rank = int(view.ranks[at])
        key = cells[int(view.kind[at])], rank in culprits
        alike[key].append(rank)
        cells_of[key] = key[0]
    found = [
        Row(
            count=len(ranks),
            ranks=_shorten_ranks(ranks_text(ranks)),
            first=ranks[0],
            is_culprit=ranks[0] in culprits,
            cells=cells_of[key],
        )
        for key, ranks in alike.items()
    ]
    return sorted(found, key=lambda row: (not row.is_culprit, row.first))


def _fold_cells(
    view: View, kind: int, window: Sequence[int], recorded: RecordedCalls
) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            state=int(view.states[kind, column]) & ~State.DIFFERS,
            instead=differing_call(view, kind, column, recorded)
            if view.states[kind, column] & State.DIFFERS
            else "",
        )
        for column in window
    )


def _shorten_ranks(text: str) -> str:
    if len(text) <= _MAX_RANKS_TEXT:
        return text

    return f"{text[:_MAX_RANKS_TEXT].rpartition(',')[0]},…"
