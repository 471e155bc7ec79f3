"""
What did each rank record in each group, with equal records kept once?

Most ranks of a job did the same, so a thousand ranks are a few records.
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


# So many times of arrival are kept, the newest of each rank.
_MOST_TIMES = 1 << 21


class State:
    """
    What became of a call, as a number for each case.
    """

    NOT_RECORDED = 0
    COMPLETED = 1
    STARTED = 2
    SCHEDULED = 3
    FAILED = 4
    NOT_ENTERED = 5
    ELSEWHERE = 6
    NO_DUMP = 7
    # Added to any of them: the call is not that of the others.
    DIFFERS = 8


@attrs.frozen(kw_only=True, eq=False)
class Record:
    """
    What some ranks recorded in a group: one element per call.

    Attributes:
        seq: Sequence numbers, ascending.

        signature: What was called, comparable between ranks.

        call: The operation and shape, as ``op * number of shapes + shape``.

        state: What became of it.
    """

    seq: NDArray[np.int64]
    signature: NDArray[np.int64]
    call: NDArray[np.int64]
    state: NDArray[np.uint8]


@attrs.frozen(kw_only=True, eq=False)
class Arrivals:
    """
    When one rank entered its newest calls in a group, and left them.

    Attributes:
        seq: Sequence numbers, ascending.

        created_ns: When it entered, by the clock of its host.

        completed_ns: When the end was noticed; 0 if it was not.
    """

    seq: NDArray[np.int64]
    created_ns: NDArray[np.int64]
    completed_ns: NDArray[np.int64]


@attrs.frozen(kw_only=True, eq=False)
class Recorded:
    """
    What all ranks recorded.

    Attributes:
        dumps: Where it comes from.

        membership: The groups of the job.

        records: All different ones.

        of: For each rank and group (as index), its record (as index).

        enqueued: For each rank and group without a record, how many calls
            torch counted there.

        arrivals: For each rank and group, when it came.
    """

    dumps: Dumps
    membership: Membership
    records: tuple[Record, ...]
    of: Mapping[tuple[int, int], int]
    enqueued: Mapping[tuple[int, int], int]
    arrivals: Mapping[tuple[int, int], Arrivals]


def look_at(dumps: Dumps, *, most_times: int = _MOST_TIMES) -> Recorded:
    """
    What did each rank record in each group?

    Args:
        dumps: The dumps of all ranks.

        most_times: How many times of arrival are kept in all.

    Returns:
        All of it; the time needed is linear in the number of records.
    """
    membership = find_groups(dumps)
    signatures = Signatures(dumps.ops, dumps.shapes)
    total = sum(len(dump.entries) for dump in dumps)
    share = min(1.0, most_times / max(total, 1))
    known: dict[tuple[bytes, ...], int] = {}
    records: list[Record] = []
    of: dict[tuple[int, int], int] = {}
    enqueued: dict[tuple[int, int], int] = {}
    arrivals: dict[tuple[int, int], Arrivals] = {}
    for dump in dumps:
        codes = membership.by_code[dump.rank]
        for group, stream in collective_streams(
            dump, codes, signatures
        ).items():
            state = _states(dump, stream)
            parts = stream.seq, stream.signature, state
            key = tuple(part.tobytes() for part in parts)
            if key not in known:
                known[key] = len(records)
                records.append(_record(dump, stream, state, len(dumps.shapes)))
            of[dump.rank, group] = known[key]
            arrivals[dump.rank, group] = _arrivals(dump, stream, share)
        if any((dump.rank, g) not in of for g in _own(dump, membership)):
            for group, status in group_status(dump, membership).items():
                enqueued[dump.rank, group] = max(status.enqueued, 0)

    return Recorded(
        dumps=dumps,
        membership=membership,
        records=tuple(records),
        of=of,
        enqueued=enqueued,
        arrivals=arrivals,
    )


def _own(dump: RankDump, membership: Membership) -> set[int]:
    return set(membership.by_name[dump.rank].values())


def _states(dump: RankDump, stream: Stream) -> NDArray[np.uint8]:
    e, rows = dump.entries, stream.row
    recorded = e.state[rows]
    over = e.retired[rows] | (recorded == COMPLETED)
    pending = np.where(recorded == STARTED, State.STARTED, State.SCHEDULED)
    state = np.where(over, State.FAILED, pending)
    found: NDArray[np.uint8] = np.where(
        stream.done, State.COMPLETED, state
    ).astype(np.uint8)
    return found


def _record(
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


def _arrivals(dump: RankDump, stream: Stream, share: float) -> Arrivals:
    newest = slice(len(stream.seq) - int(len(stream.seq) * share), None)
    rows = stream.row[newest]
    return Arrivals(
        seq=stream.seq[newest],
        created_ns=dump.entries.created_ns[rows],
        completed_ns=dump.entries.completed_ns[rows],
    )


# One who is blamed anyway does not tell what is right.
_OF_THE_BLAMED = 1e-3


@attrs.frozen(kw_only=True, eq=False)
class Program:
    """
    What most members of a group called: one element per column.

    Attributes:
        signature: What was called, comparable between ranks; 0 for nothing.

        call: Operation and shape; -1 for nothing.
    """

    signature: NDArray[np.int64]
    call: NDArray[np.int64]


def aligned(
    values: NDArray[np.generic],
    record: Record,
    columns: NDArray[np.int64],
    fill: int,
) -> NDArray[np.int64]:
    """
    Put the calls of a record into columns.

    Args:
        values: One per call of the record.

        record: Whose they are.

        columns: The sequence number of each column, ascending.

        fill: What stands where there is no call.
    """
    found = np.full(len(columns), fill, np.int64)
    at = np.searchsorted(columns, record.seq)
    there = at < len(columns)
    there[there] = columns[at[there]] == record.seq[there]
    found[at[there]] = values[there]
    return found


def program_of(
    records: Mapping[int, Record],
    ranks: Mapping[int, Sequence[int]],
    columns: NDArray[np.int64],
    blamed: frozenset[int],
) -> Program:
    """
    What did most members of a group call?

    Args:
        records: The records of its members, by number.

        ranks: Whose each of them is.

        columns: The sequence number of each column, ascending.

        blamed: Ranks that are at fault, as somebody found out.

    Returns:
        The call of the majority, column by column.
    """
    weights = {
        i: sum(_OF_THE_BLAMED if r in blamed else 1.0 for r in ranks[i])
        for i in records
    }
    count = np.zeros(len(columns))
    signature = np.zeros(len(columns), np.int64)
    call = np.full(len(columns), -1, np.int64)
    # The vote of Boyer and Moore: one pass, however many parties there are.
    for i in sorted(records, key=lambda i: (-weights[i], i)):
        other = aligned(records[i].signature, records[i], columns, 0)
        called = aligned(records[i].call, records[i], columns, -1)
        agrees = other == signature
        count += np.where(called < 0, 0, np.where(agrees, 1, -1)) * weights[i]
        wins = count < 0
        signature[wins], call[wins] = other[wins], called[wins]
        count = np.abs(count)

    return Program(signature=signature, call=call)


@attrs.frozen(kw_only=True)
class Absences:
    """
    What tells why ranks are absent.

    Attributes:
        blamed: Who is at fault.

        seen: Who left a dump.

        busy: In which groups (as index) each rank waits; -1 for a transfer.

        outdated: Whose dump was written before the others'.
    """

    blamed: frozenset[int]
    seen: frozenset[int]
    busy: Mapping[int, frozenset[int]]
    outdated: frozenset[int]

    def state(self, rank: int, group: int) -> int:
        """
        The state of a call that a rank has no record of.

        Args:
            rank: The rank.

            group: The group of the call, as index.
        """
        if rank not in self.seen:
            return State.NO_DUMP
        if rank in self.outdated:
            return State.NOT_RECORDED
        if self.busy.get(rank, frozenset()) - {group}:
            return State.ELSEWHERE

        return State.NOT_ENTERED


def absences_of(
    recorded: Recorded, diagnosis: Diagnosis, flight: FlightReport
) -> Absences:
    """
    What tells why ranks are absent?

    Args:
        recorded: What all ranks recorded.

        diagnosis: What is wrong with the job.

        flight: What the dumps say about it.
    """
    names: dict[tuple[str, tuple[int, ...]], int] = {}
    for i, group in enumerate(recorded.membership.groups):
        for rank in group.order:
            names[group.name, (rank,)] = i
    busy: dict[int, set[int]] = defaultdict(set)
    for wait in flight.waits:
        for rank in wait.waiting:
            # A transfer is in no column: it keeps a rank from all of them.
            at = -1 if wait.p2p else names.get((wait.group, (rank,)), -1)
            busy[rank].add(at)

    return Absences(
        blamed=frozenset(diagnosis.verdict.ranks),
        seen=frozenset(recorded.dumps.by_rank),
        busy={rank: frozenset(groups) for rank, groups in busy.items()},
        outdated=frozenset(flight.outdated),
    )


_MOST_CELLS = 1 << 25
_MOST_COLUMNS = 16_384
# Of each kind of rank; whoever is out of step differs to the end.
_MOST_DIFFERENCES = 256


@attrs.frozen
class Look:
    """
    What the row of a rank depends on; equal ones look the same.

    Attributes:
        record: What the rank recorded, as index; -1 for nothing.

        counted: Without a record, how many calls torch counted.

        absence: The state of calls that it has no record of.

        program: What it is measured by, as index.
    """

    record: int
    counted: int
    absence: int
    program: int


def columns_of(
    records: Sequence[Record], rows: int
) -> tuple[NDArray[np.int64], int]:
    """
    Which sequence numbers are shown?

    Args:
        records: All that was recorded.

        rows: How many ranks there are.

    Returns:
        The numbers, ascending, and how many older ones are not shown.
    """
    if not records:
        return np.empty(0, np.int64), 0

    most = min(max(_MOST_CELLS // rows, 64), _MOST_COLUMNS)
    columns = records[0].seq
    for record in records[1:]:
        if not np.array_equal(record.seq, columns):
            columns = np.union1d(columns, record.seq)
    return columns[-most:], max(len(columns) - most, 0)


def states_of(
    looks: Iterable[Look],
    records: Mapping[int, Record],
    programs: Sequence[Program],
    columns: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], dict[tuple[int, int], int]]:
    """
    What became of each call?

    Args:
        looks: All different ones.

        records: What they refer to, by index.

        programs: What they refer to.

        columns: The sequence number of each column, ascending.

    Returns:
        A row of states (see :class:`State`) for each look; and what was
        called instead, by row and column.
    """
    rows: list[NDArray[np.uint8]] = []
    others: dict[tuple[int, int], int] = {}
    for row, look in enumerate(looks):
        record = records.get(look.record)
        cells = _cells(record, look, columns)
        if record is not None:
            others |= {
                (row, column): call
                for column, call in _differences(
                    cells, record, columns, programs[look.program]
                )
            }
        rows.append(cells)

    return np.array(rows, np.uint8), others


def _cells(
    record: Record | None, look: Look, columns: NDArray[np.int64]
) -> NDArray[np.uint8]:
    if look.absence == State.NO_DUMP:
        return np.full(len(columns), State.NO_DUMP, np.uint8)

    newest = int(record.seq[-1]) if record is not None else look.counted
    cells = np.where(columns > newest, look.absence, State.NOT_RECORDED)
    if record is not None:
        own = aligned(record.state, record, columns, -1)
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
    Mark the calls that are not those of the others, and tell what they are.
    """
    call = aligned(record.call, record, columns, -1)
    signature = aligned(record.signature, record, columns, 0)
    differs = (call >= 0) & (signature != program.signature)
    cells[differs] |= State.DIFFERS
    for column in np.flatnonzero(differs)[:_MOST_DIFFERENCES].tolist():
        yield column, int(call[column])


