"""
Where does the waiting begin?

Everybody waits for somebody; what matters are the ends of these chains: ranks
that wait for nobody, ranks that left no dump, circles, and calls that everyone
entered and that do not complete all the same.
"""

from __future__ import annotations

import math

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs

from ...findings import Cause
from ...waits import components, reachable, sinks
from ..reading.columns import SCHEDULED, STARTED, Dumps
from .job import Job
from .mismatch import (
    is_next_of,
    kinds_passed,
    make_the_same,
    next_rows,
    order_in_program,
    usual_instead,
)
from .progress import GroupState
from .stuck import StuckCall, is_unprecedented, link, links, since_ns


# What one rank would have done next takes a millisecond to find.
_MOST_HABITS = 256
# So many calls may be between leaving the order and waiting for others.
_LOOK_BACK = 8
# So many ranks tell whether those in one call left the order together.
_WITNESSES = 16
# So many times that a call was made before are looked at.
_MOST_LINES = 8


@attrs.frozen(kw_only=True)
class Departure:
    """
    Some ranks of a circle that did something else than they used to.

    Attributes:
        ranks: Who they are.

        cause: ``SKIPPED_COLLECTIVE`` if a call was left out,
            ``GROUP_ORDER_DEADLOCK`` if that cannot be told.

        due: Which of the calls was due (as index), if any of them was.
    """

    ranks: frozenset[int]
    cause: Cause
    due: int | None = None


def find_departure(
    calls: Sequence[StuckCall], ranks: Iterable[int], job: Job
) -> Departure | None:
    """
    Find who left the usual order of calls, if that explains a circle.

    Args:
        calls: Stuck calls that wait for each other.

        ranks: The ranks because of which they do.

        job: What is known about the job.

    Returns:
        The departure; ``None`` if all did as usual, or all something else, or
        if nothing was usual yet.
    """
    some = sorted(ranks)[:_MOST_HABITS]
    left = {r: at for r in some if (at := _left_at(job, r, calls)) is not None}
    together = {
        r
        for c in calls
        if _has_most(c, job) and _left_together(c, job)
        for r in c.waiting
    }
    if not left or len(left) == len(some):
        return None
    if alone := left.keys() - together:
        return _departure(calls, alone, left[min(alone)], job)

    # Most went on to something new, but for these.
    return Departure(
        ranks=frozenset(some).difference(left),
        cause=Cause.GROUP_ORDER_DEADLOCK,
    )


def _left_at(
    job: Job, rank: int, calls: Sequence[StuckCall]
) -> tuple[int, list[int]] | None:
    """
    Where a rank left its habit, of late, and has not made up for it since.

    Returns:
        The position of what it did, and of what it used to do.
    """
    newest = min(c.waiting[rank] for c in calls if rank in c.waiting)
    for row in range(newest, max(newest - _LOOK_BACK, 0), -1):
        since = range(row + 1, newest + 1)
        usual = [
            due
            for due in usual_instead(job, rank, row)
            if not any(make_the_same(job, rank, due, k) for k in since)
        ]
        if usual:
            return row, usual
    return None


def _has_most(call: StuckCall, job: Job) -> bool:
    """
    Whether most of the members of a call have entered it.
    """
    return 2 * len(call.waiting) > len(job.membership.groups[call.group].order)


def _left_together(call: StuckCall, job: Job) -> bool:
    """
    Whether most of the ranks in a call never made it at this place.
    """
    some = sorted(call.waiting.items())[:_WITNESSES]
    new = [r for r, row in some if usual_instead(job, r, row)]
    return 2 * len(new) > len(some)


