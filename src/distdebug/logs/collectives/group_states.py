"""
Group records of collectives by run and process group.

Sequence numbers count within a group, so calls of different groups must never
be compared.  Before torch 2.4, a timeout does not name its group; the line
after it does.  Before torch 2.5, the same group name may mean different groups
on different ranks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import attrs

from .model import (
    CollectiveLogs,
    DesyncReport,
    GroupMember,
    LogGroup,
    LogRecord,
    WorkStatus,
    WorkTimeout,
)


# Number of the restart, and of the part in time.
RunKey = tuple[int, int]


@attrs.frozen(kw_only=True)
class GroupState:
    """
    State of one process group in one run of the job.

    Attributes:
        run: Number of the restart, and of the part in time.

        group: The process group; ``None`` if unknown.

        size: Number of members; ``None`` if unknown.

        timeouts: By group rank, the first call that timed out.

        statuses: By group rank, how far it got.

        desyncs: Desync reports of torch.

        ranks: Global ranks by group rank, as far as known or interpolated.

        reporting_ranks: Global ranks that print something about this group;
            ``None`` stands for unknown ones.

        is_mixed: Whether the lines belong to several groups that cannot be
            separated.

        folded_lines: Number of further lines that Ray did not show.
    """

    run: RunKey
    group: LogGroup | None
    size: int | None
    timeouts: dict[int, WorkTimeout]
    statuses: dict[int, WorkStatus]
    desyncs: tuple[DesyncReport, ...] = ()
    ranks: dict[int, int]
    reporting_ranks: frozenset[int | None] = frozenset()
    is_mixed: bool = False
    folded_lines: int = 0

    @property
    def begin(self) -> float | None:
        """
        Return when the first timed-out call began, in seconds since the epoch.
        """
        return min(
            (
                x.time - (x.ran or 0)
                for x in self.timeouts.values()
                if x.time is not None
            ),
            default=None,
        )


def make_group_state(
    run: RunKey,
    group: LogGroup | None,
    records: Sequence[LogRecord],
    world_size: int | None,
) -> GroupState:
    """
    Combine the records of one group in one run.

    Args:
        run: Number of the restart, and of the part in time.

        group: The process group; ``None`` if unknown.

        world_size: Number of ranks of the job; ``None`` if unknown.
    """
    ranks, is_consistent = _global_ranks(records)
    timeouts, is_same_call = _first_timeouts(records)
    statuses: dict[int, WorkStatus] = {}
    for record in records:
        member = _group_rank(record)
        if member is not None and isinstance(record, WorkStatus):
            known = statuses.setdefault(member, record)
            statuses[member] = max(known, record, key=_status_detail)
    if timeouts:
        timeouts |= _timeouts_from_statuses(statuses, timeouts)
    sizes = {x.size for x in records if isinstance(x, GroupMember)}
    size = sizes.pop() if len(sizes) == 1 else _infer_size(timeouts)
    if _is_world_group(group, ranks, timeouts, world_size):
        size = world_size
    return GroupState(
        run=run,
        group=group,
        size=size,
        timeouts=timeouts,
        statuses=statuses,
        desyncs=tuple(x for x in records if isinstance(x, DesyncReport)),
        ranks=_interpolate_ranks(ranks) if is_consistent else ranks,
        reporting_ranks=frozenset(_reporting_ranks(records, ranks)),
        is_mixed=not (is_consistent and (is_same_call or group is not None)),
        folded_lines=sum(x.count - 1 for x in records),
    )


def _status_detail(status: WorkStatus) -> tuple[bool, bool, int]:
    reach = status.enqueued
    return status.failed is not None, reach is not None, reach or 0


def _reporting_ranks(
    records: Iterable[LogRecord], ranks: Mapping[int, int]
) -> Iterator[int | None]:
    for record in records:
        if isinstance(record, (WorkTimeout, WorkStatus)):
            member = record.group_rank
            is_world = record.group is None or record.group.is_default
            known = ranks.get(member, member if is_world else None)  # type: ignore[arg-type]
            yield known if record.rank is None else record.rank


def _group_rank(record: LogRecord) -> int | None:
    return record.rank if record.group_rank is None else record.group_rank


def _global_ranks(records: Iterable[LogRecord]) -> tuple[dict[int, int], bool]:
    """
    Return global ranks by group rank, and whether all records agree.
    """
    ranks: dict[int, int] = {}
    is_consistent = True
    for record in records:
        member, rank = _group_rank(record), record.rank
        is_own = not isinstance(record, DesyncReport)
        if is_own and member is not None and rank is not None:
            is_consistent &= ranks.setdefault(member, rank) == rank
    # A rank is in a group only once.
    return ranks, is_consistent and len(set(ranks.values())) == len(ranks)


def _first_timeouts(
    records: Iterable[LogRecord],
) -> tuple[dict[int, WorkTimeout], bool]:
    """
    Return the first timed-out call of each member, and whether all records
    of a member are about the same call.
    """
    first: dict[int, WorkTimeout] = {}
    is_same_call = True
    for record in records:
        member = _group_rank(record)
        if member is None or not isinstance(record, WorkTimeout):
            continue
        known = first.setdefault(member, record)
        call = (record.seq, record.op, record.numel_in)
        is_same_call &= call == (known.seq, known.op, known.numel_in)
        if (record.seq or 0) < (known.seq or 0):
            first[member] = record
    return first, is_same_call


def _is_world_group(
    group: LogGroup | None,
    ranks: Mapping[int, int],
    timeouts: Mapping[int, WorkTimeout],
    world_size: int | None,
) -> bool:
    """
    Return whether all ranks of the job are members of the group.
    """
    if world_size is None:
        return False
    if group is not None and group.is_default:
        return True

    # Only the default group holds most ranks and numbers them as the job does.
    has_most_ranks = 2 * len(timeouts) > world_size
    has_equal_ranks = bool(ranks) and all(
        m == rank for m, rank in ranks.items()
    )
    has_desc = group is not None and bool(group.desc)
    return has_most_ranks and (
        group is None or (has_equal_ranks and not has_desc)
    )


def _interpolate_ranks(ranks: dict[int, int]) -> dict[int, int]:
    """
    Add members between two others whose ranks are as far apart.

    torch sorts the ranks of a group, so only one rank fits each member.
    """
    known = sorted(ranks.items())
    interpolated = dict(ranks)
    for (left, low), (right, high) in pairwise(known):
        if 1 < right - left == high - low:
            interpolated |= {left + i: low + i for i in range(1, right - left)}
    return interpolated


def _timeouts_from_statuses(
    statuses: Mapping[int, WorkStatus], timeouts: Mapping[int, WorkTimeout]
) -> dict[int, WorkTimeout]:
    """
    Create timeouts for members that only printed a status.
    """
    return {
        member: WorkTimeout(
            seq=status.failed,
            op="",
            rank=status.rank,
            group_rank=status.group_rank,
            group=status.group,
            source=status.source,
            line=status.line,
            quote=status.quote,
        )
        for member, status in statuses.items()
        if status.failed is not None and member not in timeouts
    }


def _infer_size(timeouts: dict[int, WorkTimeout]) -> int | None:
    """
    Return the group size from the numbers of elements of a gather or scatter.
    """
    for timeout in timeouts.values():
        part, whole = timeout.numel_in, timeout.numel_out
        if "scatter" in timeout.op:
            part, whole = whole, part
        elif "gather" not in timeout.op or timeout.op == "gather":
            continue
        if part and whole and whole % part == 0:
            size = whole // part
            if max(timeouts) < size:
                return size
    return None


# Seconds until a job has ended after one of its ranks gave up.
_SHUTDOWN_SECONDS = 120


def find_run_boundaries(
    timeouts: Iterable[WorkTimeout],
) -> dict[int, list[float]]:
    """
    Find the moments when a new run began, though no line says so.

    Once one rank has given up, the others do not wait longer than it did.
    A rank gives up again in the same group only after it has waited as long
    again.

    Returns:
        Moments between two runs, in seconds since the epoch, by the number of
        the restart.
    """
    by_attempt: dict[int, list[WorkTimeout]] = defaultdict(list)
    for timeout in timeouts:
        if timeout.time is not None and not timeout.is_p2p:
            by_attempt[timeout.attempt].append(timeout)
    boundaries = {}
    for attempt, attempt_timeouts in by_attempt.items():
        attempt_timeouts.sort(key=lambda x: x.time or 0)
        boundaries[attempt] = _find_boundaries(attempt_timeouts)
    return boundaries


def _find_boundaries(timeouts: Sequence[WorkTimeout]) -> list[float]:
    times = [x.time or 0.0 for x in timeouts]
    gaps = [0.0, *(after - before for before, after in pairwise(times))]
    boundaries: list[float] = []
    last: dict[Hashable, int] = {}
    for i, timeout in enumerate(timeouts):
        limit = timeout.timeout or 600
        key = (timeout.group, timeout.group_rank, timeout.rank)
        first = i
        if gaps[i] > limit + _SHUTDOWN_SECONDS:
            first = i - 1
        elif timeout.group is not None:
            first = last.get(key, i)
        index = max(range(first + 1, i + 1), key=gaps.__getitem__, default=0)
        if index and gaps[index] >= limit / 2:
            boundaries.append((times[index - 1] + times[index]) / 2)
            last.clear()
        last[key] = i
    return boundaries


_DEFAULT_GROUP = LogGroup("0", "default_pg", is_assumed=True)


def find_group_states(logs: CollectiveLogs) -> list[GroupState]:
    """
    Group watchdog records by run and process group.

    Returns:
        One state per run and group, in the order of the runs.
    """
    timeouts = _add_groups(logs)
    boundaries = find_run_boundaries(timeouts)
    records: Sequence[LogRecord] = (
        *timeouts,
        *logs.statuses,
        *logs.dump_signals,
        *logs.desyncs,
        *logs.members,
    )
    described = _described_groups(records)
    runs: dict[RunKey, dict[LogGroup | None, list[LogRecord]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for record in records:
        part = bisect_right(
            boundaries.get(record.attempt, []), record.time or 0.0
        )
        run, group = (record.attempt, part), record.group
        if group is not None:
            group = described.get((group.name, record.attempt), group)
        runs[run][group].append(record)
    return [
        make_group_state(run, group, group_records, logs.world_size)
        for run, groups in sorted(runs.items())
        for group, group_records in _assign_ungrouped(groups).items()
    ]


def _assign_ungrouped(
    groups: dict[LogGroup | None, list[LogRecord]],
) -> Mapping[LogGroup | None, list[LogRecord]]:
    """
    Assign records without a group to the only group, or the default group.
    """
    ungrouped = groups.get(None, [])
    if not ungrouped or len(groups) > 2:
        return groups
    if len(groups) == 2:
        (only,) = set(groups) - {None}
        return {only: [*groups[only], *ungrouped]}
    # Where group ranks equal global ranks, the default group fits.
    is_default = all(
        x.rank is not None and x.group_rank in {None, x.rank}
        for x in ungrouped
    )
    return {_DEFAULT_GROUP if is_default else None: ungrouped}


def _described_groups(
    records: Iterable[LogRecord],
) -> dict[tuple[str, int], LogGroup]:
    """
    Return groups by name and attempt where some lines have the description.
    """
    found: dict[tuple[str, int], set[LogGroup]] = defaultdict(set)
    for record in records:
        if record.group is not None and record.group.desc:
            found[record.group.name, record.attempt].add(record.group)
    return {
        key: groups.pop() for key, groups in found.items() if len(groups) == 1
    }


def _add_groups(logs: CollectiveLogs) -> list[WorkTimeout]:
    """
    Add groups to timeouts from other records about the same call.
    """
    known: dict[Hashable, set[LogGroup]] = defaultdict(set)
    numbered: list[tuple[LogRecord, int | None]] = [
        *((x, x.failed) for x in logs.statuses),
        *((x, x.seq) for x in logs.timeouts),
    ]
    for record, seq in numbered:
        if record.group is not None and seq is not None:
            call = (record.attempt, record.group_rank, seq)
            known[(*call, record.source)].add(record.group)
            known[(*call, record.rank)].add(record.group)
    return [_add_group(timeout, known) for timeout in logs.timeouts]


def _add_group(
    timeout: WorkTimeout, known: Mapping[Hashable, set[LogGroup]]
) -> WorkTimeout:
    if timeout.group is not None:
        return timeout

    reporter = timeout.source if timeout.rank is None else timeout.rank
    key = (timeout.attempt, timeout.group_rank, timeout.seq, reporter)
    groups = known.get(key, set())
    if len(groups) != 1:
        return timeout

    (group,) = groups
    rank = timeout.rank
    if rank is None and group.is_default:
        rank = timeout.group_rank
    return attrs.evolve(timeout, group=group, rank=rank)
