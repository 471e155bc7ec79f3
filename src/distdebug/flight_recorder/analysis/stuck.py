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
import numpy as np

from ...findings import CollectiveRef, Evidence
from ...usercode import user_location
from ..reading.columns import Dumps, RankDump
from .job import Channel, Job, Side
from .progress import GroupState, Position, ended_s, failed_off_record


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


_LONGEST_NS = 30 * 10**9
# Asking a rank for its dump takes a moment, in which its peers wait.
_LONGEST_ASKED_NS = 10**9
_ASKED = {"request", "call"}
# Nor are all ranks told at once that the job is to end.
_LONGEST_ENDING_NS = 10 * 10**9
_LONGEST_DUMP_NS = 5 * 10**9
# Shorter silences are of every job, longer ones than this many pauses of few.
_SHORTEST_SILENCE_S = 5.0
_PAUSES = 2


def are_fresh(calls: Iterable[StuckCall], dumps: Dumps) -> bool:
    """
    Whether no call waits for longer than is normal in this job.

    Args:
        calls: All stuck calls.

        dumps: What the ranks recorded, and when each dump was taken.

    Returns:
        ``False`` also where it is not known when the dumps were taken.
    """
    oldest: dict[int, int] = {}
    for call in calls:
        for rank, row in call.waiting.items():
            created = int(dumps[rank].entries.created_ns[row])
            oldest[rank] = min(oldest.get(rank, created), created)

    end_s = ended_s(dumps)
    return all(
        _earliest_ns(dumps[rank])
        <= _until_ns(dumps[rank], end_s) - created
        <= _normal_ns(dumps[rank], is_ended=end_s is not None)
        for rank, created in oldest.items()
    )


def _until_ns(dump: RankDump, end_s: float | None) -> int:
    """
    Until when may a rank have waited for others that went on?
    """
    if end_s is None:
        return dump.written_ns

    end_ns = int(1e9 * end_s)
    is_one_end = dump.written_ns - end_ns <= _LONGEST_ENDING_NS
    return min(dump.written_ns, end_ns) if is_one_end else dump.written_ns


def is_unprecedented(calls: Iterable[StuckCall], dumps: Dumps) -> bool:
    """
    Whether one of these calls waits for longer than its ranks ever paused.

    Args:
        calls: Some stuck calls.

        dumps: What the ranks recorded, and when each dump was taken.

    Returns:
        ``True`` also where it is not known when the dumps were taken.
    """
    return any(
        age is None or age > _longest_pause_ns(dumps[rank])
        for call in calls
        for rank in call.waiting
        for age in [_age_ns(call, rank, dumps)]
    )


def waited_ns(calls: Iterable[StuckCall], dumps: Dumps) -> int | None:
    """
    For how long has somebody waited in these calls?

    Args:
        calls: Some stuck calls.

        dumps: What the ranks recorded, and when each dump was taken.

    Returns:
        Nanoseconds; ``None`` where no side-car tells when a dump was taken.
    """
    ages = [
        age
        for call in calls
        for rank in call.waiting
        if (age := _age_ns(call, rank, dumps)) is not None
    ]
    return max(ages, default=None)


def silent_s(dumps: Dumps) -> float:
    """
    For how long did no rank record anything, if that never was so before?

    Args:
        dumps: What the ranks recorded, and when each dump was taken.

    Returns:
        Seconds; 0 if such silences are normal in this job, or if it is not
        known of each rank when its dump was taken.
    """
    if any(d.sidecar is None or not len(d.entries) for d in dumps):
        return 0.0

    ages = [d.written_ns - last_sign_ns(d) for d in dumps]
    is_new = all(
        age > _PAUSES * _longest_pause_ns(dump)
        for age, dump in zip(ages, dumps, strict=True)
    )
    seconds = min(ages, default=0) / 1e9
    return seconds if is_new and seconds >= _SHORTEST_SILENCE_S else 0.0


