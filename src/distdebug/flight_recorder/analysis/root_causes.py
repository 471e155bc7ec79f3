"""
Find the root causes of stuck calls in the graph of waits.

A wait starts at a rank that waits for no other one, at a rank without a dump,
in a cycle of waits, or in a call that all members entered and that does not
complete.
"""

from __future__ import annotations

import math

from collections import Counter, defaultdict
from collections.abc import (
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import dropwhile
from operator import attrgetter

import attrs
import numpy as np

from numpy.typing import NDArray

from ...causes import Cause
from ...usercode import is_user_frame
from ...waits import find_reachable, find_sinks, strongly_connected_components
from ..reading.columns import SCHEDULED, STARTED
from .job import Job, Stack
from .mismatch import compare_program_order
from .stuck import (
    StuckCall,
    build_wait_graph,
    find_waits,
    is_longest_wait,
)


# Comparing the call sequence of one rank takes a millisecond.
_MAX_CALL_SEQUENCES = 256
# Maximum calls between leaving the usual order and waiting for others.
_MAX_LOOK_BACK = 8
# Number of ranks of a call that are sampled for unusual calls.
_MAX_SAMPLED_RANKS = 16
# Number of earlier stacks of a call that are compared.
_MAX_EARLIER_CALLS = 8


@attrs.frozen(kw_only=True)
class Root:
    """
    One root cause of the waits.

    Attributes:
        ranks: Culprits or suspects, ascending.

        calls: The stuck calls that show it; the first one is named in the
            finding.

        victims: Ranks that wait because of it, directly or through others,
            ascending.

        is_guess: Whether only call sequences single out *ranks*.
    """

    cause: Cause
    ranks: tuple[int, ...]
    calls: tuple[StuckCall, ...]
    victims: tuple[int, ...] = ()
    is_guess: bool = False


def find_order_violation(
    calls: Sequence[StuckCall], ranks: Iterable[int], job: Job
) -> Root | None:
    """
    Find the ranks that left their usual order of calls in a cycle of waits.

    Args:
        calls: Stuck calls that wait for each other.

        ranks: Ranks that connect these calls.

    Returns:
        These ranks as the root, the call that was due first; ``None`` if all ranks
        did as usual, if all did something else, or if no order is known yet.
    """
    sampled = sorted(ranks)[:_MAX_CALL_SEQUENCES]
    unusual = {
        r: at
        for r in sampled
        if (at := _last_unusual_call(job, r, calls)) is not None
    }
    common = {r for c in calls if _is_unusual_for_most(c) for r in c.waiting}
    if not unusual or len(unusual) == len(sampled):
        return None
    if violators := unusual.keys() - common:
        return _make_order_violation(
            calls, violators, unusual[min(violators)], job
        )

    # Most ranks continued to a new phase, except these.
    return Root(
        cause=Cause.GROUP_ORDER_DEADLOCK,
        ranks=tuple(r for r in sampled if r not in unusual),
        calls=tuple(calls),
    )


def _last_unusual_call(
    job: Job, rank: int, calls: Sequence[StuckCall]
) -> tuple[int, list[int]] | None:
    """
    Find the last unusual call of a rank for which it has not made up since.

    Returns:
        Record index of this call, and those of the usual calls.
    """
    newest = min(c.waiting[rank] for c in calls if rank in c.waiting)
    kinds = call_kinds(job, rank)
    for row in range(newest, max(newest - _MAX_LOOK_BACK, 0), -1):
        usual = [
            due
            for due in find_usual_calls(job, rank, row)
            if kinds[due] not in kinds[row + 1 : newest + 1]
        ]
        if usual:
            return row, usual
    return None


def _is_unusual_for_most(call: StuckCall) -> bool:
    """
    Return whether most members entered a call that is unusual for most of them.
    """
    if 2 * len(call.waiting) <= len(call.process_group.order):
        return False

    sampled = sorted(call.waiting.items())[:_MAX_SAMPLED_RANKS]
    unusual = [r for r, row in sampled if find_usual_calls(call.job, r, row)]
    return 2 * len(unusual) > len(sampled)


def _make_order_violation(
    calls: Sequence[StuckCall],
    violators: Collection[int],
    unusual: tuple[int, list[int]],
    job: Job,
) -> Root:
    rank, (made, usual) = min(violators), unusual
    due = next(
        (
            (call, row)
            for row in usual
            for call in calls
            if rank in call.absent and is_entry_into(call, rank, row)
        ),
        None,
    )
    is_skipped = due is not None and _is_past_due_call(job, rank, due[1], made)
    return Root(
        cause=Cause.SKIPPED_COLLECTIVE
        if is_skipped
        else Cause.GROUP_ORDER_DEADLOCK,
        ranks=tuple(sorted(violators)),
        calls=tuple(sorted(calls, key=lambda c: not due or c is not due[0])),
    )


def _is_past_due_call(job: Job, rank: int, due: int, made: int) -> bool:
    """
    Return whether a rank is past the line of the call that was due.

    It is past it if the call that it made is at its usual line; or, if it is the
    first of its kind, at a later line than the due one.  If one line makes both
    calls, or if the line is new for a usual call, the rank may have swapped
    them.
    """
    kinds = call_kinds(job, rank)
    same = np.flatnonzero(kinds[:made] == kinds[made])
    before = same[-_MAX_EARLIER_CALLS:].tolist()
    job.read_stacks((rank, row) for row in [due, made, *before])
    made_stack, due_stack = (
        _user_stack(job, rank, made),
        _user_stack(job, rank, due),
    )
    if made_stack == due_stack:
        return False

    if before:
        return made_stack in {_user_stack(job, rank, row) for row in before}
    return compare_program_order(made_stack, due_stack) > 0


def _user_stack(job: Job, rank: int, row: int) -> Stack:
    """
    Return a stack from the innermost line of the user on, if there is one.

    Below it, each operation of torch is at a line of its own.
    """
    stack = job.stack(rank, row)
    return (
        *dropwhile(lambda frame: not is_user_frame(frame), stack),
    ) or stack


# This many calls are enough to find the position of a rank in its loop.
_MAX_SEQUENCE = 256
# Maximum number of alternatives that are returned.
_MAX_ALTERNATIVES = 16


def predict_next_rows(job: Job, ranks: Iterable[int]) -> dict[int, int]:
    """
    Predict the next call of each rank from its call sequence.

    Returns:
        By rank, the index of the record that followed the newest of the
        longest repetitions of its last calls; not for ranks whose last call
        was their first of this kind.
    """
    rows = {}
    for rank in ranks:
        if rank in job.dumps.by_rank:
            kinds = call_kinds(job, rank)
            longest, _ = _find_repetitions(kinds, _MAX_SEQUENCE)
            if len(longest):
                rows[rank] = int(longest[-1]) + 1
    return rows


def call_kinds(job: Job, rank: int) -> NDArray[np.int64]:
    """
    Return group and operation of each record of a rank, as one number.
    """
    e = job.dumps[rank].entries
    return (e.group.astype(np.int64) << 32) | e.op


def _find_repetitions(
    calls: NDArray[np.int64], max_length: int
) -> tuple[NDArray[np.int64], int]:
    """
    Find the longest earlier repetitions of the last calls.

    Returns:
        The positions at which they end, and their length in calls.
    """
    matches = np.flatnonzero(calls[:-1] == calls[-1:])
    length = 1
    for back in range(1, min(max_length, len(calls))):
        before = matches[matches >= back]
        longer = before[calls[before - back] == calls[-1 - back]]
        if not len(longer):
            break
        matches, length = longer, back + 1
    return matches, length


def find_usual_calls(job: Job, rank: int, row: int) -> list[int]:
    """
    Find the calls that usually follow where a rank made another one.

    Args:
        row: Record index of the call that may be unusual.

    Returns:
        Record indices of the usual calls, the likeliest first; empty if *row*
        is usual, or if the calls before it were new themselves.
    """
    kinds = call_kinds(job, rank)
    calls = kinds[:row]
    longest, length = _find_repetitions(calls, _MAX_SEQUENCE)
    # After a single repeated call, the next one is not predictable.
    if not len(longest) or (calls == calls[-1]).all():
        return []

    # Half of the history is enough, because loops have phases.
    shorter, _ = _find_repetitions(calls, max(length // 2, 1))
    if (kinds[shorter + 1] == kinds[row]).any():
        return []

    found = np.r_[longest[::-1], shorter[::-1]][:_MAX_ALTERNATIVES] + 1
    return [int(at) for at in found]


def is_entry_into(call: StuckCall, rank: int, row: int) -> bool:
    """
    Return whether a rank would enter *call* if it repeated one of its records.

    Args:
        rank: Global rank; *call* waits for it.

        row: Record index.
    """
    job = call.job
    code = int(job.dumps[rank].entries.group[row])
    if job.membership.by_code[rank][code] != call.group:
        return False

    operation = job.operation(rank, row)
    if not operation.is_p2p or not call.p2p:
        return operation.is_p2p == call.p2p

    ends = operation.ends_in(call.process_group) or ()
    return not call.waiting.keys().isdisjoint(ends)


def count_passed_kinds(job: Job, calls: Sequence[StuckCall]) -> list[int]:
    """
    Count, for each stuck call, the other calls that its ranks have passed.

    Ranks in the same position make the same calls.  If the ranks in one call
    have completed as many calls of the kind of another one, the other one
    comes first in the loop.

    Args:
        calls: Stuck calls that wait for the same ranks.

    Returns:
        For each call, the number of kinds of the others that its ranks have
        passed; 0 for transfers, because their peer is in another position.
    """
    due: dict[str, int] = {}
    for call in calls:
        kind = _call_kind(job, call.group, *call.first_record)
        due[kind] = min(due.get(kind, call.seq), call.seq)
    through: dict[int, set[str]] = defaultdict(set)
    for rank, kind, seq in _finished_kinds(job):
        if seq >= due.get(kind, seq + 1):
            through[rank].add(kind)

    return [
        0 if c.p2p else len(set().union(*(through[r] for r in c.waiting)))
        for c in calls
    ]


def _call_kind(job: Job, group: int, rank: int, row: int) -> str:
    """
    Return a key that a call shares with those in groups of other ranks.
    """
    ref = job.groups[group].ref
    operation = job.operation(rank, row)
    if not operation.is_p2p:
        return str(ref)

    return f"{ref} {operation.name} {operation.source}->{operation.target}"


def _finished_kinds(job: Job) -> Iterator[tuple[int, str, int]]:
    """
    Yield rank, kind of call, and the newest completed sequence number.
    """
    for state in job.states:
        kind = str(state.group.ref)
        for rank, position in state.positions.items():
            yield rank, kind, position.done
    for c in job.channels:
        # The peer counts, as in stuck calls.
        for side, peer in ((c.recv, c.source), (c.send, c.target)):
            if side is not None and side.pending < len(side.rows):
                row = int(side.rows[-1 - side.pending])
                seq = int(job.dumps[side.rank].entries.p2p_seq[row])
                yield peer, _call_kind(job, c.group, side.rank, row), seq


# This many consecutive ranks without a dump count as a lost node.
_MIN_NODE_RANKS = 3
# All pairs of ranks of a cycle are compared, so their number is limited.
_MAX_CYCLE_RANKS = 64


def find_likeliest_crashed(
    missing: set[int], calls: Sequence[StuckCall], job: Job
) -> set[int]:
    """
    Find the ranks without a dump for which all their groups wait.

    A rank whose dump was only lost still takes part in its own small groups.

    Args:
        missing: Ranks without a dump that others wait for.

        calls: All stuck calls.
    """
    stuck = Counter(
        r for _, r in {(c.group, r) for c in calls for r in c.missing}
    )
    used = Counter(
        r
        for s in job.states
        if any(p.last for p in s.positions.values())
        for r in s.missing
    )
    share = {r: stuck[r] / max(used[r], 1) for r in missing}
    most = max(share.values(), default=0)
    likeliest = {r for r in missing if share[r] == most}
    return _add_node_neighbors(
        likeliest, {r for s in job.states for r in s.missing}
    )


def _add_node_neighbors(likeliest: set[int], missing: set[int]) -> set[int]:
    """
    Add adjacent missing ranks of the same node, because nodes fail whole.
    """
    found = set(likeliest)
    ordered = np.array(sorted(likeliest | missing), np.int64)
    for run in np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1):
        if len(run) >= _MIN_NODE_RANKS and not likeliest.isdisjoint(run):
            found.update(run.tolist())

    return found


def find_odd_rank(ranks: Iterable[int], job: Job) -> set[int]:
    """
    Return the one rank of a cycle that contradicts several others, if any.

    Two ranks contradict each other if each is ahead of the other in groups of
    the same kind: they made their calls in different orders.

    Args:
        ranks: Ranks that wait for each other.
    """
    reached: dict[int, dict[str, int]] = {r: {} for r in ranks}
    if len(reached) > _MAX_CYCLE_RANKS:
        return set()

    for state in job.states:
        kind = str(state.group.ref)
        for rank in reached.keys() & state.positions.keys():
            newest = reached[rank].get(kind, 0)
            reached[rank][kind] = max(newest, state.positions[rank].last)
    contradicted = {
        r: {s for s in reached if _is_contradiction(reached[r], reached[s])}
        for r in reached
    }
    odd = max(contradicted, key=lambda r: len(contradicted[r]))
    is_alone = all(contradicted[r] <= {odd} for r in contradicted if r != odd)
    return {odd} if is_alone and len(contradicted[odd]) > 1 else set()


def _is_contradiction(a: Mapping[str, int], b: Mapping[str, int]) -> bool:
    both = a.keys() & b.keys()
    return any(a[k] > b[k] for k in both) and any(a[k] < b[k] for k in both)


def find_blocked_in_launch(call: StuckCall) -> set[int]:
    """
    Return the ranks that recorded the call but whose launch did not return.

    Args:
        call: A call that all members have entered.
    """
    if call.p2p:
        return set()

    positions = call.job.states[call.group].positions
    counted = {
        r: status.enqueued
        for r in call.waiting
        if (status := positions[r].status) is not None
    }
    blocked = {
        r
        for r, enqueued in counted.items()
        if enqueued == positions[r].last - 1
    }
    return blocked if len(blocked) < len(counted) else set()


def find_late_arrivals(call: StuckCall) -> dict[int, float]:
    """
    Return the ranks that entered a call after the timeout of the first one.

    Args:
        call: A call that all members have entered.

    Returns:
        Delay of each after the first rank, in seconds.  The clocks of nodes
        are assumed to differ by less than a timeout.
    """
    job = call.job
    entered = {
        rank: job.created_ns(rank, row) for rank, row in call.waiting.items()
    }
    first = min(entered, key=entered.__getitem__)
    timeouts_ms = job.dumps[first].entries.timeout_ms
    timeout_s = int(timeouts_ms[call.waiting[first]]) / 1e3
    if call.p2p or not timeout_s or not entered[first]:
        return {}

    after = {r: (ns - entered[first]) / 1e9 for r, ns in entered.items()}
    return {r: s for r, s in after.items() if s >= timeout_s}


def find_not_started(call: StuckCall) -> set[int]:
    """
    Return the ranks whose device did not start the call, unlike others.

    Starts are only on record with ``TORCH_NCCL_ENABLE_TIMING=1``.

    Args:
        call: A call that all members have entered.
    """
    state = {
        rank: int(call.job.dumps[rank].entries.state[row])
        for rank, row in call.waiting.items()
    }
    if STARTED not in state.values():
        return set()

    return {rank for rank, s in state.items() if s == SCHEDULED}


# Causes inferred from missing data, which may only be lost.
_UNPROVEN_CAUSES = {
    Cause.RANK_CRASHED,
    Cause.UNKNOWN,
    Cause.COLLECTIVE_STUCK_IN_FLIGHT,
}
# Predicting the next call of one absent rank takes a millisecond.
_MAX_ABSENT_RANKS = 1024


def find_roots(calls: Sequence[StuckCall], job: Job) -> list[Root]:
    """
    Follow the waits between stuck calls to their root causes.

    Args:
        calls: All stuck calls.

    Returns:
        The root causes, the most specific one first.
    """
    edges = build_wait_graph(calls)
    roots = list(_find_not_arrived(calls, job))
    absent = {r for root in roots for r in root.ranks}
    for part in find_sinks(strongly_connected_components(edges), edges):
        end = sorted((calls[i] for i in part), key=attrgetter("entered_ns"))
        if not any(absent.intersection(call.absent) for call in end):
            roots.append(_classify_end(end, job))

    roots = _merge_crashes(_merge_left_behind(roots), calls, job)
    return _add_victims(_drop_explained(roots), calls, edges)


def _find_not_arrived(calls: Sequence[StuckCall], job: Job) -> Iterable[Root]:
    """
    Yield the root for absent ranks that are in no stuck call.
    """
    inside = {rank for c in calls for rank in c.waiting}
    found = [c for c in calls if not inside.issuperset(c.absent)]
    if found:
        ranks = sorted({r for c in found for r in c.absent} - inside)
        # With only one waiting call there is nothing to choose.
        if len(found) > 1:
            rows = predict_next_rows(job, ranks[:_MAX_ABSENT_RANKS])
            found.sort(key=lambda call: _turn_key(call, rows))
        yield Root(
            cause=Cause.RANK_NOT_ARRIVED,
            ranks=tuple(ranks),
            calls=tuple(found),
        )


def _turn_key(
    call: StuckCall, rows: Mapping[int, int]
) -> tuple[bool, bool, float, int]:
    """
    Return a sort key that puts the call first that is due next.

    Loops repeat their calls.  If none was repeated yet, they at least use
    their groups in turn: a late rank would next enter the one it used least
    recently.
    """
    # Another thread may continue with its own calls for a while.
    is_normal = not is_longest_wait([call])
    is_later = not any(
        is_entry_into(call, rank, rows[rank])
        for rank in call.absent
        if rank in rows
    )
    turn: float = -1
    if not call.p2p:
        positions = call.job.states[call.group].positions
        last = [positions[r].last_row for r in call.absent]
        turn = min((row for row in last if row >= 0), default=math.inf)
    return is_normal, is_later, turn, call.entered_ns


def _classify_end(calls: Sequence[StuckCall], job: Job) -> Root:
    """
    Return the root for calls that wait for no others, the oldest first.
    """
    first = calls[0]
    if missing := {r for c in calls for r in c.missing}:
        cause, ranks = Cause.RANK_CRASHED, missing
    elif len(calls) > 1:
        return _classify_cycle(calls, job)
    elif first.unknown:
        cause, ranks = Cause.UNKNOWN, set(first.unknown)
    elif ranks := find_blocked_in_launch(first):
        cause = Cause.RANK_BLOCKED_IN_LAUNCH
    elif ranks := find_not_started(first):
        cause = Cause.RANK_NOT_STARTED
    elif ranks := set(find_late_arrivals(first)):
        cause = Cause.RANK_NOT_ARRIVED
    else:
        cause, ranks = Cause.COLLECTIVE_STUCK_IN_FLIGHT, set(first.waiting)

    return Root(cause=cause, ranks=tuple(sorted(ranks)), calls=tuple(calls))


def _classify_cycle(calls: Sequence[StuckCall], job: Job) -> Root:
    """
    Return the root for calls that wait for each other.
    """
    cycle_ranks = {r for _, _, r in find_waits(calls)}
    cycle = Root(
        cause=Cause.GROUP_ORDER_DEADLOCK,
        ranks=tuple(sorted(cycle_ranks)),
        calls=tuple(calls),
    )
    if all(c.p2p for c in calls):
        return attrs.evolve(cycle, cause=Cause.P2P_DEADLOCK)

    odd = find_odd_rank(cycle_ranks, job)
    violation = find_order_violation(calls, cycle_ranks, job)
    if violation is None or not odd.issubset(violation.ranks):
        return attrs.evolve(cycle, ranks=tuple(sorted(odd or cycle_ranks)))

    return attrs.evolve(
        violation,
        ranks=tuple(sorted(odd)) or violation.ranks,
        is_guess=violation.cause is Cause.SKIPPED_COLLECTIVE or not odd,
    )


def _merge_left_behind(roots: Sequence[Root]) -> list[Root]:
    """
    Merge the roots of ranks stuck in calls that completed for other members.
    """
    left_behind = [
        r
        for r in roots
        if r.cause is Cause.COLLECTIVE_STUCK_IN_FLIGHT
        and is_left_behind(r.calls[0])
    ]
    return _merge_roots(
        roots, left_behind, {rank for r in left_behind for rank in r.ranks}
    )


def _merge_roots(
    roots: Sequence[Root], alike: Sequence[Root], ranks: set[int]
) -> list[Root]:
    """
    Merge several roots of one cause.
    """
    if not alike:
        return list(roots)

    merged = Root(
        cause=alike[0].cause,
        ranks=tuple(sorted(ranks)),
        calls=tuple(call for r in alike for call in r.calls),
    )
    return [merged, *(r for r in roots if r not in alike)]


def is_left_behind(call: StuckCall) -> bool:
    """
    Return whether a call completed for some members, but not for those inside.

    Args:
        call: A stuck call.
    """
    known = len(call.waiting) + len(call.awaited)
    return not call.p2p and known < len(call.process_group.order)


def _merge_crashes(
    roots: Sequence[Root], calls: Sequence[StuckCall], job: Job
) -> list[Root]:
    """
    Merge all crashes, because the ranks may have shared a node.
    """
    crashed = [r for r in roots if r.cause is Cause.RANK_CRASHED]
    missing = {rank for r in crashed for rank in r.ranks}
    likeliest = find_likeliest_crashed(missing, calls, job)
    return [
        attrs.evolve(r, calls=_sort_by_likelihood(r.calls, job))
        if r.cause is Cause.RANK_CRASHED
        else r
        for r in _merge_roots(roots, crashed, likeliest)
    ]


def _sort_by_likelihood(
    calls: Sequence[StuckCall], job: Job
) -> tuple[StuckCall, ...]:
    """
    Put the call first that the missing rank would most likely have entered.

    Its own call sequence is lost.  Ranks that passed there show the order;
    else the call that is made most often is the likeliest.
    """
    turn = dict(zip(calls, count_passed_kinds(job, calls), strict=True))
    return tuple(
        sorted(calls, key=lambda c: (turn[c], c.p2p, -c.seq, c.entered_ns))
    )


def _drop_explained(roots: Sequence[Root]) -> list[Root]:
    """
    Drop unproven roots if proven ones explain them already.

    A rank without a dump probably waits, too, if it is a member of a group
    with a proven root cause.
    """
    proven = [r for r in roots if r.cause not in _UNPROVEN_CAUSES]
    explained = {
        rank
        for root in proven
        for call in root.calls
        for rank in call.process_group.order
    }
    unproven = (r for r in roots if r.cause in _UNPROVEN_CAUSES)
    return [
        *proven,
        *(r for r in unproven if not explained.issuperset(r.ranks)),
    ]


def _add_victims(
    roots: Iterable[Root],
    calls: Sequence[StuckCall],
    edges: Sequence[Iterable[int]],
) -> list[Root]:
    index = {call: i for i, call in enumerate(calls)}
    back: dict[int, set[int]] = defaultdict(set)
    for i, targets in enumerate(edges):
        for target in targets:
            back[target].add(i)

    found = []
    for root in roots:
        waiting = {
            rank
            for i in find_reachable([index[c] for c in root.calls], back)
            for rank in calls[i].waiting
        }
        victims = tuple(sorted(waiting.difference(root.ranks)))
        found.append(attrs.evolve(root, victims=victims))

    return found
