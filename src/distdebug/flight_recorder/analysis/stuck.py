"""
Which calls are stuck, who waits in them, and for whom?

A member is *absent* from a call if its dump shows that it did not enter it.
A dump proves nothing about what came after it: if another member completed a
later call that needs everyone, the dump is merely older, and its rank is
*outdated*, not absent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import attrs

from ..columns import Dumps, RankDump
from .endings import failed_off_record
from .p2p import Channel, Side
from .progress import GroupState, Position


__all__ = [
    "StuckCall",
    "find_outdated",
    "find_stuck_calls",
    "last_sign_ns",
    "link",
    "links",
    "since_ns",
]

# A rank waits in a handful of groups; whoever claims more is not believed.
_MOST_CALLS = 64
# Dumps of one hang are not taken further apart; an older one was left over.
_LONGEST_BETWEEN_DUMPS_NS = 60 * 10**9


@attrs.frozen(kw_only=True, eq=False)
class StuckCall:
    """
    A call that some ranks entered and that did not complete.

    Attributes:
        group: The group, as index.

        seq: The sequence number; of a receive or send, its own.

        waiting: The ranks inside, and the position of their record.

        absent: Ranks whose dump shows that they did not enter.

        missing: Ranks without a dump.

        unknown: Ranks whose dump does not tell.

        p2p: Whether it is point-to-point.
    """

    group: int
    seq: int
    waiting: dict[int, int]
    absent: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    p2p: bool = False

    @property
    def awaited(self) -> tuple[int, ...]:
        """
        Everyone who is not known to have entered.
        """
        return tuple(sorted({*self.absent, *self.missing, *self.unknown}))


def find_outdated(
    states: Sequence[GroupState], channels: Iterable[Channel], dumps: Dumps
) -> frozenset[int]:
    """
    Find ranks whose dump shows less than what they have done.

    Others saw them do more, or the end of the file, which holds the newest
    records, is lost.

    Args:
        states: Where every rank stands in every group.

        channels: The point-to-point traffic.

        dumps: What the ranks recorded.

    Returns:
        The ranks.
    """
    outdated = {d.rank for d in dumps if d.truncated}
    outdated |= {
        p.rank
        for state in states
        for done in [state.sync_done]
        for p in state.positions.values()
        # It did more; or it was inside a call that then completed.
        if p.last < done or 0 < p.pending <= done
    }
    for c in channels:
        # Received more than sent: the dump of the sender is older.
        if c.recv and c.recv.is_whole and (c.send is None or c.send.is_whole):
            received = len(c.recv.rows) - c.recv.pending
            if c.send and received > len(c.send.rows):
                outdated.add(c.source)

    return frozenset(outdated)


def find_stuck_calls(
    states: Sequence[GroupState],
    channels: Iterable[Channel],
    dumps: Dumps,
    outdated: frozenset[int],
) -> list[StuckCall]:
    """
    Find the oldest call that is stuck in each group, and between ranks.

    Args:
        states: Where every rank stands in every group.

        channels: The point-to-point traffic.

        dumps: What the ranks recorded.

        outdated: What :func:`find_outdated` returned.

    Returns:
        The calls; of a group, at most one collective.
    """
    calls = [
        _without_left_overs(call, outdated, dumps)
        for i, s in enumerate(states)
        if (call := _stuck_collective(i, s, outdated)) is not None
    ]
    off_record = {
        d.rank for d in dumps if d.sidecar and failed_off_record(d.sidecar)
    }
    return [
        *(_without_elsewhere(call, off_record) for call in calls),
        *_stuck_p2p(channels, dumps, outdated),
    ]


def _without_elsewhere(call: StuckCall, off_record: set[int]) -> StuckCall:
    """
    Ranks that failed in a call that is not on record waited there themselves.
    """
    here = off_record.intersection(call.absent)
    return attrs.evolve(
        call,
        absent=tuple(r for r in call.absent if r not in here),
        unknown=tuple(sorted(here.union(call.unknown))),
    )


def _stuck_collective(
    index: int, state: GroupState, outdated: frozenset[int]
) -> StuckCall | None:
    everyone = state.positions.values()
    done = state.sync_done
    waits_in = {p.rank: _waits_in(p, done) for p in everyone}
    seq = min(filter(None, waits_in.values()), default=0)
    if not seq:
        return None

    inside = {p.rank: p.row for p in everyone if waits_in[p.rank] == seq}
    behind = [p.rank for p in everyone if p.last < seq]
    old = [r for r in behind if r in outdated]
    # As many were seen to move between the dumps as wait: the group runs.
    if len(old) >= len(inside):
        return None

    return StuckCall(
        group=index,
        seq=seq,
        waiting=inside,
        absent=tuple(sorted(r for r in behind if r not in outdated)),
        missing=state.missing,
        unknown=tuple(sorted([*state.unknown, *old])),
    )


def _without_left_overs(
    call: StuckCall, outdated: frozenset[int], dumps: Dumps
) -> StuckCall:
    """
    Count ranks as missing whose dump ends long before the call began.
    """
    limit = since_ns(call, dumps) - _LONGEST_BETWEEN_DUMPS_NS
    gone = {
        r
        for r in outdated.intersection(call.unknown)
        if dumps[r].sidecar is None and last_sign_ns(dumps[r]) < limit
    }
    if not gone:
        return call

    return attrs.evolve(
        call,
        missing=tuple(sorted(gone.union(call.missing))),
        unknown=tuple(r for r in call.unknown if r not in gone),
    )


def last_sign_ns(dump: RankDump) -> int:
    """
    When did anything on record of this rank happen last?

    Args:
        dump: What it recorded.

    Returns:
        Nanoseconds since the epoch, by its clock; 0 if nothing is on record.
    """
    e = dump.entries
    return int(max(e.created_ns.max(initial=0), e.completed_ns.max(initial=0)))


def _waits_in(p: Position, done: int) -> int:
    """
    The oldest call that *p* waits in, if everyone entered up to *done*.
    """
    if p.pending > done:
        return p.pending

    return done + 1 if p.pending and p.last > done else 0


def _stuck_p2p(
    channels: Iterable[Channel], dumps: Dumps, outdated: frozenset[int]
) -> Iterator[StuckCall]:
    for c in channels:
        for mine, theirs, peer in (
            (c.recv, c.send, c.source),
            (c.send, c.recv, c.target),
        ):
            if mine is None or not mine.pending:
                continue
            met = _is_met(mine, theirs)
            if met and mine is c.send:
                continue  # Told once, from the side of the receiver.
            call = _p2p_call(c, mine, theirs if met else None, peer, dumps)
            if peer in outdated:
                call = attrs.evolve(call, absent=(), unknown=call.absent)
            yield call


def _is_met(mine: Side, theirs: Side | None) -> bool:
    """
    Whether the other side entered the call that I wait in.
    """
    if theirs is None:
        return False
    if mine.is_whole and theirs.is_whole:
        return len(theirs.rows) > len(mine.rows) - mine.pending

    return theirs.pending > 0


def _p2p_call(
    c: Channel, mine: Side, theirs: Side | None, peer: int, dumps: Dumps
) -> StuckCall:
    row = mine.oldest_pending
    waiting = {mine.rank: row}
    if theirs is not None and theirs.pending:
        waiting[theirs.rank] = theirs.oldest_pending
    away = () if theirs is not None else (peer,)
    has_dump = peer in dumps.by_rank
    return StuckCall(
        group=c.group,
        seq=int(dumps[mine.rank].entries.p2p_seq[row]),
        waiting=waiting,
        absent=away if has_dump else (),
        missing=() if has_dump else away,
        p2p=True,
    )


def since_ns(call: StuckCall, dumps: Dumps) -> int:
    """
    When did the first rank enter a stuck call?

    Args:
        call: One of those that are stuck.

        dumps: What the ranks recorded.

    Returns:
        Nanoseconds since the epoch, by the clock of that rank's host.
    """
    return min(
        int(dumps[rank].entries.created_ns[row])
        for rank, row in call.waiting.items()
    )


def links(
    calls: Sequence[StuckCall],
) -> Iterator[tuple[int, int, int]]:
    """
    Find which stuck calls wait for which others, and because of which rank.

    A call waits for another one if a rank that should enter it is inside the
    other one, or if a rank entered both and the other one came first: a device
    runs them in that order.

    Args:
        calls: What :func:`find_stuck_calls` returned.

    Returns:
        Triples (call, call it waits for, rank), calls as index.
    """
    inside = _oldest_calls(calls)
    for i, call in enumerate(calls):
        for rank in call.absent:
            yield from ((i, j, rank) for j in inside[rank] if j != i)
        if call.absent:
            continue
        for rank, row in call.waiting.items():
            for j in inside[rank]:
                if calls[j].waiting[rank] < row:
                    yield i, j, rank


def _oldest_calls(calls: Sequence[StuckCall]) -> dict[int, list[int]]:
    """
    The calls that each rank is inside, oldest first; of very many, some.
    """
    inside: dict[int, list[int]] = defaultdict(list)
    for i, call in enumerate(calls):
        for rank in call.waiting:
            inside[rank].append(i)

    return defaultdict(
        list,
        {
            rank: sorted(found, key=lambda i: calls[i].waiting[rank])[
                :_MOST_CALLS
            ]
            for rank, found in inside.items()
        },
    )


def link(calls: Sequence[StuckCall]) -> list[set[int]]:
    """
    Find which stuck calls wait for which others.

    Args:
        calls: What :func:`find_stuck_calls` returned.

    Returns:
        For each call, the calls (as index) that it waits for.
    """
    edges: list[set[int]] = [set() for _ in calls]
    for i, j, _ in links(calls):
        edges[i].add(j)

    return edges
