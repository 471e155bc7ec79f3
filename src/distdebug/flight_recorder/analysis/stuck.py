"""
Find stuck calls, the ranks that wait in them, and the ranks they wait for.

A member is *absent* from a call if its dump shows that it did not enter it.
A dump proves nothing about the time after it was taken: if another member
completed a later call that needs all members, the rank is *outdated* instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property

import attrs
import numpy as np

from numpy.typing import NDArray

from ...findings import CollectiveRef, Evidence
from ...usercode import user_location
from ..reading.columns import ISSUED, Dumps, RankDump
from ..reading.extract import STATES
from .endings import (
    MAX_SHUTDOWN_S,
    failed_in_unrecorded_call,
    sigterm_time_s,
)
from .job import Job, Position, Side
from .membership import Group


# A rank waits in a few groups; more are implausible.
_MAX_CALLS_PER_RANK = 64
# Dumps of one hang are not taken further apart; older ones are leftovers.
_MAX_DUMP_GAP_NS = 60 * 10**9


@attrs.frozen(kw_only=True, eq=False)
class StuckCall:
    """
    A call that some ranks entered and that did not complete.

    Attributes:
        job: The job.

        group: Index of the group.

        seq: Sequence number; sends and receives have their own.

        waiting: Record index of each rank that is inside.

        absent: Ranks whose dump shows that they did not enter.

        missing: Ranks without a dump.

        unknown: Ranks whose dump does not show it.
    """

    job: Job = attrs.field(repr=False)
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
        All ranks that are not known to have entered.
        """
        return tuple(sorted({*self.absent, *self.missing, *self.unknown}))

    @property
    def first_record(self) -> tuple[int, int]:
        """
        The first rank that is inside, and its record index.
        """
        return next(iter(self.waiting.items()))

    @property
    def process_group(self) -> Group:
        """
        The group, with its members.
        """
        return self.job.groups[self.group]

    @cached_property
    def entered_ns(self) -> int:
        """
        When the first rank entered it.

        In nanoseconds since the epoch, by the clock of that rank's host.
        """
        records = self.waiting.items()
        return min(self.job.created_ns(*record) for record in records)

    @property
    def ref(self) -> CollectiveRef:
        """
        Reference to this call for findings, by the record of a waiting rank.
        """
        for rank, row in self.waiting.items():
            entries = self.job.dumps[rank].entries
            if self.p2p or int(entries.seq[row]) == self.seq:
                break

        op = self.job.operation(rank, row).name
        return CollectiveRef(op=op, seq=self.seq, p2p=self.p2p)

    def __str__(self) -> str:
        """
        Return its name: ``all_reduce #9 of group 'dp'``.
        """
        group = self.process_group
        ends = self.job.operation(*self.first_record).ends_in(group)
        way = f" from rank {ends[0]} to rank {ends[1]}" if ends else ""
        return f"{self.ref}{way} of group {str(group.ref)!r}"

    @property
    def awaited_text(self) -> str:
        """
        Name of the awaited call: the same one, or its other end.
        """
        rank, row = self.first_record
        operation = self.job.operation(rank, row)
        if not operation.is_p2p:
            return str(self)

        what = "the recv from" if operation.is_send else "the send to"
        return f"{what} rank {rank} in group {str(self.process_group.ref)!r}"


def find_outdated(job: Job) -> frozenset[int]:
    """
    Find ranks whose dump shows less than their real progress.

    Other ranks saw more of it, or the end of the file, which holds the newest
    records, is lost.
    """
    outdated = {d.rank for d in job.dumps if d.truncated}
    outdated |= {
        p.rank
        for state in job.states
        for done in [state.sync_done]
        for p in state.positions.values()
        # It entered more, or the call that it was in completed.
        if p.last < done or 0 < p.pending <= done
    }
    for c in job.channels:
        # More received than sent: the dump of the sender is older.
        source = job.dumps.by_rank.get(c.source)
        if c.recv and c.recv.is_whole and source and source.is_whole:
            received = len(c.recv.rows) - c.recv.pending
            if received > (len(c.send.rows) if c.send else 0):
                outdated.add(c.source)

    return frozenset(outdated)