def _age_ns(call: StuckCall, rank: int, dumps: Dumps) -> int | None:
    dump = dumps[rank]
    if dump.sidecar is None:
        return None

    return dump.written_ns - int(dump.entries.created_ns[call.waiting[rank]])


def _longest_pause_ns(dump: RankDump) -> int:
    gaps = np.diff(np.sort(dump.entries.created_ns))
    return int(gaps.max(initial=0))


def _earliest_ns(dump: RankDump) -> int:
    """
    How old a wait must be at least for the times to make sense.
    """
    # A side-car is written first; calls may come while the dump is taken.
    return -_LONGEST_DUMP_NS if dump.sidecar else 0


def _normal_ns(dump: RankDump, *, is_ended: bool) -> float:
    """
    How long the rank has been seen to go without a new call, or to wait.
    """
    e = dump.entries
    asked = dump.sidecar is not None and dump.sidecar.reason in _ASKED
    least = _LONGEST_ASKED_NS if asked or is_ended else 0
    if len(e) < 8:
        return least

    gaps = np.diff(np.sort(e.created_ns))
    took = (e.completed_ns - e.created_ns)[e.completed_ns > 0]
    longest = max(
        float(np.quantile(part, 0.95)) for part in (gaps, took) if len(part)
    )
    return max(min(longest, _LONGEST_NS), least)


_STATES = ("scheduled", "started", "completed")


def collective_of(job: Job, call: StuckCall) -> CollectiveRef:
    """
    What is a stuck call, by the record of a rank that waits in it?

    Args:
        job: What is known about the job.

        call: One of those that are stuck.
    """
    for rank, row in call.waiting.items():
        entries = job.dumps[rank].entries
        if call.p2p or int(entries.seq[row]) == call.seq:
            break

    return CollectiveRef(
        op=job.operation(rank, row).name, seq=call.seq, p2p=call.p2p
    )


def call_text(job: Job, call: StuckCall) -> str:
    """
    Name a stuck call: ``all_reduce #9 of group 'dp'``.

    Args:
        job: What is known about the job.

        call: One of those that are stuck.
    """
    what = str(collective_of(job, call))
    rank, row = next(iter(call.waiting.items()))
    operation = job.operation(rank, row)
    if operation.is_p2p:
        order = job.membership.groups[call.group].order
        what += (
            f" from rank {order[operation.source]}"
            f" to rank {order[operation.target]}"
        )
    return f"{what} of group {str(job.membership.groups[call.group].ref)!r}"


def awaited_text(job: Job, call: StuckCall) -> str:
    """
    Name what is missing from a stuck call: itself, or the other end of it.

    Args:
        job: What is known about the job.

        call: One of those that are stuck.
    """
    rank, row = next(iter(call.waiting.items()))
    operation = job.operation(rank, row)
    if not operation.is_p2p:
        return call_text(job, call)

    what = "the recv from" if operation.is_send else "the send to"
    group = job.membership.groups[call.group].ref
    return f"{what} rank {rank} in group {str(group)!r}"


def record_evidence(
    job: Job, rank: int, row: int, *, what: str = ""
) -> Evidence:
    """
    Quote one record of one rank.

    Args:
        job: What is known about the job.

        rank: Global rank.

        row: Position of the record in its dump.

        what: What it shows, to begin with.
    """
    dump = job.dumps[rank]
    e = dump.entries
    operation = job.operation(rank, row)
    state = _STATES[int(e.state[row])]
    if not operation.has_events:
        state = "returned" if e.retired[row] else "in flight"
    group = job.membership.groups[
        job.membership.by_code[rank][int(e.group[row])]
    ]
    seq = e.p2p_seq[row] if operation.is_p2p else e.seq[row]
    where = user_location(job.stack(rank, row))
    return Evidence(
        kind="dump",
        source=dump.path,
        location=f"rank {rank}, record {int(e.record_id[row])}",
        quote=f"{what}{job.dumps.ops[e.op[row]]} #{seq} of group "
        f"{str(group.ref)!r} ({state})" + (f" at {where}" if where else ""),
    )
