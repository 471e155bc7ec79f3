"""
Where does the waiting begin?

Everybody waits for somebody; what matters are the ends of these chains: ranks
that wait for nobody, ranks that left no dump, circles, and calls that everyone
entered and that do not complete all the same.
"""

from __future__ import annotations

import math

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import attrs

from ...findings import Cause
from ...waits import components, reachable, sinks
from ..columns import SCHEDULED, STARTED, Dumps
from .progress import GroupState
from .stuck import StuckCall, link, links, since_ns


__all__ = ["Root", "find_roots", "is_left_behind"]

# What is concluded from something that is not there, and may be elsewhere.
_GUESSED = {
    Cause.RANK_CRASHED,
    Cause.UNKNOWN,
    Cause.COLLECTIVE_STUCK_IN_FLIGHT,
}


# As many ranks in a row without a dump are taken for a lost node.
_SMALLEST_NODE = 3
# Every two ranks of a circle are compared.
_LARGEST_CIRCLE = 64


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
    """

    cause: Cause
    ranks: tuple[int, ...]
    calls: tuple[int, ...]
    victims: tuple[int, ...] = ()


def find_roots(
    calls: Sequence[StuckCall], states: Sequence[GroupState], dumps: Dumps
) -> list[Root]:
    """
    Follow the stuck calls to where the waiting begins.

    Args:
        calls: All stuck calls.

        states: Where every rank stands in every group.

        dumps: What the ranks recorded.

    Returns:
        The roots, the most telling one first.
    """
    edges = link(calls)
    age = {i: since_ns(c, dumps) for i, c in enumerate(calls)}
    inside = {rank for c in calls for rank in c.waiting}
    roots = list(_not_arrived(calls, inside, age, states))
    ends = sinks(components(edges), edges)
    by_age = [sorted(part, key=age.__getitem__) for part in ends]
    away = {r for root in roots for r in root.ranks}
    for part in by_age:
        if any(away.intersection(calls[i].absent) for i in part):
            continue
        roots.append(_end(part, calls, states, dumps))

    roots = _one_crash(_one_hang(roots, calls, states), calls, states)
    roots = _without_innocents(roots, calls, states)
    return _with_victims(roots, calls, edges)


def _not_arrived(
    calls: Sequence[StuckCall],
    inside: set[int],
    age: dict[int, int],
    states: Sequence[GroupState],
) -> Iterable[Root]:
    """
    Ranks that should be in a call and are in none.
    """
    found = {
        i: away
        for i, c in enumerate(calls)
        if (away := [r for r in c.absent if r not in inside])
    }
    if found:
        yield Root(
            cause=Cause.RANK_NOT_ARRIVED,
            ranks=tuple(sorted({r for away in found.values() for r in away})),
            calls=tuple(
                sorted(found, key=lambda i: (_visit(calls[i], states), age[i]))
            ),
        )


def _visit(call: StuckCall, states: Sequence[GroupState]) -> float:
    """
    When the absent ranks were in the group last, by their own records.

    Loops visit their groups in turn: a late rank would have entered next where
    it was least recently.
    """
    if call.p2p:
        return -1

    positions = states[call.group].positions
    rows = [positions[r].last_row for r in call.absent]
    return min((row for row in rows if row >= 0), default=math.inf)


def _end(
    part: Sequence[int],
    calls: Sequence[StuckCall],
    states: Sequence[GroupState],
    dumps: Dumps,
) -> Root:
    here = [calls[i] for i in part]
    first = here[0]
    if missing := {r for c in here for r in c.missing}:
        cause, ranks = Cause.RANK_CRASHED, missing
    elif len(part) > 1:
        is_p2p = all(c.p2p for c in here)
        cause = Cause.P2P_DEADLOCK if is_p2p else Cause.GROUP_ORDER_DEADLOCK
        ranks = {r for _, _, r in links(here)}
        if not is_p2p:
            ranks = _odd_one_out(ranks, states) or ranks
    elif first.unknown:
        cause, ranks = Cause.UNKNOWN, set(first.unknown)
    elif ranks := _blocked_in_launch(first, states):
        cause = Cause.RANK_BLOCKED_IN_LAUNCH
    elif ranks := _not_started(first, dumps):
        cause = Cause.RANK_NOT_STARTED
    else:
        cause, ranks = Cause.COLLECTIVE_STUCK_IN_FLIGHT, set(first.waiting)

    return Root(cause=cause, ranks=tuple(sorted(ranks)), calls=tuple(part))


def _odd_one_out(
    ranks: Iterable[int], states: Sequence[GroupState]
) -> set[int]:
    """
    The one rank of a circle that contradicts several others, if there is one.

    Two ranks contradict each other if each is ahead of the other, in groups of
    the same kind: they went through their calls in different orders.
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
    if not alone:
        return list(roots)

    merged = Root(
        cause=Cause.COLLECTIVE_STUCK_IN_FLIGHT,
        ranks=tuple(sorted({rank for r in alone for rank in r.ranks})),
        calls=tuple(i for r in alone for i in r.calls),
    )
    return [merged, *(r for r in roots if r not in alone)]


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
    states: Sequence[GroupState],
) -> list[Root]:
    """
    Tell of all ranks that crashed at once: they may have shared a node.
    """
    crashed = [r for r in roots if r.cause is Cause.RANK_CRASHED]
    if not crashed:
        return list(roots)

    ranks = _likeliest({r for c in crashed for r in c.ranks}, calls, states)
    shown = tuple(i for c in crashed for i in c.calls)
    merged = Root(
        cause=Cause.RANK_CRASHED, ranks=tuple(sorted(ranks)), calls=shown
    )
    return [*(r for r in roots if r not in crashed), merged]


def _likeliest(
    missing: set[int],
    calls: Sequence[StuckCall],
    states: Sequence[GroupState],
) -> set[int]:
    """
    Of the ranks without a dump, those whose groups all wait for them.

    A rank whose dump was merely lost still takes part in its own small groups.
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
    for rank in sorted(likeliest):
        run = {rank}
        for step in (-1, 1):
            neighbour = rank + step
            while neighbour in missing:
                run.add(neighbour)
                neighbour += step
        if len(run) >= _SMALLEST_NODE:
            likeliest = likeliest | run

    return likeliest


def _was_used(state: GroupState) -> bool:
    return any(p.last for p in state.positions.values())


def _blocked_in_launch(
    call: StuckCall, states: Sequence[GroupState]
) -> set[int]:
    """
    Ranks that recorded the call, but whose launch did not return.
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


def _not_started(call: StuckCall, dumps: Dumps) -> set[int]:
    """
    Ranks whose device did not start the call, while others' did.

    Starts are only on record where torch was told to measure times.
    """
    state = {
        rank: int(dumps[rank].entries.state[row])
        for rank, row in call.waiting.items()
    }
    if STARTED not in state.values():
        return set()

    return {rank for rank, s in state.items() if s == SCHEDULED}


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
