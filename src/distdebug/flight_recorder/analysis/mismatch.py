"""
Who called something else than everybody else?

The first call at which the members of a group differ names the cause; the
majority names the culprit.  One rank that runs one call behind or ahead of all
others from there on did not call something wrong: it skipped a call, or made
one too many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import attrs

from ...findings import Cause, Confidence, Location
from ...location import user_location
from ..columns import Frame
from .call import Call, describe_call
from .job import Job
from .shift import (
    find_shift,
    is_repeated,
    order_in_round,
    skipped_by_habit,
    times_called_before,
)
from .streams import Stream


__all__ = ["Mismatch", "find_mismatches"]


_INFERRED = {Cause.SKIPPED_COLLECTIVE, Cause.EXTRA_COLLECTIVE}


@attrs.frozen(kw_only=True)
class Mismatch:
    """
    The first call of a group in which its members differ.

    Attributes:
        group: The group, as index.

        cause: What kind of difference it is.

        seq: Sequence number of the first call that differs.

        culprits: The ranks that differ from the majority, ascending.

        confidence: ``"certain"`` if there is a majority, ``"likely"`` if habit
            tells who is wrong, otherwise ``"possible"``: then *culprits* holds
            both sides.

        theirs: What the culprits called.

        expected: What the others called.

        rows: Rank and position of the record, of one rank of each kind.

        location: Where the first culprit made it.

        elsewhere: Where the others made theirs, if that is another line.

        skipped: How many calls the culprits left out, if they did.

        in_threads: Whether different threads made the two calls, whose order
            nothing fixes.
    """

    group: int
    cause: Cause
    seq: int
    culprits: tuple[int, ...]
    confidence: Confidence
    theirs: Call
    expected: Call
    rows: tuple[tuple[int, int], ...]
    location: Location | None = None
    elsewhere: Location | None = None
    skipped: int = 1
    in_threads: bool = False


@attrs.frozen
class _Meeting:
    """
    One call number of a group, and what everyone has on record there.
    """

    group: int
    seq: int
    rows: Mapping[int, int]
    streams: Mapping[int, Stream]
    job: Job

    def stack(self, rank: int) -> tuple[Frame, ...]:
        """
        The stack with which a rank made its call, innermost line first.
        """
        return self.job.stack(rank, self.rows[rank])

    def row_before(self, rank: int) -> int | None:
        """
        The record of the call that a rank made in the group before this one.
        """
        at = self.streams[rank].find(self.seq)
        return int(self.streams[rank].row[at - 1]) if at else None

    def stack_before(self, rank: int) -> tuple[Frame, ...]:
        """
        The stack with which it made that one.
        """
        row = self.row_before(rank)
        return () if row is None else self.job.stack(rank, row)


def find_mismatches(job: Job) -> list[Mismatch]:
    """
    Find the first call in which the members of a group differ.

    Args:
        job: What is known about the job.

    Returns:
        One difference for each group that has any.
    """
    groups = range(len(job.states))
    found = [x for g in groups if (x := _first_difference(job, g)) is not None]
    job.read_stacks(
        (ranks[0], row)
        for at, kinds in found
        for _, ranks in kinds[:2]
        for row in (at.rows[ranks[0]], at.row_before(ranks[0]))
        if row is not None
    )
    return [_judge(at, kinds) for at, kinds in found]


def _first_difference(
    job: Job, group: int
) -> tuple[_Meeting, list[tuple[Call, list[int]]]] | None:
    state = job.states[group]
    if not len(state.suspects):
        return None

    streams = {
        rank: s
        for rank in state.positions
        if (s := job.stream(rank, group)) is not None
    }
    for seq in state.suspects.tolist():
        rows = _rows_at(streams, seq)
        kinds = _kinds(rows, job)
        if len(kinds) > 1:
            return _Meeting(group, seq, rows, streams, job), kinds

    return None


def _rows_at(streams: Mapping[int, Stream], seq: int) -> dict[int, int]:
    return {
        rank: int(stream.row[at])
        for rank, stream in streams.items()
        if (at := stream.find(seq)) is not None
    }


def _kinds(rows: Mapping[int, int], job: Job) -> list[tuple[Call, list[int]]]:
    """
    Sort the ranks by what they called, the largest party first.
    """
    by_call: dict[Call, list[int]] = defaultdict(list)
    for rank, row in rows.items():
        shape = job.dumps.shapes[job.dumps[rank].entries.shape[row]]
        call = describe_call(job.operation(rank, row), shape)
        by_call[call].append(rank)

    kinds: list[tuple[Call, list[int]]] = []
    for call, ranks in sorted(by_call.items(), key=lambda x: -len(x[1])):
        for known, members in kinds:
            if known.agrees(call):
                members.extend(ranks)
                break
        else:
            kinds.append((call, list(ranks)))

    return sorted(kinds, key=lambda x: -len(x[1]))


def _judge(at: _Meeting, kinds: Sequence[tuple[Call, list[int]]]) -> Mismatch:
    kinds, confidence = _order_by_trust(at, kinds)
    (expected, right), (theirs, wrong) = kinds[0], kinds[1]
    good, bad = right[0], wrong[0]
    mine, others = (user_location(at.stack(rank)) for rank in (bad, good))
    in_threads = _in_thread(at.stack(bad)) != _in_thread(at.stack(good))
    cause, skipped = (
        (_kind_of(theirs, expected, 0), 0)
        if in_threads
        else _infer(at, (bad, theirs), (good, expected))
    )
    culprits = {r for _, ranks in kinds[1:] for r in ranks}
    return Mismatch(
        group=at.group,
        cause=cause,
        seq=at.seq,
        culprits=tuple(
            sorted(at.rows if confidence == "possible" else culprits)
        ),
        # Who differs is one thing; what led there is an inference.
        confidence="likely"
        if confidence == "certain" and cause in _INFERRED
        else confidence,
        theirs=theirs,
        expected=expected,
        rows=((bad, at.rows[bad]), (good, at.rows[good])),
        location=mine,
        elsewhere=others if others != mine else None,
        skipped=skipped or 1,
        in_threads=in_threads,
    )


def _in_thread(stack: Sequence[Frame]) -> bool:
    """
    Whether another thread than the main one made a call.
    """
    return bool(stack) and stack[-1].name == "_bootstrap"


def _infer(
    at: _Meeting, odd: tuple[int, Call], other: tuple[int, Call]
) -> tuple[Cause, int]:
    """
    What led there, and how many calls were left out.
    """
    (bad, theirs), (good, expected) = odd, other
    streams = at.streams[bad], at.streams[good]
    skipped = skipped_by_habit(*streams, at.seq)
    if (cause := find_shift(*streams, at.seq)) is not None:
        return cause, skipped

    order = _order(at, bad, good)
    # Of several calls, the program has to tell, too.
    if skipped == 1 or (skipped and order > 0):
        return Cause.SKIPPED_COLLECTIVE, skipped
    return _kind_of(theirs, expected, order), skipped


def _order(at: _Meeting, bad: int, good: int) -> int:
    """
    Which of the two comes first in the program; 0 if that cannot be told.
    """
    stacks = at.stack(bad), at.stack(good)
    if user_location(stacks[0]) == user_location(stacks[1]):
        return 0

    is_new = not times_called_before(at.streams[bad], at.seq)
    came_round = stacks[1] == at.stack_before(good) and is_repeated(
        at.streams[good], at.seq
    )
    # They may be in their next round, or this one may have left the loop.
    if is_new and came_round:
        return 0
    return order_in_round(at.stack_before(bad), *stacks)


def _order_by_trust(
    at: _Meeting, kinds: Sequence[tuple[Call, list[int]]]
) -> tuple[list[tuple[Call, list[int]]], Confidence]:
    """
    Put the party that is right first; say how sure that is.
    """
    ordered = list(kinds)
    if len(kinds[0][1]) > len(kinds[1][1]):
        return ordered, "certain"

    # As many against as many: what was never called before is the odd one.
    habits = [
        times_called_before(at.streams[ranks[0]], at.seq)
        for _, ranks in kinds[:2]
    ]
    if habits[0] == habits[1]:
        return ordered, "possible"
    if habits[0] < habits[1]:
        ordered[:2] = ordered[1::-1]

    return ordered, "likely" if len(kinds) == 2 else "possible"


def _kind_of(theirs: Call, expected: Call, order: int) -> Cause:
    if theirs.op != expected.op:
        return Cause.TYPE_MISMATCH
    if order < 0:
        # The others are past this line, and did not make the call there.
        return Cause.EXTRA_COLLECTIVE
    if order > 0:
        return Cause.SKIPPED_COLLECTIVE
    if (theirs.sent, theirs.received) == (expected.sent, expected.received):
        return Cause.DTYPE_MISMATCH

    return Cause.SIZE_MISMATCH