def _departure(
    calls: Sequence[StuckCall],
    left: Collection[int],
    place: tuple[int, list[int]],
    job: Job,
) -> Departure:
    rank, (made, usual) = min(left), place
    owed = [
        (i, row)
        for row in usual
        for i, c in enumerate(calls)
        if rank in c.absent and is_next_of(job, rank, row, c)
    ][:1]
    is_skipped = any(_went_past(job, rank, row, made) for _, row in owed)
    return Departure(
        ranks=frozenset(left),
        cause=Cause.SKIPPED_COLLECTIVE
        if is_skipped
        else Cause.GROUP_ORDER_DEADLOCK,
        due=owed[0][0] if owed else None,
    )


def _went_past(job: Job, rank: int, due: int, made: int) -> bool:
    """
    Whether a rank went past the line of the call that was due.

    At the usual line of what it made instead, or at a later one, it has come
    past the other one.  Where one line makes both calls, or where it never was
    before, it may have changed their order.
    """
    before = [
        row
        for row in range(made - 1, -1, -1)
        if make_the_same(job, rank, row, made)
    ][:_MOST_LINES]
    job.read_stacks((rank, row) for row in [due, made, *before])
    here, there = job.stack(rank, made), job.stack(rank, due)
    if here == there:
        return False

    usual = {job.stack(rank, row) for row in before}
    return here in usual or order_in_program(here, there) > 0


# As many ranks in a row without a dump are taken for a lost node.
_SMALLEST_NODE = 3
# Every two ranks of a circle are compared.
_LARGEST_CIRCLE = 64


def likeliest_lost(
    missing: set[int],
    calls: Sequence[StuckCall],
    states: Sequence[GroupState],
) -> set[int]:
    """
    Of the ranks without a dump, those whose groups all wait for them.

    A rank whose dump was merely lost still takes part in its own small groups.

    Args:
        missing: The ranks without a dump that are waited for.

        calls: All stuck calls.

        states: Where every rank stands in every group.
    """
    stuck = Counter(
        r for _, r in {(c.group, r) for c in calls for r in c.missing}
    )
    used = Counter(
        r for s in states if s.positions for r in s.missing if _was_used(s)
    )
    share = {r: stuck[r] / max(used[r], 1) for r in missing}
    likeliest = {r for r in missing if share[r] >= max(share.values())}
    return _with_their_nodes(likeliest, {r for s in states for r in s.missing})


def _with_their_nodes(likeliest: set[int], missing: set[int]) -> set[int]:
    """
    Add the neighbours: ranks are numbered node by node, and nodes die whole.
    """
    found = set(likeliest)
    walked: set[int] = set()
    for rank in sorted(likeliest):
        if rank in walked:
            continue
        run = {rank}
        for step in (-1, 1):
            neighbour = rank + step
            while neighbour in missing:
                run.add(neighbour)
                neighbour += step
        walked |= run
        if len(run) >= _SMALLEST_NODE:
            found |= run

    return found


def _was_used(state: GroupState) -> bool:
    return any(p.last for p in state.positions.values())


def odd_one_out(
    ranks: Iterable[int], states: Sequence[GroupState]
) -> set[int]:
    """
    The one rank of a circle that contradicts several others, if there is one.

    Two ranks contradict each other if each is ahead of the other, in groups of
    the same kind: they went through their calls in different orders.

    Args:
        ranks: Those that wait for each other.

        states: Where every rank stands in every group.
    """
    reached: dict[int, dict[str, int]] = {r: {} for r in ranks}
    if len(reached) > _LARGEST_CIRCLE:
        return set()

    for state in states:
        kind = str(state.group.ref)
        for rank in reached.keys() & state.positions.keys():
            newest = reached[rank].get(kind, 0)
            reached[rank][kind] = max(newest, state.positions[rank].last)
    against = {
        r: {s for s in reached if _contradict(reached[r], reached[s])}
        for r in reached
    }
    odd = max(against, key=lambda r: len(against[r]))
    is_alone = all(against[r] <= {odd} for r in against if r != odd)
    return {odd} if is_alone and len(against[odd]) > 1 else set()


