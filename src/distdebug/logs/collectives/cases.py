"""
Which lines are about the same group in the same run?

Ranks count within their group, so calls of different groups must never be
compared.  Before 2.4 a time-out does not name its group; the line after it
does.  Before 2.5 a number of a group may mean different groups on different
ranks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
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


# The number of the restart, and of the part in time.
Run = tuple[int, int]


@attrs.frozen(kw_only=True)
class Case:
    """
    What is known of one group in one run of the job.

    Attributes:
        run: Which run, as number of the restart and of the part in time.

        group: The group; ``None`` if it is not told.

        size: How many members it has, if known.

        timeouts: By rank within the group, the first call that did not end.

        statuses: By rank within the group, how far it came.

        desyncs: What torch itself says.

        ranks: Global ranks by rank within the group, as far as known or as
            follows from those of the neighbors.

        heard: Global ranks that say something here; ``None`` stands for those
            that are not known.

        is_mixed: Whether these lines are of several groups, which cannot be
            told apart.

        folded: How many further lines Ray did not show.
    """

    run: Run
    group: LogGroup | None
    size: int | None
    timeouts: dict[int, WorkTimeout]
    statuses: dict[int, WorkStatus]
    desyncs: tuple[DesyncReport, ...] = ()
    ranks: dict[int, int]
    heard: frozenset[int | None] = frozenset()
    is_mixed: bool = False
    folded: int = 0

    @property
    def begin(self) -> float | None:
        """
        When the first of its calls was made, by what the time-outs tell.
        """
        return min(
            (
                x.time - (x.ran or 0)
                for x in self.timeouts.values()
                if x.time is not None
            ),
            default=None,
        )


def make_case(
    run: Run,
    group: LogGroup | None,
    records: Sequence[LogRecord],
    world_size: int | None,
) -> Case:
    """
    Put together what lines tell about one group.

    Args:
        run: Which run of the job it is.

        group: The group; ``None`` if it is not told.

        records: What stands in the lines.

        world_size: How many ranks the job has, if known.
    """
    ranks, agree = _global_ranks(records)
    timeouts, same = _first_timeouts(records)
    statuses = _best_statuses(records)
    if timeouts:
        timeouts |= _implied(statuses, timeouts)
    told = {x.size for x in records if isinstance(x, GroupMember)}
    size = told.pop() if len(told) == 1 else None
    if _is_world(group, ranks, timeouts, world_size):
        size = world_size
    return Case(
        run=run,
        group=group,
        size=size if size is not None else _size(timeouts),
        timeouts=timeouts,
        statuses=statuses,
        desyncs=tuple(x for x in records if isinstance(x, DesyncReport)),
        ranks=_between(ranks) if agree else ranks,
        heard=frozenset(_heard(records, ranks)),
        is_mixed=not (agree and (same or group is not None)),
        folded=sum(x.count - 1 for x in records),
    )


def _heard(
    records: Iterable[LogRecord], ranks: Mapping[int, int]
) -> Iterator[int | None]:
    for record in records:
        if isinstance(record, (WorkTimeout, WorkStatus)):
            member = record.group_rank
            is_world = record.group is None or record.group.is_default
            known = ranks.get(member, member if is_world else None)  # type: ignore[arg-type]
            yield known if record.rank is None else record.rank


def _member(record: LogRecord) -> int | None:
    return record.rank if record.group_rank is None else record.group_rank


def _global_ranks(records: Iterable[LogRecord]) -> tuple[dict[int, int], bool]:
    """
    Global ranks by rank within the group, and whether all lines agree.
    """
    ranks: dict[int, int] = {}
    agree = True
    for record in records:
        member = _member(record)
        is_own = not isinstance(record, DesyncReport)
        if is_own and member is not None and record.rank is not None:
            agree &= ranks.setdefault(member, record.rank) == record.rank
    # No rank is twice in a group.
    return ranks, agree and len(set(ranks.values())) == len(ranks)


def _first_timeouts(
    records: Iterable[LogRecord],
) -> tuple[dict[int, WorkTimeout], bool]:
    """
    The first call of each member that did not end, and whether it is the same
    in all lines.
    """
    first: dict[int, WorkTimeout] = {}
    same = True
    for record in records:
        member = _member(record)
        if member is None or not isinstance(record, WorkTimeout):
            continue
        before = first.get(member)
        same &= not _differ(before, record)
        if before is None or (record.seq or 0) < (before.seq or 0):
            first[member] = record
    return first, same


def _best_statuses(records: Iterable[LogRecord]) -> dict[int, WorkStatus]:
    statuses: dict[int, WorkStatus] = {}
    for record in records:
        member = _member(record)
        if member is not None and isinstance(record, WorkStatus):
            statuses[member] = _better(statuses.get(member), record)
    return statuses


def _is_world(
    group: LogGroup | None,
    ranks: Mapping[int, int],
    timeouts: Mapping[int, WorkTimeout],
    world_size: int | None,
) -> bool:
    """
    Whether all ranks of the job are members.
    """
    if world_size is None:
        return False
    if group is not None and group.is_default:
        return True

    # No other group holds most of the ranks, and counts them as the job does.
    is_most = 2 * len(timeouts) > world_size
    is_same = bool(ranks) and all(m == rank for m, rank in ranks.items())
    is_told = group is not None and bool(group.desc)
    return is_most and (group is None or (is_same and not is_told))


def _between(ranks: dict[int, int]) -> dict[int, int]:
    """
    Add members that stand between two others whose ranks are as far apart.

    Torch sorts the ranks of a group, so there is only one rank for each.
    """
    known = sorted(ranks.items())
    found = dict(ranks)
    for (left, low), (right, high) in pairwise(known):
        if 1 < right - left == high - low:
            found |= {left + i: low + i for i in range(1, right - left)}
    return found


def _implied(
    statuses: Mapping[int, WorkStatus], timeouts: Mapping[int, WorkTimeout]
) -> dict[int, WorkTimeout]:
    """
    Time-outs of which only the status is there.
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