_MOST_VIEWS = 16


@attrs.frozen(kw_only=True, eq=False)
class View:
    """
    One picture: rows are ranks, columns are calls.

    Attributes:
        name: What the groups have in common.

        groups: The groups (as index) that it shows.

        columns: The sequence number of each column, ascending.

        cut: How many older calls have no column.

        ranks: The rank of each row.

        group: The group (as index) of each row.

        kind: Which of *states* each row is.

        states: One row per kind of rank, one column per call; see
            :class:`State`.

        program: Which of *programs* each kind is measured by.

        programs: What most members called, as ``op * shapes + shape``.

        other_calls: What was called instead, by kind and column.
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


def views_of(
    recorded: Recorded, diagnosis: Diagnosis, flight: FlightReport
) -> list[View]:
    """
    Which pictures are there?

    Args:
        recorded: What all ranks recorded.

        diagnosis: What is wrong with the job.

        flight: What the dumps say about it.

    Returns:
        The pictures, the one of the verdict first.
    """
    absences = absences_of(recorded, diagnosis, flight)
    found = [
        view
        for name, groups in _alike(recorded.membership.groups)
        if (view := _view(name, groups, recorded, absences)) is not None
    ]
    stuck = {(w.group, w.desc) for w in flight.waits}
    group = diagnosis.verdict.group
    named = recorded.membership.groups

    def importance(view: View) -> tuple[bool, bool, int]:
        names = {(named[g].name, named[g].desc) for g in view.groups}
        of_verdict = group is not None and (group.name, group.desc) in names
        return not of_verdict, names.isdisjoint(stuck), -len(view.ranks)

    return sorted(found, key=importance)[:_MOST_VIEWS]


def _alike(groups: Sequence[Group]) -> Iterable[tuple[str, list[int]]]:
    """
    Sort the groups into pictures, in which no rank is twice.
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


