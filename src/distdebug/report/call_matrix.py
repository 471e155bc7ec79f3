"""
Build the call matrix: state of every call per rank and group.

Equal records are stored once, so a thousand ranks give few records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from numpy.typing import NDArray

from .._text import clean
from ..findings import Diagnosis, described
from ..flight_recorder import (
    COMPLETED,
    STARTED,
    Dumps,
    FlightReport,
    Group,
    Job,
    RankDump,
    Stream,
    group_status,
    shape_texts,
)
from ..ranks import ranks_text
from .format import shorten_ranks


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
        diagnosis: The diagnosis to show.

        flight: Its analysis of dumps.

        job: Its groups and streams of calls.

        records: All distinct records.

        record_of: Record (as index) by rank and group (as index).

        enqueued: By rank and group without a record: number of calls that
            torch counted.

        arrivals: Arrival times by rank and group.
    """

    diagnosis: Diagnosis
    flight: FlightReport
    job: Job
    records: list[Record] = attrs.field(factory=list)
    record_of: dict[tuple[int, int], int] = attrs.field(factory=dict)
    enqueued: dict[tuple[int, int], int] = attrs.field(factory=dict)
    arrivals: dict[tuple[int, int], Arrivals] = attrs.field(factory=dict)
    _numbers: dict[tuple[bytes, ...], int] = attrs.field(factory=dict)

    @property
    def dumps(self) -> Dumps:
        """
        Return the dumps of all ranks.
        """
        return self.flight.dumps

    @property
    def groups(self) -> Sequence[Group]:
        """
        Return the groups of the job.
        """
        return self.job.groups

    @property
    def culprits(self) -> frozenset[int]:
        """
        Return the ranks of the verdict.
        """
        return frozenset(self.diagnosis.verdict.ranks)

    @cached_property
    def _busy(self) -> Mapping[int, set[int]]:
        """
        The groups that each rank waits in; -1 for a transfer.
        """
        group_of = {
            (group.name, rank): i
            for i, group in enumerate(self.groups)
            for rank in group.order
        }
        busy: dict[int, set[int]] = defaultdict(set)
        for wait in self.flight.waits:
            for rank in wait.waiting:
                # A transfer has no column: it blocks the rank in all groups.
                known = group_of.get((wait.group, rank), -1)
                busy[rank].add(-1 if wait.p2p else known)
        return busy

    def call_texts(self, call: int) -> tuple[str, str, str]:
        """
        Return operation, inputs, and outputs of a call, see :class:`Record`.
        """
        op, shape = divmod(call, max(len(self.dumps.shapes), 1))
        return self.dumps.ops[op], *shape_texts(self.dumps.shapes[shape])

    def absence(self, rank: int, group: int) -> int:
        """
        Return the state of a call that a rank has no record of.
        """
        if rank not in self.dumps.by_rank:
            return State.NO_DUMP
        if rank in self.flight.outdated:
            return State.NOT_RECORDED
        is_elsewhere = self._busy.get(rank, set()) - {group}
        return State.ELSEWHERE if is_elsewhere else State.NOT_ENTERED

    def add(self, rank: int, group: int, record: Record) -> None:
        """
        Add the calls of a rank in a group.
        """
        parts = record.seq, record.signature, record.state
        key = tuple(part.tobytes() for part in parts)
        number = self._numbers.setdefault(key, len(self.records))
        if number == len(self.records):
            self.records.append(record)
        self.record_of[rank, group] = number


def read_recorded_calls(
    diagnosis: Diagnosis, flight: FlightReport, *, max_times: int = _MAX_TIMES
) -> RecordedCalls:
    """
    Read the recorded calls of each rank in each group.

    Takes time linear in the number of calls.

    Args:
        max_times: Limit of arrival times, for all ranks.
    """
    dumps, job = flight.dumps, Job(flight.dumps)
    recorded = RecordedCalls(diagnosis=diagnosis, flight=flight, job=job)
    total = sum(len(dump.entries) for dump in dumps)
    share = min(1.0, max_times / max(total, 1))
    for dump in dumps:
        rank = dump.rank
        streams = job.streams(rank)
        for group, stream in streams.items():
            record = _build_record(dump, stream, len(dumps.shapes))
            recorded.add(rank, group, record)
            arrivals = _build_arrivals(dump, stream, share)
            recorded.arrivals[rank, group] = arrivals
        if not streams.keys() >= set(job.membership.by_name[rank].values()):
            for group, status in group_status(dump, job.membership).items():
                recorded.enqueued[rank, group] = max(status.enqueued, 0)
    return recorded


