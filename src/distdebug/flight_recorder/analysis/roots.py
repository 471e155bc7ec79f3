"""
Where does the waiting begin?

Everybody waits for somebody; what matters are the ends of these chains: ranks
that wait for nobody, ranks that left no dump, circles, and calls that everyone
entered and that do not complete all the same.
"""

from __future__ import annotations

import math

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import attrs

from ...findings import Cause
from ...waits import components, reachable, sinks
from .departures import find_departure
from .freshness import is_unprecedented
from .habit import is_next_of, kinds_passed, next_rows
from .job import Job
from .progress import GroupState
from .stuck import StuckCall, link, links, since_ns
from .suspects import (
    arrived_late,
    blocked_in_launch,
    likeliest_lost,
    not_started,
    odd_one_out,
)


__all__ = ["Root", "find_roots", "is_left_behind"]

# What is concluded from something that is not there, and may be elsewhere.
_GUESSED = {
    Cause.RANK_CRASHED,
    Cause.UNKNOWN,
    Cause.COLLECTIVE_STUCK_IN_FLIGHT,
}
# Of so many ranks that did not arrive, it is looked what they used to do; one
# takes a millisecond.
_MOST_HABITS = 1024


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
        rows = next_rows(job, ranks[:_MOST_HABITS]) if has_choice else {}
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