def _view(
    name: str, groups: Sequence[int], recorded: Recorded, absences: Absences
) -> View | None:
    everyone = _everyone(groups, recorded)
    records = {
        n: recorded.records[n]
        for pair in everyone
        if (n := recorded.of.get(pair)) is not None
    }
    columns, cut = columns_of(list(records.values()), len(everyone))
    if not len(columns):
        return None

    programs = _Programs()
    of_group = {
        g: programs.add(_program(g, recorded, columns, absences.blamed))
        for g in groups
    }
    looks = [
        _look(rank, group, of_group[group], recorded, absences)
        for rank, group in everyone
    ]
    kinds = {look: kind for kind, look in enumerate(dict.fromkeys(looks))}
    states, others = states_of(kinds, records, programs.all, columns)
    return View(
        name=name,
        groups=tuple(groups),
        columns=columns,
        cut=cut,
        ranks=np.array([rank for rank, _ in everyone]),
        group=np.array([group for _, group in everyone]),
        kind=np.array([kinds[look] for look in looks]),
        states=states,
        program=tuple(look.program for look in kinds),
        programs=np.array([program.call for program in programs.all]),
        other_calls=others,
    )


def _everyone(
    groups: Iterable[int], recorded: Recorded
) -> list[tuple[int, int]]:
    """
    Each rank with its group, one rank after the other.
    """
    order = recorded.membership.groups
    return sorted((rank, g) for g in groups for rank in order[g].order)