def _build_record(dump: RankDump, stream: Stream, shapes: int) -> Record:
    e, rows = dump.entries, stream.row
    recorded = e.state[rows]
    over = e.retired[rows] | (recorded == COMPLETED)
    pending = np.where(recorded == STARTED, State.STARTED, State.SCHEDULED)
    state = np.where(over, State.FAILED, pending)
    op = e.op[rows].astype(np.int64)
    return Record(
        seq=stream.seq,
        signature=stream.signature,
        call=op * max(shapes, 1) + e.shape[rows],
        state=np.where(stream.done, State.COMPLETED, state).astype(np.uint8),
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
_WEIGHT, _BLAMED_WEIGHT = 1000, 1


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
    group: int, recorded: RecordedCalls, columns: NDArray[np.int64]
) -> Program:
    """
    Return the call of the majority in each column.

    Args:
        group: The group, as index.

        recorded: Calls of all ranks.

        columns: The sequence number of each column, ascending.
    """
    weights: dict[int, int] = defaultdict(int)
    for rank in recorded.groups[group].order:
        number = recorded.record_of.get((rank, group))
        if number is not None:
            is_blamed = rank in recorded.culprits
            weights[number] += _BLAMED_WEIGHT if is_blamed else _WEIGHT
    count = np.zeros(len(columns), np.int64)
    signature = np.zeros(len(columns), np.int64)
    call = np.full(len(columns), -1, np.int64)
    # Boyer-Moore majority vote: one pass for any number of variants.
    for number in sorted(weights, key=lambda n: (-weights[n], n)):
        record = recorded.records[number]
        other = align_calls(record.signature, record, columns, 0)
        called = align_calls(record.call, record, columns, -1)
        vote = np.where(called < 0, 0, np.where(other == signature, 1, -1))
        count += vote * weights[number]
        wins = count < 0
        signature[wins], call[wins] = other[wins], called[wins]
        count = np.abs(count)

    return Program(signature=signature, call=call)


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
        rows.append(cells := _row_cells(record, row_key, columns))
        if record is not None:
            program = programs[row_key.program]
            found = _differences(cells, record, columns, program)
            others |= {(row, column): call for column, call in found}

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


def build_views(recorded: RecordedCalls) -> list[View]:
    """
    Build the views, the one of the verdict first.
    """
    found = [
        view
        for name, groups in _group_views(recorded.groups)
        if (view := _build_view(name, groups, recorded)) is not None
    ]
    stuck = {(w.group, w.desc) for w in recorded.flight.waits}
    group = recorded.diagnosis.verdict.group

    def importance(view: View) -> tuple[bool, bool, int]:
        of_view = [recorded.groups[g] for g in view.groups]
        names = {(g.name, g.desc) for g in of_view}
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
        name = str(group.ref) if described(group.desc) else ""
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
    name: str, groups: Sequence[int], recorded: RecordedCalls
) -> View | None:
    rank_groups = sorted(
        (rank, g) for g in groups for rank in recorded.groups[g].order
    )
    numbers = map(recorded.record_of.get, rank_groups)
    records = {n: recorded.records[n] for n in numbers if n is not None}
    columns, cut = select_columns(list(records.values()), len(rank_groups))
    if not len(columns):
        return None

    programs, of_group = _distinct_programs(groups, recorded, columns)
    row_keys = [_row_key(*pair, of_group, recorded) for pair in rank_groups]
    kinds = {key: kind for kind, key in enumerate(dict.fromkeys(row_keys))}
    ranks, group_of = map(np.array, zip(*rank_groups, strict=True))
    states, others = build_states(kinds, records, programs, columns)
    return View(
        name=name,
        groups=tuple(groups),
        columns=columns,
        cut=cut,
        ranks=ranks,
        group=group_of,
        kind=np.array([kinds[key] for key in row_keys]),
        states=states,
        program=tuple(key.program for key in kinds),
        programs=np.array([program.call for program in programs]),
        other_calls=others,
    )


def _distinct_programs(
    groups: Iterable[int], recorded: RecordedCalls, columns: NDArray[np.int64]
) -> tuple[list[Program], dict[int, int]]:
    """
    Return all programs, and the program (as index) of each group.
    """
    numbers: dict[tuple[bytes, bytes], int] = {}
    programs: list[Program] = []
    of_group = {}
    for group in groups:
        program = majority_program(group, recorded, columns)
        key = program.signature.tobytes(), program.call.tobytes()
        of_group[group] = numbers.setdefault(key, len(programs))
        programs += [program] * (len(numbers) - len(programs))
    return programs, of_group


def _row_key(
    rank: int,
    group: int,
    program_of: Mapping[int, int],
    recorded: RecordedCalls,
) -> RowKey:
    record = recorded.record_of.get((rank, group), -1)
    counted = recorded.enqueued.get((rank, group), 0) if record < 0 else 0
    absence = recorded.absence(rank, group)
    return RowKey(record, counted, absence, program_of[group])


def call_title(call: int, recorded: RecordedCalls) -> str:
    """
    Return the name of a call without its backend.

    Args:
        call: As in :class:`View`; -1 for none.

        recorded: Calls of all ranks.
    """
    if call < 0:
        return "another call"

    op, *_ = recorded.call_texts(call)
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

    _, inputs, _ = recorded.call_texts(own)
    return clean(f"{name} {inputs}", limit=60)


