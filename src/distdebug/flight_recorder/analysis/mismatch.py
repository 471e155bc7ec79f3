"""
Find mismatched collectives and transfers.

The first call at which the members of a group differ names the cause; the
minority are the culprits.  A rank that stays some calls ahead of all others or
behind them from there on has skipped calls, or made extra ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import attrs
import numpy as np

from numpy.typing import NDArray

from ...causes import Cause
from ...findings import CollectiveRef, Confidence, Finding, Location
from ...ranks import ranks_text
from ...usercode import find_fork, user_location
from ..reading.columns import Frame, Shape
from ..reading.extract import count_elements
from .job import Channel, Job, Side, Stream
from .membership import Operation
from .stuck import StuckCall, record_evidence


class Call(NamedTuple):
    """
    One call of a rank, reduced to what all members have to agree on.

    ``None`` means that nothing was passed, which is compatible with anything:
    only the root of a scatter has an input.
    """

    op: str
    sent: int | None = None
    sent_dtypes: frozenset[str] | None = None
    received: int | None = None
    received_dtypes: frozenset[str] | None = None

    def is_compatible(self, other: Call) -> bool:
        """
        Return whether both can be the same collective.
        """
        return self.op == other.op and all(
            mine is None or theirs is None or mine == theirs
            for mine, theirs in zip(self[1:], other[1:], strict=True)
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
    Return the call of one record.

    It has no sizes where ranks may legally pass different ones.
    """
    if not operation.is_even:
        return Call(operation.name)

    return Call(
        operation.name,
        *_count_and_dtypes(shape.input_sizes, shape.input_dtypes),
        *_count_and_dtypes(shape.output_sizes, shape.output_dtypes),
    )


def _count_and_dtypes(
    sizes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]
) -> tuple[int | None, frozenset[str] | None]:
    count = count_elements(sizes)
    return (count, frozenset(dtypes)) if count else (None, None)


# Maximum calls compared of a shifted stream, and its maximum shift in calls.
_MAX_COMPARED_CALLS = 256
_MAX_SHIFT = 3
# So many calls that agree, only shifted, do not by chance.
_MIN_PROOF = 4


def count_earlier_calls(stream: Stream, seq: int) -> int:
    """
    Return how often a rank made the same call before number *seq*, on record.
    """
    at = int(np.searchsorted(stream.seq, seq))
    return int((stream.signature[:at] == stream.signature[at]).sum())


def is_repeated(stream: Stream, seq: int) -> bool:
    """
    Return whether a call is the same as the one before it.

    Args:
        seq: Sequence number; it has to be on record.
    """
    at = int(np.searchsorted(stream.seq, seq))
    return bool(at and stream.signature[at - 1] == stream.signature[at])


def count_skipped_incall_kinds(bad: Stream, good: Stream, seq: int) -> int:
    """
    Count the calls that always precede the one that *bad* made instead.

    Args:
        bad: Stream of a culprit.

        good: Stream of another rank.

        seq: First call that differs; it has to be on record in both.

    Returns:
        The number of skipped calls, beginning with the one that is due; 0 if
        they differ between iterations of the loop, or if there are none.
    """
    at = int(np.searchsorted(good.seq, seq))
    calls, due = good.signature[:at], good.signature[at]
    made = bad.signature[int(np.searchsorted(bad.seq, seq))]
    # The call before has to be the same, too, because loops have phases.
    ends_iteration = (calls[:-1] == calls[-1:]) & (calls[1:] == due)
    iterations = np.split(calls, np.flatnonzero(ends_iteration) + 1)[1:]
    prefixes = {tuple(x[: (x == made).argmax()].tolist()) for x in iterations}
    if len(prefixes) != 1 or any(made not in x for x in iterations):
        return 0

    # A prefix past the previous call is another iteration or another branch.
    (prefix,) = prefixes
    return 0 if calls[-1] in prefix[1:] else len(prefix)


class Shift(NamedTuple):
    """
    By how many calls a rank is ahead of the others.

    Attributes:
        cause: Why it is.

        by: The number of calls; negative if it is behind, 0 if it made another
            call in place of the right one.

        is_unique: Whether no other shift, and no single wrong call, fits.
    """

    cause: Cause
    by: int
    is_unique: bool