def _look(
    rank: int,
    group: int,
    program: int,
    recorded: Recorded,
    absences: Absences,
) -> Look:
    record = recorded.of.get((rank, group), -1)
    counted = recorded.enqueued.get((rank, group), 0) if record < 0 else 0
    return Look(record, counted, absences.state(rank, group), program)


def _program(
    group: int,
    recorded: Recorded,
    columns: NDArray[np.int64],
    blamed: frozenset[int],
) -> Program:
    ranks: dict[int, list[int]] = defaultdict(list)
    for rank in recorded.membership.groups[group].order:
        number = recorded.of.get((rank, group))
        if number is not None:
            ranks[number].append(rank)
    records = {number: recorded.records[number] for number in ranks}
    return program_of(records, ranks, columns, blamed)


class _Programs:
    """
    Different programs, each once.
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


def call_name(call: int, recorded: Recorded) -> str:
    """
    What is a call named, without its backend?

    Args:
        call: As in :class:`View`; -1 for none.

        recorded: What all ranks recorded.
    """
    if call < 0:
        return "another call"

    op = recorded.dumps.ops[call // max(len(recorded.dumps.shapes), 1)]
    return clean(op.partition(":")[2] or op)


def other_call(view: View, kind: int, column: int, recorded: Recorded) -> str:
    """
    What did a rank call that did not do as the others?

    Args:
        view: A picture.

        kind: The kind of the rank.

        column: The column, as index.

        recorded: What all ranks recorded.

    Returns:
        The operation; with its sizes if only these differ.
    """
    own = view.other_calls.get((kind, column), -1)
    usual = int(view.programs[view.program[kind], column])
    name = call_name(own, recorded)
    if own < 0 or name != call_name(usual, recorded):
        return name

    shapes = recorded.dumps.shapes
    inputs, _ = shape_texts(shapes[own % len(shapes)])
    return clean(f"{name} {inputs}", limit=60)


def chosen_groups(
    views: Sequence[View],
    recorded: Recorded,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> list[tuple[View, int]]:
    """
    Which groups matter most?

    Args:
        views: All pictures.

        recorded: What all ranks recorded.

        diagnosis: What is wrong with the job.

        flight: What the dumps say about it.

    Returns:
        The group (as index) of the verdict, and those that are stuck, with
        their pictures; if there is none, the largest one.
    """
    view_of = {group: view for view in views for group in view.groups}
    found = dict.fromkeys(_named(view_of, recorded, diagnosis, flight))
    if not found and views:
        order = recorded.membership.groups
        largest = max(views[0].groups, key=lambda i: len(order[i].order))
        found[largest] = None
    # One of each kind of group tells more than several of one kind.
    seen: dict[int, int] = defaultdict(int)
    places: list[tuple[bool, int, int]] = []
    for i in found:
        seen[id(view_of[i])] += 1
        places.append((seen[id(view_of[i])] > 1, len(places), i))
    return [(view_of[i], i) for _, _, i in sorted(places)]


def _named(
    groups: Iterable[int],
    recorded: Recorded,
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


def focus_of(
    view: View,
    group: int,
    recorded: Recorded,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> int:
    """
    Which column of a group matters most?

    Args:
        view: The picture that the group is in.

        group: The group, as index.

        recorded: What all ranks recorded.

        diagnosis: What is wrong with the job.

        flight: What the dumps say about it.

    Returns:
        The column (as index) of the call that findings name, that is stuck, or
        in which ranks differ; else the newest.
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