def _differ(a: WorkTimeout | None, b: WorkTimeout) -> bool:
    return a is not None and (a.seq, a.op, a.numel_in) != (
        b.seq,
        b.op,
        b.numel_in,
    )


def _better(a: WorkStatus | None, b: WorkStatus) -> WorkStatus:
    """
    The one that tells more, or else the later one.
    """
    return b if a is None or _worth(b) > _worth(a) else a


def _worth(status: WorkStatus) -> tuple[bool, bool, int]:
    reach = status.enqueued
    return status.failed is not None, reach is not None, reach or 0


def _size(timeouts: dict[int, WorkTimeout]) -> int | None:
    """
    How many members share a result of which each has an equal part?
    """
    for timeout in timeouts.values():
        few, many = timeout.numel_in, timeout.numel_out
        if "scatter" in timeout.op:
            few, many = many, few
        elif "gather" not in timeout.op or timeout.op == "gather":
            continue
        if few and many and many % few == 0:
            size = many // few
            if max(timeouts) < size:
                return size
    return None


# Seconds that it takes to end a job of which one rank gave up.
_SLACK = 120


def find_cuts(timeouts: Iterable[WorkTimeout]) -> dict[int, list[float]]:
    """
    When did a new run begin, though no line says so?

    Once one rank has given up, the others do not wait for longer than it did.
    And no rank gives up again in the same group without waiting as long again.

    Args:
        timeouts: All of them.

    Returns:
        Moments between two runs, in seconds since the epoch, by the number of
        the restart.
    """
    by_attempt: dict[int, list[WorkTimeout]] = defaultdict(list)
    for timeout in timeouts:
        if timeout.time is not None and not timeout.is_p2p:
            by_attempt[timeout.attempt].append(timeout)
    cuts = {}
    for attempt, found in by_attempt.items():
        found.sort(key=lambda x: x.time or 0)
        cuts[attempt] = _gaps(found)
    return cuts


def _gaps(found: Sequence[WorkTimeout]) -> list[float]:
    cuts: list[float] = []
    last: dict[Hashable, int] = {}
    for i, timeout in enumerate(found):
        allowed = timeout.timeout or 600
        key = (timeout.group, timeout.group_rank, timeout.rank)
        begin = i
        if i and _gap(found, i) > allowed + _SLACK:
            begin = i - 1
        elif timeout.group is not None:
            begin = last.get(key, i)
        at = max(range(begin + 1, i + 1), key=partial(_gap, found), default=0)
        if at and _gap(found, at) >= allowed / 2:
            before, after = found[at - 1].time or 0, found[at].time or 0
            cuts.append((before + after) / 2)
            last.clear()
        last[key] = i
    return cuts