def find_shift(bad: Stream, good: Stream, seq: int) -> Shift | None:
    """
    Return by how many calls *bad* makes the calls of *good* earlier or later.

    Args:
        bad: Stream of a culprit.

        good: Stream of another rank.

        seq: First call that differs; it has to be on record in both.

    Returns:
        ``None`` if it makes others.
    """
    a = _signatures_from(bad, seq)
    b = _signatures_from(good, seq)
    surplus = len(a) - len(b)
    in_step = _is_shifted_by(a, b, 0, skip_first=True)
    fits = [
        by
        for count in range(1, _MAX_SHIFT + 1)
        for by, late, early in ((-count, b, a), (count, a, b))
        if _is_shifted_by(late, early, count)
    ]
    is_unique = len(fits) == 1 and not in_step
    for by in fits:
        if in_step and abs(surplus) != abs(by):
            continue  # One wrong call explains it; no shift is needed.
        if by < 0 and -by in fits and surplus != -by:
            continue
        cause = Cause.SKIPPED_COLLECTIVE if by > 0 else Cause.EXTRA_COLLECTIVE
        return Shift(cause, by, is_unique)

    return None


class Repair(NamedTuple):
    """
    What comes of the calls on record if the odd one is made right.

    Attributes:
        calls: How many later calls are on record on both sides.

        agreeing: How many of them then agree, up to the first that does not.
    """

    calls: int = 0
    agreeing: int = 0


def _repair(bad: Sequence[Stream], good: Stream, seq: int, by: int) -> Repair:
    """
    Play the calls after a mismatch forward with the odd one removed or added.

    Args:
        bad: Streams of the culprits.

        good: Stream of another rank.

        seq: First call that differs.

        by: How many calls the culprits are ahead of the others; negative if
            they are behind; 0 if they made a wrong call in place of the right.
    """
    expected = _signatures_from(good, seq)
    repairs = []
    for stream in bad:
        made = _signatures_from(stream, seq)
        mine, theirs = (
            (made[1:], expected[1:])
            if not by
            else (made[max(-by, 0) :], expected[max(by, 0) :])
        )
        calls = min(len(mine), len(theirs))
        differs = (i for i in range(calls) if mine[i] != theirs[i])
        repairs.append(Repair(calls, next(differs, calls)))
    return min(repairs, key=lambda x: (x.agreeing - x.calls, x.calls))


def _signatures_from(stream: Stream, seq: int) -> list[int]:
    at = int(np.searchsorted(stream.seq, seq))
    tail: list[int] = stream.signature[at : at + _MAX_COMPARED_CALLS].tolist()
    return tail


def _is_shifted_by(
    late: Sequence[int],
    early: Sequence[int],
    by: int,
    *,
    skip_first: bool = False,
) -> bool:
    """
    Return whether *late* equals *early* from *by* calls later on.
    """
    pairs = list(zip(late, early[by:], strict=False))[int(skip_first) :]
    return bool(pairs) and all(x == y for x, y in pairs)


def compare_program_order(
    mine: Sequence[Frame], others: Sequence[Frame]
) -> int:
    """
    Compare the order of two calls in the program by their stacks.

    Args:
        mine: Stack, innermost frame first.

        others: Another stack.

    Returns:
        -1 if *mine* is at an earlier line of the function in which the stacks
        diverge, 1 if it is at a later one, 0 if unknown.
    """
    fork = find_fork(mine, others)
    if fork is None:
        return 0

    return -1 if fork[0].line < fork[1].line else 1


def compare_loop_order(
    before: Sequence[Frame], mine: Sequence[Frame], others: Sequence[Frame]
) -> int:
    """
    Compare the order of two calls after a call that all ranks made before.

    Args:
        before: Stack of that call, innermost frame first.

        mine: Stack of one call.

        others: Stack of the other call.

    Returns:
        The result of :func:`compare_program_order`; but 0 if only one of the
        two is at an earlier line than *before*: its rank may be in the next
        iteration, or the other one may have left the loop.
    """
    order = compare_program_order(mine, others)
    to_mine, to_others = find_fork(before, mine), find_fork(before, others)
    if not order or to_mine is None or to_others is None:
        return order

    # Only lines of the same function are in order.
    if to_mine[0].line != to_others[0].line:
        return order
    last_line, my_line = (frame.line for frame in to_mine)
    return (
        order
        if (my_line < last_line) == (to_others[1].line < last_line)
        else 0
    )


