"""
Who called something else than everybody else?

The first call at which the members of a group differ names the cause; the
majority names the culprit.  One rank that runs one call behind or ahead of all
others from there on did not call something wrong: it skipped a call, or made
one too many.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import attrs
import numpy as np

from numpy.typing import NDArray

from ...findings import Cause, CollectiveRef, Confidence, Finding, Location
from ...ranks import ranks_text
from ...usercode import user_location
from ..reading.columns import Frame, Shape
from ..reading.extract import count_elements
from .job import Channel, Job, Side
from .membership import Operation
from .progress import Stream
from .stuck import StuckCall, record_evidence


@attrs.frozen
class Call:
    """
    What one rank called, as far as all members have to agree.

    ``None`` stands for "nothing was passed", which agrees with anything: only
    the root of a scatter has an input.
    """

    op: str
    sent: int | None
    sent_dtypes: frozenset[str] | None
    received: int | None
    received_dtypes: frozenset[str] | None

    def agrees(self, other: Call) -> bool:
        """
        Whether both could be the same call.
        """
        return self.op == other.op and all(
            mine is None or theirs is None or mine == theirs
            for mine, theirs in zip(
                attrs.astuple(self, recurse=False)[1:],
                attrs.astuple(other, recurse=False)[1:],
                strict=True,
            )
        )

    def __str__(self) -> str:
        parts = [self.op]
        if self.sent is not None or self.received is not None:
            count = self.sent or self.received or 0
            parts.append(f"of {count:,} element{'s' if count != 1 else ''}")
        dtypes = self.sent_dtypes or self.received_dtypes
        if dtypes:
            parts.append(f"({', '.join(sorted(dtypes))})")

        return " ".join(parts)


def describe_call(operation: Operation, shape: Shape) -> Call:
    """
    Reduce one record to what all members have to agree on.

    Args:
        operation: What it called.

        shape: What went in and out.

    Returns:
        The call; without sizes where ranks may rightly pass different ones.
    """
    if not operation.is_even:
        return Call(operation.name, None, None, None, None)

    return Call(
        operation.name,
        *_amount(shape.input_sizes, shape.input_dtypes),
        *_amount(shape.output_sizes, shape.output_dtypes),
    )


def _amount(
    sizes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
) -> tuple[int | None, frozenset[str] | None]:
    count = count_elements(sizes)
    return (count, frozenset(dtypes)) if count else (None, None)


# How far a shifted stream is followed, and by how many calls it may be off.
_HORIZON = 256
_LARGEST_SHIFT = 3


def times_called_before(stream: Stream, seq: int) -> int:
    """
    How often was the same called before?

    Args:
        stream: What one rank did.

        seq: The call; it has to be on record.
    """
    at = int(np.searchsorted(stream.seq, seq))
    return int((stream.signature[:at] == stream.signature[at]).sum())


def is_repeated(stream: Stream, seq: int) -> bool:
    """
    Whether a call is the same as the one before it.

    Args:
        stream: What one rank did.

        seq: The call; it has to be on record.
    """
    at = int(np.searchsorted(stream.seq, seq))
    return bool(at and stream.signature[at - 1] == stream.signature[at])


def skipped_by_habit(bad: Stream, good: Stream, seq: int) -> int:
    """
    Count the calls that always come before the one that *bad* made instead.

    Args:
        bad: What the odd rank did.

        good: What another rank did.

        seq: The first call that differs; it has to be on record in both.

    Returns:
        How many they are, beginning with the one that is due; 0 if they were
        not the same in each round of the loop, or there was none.
    """
    at = int(np.searchsorted(good.seq, seq))
    calls, due = good.signature[:at], good.signature[at]
    here = bad.signature[int(np.searchsorted(bad.seq, seq))]
    # Only where the call before it was the same, too: loops have phases.
    alike = (calls[:-1] == calls[-1:]) & (calls[1:] == due)
    rounds = np.split(calls, np.flatnonzero(alike) + 1)[1:]
    ways = {tuple(x[: (x == here).argmax()].tolist()) for x in rounds}
    if len(ways) != 1 or any(here not in x for x in rounds):
        return 0

    # What leads past the call before is another round, or another branch.
    (way,) = ways
    return 0 if calls[-1] in way[1:] else len(way)


def find_shift(bad: Stream, good: Stream, seq: int) -> Cause | None:
    """
    Whether *bad* does what *good* does, some calls earlier or later.

    Args:
        bad: What the odd rank did.

        good: What another rank did.

        seq: The first call that differs; it has to be on record in both.

    Returns:
        ``SKIPPED_COLLECTIVE`` if it is ahead, ``EXTRA_COLLECTIVE`` if it is
        behind, ``None`` if it is neither.
    """
    a = _tail(bad, seq)
    b = _tail(good, seq)
    surplus = len(a) - len(b)
    in_step = _follows(a, b, 0, skip_first=True)
    for by in range(1, _LARGEST_SHIFT + 1):
        skipped = _follows(a, b, by)
        extra = _follows(b, a, by)
        if in_step and surplus not in {by, -by}:
            continue  # One wrong call explains it; no shift is needed.
        if extra and (surplus == by or not skipped):
            return Cause.EXTRA_COLLECTIVE
        if skipped:
            return Cause.SKIPPED_COLLECTIVE

    return None


def _tail(stream: Stream, seq: int) -> list[int]:
    at = int(np.searchsorted(stream.seq, seq))
    tail: list[int] = stream.signature[at : at + _HORIZON].tolist()
    return tail


def _follows(
    late: Sequence[int],
    early: Sequence[int],
    by: int,
    *,
    skip_first: bool = False,
) -> bool:
    """
    Whether *late* goes on as *early* does from *by* calls later on.
    """
    pairs = list(zip(late, early[by:], strict=False))[int(skip_first) :]
    return bool(pairs) and all(x == y for x, y in pairs)


def order_in_program(mine: Sequence[Frame], others: Sequence[Frame]) -> int:
    """
    Which of two calls stands earlier in the program?

    Args:
        mine: A stack, innermost line first.

        others: Another one.

    Returns:
        -1 if *mine* is at an earlier line of the function in which the stacks
        part, 1 if at a later one, 0 if that cannot be told.
    """
    lines = _parting_lines(mine, others)
    if lines is None:
        return 0

    return -1 if lines[0] < lines[1] else 1


def order_in_round(
    before: Sequence[Frame], mine: Sequence[Frame], others: Sequence[Frame]
) -> int:
    """
    Which of two calls comes earlier after a call that all made before?

    Args:
        before: The stack of that call, innermost line first.

        mine: The stack of one call.

        others: That of the other one.

    Returns:
        The same as :func:`order_in_program`; but 0 if only one of the two is
        at an earlier line than the call before: in a loop it may have come
        round, or the other one may have left the loop.
    """
    order = order_in_program(mine, others)
    to_mine = _parting_lines(before, mine)
    to_others = _parting_lines(before, others)
    if not order or to_mine is None or to_others is None:
        return order

    # Lines of the same function only: those of two are in no order.
    if to_mine[0] != to_others[0]:
        return order
    last, (here, there) = to_mine[0], (to_mine[1], to_others[1])
    return order if (here < last) == (there < last) else 0


def _parting_lines(
    a: Sequence[Frame], b: Sequence[Frame]
) -> tuple[int, int] | None:
    """
    The lines of the function in which two stacks part, if they do in one.
    """
    for x, y in zip(reversed(a), reversed(b), strict=False):
        if (x.name, x.filename) != (y.name, y.filename):
            return None
        if x.line != y.line:
            return x.line, y.line

    return None


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


# So many calls tell well enough where in its loop a rank is.
_LONGEST = 256
# So many earlier places that look like this one are told.
_MOST_ALIKE = 16


def next_rows(job: Job, ranks: Iterable[int]) -> dict[int, int]:
    """
    Find what each rank recorded the last time it was where it is now.

    Args:
        job: What is known about the job.

        ranks: Global ranks.

    Returns:
        By rank, the position of the record that followed the newest of the
        longest repetitions of its last records; not of ranks whose last call
        was their first of this kind.
    """
    return {
        rank: row
        for rank in ranks
        if rank in job.dumps.by_rank
        and (row := _next_row(job, rank)) is not None
    }


def _next_row(job: Job, rank: int) -> int | None:
    longest, _ = _repetitions(_habit_kinds(job, rank), _LONGEST)
    return int(longest[-1]) + 1 if len(longest) else None


def _habit_kinds(job: Job, rank: int) -> NDArray[np.int64]:
    """
    Group and operation of each record of a rank, as one number.
    """
    e = job.dumps[rank].entries
    return (e.group.astype(np.int64) << 32) | e.op


def _repetitions(
    calls: NDArray[np.int64], most: int
) -> tuple[NDArray[np.int64], int]:
    """
    Find where the last calls were made in the same order before.

    Returns:
        Positions before the last at which the longest repetitions end, and
        how many calls were compared.
    """
    alike = np.flatnonzero(calls[:-1] == calls[-1:])
    length = 1
    for back in range(1, min(most, len(calls))):
        before = alike[alike >= back]
        longer = before[calls[before - back] == calls[-1 - back]]
        if not len(longer):
            break
        alike, length = longer, back + 1
    return alike, length


def usual_instead(job: Job, rank: int, row: int) -> list[int]:
    """
    Find what a rank used to do where it made this call for the first time.

    Args:
        job: What is known about the job.

        rank: Global rank.

        row: Position of the record of the call.

    Returns:
        The positions of what it did otherwise, the likeliest first; none if
        the call has followed on the same ones before, or if those were new.
    """
    kinds = _habit_kinds(job, rank)
    calls = kinds[:row]
    longest, length = _repetitions(calls, _LONGEST)
    # One call again and again is no loop: what follows it is open.
    if not len(longest) or (calls == calls[-1]).all():
        return []

    # Loops have phases: half of the history has to be the same.
    similar, _ = _repetitions(calls, max(length // 2, 1))
    if (kinds[similar + 1] == kinds[row]).any():
        return []

    found = np.r_[longest[::-1], similar[::-1]][:_MOST_ALIKE] + 1
    return [int(at) for at in found]


def make_the_same(job: Job, rank: int, row: int, other: int) -> bool:
    """
    Whether two records of a rank are of the same operation in the same group.

    Args:
        job: What is known about the job.

        rank: Global rank.

        row: Position of one record.

        other: Position of another one.
    """
    e = job.dumps[rank].entries
    return bool(e.group[row] == e.group[other] and e.op[row] == e.op[other])


def is_next_of(job: Job, rank: int, row: int, call: StuckCall) -> bool:
    """
    Whether a rank would enter a call if it repeated one of its records.

    Args:
        job: What is known about the job.

        rank: Global rank, awaited in the call.

        row: Position of the record.

        call: A stuck call.
    """
    code = int(job.dumps[rank].entries.group[row])
    if job.membership.by_code[rank][code] != call.group:
        return False

    operation = job.operation(rank, row)
    if not operation.is_p2p or not call.p2p:
        return operation.is_p2p == call.p2p

    order = job.membership.groups[call.group].order
    ends = (operation.source, operation.target)
    last = max(ends)
    return last < len(order) and not {order[end] for end in ends}.isdisjoint(
        call.waiting
    )


def kinds_passed(calls: Sequence[StuckCall], job: Job) -> list[int]:
    """
    Behind how many of these calls does each of them stand in the loop?

    Ranks in the same position make the same calls.  Who waits in one of them,
    and went through as many of the kind of another, shows which comes first.

    Args:
        calls: Stuck calls that wait for the same ranks.

        job: What is known about the job.

    Returns:
        For each call, how many kinds of the others its ranks are through with;
        0 for transfers, because their other end is in another position.
    """
    due: dict[str, int] = {}
    for call in calls:
        kind = _kind(job, call.group, *next(iter(call.waiting.items())))
        due[kind] = min(due.get(kind, call.seq), call.seq)
    through: dict[int, set[str]] = defaultdict(set)
    for rank, kind, seq in _done(job):
        if seq >= due.get(kind, seq + 1):
            through[rank].add(kind)

    return [
        0 if c.p2p else len(set().union(*(through[r] for r in c.waiting)))
        for c in calls
    ]


def _kind(job: Job, group: int, rank: int, row: int) -> str:
    """
    What a call and its like in the groups of other ranks have in common.
    """
    ref = job.membership.groups[group].ref
    operation = job.operation(rank, row)
    if not operation.is_p2p:
        return str(ref)

    return f"{ref} {operation.name} {operation.source}->{operation.target}"


def _done(job: Job) -> Iterator[tuple[int, str, int]]:
    """
    What every rank is through with: kinds of calls, and how many.
    """
    for state in job.states:
        kind = str(state.group.ref)
        for rank, position in state.positions.items():
            yield rank, kind, position.done
    for c in job.channels:
        # Counted by the other end, as the stuck calls are.
        for side, peer in ((c.recv, c.source), (c.send, c.target)):
            if side is not None and side.pending < len(side.rows):
                row = int(side.rows[-1 - side.pending])
                seq = int(job.dumps[side.rank].entries.p2p_seq[row])
                yield peer, _kind(job, c.group, side.rank, row), seq


# How many calls before the stuck one are looked at, too.
_LOOK_BACK = 16
_REMEDY = "compare how both sides compute the size of this transfer"


def find_pair_mismatches(
    job: Job, calls: Sequence[StuckCall]
) -> list[Finding]:
    """
    Find transfers whose two ends disagree.

    Args:
        job: What is known about the job.

        calls: All stuck calls; all-to-alls are looked at where they are stuck.

    Returns:
        One finding for each pair of ranks, or all-to-all, that disagrees.
    """
    numel = job.dumps.shapes.elements
    found = [_compare_channel(job, c, numel) for c in job.channels]
    transfers = [t for t in found if t is not None]
    job.read_stacks(place for t in transfers for place in t.places)
    uneven = [_compare_all_to_all(job, c) for c in calls if not c.p2p]
    return [
        *(_channel_finding(job, t) for t in transfers),
        *(f for f in uneven if f is not None),
    ]


class _Transfer(NamedTuple):
    """
    The first transfer of a channel whose ends disagree.

    Attributes:
        channel: Between whom.

        places: Ranks and positions of their records, the sender's first.

        sent: How many elements are sent.

        got: How many are expected.

        culprits: Who departs from its habit, or both.
    """

    channel: Channel
    places: tuple[tuple[int, int], tuple[int, int]]
    sent: int
    got: int
    culprits: tuple[int, ...]


def _compare_channel(
    job: Job, c: Channel, numel: NDArray[np.int64]
) -> _Transfer | None:
    if c.send is None or c.recv is None:
        return None

    a, b = _aligned(c.send, c.recv)
    sent = _amounts(job, c.source, a, numel, 0)
    got = _amounts(job, c.target, b, numel, 1)
    differs = np.flatnonzero(sent != got)
    if not len(differs):
        return None

    k = int(differs[0])
    return _Transfer(
        channel=c,
        places=((c.source, int(a[k])), (c.target, int(b[k]))),
        sent=int(sent[k]),
        got=int(got[k]),
        culprits=_odd_ones(c, sent, got, k),
    )


def _channel_finding(job: Job, t: _Transfer) -> Finding:
    c, (_, row) = t.channel, t.places[0]
    return Finding(
        cause=Cause.SIZE_MISMATCH,
        ranks=t.culprits,
        summary=f"rank {c.source} sends {t.sent:,} elements to rank "
        f"{c.target}, which expects {t.got:,}",
        confidence="certain" if len(t.culprits) == 1 else "possible",
        remedy=_REMEDY,
        group=job.membership.groups[c.group].ref,
        collective=CollectiveRef(
            op="send",
            seq=int(job.dumps[c.source].entries.p2p_seq[row]),
            p2p=True,
        ),
        evidence=tuple(record_evidence(job, *place) for place in t.places),
    )


def _aligned(
    send: Side, recv: Side
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """
    The sends and receives that belong together, as far as that is sure.
    """
    if send.is_whole and recv.is_whole:
        n = min(len(send.rows), len(recv.rows))
        return send.rows[:n], recv.rows[:n]

    n = min(send.pending, recv.pending)
    first, last = len(send.rows) - send.pending, len(recv.rows) - recv.pending
    return send.rows[first : first + n], recv.rows[last : last + n]


def _amounts(
    job: Job,
    rank: int,
    rows: NDArray[np.int64],
    numel: NDArray[np.int64],
    side: int,
) -> NDArray[np.int64]:
    both = numel[job.dumps[rank].entries.shape[rows]]
    # Some versions log the tensor of a receive as its input, too.
    return np.where(both[:, side] > 0, both[:, side], both[:, 1 - side])


def _odd_ones(
    c: Channel, sent: NDArray[np.int64], got: NDArray[np.int64], k: int
) -> tuple[int, ...]:
    habit = Counter(np.concatenate([sent[:k], got[:k]]).tolist())
    usual_send, usual_recv = habit[int(sent[k])], habit[int(got[k])]
    if usual_send == usual_recv:
        return tuple(sorted({c.source, c.target}))

    return (c.source,) if usual_send < usual_recv else (c.target,)


def _compare_all_to_all(job: Job, call: StuckCall) -> Finding | None:
    group = job.membership.groups[call.group]
    for seq in range(max(call.seq - _LOOK_BACK, 1), call.seq + 1):
        # Most calls are something else, as any one of those inside can tell.
        witness = next(iter(call.waiting))
        if not _all_to_all(
            job, _transfers_rows_at(job, call.group, [witness], seq)
        ):
            continue
        rows = _transfers_rows_at(job, call.group, group.order, seq)
        if len(rows) < len(group.order) or not _all_to_all(job, rows):
            continue
        shapes = [
            job.dumps.shapes[job.dumps[r].entries.shape[rows[r]]]
            for r in group.order
        ]
        bad = _bad_pairs(shapes)
        if bad:
            return _pair_finding(job, call, seq, rows, bad)

    return None


def _transfers_rows_at(
    job: Job, group: int, ranks: Iterable[int], seq: int
) -> dict[int, int]:
    streams = {rank: job.stream(rank, group) for rank in ranks}
    return {
        rank: int(s.row[at])
        for rank, s in streams.items()
        if s is not None and (at := s.find(seq)) is not None
    }


def _all_to_all(job: Job, rows: dict[int, int]) -> bool:
    return bool(rows) and all(
        "to_all" in job.operation(rank, row).name.replace("alltoall", "to_all")
        for rank, row in rows.items()
    )


def _bad_pairs(shapes: Sequence[Shape]) -> list[tuple[int, int]]:
    """
    The (sender, receiver) pairs, by rank in the group, that disagree.
    """
    n = len(shapes)
    if not all(len(s.input_sizes) == len(s.output_sizes) == n for s in shapes):
        return []

    return [
        (a, b)
        for a in range(n)
        for b in range(n)
        if prod(shapes[a].input_sizes[b]) != prod(shapes[b].output_sizes[a])
    ]


def _pair_finding(
    job: Job,
    call: StuckCall,
    seq: int,
    rows: dict[int, int],
    bad: Sequence[tuple[int, int]],
) -> Finding:
    order = job.membership.groups[call.group].order
    votes = Counter(r for pair in bad for r in set(pair))
    most = max(votes.values())
    culprits = tuple(sorted(order[r] for r, n in votes.items() if n == most))
    a, b = (order[r] for r in bad[0])
    summary = (
        f"in all_to_all #{seq}, rank {a} does not send what rank {b} expects"
    )
    if len(bad) > 1:
        summary += (
            f" ({len(bad)} such pairs, most with {ranks_text(culprits)})"
        )
    return Finding(
        cause=Cause.SIZE_MISMATCH,
        ranks=culprits,
        summary=summary,
        confidence="likely" if len(culprits) == 1 else "possible",
        remedy=_REMEDY,
        group=job.membership.groups[call.group].ref,
        collective=CollectiveRef(op="all_to_all", seq=seq),
        evidence=tuple(record_evidence(job, r, rows[r]) for r in (a, b)),
    )
