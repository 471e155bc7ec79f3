"""
What is known of each member of a group?
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from .case import Case, Run
from .model import (
    DesyncReport,
    GroupMember,
    LogGroup,
    LogRecord,
    WorkStatus,
    WorkTimeout,
)


__all__ = ["make_case"]


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
