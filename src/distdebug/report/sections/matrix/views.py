"""
Which pictures are there, and which cells does each have?

All groups that are described alike, such as the groups of one dimension of a
mesh, are one picture: every rank is in one of them, so the picture has a row
per rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np

from numpy.typing import NDArray

from ....findings import Diagnosis
from ....flight_recorder.analysis.membership import Group
from ....flight_recorder.analysis.report import FlightReport
from .absences import Absences, absences_of
from .cells import Look, columns_of, states_of
from .recorded import Recorded
from .usual import Program, program_of


__all__ = ["View", "views_of"]

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