_BEFORE, _AFTER = 3, 2
_MOST_TABLES = 3
_MOST_ROWS = 12
_LONGEST = 60


@attrs.frozen(kw_only=True)
class Cell:
    """
    What became of a call: its state, and what was called if it differs.
    """

    state: int
    instead: str = ""


@attrs.frozen(kw_only=True)
class Column:
    """
    A call: its sequence number, and what most members called.
    """

    seq: int
    op: str
    is_focus: bool


@attrs.frozen(kw_only=True)
class Row:
    """
    Ranks that did the same: how many, in few characters, and the first one.
    """

    count: int
    ranks: str
    first: int
    is_culprit: bool
    cells: tuple[Cell, ...]


@attrs.frozen(kw_only=True)
class Table:
    """
    The calls of one group that matter.

    Attributes:
        name: Of the group.

        group: The name torch gave it.

        size: How many members it has.

        columns: The calls.

        rows: Ranks that did the same, those at fault first.

        more: How many kinds of ranks are left out.
    """

    name: str
    group: str
    size: int
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    more: int


def folded_tables(
    views: Sequence[View],
    recorded: Recorded,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> tuple[list[Table], int]:
    """
    Which calls of which groups matter?

    Args:
        views: All pictures.

        recorded: What all ranks recorded.

        diagnosis: What is wrong with the job.

        flight: What the dumps say about it.

    Returns:
        A table for each group that matters most, and how many more groups
        are stuck.
    """
    chosen = chosen_groups(views, recorded, diagnosis, flight)
    tables = [
        _table(view, group, recorded, diagnosis, flight)
        for view, group in chosen[:_MOST_TABLES]
    ]
    return tables, len(chosen) - len(tables)


def _table(
    view: View,
    group: int,
    recorded: Recorded,
    diagnosis: Diagnosis,
    flight: FlightReport,
) -> Table:
    focus = focus_of(view, group, recorded, diagnosis, flight)
    known = recorded.membership.groups[group]
    at = int(view.kind[int((view.group == group).argmax())])
    program = view.programs[view.program[at]]
    # Other groups of the picture may be elsewhere.
    own = np.union1d(np.flatnonzero(program >= 0), [focus])
    place = int(np.searchsorted(own, focus))
    window = own[max(place - _BEFORE, 0) : place + _AFTER + 1]
    culprits = frozenset(diagnosis.verdict.ranks)
    rows = _rows(view, group, window, recorded, culprits)
    return Table(
        name=clean(str(known.ref)),
        group=clean(known.name),
        size=len(known.order),
        columns=tuple(
            Column(
                seq=int(view.columns[c]),
                op=call_name(int(program[c]), recorded),
                is_focus=c == focus,
            )
            for c in window.tolist()
        ),
        rows=tuple(rows[:_MOST_ROWS]),
        more=max(len(rows) - _MOST_ROWS, 0),
    )


def _rows(
    view: View,
    group: int,
    window: np.ndarray[tuple[int], np.dtype[np.int64]],
    recorded: Recorded,
    culprits: frozenset[int],
) -> list[Row]:
    alike: dict[object, list[int]] = defaultdict(list)
    cells_of: dict[object, tuple[Cell, ...]] = {}
    cells = {
        kind: _folded_cells(view, kind, window.tolist(), recorded)
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
            ranks=_few(ranks_text(ranks)),
            first=ranks[0],
            is_culprit=ranks[0] in culprits,
            cells=cells_of[key],
        )
        for key, ranks in alike.items()
    ]
    return sorted(found, key=lambda row: (not row.is_culprit, row.first))


def _folded_cells(
    view: View, kind: int, window: Sequence[int], recorded: Recorded
) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            state=int(view.states[kind, column]) & ~State.DIFFERS,
            instead=other_call(view, kind, column, recorded)
            if view.states[kind, column] & State.DIFFERS
            else "",
        )
        for column in window
    )


def _few(text: str) -> str:
    if len(text) <= _LONGEST:
        return text

    return f"{text[:_LONGEST].rpartition(',')[0]},…"