def find_stuck_calls(job: Job, outdated: frozenset[int]) -> list[StuckCall]:
    """
    Find the oldest stuck call of each group, and of each channel.

    Args:
        outdated: Result of :func:`find_outdated`.

    Returns:
        The calls; at most one collective per group.
    """
    off_record = {
        d.rank
        for d in job.dumps
        if d.sidecar and failed_in_unrecorded_call(d.sidecar)
    }
    return [
        *(
            call
            for i in range(len(job.states))
            if (call := _stuck_collective(job, i, outdated, off_record))
        ),
        *_stuck_p2p(job, outdated),
    ]


def _stuck_collective(
    job: Job, index: int, outdated: frozenset[int], off_record: set[int]
) -> StuckCall | None:
    state = job.states[index]
    positions = state.positions.values()
    done = state.sync_done
    pending = {p.rank: _pending_seq(p, done) for p in positions}
    seq = min(filter(None, pending.values()), default=0)
    if not seq:
        return None

    inside = {p.rank: p.row for p in positions if pending[p.rank] == seq}
    behind = {p.rank for p in positions if p.last < seq}
    # As many ranks moved between the dumps as wait: the group is running.
    if len(behind & outdated) >= len(inside):
        return None

    entered_ns = min(job.created_ns(*record) for record in inside.items())
    limit_ns = entered_ns - _MAX_DUMP_GAP_NS
    unknown = (behind & outdated).union(state.unknown)
    # Ranks whose dump ends long before the call are missing.
    lost = {
        r
        for r in unknown & outdated
        for dump in [job.dumps[r]]
        if dump.sidecar is None and dump.last_activity_ns < limit_ns
    }
    # Ranks that failed in an unrecorded call may have entered this one.
    unknown |= (behind - outdated) & off_record
    return StuckCall(
        job=job,
        group=index,
        seq=seq,
        waiting=inside,
        absent=tuple(sorted(behind - outdated - off_record)),
        missing=tuple(sorted(lost.union(state.missing))),
        unknown=tuple(sorted(unknown - lost)),
    )


def _pending_seq(p: Position, done: int) -> int:
    """
    Return the oldest call that *p* waits in; 0 if none.

    Args:
        done: Newest call that all members entered.
    """
    if p.pending > done:
        return p.pending

    return done + 1 if p.pending and p.last > done else 0


def _stuck_p2p(job: Job, outdated: frozenset[int]) -> Iterator[StuckCall]:
    for c in job.channels:
        for mine, theirs, peer in (
            (c.recv, c.send, c.source),
            (c.send, c.recv, c.target),
        ):
            if mine is None or not mine.pending:
                continue
            row = mine.oldest_pending
            waiting = {mine.rank: row}
            awaited: tuple[int, ...] = (peer,)
            if theirs is not None and _has_counterpart(mine, theirs):
                if mine is c.send:
                    continue  # The receiving side reports it.
                awaited = ()
                if theirs.pending:
                    waiting[theirs.rank] = theirs.oldest_pending
            has_dump = peer in job.dumps.by_rank
            is_proven = has_dump and peer not in outdated
            yield StuckCall(
                job=job,
                group=c.group,
                seq=int(job.dumps[mine.rank].entries.p2p_seq[row]),
                waiting=waiting,
                absent=awaited if is_proven else (),
                missing=() if has_dump else awaited,
                unknown=awaited if has_dump and not is_proven else (),
                p2p=True,
            )


def _has_counterpart(mine: Side, theirs: Side) -> bool:
    """
    Return whether the peer entered the pending call.
    """
    if mine.is_whole and theirs.is_whole:
        return len(theirs.rows) > len(mine.rows) - mine.pending

    return theirs.pending > 0