@attrs.frozen(kw_only=True)
class Mismatch:
    """
    The first call of a group in which its members differ.

    Attributes:
        group: Index of the group.

        seq: Sequence number of that call.

        culprits: The ranks that differ from the majority, ascending.

        confidence: ``"certain"`` if there is a majority; ``"likely"`` if only
            earlier calls show who is wrong; ``"possible"`` if neither: then
            *culprits* holds both sides.

        theirs: The call of the culprits.

        expected: The call of the others.

        rows: Rank and record index of one rank of each side.

        location: Where the first culprit made its call.

        elsewhere: Where the others made theirs, if that is another line.

        skipped: Number of calls that the culprits skipped, if they did.

        in_threads: Whether different threads made the two calls, so that their
            order is not fixed.

        repair: What comes of the later calls if this one is made right.
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
    repair: Repair


@attrs.frozen
class _GroupCall:
    """
    One sequence number of a group, with the records of its members.

    Attributes:
        rows: Record index by rank.

        kinds: The different calls, each with its ranks; the majority first.

        streams: Collectives of the group by rank.
    """

    group: int
    seq: int
    rows: Mapping[int, int]
    kinds: list[tuple[Call, list[int]]]
    streams: Mapping[int, Stream]
    job: Job

    def stack(self, rank: int) -> tuple[Frame, ...]:
        """
        Return the stack of a rank in this call, innermost frame first.
        """
        return self.job.stack(rank, self.rows[rank])

    def row_before(self, rank: int) -> int | None:
        """
        Return the record index of the previous call of a rank in the group.
        """
        at = self.streams[rank].find(self.seq)
        return int(self.streams[rank].row[at - 1]) if at else None

    def stack_before(self, rank: int) -> tuple[Frame, ...]:
        """
        Return the stack of the previous call; empty if not on record.
        """
        row = self.row_before(rank)
        return () if row is None else self.job.stack(rank, row)


def find_mismatches(job: Job) -> list[Mismatch]:
    """
    Find the first call in which the members of a group differ.

    Returns:
        One mismatch for each group that has any.
    """
    groups = range(len(job.states))
    found = [x for g in groups if (x := _first_mismatched_call(job, g))]
    job.read_stacks(
        (ranks[0], row)
        for at in found
        for _, ranks in at.kinds[:2]
        for row in (at.rows[ranks[0]], at.row_before(ranks[0]))
        if row is not None
    )
    return [_classify_mismatch(at) for at in found]


def _first_mismatched_call(job: Job, group: int) -> _GroupCall | None:
    state = job.states[group]
    if not len(state.suspects):
        return None

    streams = _streams_of(job, group, state.positions)
    for seq in state.suspects.tolist():
        rows = _rows_of_streams(streams, seq)
        kinds = _group_ranks_by_call(rows, job)
        if len(kinds) > 1:
            return _GroupCall(group, seq, rows, kinds, streams, job)

    return None


def _streams_of(
    job: Job, group: int, ranks: Iterable[int]
) -> dict[int, Stream]:
    found = {rank: job.stream(rank, group) for rank in ranks}
    return {rank: s for rank, s in found.items() if s is not None}


def _rows_of_streams(
    streams: Mapping[int, Stream], seq: int
) -> dict[int, int]:
    return {
        rank: int(stream.row[at])
        for rank, stream in streams.items()
        if (at := stream.find(seq)) is not None
    }


def _group_ranks_by_call(
    rows: Mapping[int, int], job: Job
) -> list[tuple[Call, list[int]]]:
    """
    Group the ranks by their call, the majority first.
    """
    by_call: dict[Call, list[int]] = defaultdict(list)
    for record in rows.items():
        call = describe_call(job.operation(*record), job.shape(*record))
        by_call[call].append(record[0])

    kinds: list[tuple[Call, list[int]]] = []
    for call, ranks in sorted(by_call.items(), key=lambda x: -len(x[1])):
        for known, members in kinds:
            if known.is_compatible(call):
                members.extend(ranks)
                break
        else:
            kinds.append((call, list(ranks)))

    return sorted(kinds, key=lambda x: -len(x[1]))


def _classify_mismatch(at: _GroupCall) -> Mismatch:
    kinds, confidence = _put_expected_first(at)
    (expected, right), (theirs, wrong) = kinds[:2]
    good, bad = right[0], wrong[0]
    mine, others = (user_location(at.stack(rank)) for rank in (bad, good))
    in_threads = _is_from_thread(at.stack(bad)) != _is_from_thread(
        at.stack(good)
    )
    cause, by, is_proven = (
        Shift(_classify_difference(theirs, expected, 0), 0, is_unique=False)
        if in_threads
        else _infer_cause(at, (bad, theirs), (good, expected))
    )
    culprits = {r for _, ranks in kinds[1:] for r in ranks}
    odd = [at.streams[rank] for rank in sorted(culprits)]
    repair = _repair(odd, at.streams[good], at.seq, by)
    is_proven &= repair.agreeing == repair.calls >= _MIN_PROOF
    return Mismatch(
        group=at.group,
        cause=cause,
        seq=at.seq,
        culprits=tuple(
            sorted(at.rows if confidence == "possible" else culprits)
        ),
        # The ranks that differ are certain; an inferred cause only is if all
        # that follows proves it.
        confidence="likely"
        if confidence == "certain" and cause.is_miscount and not is_proven
        else confidence,
        theirs=theirs,
        expected=expected,
        rows=((bad, at.rows[bad]), (good, at.rows[good])),
        location=mine,
        elsewhere=others if others != mine else None,
        skipped=max(by, 1),
        in_threads=in_threads,
        repair=repair,
    )


def _is_from_thread(stack: Sequence[Frame]) -> bool:
    """
    Return whether a stack begins in another thread than the main one.
    """
    return bool(stack) and stack[-1].name == "_bootstrap"


def _infer_cause(
    at: _GroupCall, odd: tuple[int, Call], other: tuple[int, Call]
) -> Shift:
    """
    Return the cause of a mismatch, and by how many calls the odd rank is ahead.
    """
    (bad, theirs), (good, expected) = odd, other
    streams = at.streams[bad], at.streams[good]
    if (shift := find_shift(*streams, at.seq)) is not None:
        return shift

    skipped = count_skipped_incall_kinds(*streams, at.seq)
    order = _call_order(at, bad, good)
    # For several calls, the program order has to agree.
    if skipped == 1 or (skipped and order > 0):
        return Shift(Cause.SKIPPED_COLLECTIVE, skipped, is_unique=False)
    cause = _classify_difference(theirs, expected, order)
    ahead = {Cause.SKIPPED_COLLECTIVE: 1, Cause.EXTRA_COLLECTIVE: -1}
    return Shift(cause, ahead.get(cause, 0), is_unique=False)


def _call_order(at: _GroupCall, bad: int, good: int) -> int:
    """
    Compare two calls by program order; 0 if unknown.
    """
    stacks = at.stack(bad), at.stack(good)
    if user_location(stacks[0]) == user_location(stacks[1]):
        return 0

    # Those that repeat a call may be in the next iteration, or the ones with a new
    # call may have left the loop.
    for new, old in ((bad, good), (good, bad)):
        is_new = not count_earlier_calls(at.streams[new], at.seq)
        is_repeating = at.stack(old) == at.stack_before(old) and is_repeated(
            at.streams[old], at.seq
        )
        if is_new and is_repeating:
            return 0
    return compare_loop_order(at.stack_before(bad), *stacks)


def _put_expected_first(
    at: _GroupCall,
) -> tuple[list[tuple[Call, list[int]]], Confidence]:
    """
    Put the expected call first; return the confidence in that.
    """
    ordered = list(at.kinds)
    if len(ordered[0][1]) > len(ordered[1][1]):
        return ordered, "certain"

    # No majority: the call that was made less often before is wrong.
    earlier = [
        count_earlier_calls(at.streams[ranks[0]], at.seq)
        for _, ranks in ordered[:2]
    ]
    if earlier[0] == earlier[1]:
        return ordered, "possible"
    if earlier[0] < earlier[1]:
        ordered[:2] = ordered[1::-1]

    return ordered, "likely" if len(ordered) == 2 else "possible"


def _classify_difference(theirs: Call, expected: Call, order: int) -> Cause:
    if theirs.op != expected.op:
        return Cause.TYPE_MISMATCH
    if order < 0:
        # The others have passed this line without this call.
        return Cause.EXTRA_COLLECTIVE
    if order > 0:
        return Cause.SKIPPED_COLLECTIVE
    if (theirs.sent, theirs.received) == (expected.sent, expected.received):
        return Cause.DTYPE_MISMATCH

    return Cause.SIZE_MISMATCH


# Number of calls compared before the stuck one.
_MAX_LOOK_BACK = 16
_SIZE_REMEDY = "compare how both sides compute the size of this transfer"


def find_pair_mismatches(
    job: Job, calls: Sequence[StuckCall]
) -> list[Finding]:
    """
    Find transfers whose two ends disagree on the size.

    Args:
        calls: All stuck calls; all-to-alls are compared near these only.

    Returns:
        One finding for each pair of ranks, or all-to-all, that disagrees.
    """
    found = [
        *(_compare_channel(job, c) for c in job.channels),
        *(_compare_all_to_all(c) for c in calls if not c.p2p),
    ]
    mismatches = [m for m in found if m is not None]
    job.read_stacks(record for m in mismatches for record in m.records)
    return [
        Finding(
            cause=Cause.SIZE_MISMATCH,
            ranks=m.culprits,
            summary=m.summary,
            confidence=m.confidence if len(m.culprits) == 1 else "possible",
            remedy=_SIZE_REMEDY,
            group=job.groups[m.group].ref,
            collective=m.collective,
            evidence=tuple(record_evidence(job, *r) for r in m.records),
        )
        for m in mismatches
    ]


class _SizeMismatch(NamedTuple):
    """
    The first transfer whose two ends disagree on the size.

    Attributes:
        group: Index of the group.

        records: Rank and record index of the sender, and of the receiver.

        culprits: The ranks whose size is unusual.

        confidence: If this is one rank.
    """

    group: int
    collective: CollectiveRef
    records: tuple[tuple[int, int], ...]
    culprits: tuple[int, ...]
    summary: str
    confidence: Confidence


def _compare_channel(job: Job, c: Channel) -> _SizeMismatch | None:
    if c.send is None or c.recv is None:
        return None

    a, b = _align_transfers(c.send, c.recv)
    sent, got = (
        _element_counts(job, c.source, a, 0),
        _element_counts(job, c.target, b, 1),
    )
    differs = np.flatnonzero(sent != got)
    if not len(differs):
        return None

    k = int(differs[0])
    seq = int(job.dumps[c.source].entries.p2p_seq[a[k]])
    return _SizeMismatch(
        group=c.group,
        collective=CollectiveRef(op="send", seq=seq, p2p=True),
        records=((c.source, int(a[k])), (c.target, int(b[k]))),
        culprits=_unusual_ends(c, sent, got, k),
        summary=f"rank {c.source} sends {sent[k]:,} elements to rank "
        f"{c.target}, which expects {got[k]:,}",
        confidence="certain",
    )


def _align_transfers(
    send: Side, recv: Side
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """
    Return the records of sends and receives that certainly match.
    """
    if send.is_whole and recv.is_whole:
        n = min(len(send.rows), len(recv.rows))
        return send.rows[:n], recv.rows[:n]

    n = min(send.pending, recv.pending)
    first, last = len(send.rows) - send.pending, len(recv.rows) - recv.pending
    return send.rows[first : first + n], recv.rows[last : last + n]


def _element_counts(
    job: Job, rank: int, rows: NDArray[np.int64], side: int
) -> NDArray[np.int64]:
    both = job.dumps.shapes.elements[job.dumps[rank].entries.shape[rows]]
    # Some torch versions record the tensor of a receive as its input.
    return np.where(both[:, side] > 0, both[:, side], both[:, 1 - side])


def _unusual_ends(
    c: Channel, sent: NDArray[np.int64], got: NDArray[np.int64], k: int
) -> tuple[int, ...]:
    """
    Return the rank whose size was rarer before; both if equally rare.
    """
    frequency = Counter(np.concatenate([sent[:k], got[:k]]).tolist())
    usual_send, usual_recv = frequency[int(sent[k])], frequency[int(got[k])]
    if usual_send == usual_recv:
        return tuple(sorted({c.source, c.target}))

    return (c.source,) if usual_send < usual_recv else (c.target,)


def _compare_all_to_all(call: StuckCall) -> _SizeMismatch | None:
    job, group = call.job, call.process_group
    # One member is enough to skip calls that are no all-to-all.
    one = _streams_of(job, call.group, call.first_record[:1])
    for seq in range(max(call.seq - _MAX_LOOK_BACK, 1), call.seq + 1):
        if not _is_all_to_all(job, _rows_of_streams(one, seq)):
            continue
        streams = _streams_of(job, call.group, group.order)
        rows = _rows_of_streams(streams, seq)
        if len(rows) < len(group.order) or not _is_all_to_all(job, rows):
            continue
        shapes = [job.shape(rank, rows[rank]) for rank in group.order]
        if bad := _mismatched_pairs(shapes):
            return _all_to_all_mismatch(call, seq, rows, bad)

    return None


def _is_all_to_all(job: Job, rows: dict[int, int]) -> bool:
    return bool(rows) and all(
        "to_all" in job.operation(rank, row).name.replace("alltoall", "to_all")
        for rank, row in rows.items()
    )


def _mismatched_pairs(shapes: Sequence[Shape]) -> list[tuple[int, int]]:
    """
    Return pairs (sender, receiver) that disagree, by rank in the group.
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


def _all_to_all_mismatch(
    call: StuckCall,
    seq: int,
    rows: dict[int, int],
    bad: Sequence[tuple[int, int]],
) -> _SizeMismatch:
    order = call.process_group.order
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
    return _SizeMismatch(
        group=call.group,
        collective=CollectiveRef(op="all_to_all", seq=seq),
        records=((a, rows[a]), (b, rows[b])),
        culprits=culprits,
        summary=summary,
        confidence="likely",
    )