def _gap(found: Sequence[WorkTimeout], i: int) -> float:
    """
    Seconds since the time-out before.
    """
    return (found[i].time or 0) - (found[i - 1].time or 0)


def part_of(record: LogRecord, cuts: Sequence[float]) -> int:
    """
    Count the moments before a line was printed.

    Args:
        record: What stands in the line.

        cuts: Moments between two runs, ascending.
    """
    return 0 if record.time is None else bisect_right(cuts, record.time)


_DEFAULT = LogGroup("0", "default_pg")


def find_cases(logs: CollectiveLogs) -> list[Case]:
    """
    Sort what watchdogs say by run and group.

    Args:
        logs: What was read.

    Returns:
        The groups in which something is known, in the order of their runs.
    """
    timeouts = _with_groups(logs)
    cuts = find_cuts(timeouts)
    told: Sequence[LogRecord] = (
        *timeouts,
        *logs.statuses,
        *logs.dump_signals,
        *logs.desyncs,
        *logs.members,
    )
    names = _names(told)
    runs: dict[Run, dict[LogGroup | None, list[LogRecord]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for record in told:
        run = (record.attempt, part_of(record, cuts.get(record.attempt, [])))
        group = record.group
        if group is not None:
            group = names.get((group.name, record.attempt), group)
        runs[run][group].append(record)
    return [
        make_case(run, group, records, logs.world_size)
        for run, groups in sorted(runs.items())
        for group, records in _placed(groups).items()
    ]


def _placed(
    groups: dict[LogGroup | None, list[LogRecord]],
) -> Mapping[LogGroup | None, list[LogRecord]]:
    """
    Find a place for lines that do not tell their group, if there is one.
    """
    rest = groups.get(None, [])
    if not rest or len(groups) > 2:
        return groups
    if len(groups) == 2:
        (only,) = set(groups) - {None}
        return {only: [*groups[only], *rest]}
    # Where the ranks agree, it is as good as the default group.
    is_default = all(
        x.rank is not None and x.group_rank in {None, x.rank} for x in rest
    )
    return {_DEFAULT if is_default else None: rest}


def _names(
    records: Iterable[LogRecord],
) -> dict[tuple[str, int], LogGroup]:
    """
    Groups by name, where only some lines tell the description.
    """
    found: dict[tuple[str, int], set[LogGroup]] = defaultdict(set)
    for record in records:
        if record.group is not None and record.group.desc:
            found[record.group.name, record.attempt].add(record.group)
    return {
        key: groups.pop() for key, groups in found.items() if len(groups) == 1
    }


def _with_groups(logs: CollectiveLogs) -> list[WorkTimeout]:
    """
    Learn the groups of time-outs from other lines about the same call.
    """
    known: dict[Hashable, set[LogGroup]] = defaultdict(set)
    told: list[tuple[LogRecord, int | None]] = [
        *((x, x.failed) for x in logs.statuses),
        *((x, x.seq) for x in logs.timeouts),
    ]
    for record, seq in told:
        if record.group is not None and seq is not None:
            call = (record.attempt, record.group_rank, seq)
            known[(*call, record.source)].add(record.group)
            known[(*call, record.rank)].add(record.group)
    return [_with_group(timeout, known) for timeout in logs.timeouts]


def _with_group(
    timeout: WorkTimeout, known: Mapping[Hashable, set[LogGroup]]
) -> WorkTimeout:
    if timeout.group is not None:
        return timeout

    who = timeout.source if timeout.rank is None else timeout.rank
    key = (timeout.attempt, timeout.group_rank, timeout.seq, who)
    groups = known.get(key, set())
    if len(groups) != 1:
        return timeout

    (group,) = groups
    rank = timeout.rank
    if rank is None and group.is_default:
        rank = timeout.group_rank
    return attrs.evolve(timeout, group=group, rank=rank)