def find_waits(
    calls: Sequence[StuckCall],
) -> Iterator[tuple[int, int, int]]:
    """
    Find which stuck calls wait for which others, and through which rank.

    A call waits for another one if a rank that should enter it is inside the
    other one, or if a rank entered both and the other one came first, because
    devices run calls in that order.

    Args:
        calls: Result of :func:`find_stuck_calls`.

    Yields:
        Triples (index of the call, index of the call it waits for, rank).
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


def find_standing(
    calls: Sequence[StuckCall], freed: Collection[int], done: Collection[int]
) -> list[StuckCall]:
    """
    Find the stuck calls that still stand if some ranks make all their calls.

    The recorded schedule is played forward: a call completes once each rank that
    it waits for has come out of its own stuck calls.

    Args:
        calls: All stuck calls.

        freed: Ranks that enter whatever others wait for.

        done: Indices of calls that complete in any case.

    Returns:
        The calls that do not complete, in their order.
    """
    inside = {rank for call in calls for rank in call.waiting}.union(freed)
    needs: list[set[int]] = [set() for _ in calls]
    held = [not call.awaited for call in calls]
    for i, j, rank in find_waits(calls):
        held[i] = False
        if rank not in freed:
            needs[i].add(j)
    # A rank that is in no call, or a call that all entered, goes on by itself.
    held = [
        i not in done and (held[i] or not inside.issuperset(call.awaited))
        for i, call in enumerate(calls)
    ]
    behind: dict[int, list[int]] = defaultdict(list)
    for i, others in enumerate(needs):
        for j in others:
            behind[j].append(i)
    lacking = [0 if i in done else len(x) for i, x in enumerate(needs)]
    todo = [i for i in range(len(calls)) if not (lacking[i] or held[i])]
    completed = set(todo)
    while todo:
        for i in behind[todo.pop()]:
            lacking[i] -= 1
            if not lacking[i] and not held[i] and i not in completed:
                completed.add(i)
                todo.append(i)
    return [call for i, call in enumerate(calls) if i not in completed]


def _oldest_calls(calls: Sequence[StuckCall]) -> dict[int, list[int]]:
    """
    Return the oldest calls that each rank is inside, up to a limit.
    """
    inside: dict[int, list[int]] = defaultdict(list)
    for i, call in enumerate(calls):
        for rank in call.waiting:
            inside[rank].append(i)

    return defaultdict(
        list,
        {
            rank: sorted(found, key=lambda i: calls[i].waiting[rank])[
                :_MAX_CALLS_PER_RANK
            ]
            for rank, found in inside.items()
        },
    )


def build_wait_graph(calls: Sequence[StuckCall]) -> list[set[int]]:
    """
    Return, for each stuck call, the indices of the calls it waits for.

    Args:
        calls: Result of :func:`find_stuck_calls`.
    """
    edges: list[set[int]] = [set() for _ in calls]
    for i, j, _ in find_waits(calls):
        edges[i].add(j)

    return edges


_MAX_NORMAL_WAIT_NS = 30 * 10**9
# While a rank writes a requested dump, its peers wait.
_MIN_REQUEST_WAIT_NS = 10**9
_REQUEST_REASONS = {"request", "call"}
_MAX_DUMP_DURATION_NS = 5 * 10**9
# A silence is unusual if it is longer, and this many times the longest pause.
_MIN_SILENCE_S = 5.0
_MIN_PAUSE_FACTOR = 2


def is_normal_wait(calls: Iterable[StuckCall], job: Job) -> bool:
    """
    Return whether no call has waited longer than is normal in this job.

    Args:
        calls: All stuck calls.

    Returns:
        ``False`` also if it is unknown when the dumps were taken.
    """
    oldest: dict[int, int] = {}
    for call in calls:
        for rank, row in call.waiting.items():
            created = job.created_ns(rank, row)
            oldest[rank] = min(oldest.get(rank, created), created)

    end_s = sigterm_time_s(job.dumps)
    return all(
        # The sidecar is written first; calls may follow until the dump is taken.
        (-_MAX_DUMP_DURATION_NS if dump.sidecar else 0)
        <= _wait_end_ns(dump, end_s) - created
        <= _normal_wait_ns(dump, is_ended=end_s is not None)
        for rank, created in oldest.items()
        for dump in [job.dumps[rank]]
    )


def _wait_end_ns(dump: RankDump, end_s: float | None) -> int:
    """
    Return until when a rank may have waited for others that continued.
    """
    if end_s is None:
        return dump.written_ns

    end_ns = int(1e9 * end_s)
    after_ns = dump.written_ns - end_ns
    return end_ns if 0 < after_ns <= 1e9 * MAX_SHUTDOWN_S else dump.written_ns


def is_longest_wait(calls: Iterable[StuckCall]) -> bool:
    """
    Return whether a rank has waited longer than any pause in its records.

    Args:
        calls: Some stuck calls.

    Returns:
        ``True`` also if it is unknown when the dumps were taken.
    """
    return any(
        not dump.sidecar or age > _longest_pause_ns(dump)
        for dump, age in _wait_ages(calls)
    )


def longest_wait_ns(calls: Iterable[StuckCall]) -> int:
    """
    Return the longest wait of any rank in some stuck calls.

    Args:
        calls: Some stuck calls.

    Returns:
        Nanoseconds; 0 if no sidecar shows when a dump was taken.
    """
    ages = (age for dump, age in _wait_ages(calls) if dump.sidecar)
    return max(ages, default=0)


def _wait_ages(calls: Iterable[StuckCall]) -> Iterator[tuple[RankDump, int]]:
    """
    Yield the dump of each waiting rank, and for how long it had waited.
    """
    for call in calls:
        for rank, row in call.waiting.items():
            dump = call.job.dumps[rank]
            yield dump, dump.written_ns - call.job.created_ns(rank, row)


def measure_silence_s(dumps: Dumps) -> float:
    """
    Return how long no rank has recorded anything, if that is unusual.

    Returns:
        Seconds; 0 if silences of this length are normal in this job, or if it
        is unknown for some rank when its dump was taken.
    """
    if any(d.sidecar is None or not len(d.entries) for d in dumps):
        return 0.0

    ages = [d.written_ns - d.last_activity_ns for d in dumps]
    is_new = all(
        age > _MIN_PAUSE_FACTOR * _longest_pause_ns(dump)
        for age, dump in zip(ages, dumps, strict=True)
    )
    seconds = min(ages, default=0) / 1e9
    return seconds if is_new and seconds >= _MIN_SILENCE_S else 0.0


# The first calls are slow: connections are set up, and code is compiled.
_FIRST_CALLS = 8


def count_pauses(dumps: Dumps, ranks: Iterable[int], seconds: float) -> int:
    """
    Count how often each of some ranks made no call for so long before.

    The pause since the last call of a rank does not count, nor do those between
    its first ones.

    Args:
        dumps: The dumps of the job.

        ranks: Global ranks; those without a dump are left out.

        seconds: The least length of a pause.

    Returns:
        The least number among the ranks; 0 if none has a dump.
    """
    counts = []
    for rank in dumps.by_rank.keys() & set(ranks):
        pauses = _pauses_ns(dumps[rank])
        counts.append(int((pauses[_FIRST_CALLS:] >= int(seconds * 1e9)).sum()))
    return min(counts, default=0)


def _longest_pause_ns(dump: RankDump) -> int:
    return int(_pauses_ns(dump).max(initial=0))


def _pauses_ns(dump: RankDump) -> NDArray[np.int64]:
    """
    Return how long a rank made no call, between each two of them.
    """
    created = np.sort(dump.entries.created_ns)
    return created[1:] - created[:-1]


def _normal_wait_ns(dump: RankDump, *, is_ended: bool) -> float:
    """
    Return the longest normal time of a rank between or within calls.
    """
    e = dump.entries
    is_requested = (
        dump.sidecar is not None and dump.sidecar.reason in _REQUEST_REASONS
    )
    min_wait = _MIN_REQUEST_WAIT_NS if is_requested or is_ended else 0
    if len(e) < 8:
        return min_wait

    gaps = _pauses_ns(dump)
    took = (e.completed_ns - e.created_ns)[e.completed_ns > 0]
    longest = max(
        float(np.quantile(part, 0.95)) for part in (gaps, took) if len(part)
    )
    return max(min(longest, _MAX_NORMAL_WAIT_NS), min_wait)


def record_evidence(
    job: Job, rank: int, row: int, *, what: str = ""
) -> Evidence:
    """
    Return one record of one rank as evidence.

    Args:
        rank: Global rank.

        row: Record index.

        what: Prefix of the quote.
    """
    dump = job.dumps[rank]
    e = dump.entries
    operation = job.operation(rank, row)
    state = STATES[int(e.state[row])]
    if not operation.has_events and e.state[row] != ISSUED:
        state = "returned" if e.retired[row] else "in flight"
    group = job.groups[job.membership.by_code[rank][int(e.group[row])]]
    seq = e.p2p_seq[row] if job.is_p2p(dump)[row] else e.seq[row]
    where = user_location(job.stack(rank, row))
    op = job.dumps.ops[e.op[row]].removeprefix(f"{operation.backend}:")
    # What narrow terminals cut off comes last.
    place = f" at {where.brief}" if where else ""
    return job.evidence(
        rank,
        f"record {int(e.record_id[row])}",
        f"{what}{op} #{seq}{place}, {state}, group {str(group.ref)!r}",
    )