def _contradict(a: Mapping[str, int], b: Mapping[str, int]) -> bool:
    both = a.keys() & b.keys()
    return any(a[k] > b[k] for k in both) and any(a[k] < b[k] for k in both)


def blocked_in_launch(
    call: StuckCall, states: Sequence[GroupState]
) -> set[int]:
    """
    Ranks that recorded the call, but whose launch did not return.

    Args:
        call: A call that everyone has entered.

        states: Where every rank stands in every group.
    """
    if call.p2p:
        return set()

    positions = states[call.group].positions
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


def arrived_late(call: StuckCall, dumps: Dumps) -> dict[int, float]:
    """
    Ranks that entered a call when the time-out of the first was over.

    Args:
        call: A call that everyone has entered.

        dumps: What the ranks recorded.

    Returns:
        By how many seconds each came after the first; by the clocks of their
        nodes, which are taken to differ by less than a time-out.
    """
    entered = {
        rank: int(dumps[rank].entries.created_ns[row])
        for rank, row in call.waiting.items()
    }
    first = min(entered, key=entered.__getitem__)
    row = call.waiting[first]
    timeout_s = int(dumps[first].entries.timeout_ms[row]) / 1e3
    if call.p2p or not timeout_s or not entered[first]:
        return {}

    after = {r: (ns - entered[first]) / 1e9 for r, ns in entered.items()}
    return {r: s for r, s in after.items() if s >= timeout_s}


def not_started(call: StuckCall, dumps: Dumps) -> set[int]:
    """
    Ranks whose device did not start the call, while others' did.

    Starts are only on record where torch was told to measure times.

    Args:
        call: A call that everyone has entered.

        dumps: What the ranks recorded.
    """
    state = {
        rank: int(dumps[rank].entries.state[row])
        for rank, row in call.waiting.items()
    }
    if STARTED not in state.values():
        return set()

    return {rank for rank, s in state.items() if s == SCHEDULED}


# What is concluded from something that is not there, and may be elsewhere.
_GUESSED = {
    Cause.RANK_CRASHED,
    Cause.UNKNOWN,
    Cause.COLLECTIVE_STUCK_IN_FLIGHT,
}
# Of so many ranks that did not arrive, it is looked what they used to do; one
# takes a millisecond.
_ROOTS_MOST_HABITS = 1024


@attrs.frozen(kw_only=True)
class Root:
    """
    One place where the waiting begins.

    Attributes:
        cause: Why it does.

        ranks: The ranks at fault, or suspected, ascending.

        calls: The stuck calls (as index) in which it shows, oldest first.

        victims: The ranks that wait because of it, directly or through
            others, ascending.

        is_guess: Whether the ranks were told from the rest by their habits.
    """

    cause: Cause
    ranks: tuple[int, ...]
    calls: tuple[int, ...]
    victims: tuple[int, ...] = ()
    is_guess: bool = False


def find_roots(calls: Sequence[StuckCall], job: Job) -> list[Root]:
    """
    Follow the stuck calls to where the waiting begins.

    Args:
        calls: All stuck calls.

        job: What is known about the job.

    Returns:
        The roots, the most telling one first.
    """
    edges = link(calls)
    states, dumps = job.states, job.dumps
    age = {i: since_ns(c, dumps) for i, c in enumerate(calls)}
    roots = list(_not_arrived(calls, age, job))
    ends = sinks(components(edges), edges)
    by_age = [sorted(part, key=age.__getitem__) for part in ends]
    away = {r for root in roots for r in root.ranks}
    for part in by_age:
        if any(away.intersection(calls[i].absent) for i in part):
            continue
        roots.append(_end(part, calls, job))

    roots = _one_crash(_one_hang(roots, calls, states), calls, age, job)
    roots = _without_innocents(roots, calls, states)
    return _with_victims(roots, calls, edges)


