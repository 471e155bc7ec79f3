"""
Which of the ranks that a stuck call concerns are at fault?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..columns import SCHEDULED, STARTED, Dumps
from .progress import GroupState
from .stuck import StuckCall


__all__ = [
    "arrived_late",
    "blocked_in_launch",
    "likeliest_lost",
    "not_started",
    "odd_one_out",
]

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