def select_groups(
    views: Sequence[View],
    recorded: RecordedCalls,
) -> list[tuple[View, int]]:
    """
    Select the groups that matter most, with their views.

    Returns:
        The group (as index) of the verdict, and stuck groups; else the largest
        one.
    """
    view_of = {group: view for view in views for group in view.groups}
    found = dict.fromkeys(_relevant_groups(view_of, recorded))
    if not found and views:
        known = recorded.groups
        largest = max(views[0].groups, key=lambda i: len(known[i].order))
        found[largest] = None
    # Show one group of each view before a second of the same view.
    first_of = {view_of[i]: i for i in reversed(found)}
    order = sorted(found, key=lambda i: first_of[view_of[i]] != i)
    return [(view_of[i], i) for i in order]


def _relevant_groups(
    groups: Iterable[int],
    recorded: RecordedCalls,
) -> Iterable[int]:
    order = recorded.groups
    verdict = recorded.diagnosis.verdict.group
    stuck = {
        (w.group, rank)
        for w in recorded.flight.waits
        if not w.p2p
        for rank in w.waiting
    }
    groups = list(groups)
    yield from (i for i in groups if verdict and order[i].ref == verdict)
    waiting = [
        i
        for i in groups
        if any((order[i].name, rank) in stuck for rank in order[i].order)
    ]
    yield from sorted(
        waiting, key=lambda i: recorded.culprits.isdisjoint(order[i].order)
    )


def find_focus_column(
    view: View,
    group: int,
    recorded: RecordedCalls,
) -> int:
    """
    Find the column of a group that matters most.

    Returns:
        The column (as index) of a call that findings name, that is stuck, or
        that differs; else the newest.
    """
    known = recorded.groups[group]
    diagnosis = recorded.diagnosis
    named = [
        f.collective.seq
        for f in (diagnosis.verdict, *diagnosis.findings)
        if f.group == known.ref and f.collective and not f.collective.p2p
    ]
    members = set(known.order)
    named += [
        w.seq
        for w in recorded.flight.waits
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


def fold_tables(
    views: Sequence[View],
    recorded: RecordedCalls,
) -> tuple[list[dict[str, Any]], int]:
    """
    Fold the groups that matter most into small tables.

    Returns:
        Template variables of the tables, and the number of further stuck
        groups.  Each has the calls around the one that matters most as
        columns, and kinds of ranks as rows, those at fault first.
    """
    chosen = select_groups(views, recorded)
    tables = [
        _fold_table(view, group, recorded)
        for view, group in chosen[:_MAX_TABLES]
    ]
    return tables, len(chosen) - len(tables)


def _fold_table(
    view: View, group: int, recorded: RecordedCalls
) -> dict[str, Any]:
    focus = find_focus_column(view, group, recorded)
    known = recorded.groups[group]
    at = int(view.kind[int((view.group == group).argmax())])
    program = view.programs[view.program[at]]
    # Other groups of the view may have other columns.
    own = np.union1d(np.flatnonzero(program >= 0), [focus])
    place = int(np.searchsorted(own, focus))
    first, last = max(place - _COLUMNS_BEFORE, 0), place + _COLUMNS_AFTER
    window = own[first : last + 1].tolist()
    rows = _fold_rows(view, group, window, recorded)
    return {
        "name": clean(str(known.ref)),
        "group": clean(known.name),
        "size": len(known.order),
        "columns": [
            {
                "seq": int(view.columns[c]),
                "op": call_title(int(program[c]), recorded),
                "is_focus": c == focus,
            }
            for c in window
        ],
        "rows": rows[:_MAX_ROWS],
        "more": max(len(rows) - _MAX_ROWS, 0),
    }


def _fold_rows(
    view: View, group: int, window: Sequence[int], recorded: RecordedCalls
) -> list[dict[str, Any]]:
    """
    Return the rows of a table: ranks with equal cells share one.
    """
    members = np.flatnonzero(view.group == group).tolist()
    cells = {
        kind: tuple(_fold_cell(view, kind, c, recorded) for c in window)
        for kind in np.unique(view.kind[members]).tolist()
    }
    alike: dict[tuple[bool, tuple[object, ...]], list[int]] = defaultdict(list)
    for at in members:
        rank = int(view.ranks[at])
        is_culprit = rank in recorded.culprits
        alike[is_culprit, cells[int(view.kind[at])]].append(rank)
    found = [
        {
            "count": len(ranks),
            "ranks": shorten_ranks(ranks_text(ranks), _MAX_RANKS_TEXT),
            "first": ranks[0],
            "is_culprit": is_culprit,
            "cells": row_cells,
        }
        for (is_culprit, row_cells), ranks in alike.items()
    ]
    return sorted(found, key=lambda row: (not row["is_culprit"], row["first"]))


def _fold_cell(
    view: View, kind: int, column: int, recorded: RecordedCalls
) -> tuple[int, str]:
    state = int(view.states[kind, column])
    differs = state & State.DIFFERS
    name = differing_call(view, kind, column, recorded) if differs else ""
    return state & ~State.DIFFERS, name
