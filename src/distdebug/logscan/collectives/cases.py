"""
Which lines are about the same group in the same run?

Ranks count within their group, so calls of different groups must never be
compared.  Before 2.4 a time-out does not name its group; the line after it
does.  Before 2.5 a number of a group may mean different groups on different
ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

import attrs

from .case import Case, Run
from .logs import CollectiveLogs
from .members import make_case
from .model import LogGroup, LogRecord, WorkTimeout
from .runs import find_cuts, part_of


__all__ = ["find_cases"]

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