def _not_arrived(
    calls: Sequence[StuckCall], age: dict[int, int], job: Job
) -> Iterable[Root]:
    """
    Ranks that should be in a call and are in none.
    """
    inside = {rank for c in calls for rank in c.waiting}
    found = {
        i: away
        for i, c in enumerate(calls)
        if (away := [r for r in c.absent if r not in inside])
    }
    if found:
        ranks = sorted({r for away in found.values() for r in away})
        # What only one call waits for needs no choice.
        has_choice = len(found) > 1
        rows = next_rows(job, ranks[:_ROOTS_MOST_HABITS]) if has_choice else {}
        # Another thread may go on with calls of its own for a while.
        fresh = {
            i: has_choice and not is_unprecedented([calls[i]], job.dumps)
            for i in found
        }
        yield Root(
            cause=Cause.RANK_NOT_ARRIVED,
            ranks=tuple(ranks),
            calls=tuple(
                sorted(
                    found,
                    key=lambda i: (
                        fresh[i],
                        *_turn(calls[i], rows, job),
                        age[i],
                    ),
                )
            ),
        )


def _turn(
    call: StuckCall, rows: Mapping[int, int], job: Job
) -> tuple[bool, float]:
    """
    Whether and when it was the turn of a call, by what its absent ranks did.

    Loops repeat their calls.  Where none was repeated yet, they at least visit
    their groups in turn: a late rank would have entered next where it was least
    recently.
    """
    is_later = not any(
        is_next_of(job, rank, rows[rank], call)
        for rank in call.absent
        if rank in rows
    )
    if call.p2p:
        return is_later, -1

    positions = job.states[call.group].positions
    last = [positions[r].last_row for r in call.absent]
    return is_later, min((row for row in last if row >= 0), default=math.inf)


def _end(part: Sequence[int], calls: Sequence[StuckCall], job: Job) -> Root:
    here = [calls[i] for i in part]
    first = here[0]
    if missing := {r for c in here for r in c.missing}:
        cause, ranks = Cause.RANK_CRASHED, missing
    elif len(part) > 1:
        return _circle(part, calls, job)
    elif first.unknown:
        cause, ranks = Cause.UNKNOWN, set(first.unknown)
    elif ranks := blocked_in_launch(first, job.states):
        cause = Cause.RANK_BLOCKED_IN_LAUNCH
    elif ranks := not_started(first, job.dumps):
        cause = Cause.RANK_NOT_STARTED
    elif late := arrived_late(first, job.dumps):
        cause, ranks = Cause.RANK_NOT_ARRIVED, set(late)
    else:
        cause, ranks = Cause.COLLECTIVE_STUCK_IN_FLIGHT, set(first.waiting)

    return Root(cause=cause, ranks=tuple(sorted(ranks)), calls=tuple(part))


def _circle(part: Sequence[int], calls: Sequence[StuckCall], job: Job) -> Root:
    """
    Calls that wait for each other, and who is to blame for it.
    """
    here = [calls[i] for i in part]
    everyone = {r for _, _, r in links(here)}
    circle = Root(
        cause=Cause.GROUP_ORDER_DEADLOCK,
        ranks=tuple(sorted(everyone)),
        calls=tuple(part),
    )
    if all(c.p2p for c in here):
        return attrs.evolve(circle, cause=Cause.P2P_DEADLOCK)

    odd = odd_one_out(everyone, job.states)
    left = find_departure(here, everyone, job)
    if left is None or not left.ranks >= odd:
        ranks = tuple(sorted(odd or everyone))
        return attrs.evolve(circle, ranks=ranks)

    due = [] if left.due is None else [part[left.due]]
    return Root(
        cause=left.cause,
        ranks=tuple(sorted(odd or left.ranks)),
        calls=(*due, *(i for i in part if i not in due)),
        is_guess=left.cause is Cause.SKIPPED_COLLECTIVE or not odd,
    )


def _one_hang(
    roots: Sequence[Root],
    calls: Sequence[StuckCall],
    states: Sequence[GroupState],
) -> list[Root]:
    """
    Tell of all ranks at once that are stuck in calls which others completed.
    """
    alone = [
        r
        for r in roots
        if r.cause is Cause.COLLECTIVE_STUCK_IN_FLIGHT
        and is_left_behind(calls[r.calls[0]], states)
    ]
    return _as_one(roots, alone, {rank for r in alone for rank in r.ranks})


def _as_one(
    roots: Sequence[Root], alike: Sequence[Root], ranks: set[int]
) -> list[Root]:
    """
    Tell of several roots of one cause as of one.
    """
    if not alike:
        return list(roots)

    merged = Root(
        cause=alike[0].cause,
        ranks=tuple(sorted(ranks)),
        calls=tuple(i for r in alike for i in r.calls),
    )
    return [merged, *(r for r in roots if r not in alike)]


def is_left_behind(call: StuckCall, states: Sequence[GroupState]) -> bool:
    """
    Whether a call completed for some members, but not for those inside.

    Args:
        call: A stuck call.

        states: Where every rank stands in every group.
    """
    return not call.p2p and len(call.waiting) + len(call.awaited) < len(
        states[call.group].group.order
    )


def _one_crash(
    roots: Sequence[Root],
    calls: Sequence[StuckCall],
    age: Mapping[int, int],
    job: Job,
) -> list[Root]:
    """
    Tell of all ranks that crashed at once: they may have shared a node.
    """
    crashed = [r for r in roots if r.cause is Cause.RANK_CRASHED]
    lost = {rank for r in crashed for rank in r.ranks}
    likeliest = likeliest_lost(lost, calls, job.states)
    return [
        attrs.evolve(r, calls=_as_owed(r.calls, calls, age, job))
        if r.cause is Cause.RANK_CRASHED
        else r
        for r in _as_one(roots, crashed, likeliest)
    ]


def _as_owed(
    waits: Sequence[int],
    calls: Sequence[StuckCall],
    age: Mapping[int, int],
    job: Job,
) -> tuple[int, ...]:
    """
    Put that call first which the lost rank would most likely have entered.

    It left no habit.  But others went by there; and what is called most often
    is the likeliest to be due.
    """
    passed = kinds_passed([calls[i] for i in waits], job)
    turn = dict(zip(waits, passed, strict=True))
    return tuple(
        sorted(
            waits,
            key=lambda i: (turn[i], calls[i].p2p, -calls[i].seq, age[i]),
        )
    )


def _without_innocents(
    roots: Sequence[Root],
    calls: Sequence[StuckCall],
    states: Sequence[GroupState],
) -> list[Root]:
    """
    Drop ranks whose lost dump explains nothing that is not explained already.

    A rank without a dump is taken to wait, too, if it is a member of a group
    in which the waiting begins for a proven reason.
    """
    proven = [r for r in roots if r.cause not in _GUESSED]
    if not proven:
        return list(roots)

    touched = {
        rank
        for root in proven
        for i in root.calls
        for rank in _members(calls[i], states)
    }
    return [
        *proven,
        *(
            r
            for r in roots
            if r.cause in _GUESSED and not touched.issuperset(r.ranks)
        ),
    ]


def _members(call: StuckCall, states: Sequence[GroupState]) -> Iterable[int]:
    return states[call.group].group.order


def _with_victims(
    roots: Iterable[Root],
    calls: Sequence[StuckCall],
    edges: Sequence[Iterable[int]],
) -> list[Root]:
    back: dict[int, set[int]] = defaultdict(set)
    for i, targets in enumerate(edges):
        for target in targets:
            back[target].add(i)

    found = []
    for root in roots:
        waiting = {
            rank
            for i in reachable(root.calls, back)
            for rank in calls[i].waiting
        }
        victims = tuple(sorted(waiting.difference(root.ranks)))
        found.append(attrs.evolve(root, victims=victims))

    return found
