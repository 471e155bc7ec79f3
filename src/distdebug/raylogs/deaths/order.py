"""
Which death came first, and which ones merely follow from it?

Ends that somebody wanted, and those of orphans, are never the first.  Who
complains of a lost peer died of somebody else, even if the head was told of
that one later: it waits for heartbeats before it gives a node up.  Of those
that Ray killed for memory, the one that had the most of it is to blame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import attrs

from .log_tail import Memory, hear
from .model import Death, is_driver
from .sources import Facts


__all__ = ["judge"]

_NEVER_FIRST = frozenset({"intended", "job_ended", "owner_died"})
# Between the loss of a node and the time at which the head tells of it.
_HEARTBEATS = 60.0
# One shortage of memory may make Ray kill several times.
_SAME_SHORTAGE = 30.0
# "ray stop" ends all processes of a node within this time.
_STOPPING = 3.0
# A process tells the time of its own end in whole seconds.
_OWN_CLOCK = 1.0
# What is ended at once is told a little out of order.
_AT_ONCE = 0.25


def judge(deaths: Iterable[Death], facts: Facts) -> tuple[Death, ...]:
    """
    Tell the first death from those that follow.

    Args:
        deaths: All of them.

        facts: When jobs and nodes ended, and who had how much memory.

    Returns:
        The same, in the order of time, and marked.
    """
    ordered = sorted(deaths, key=_moment)
    ordered = [_with_memory(death, facts.memory) for death in ordered]
    lost = {x.node_id: x.time for x in ordered if not x.worker_id}
    ordered = [_wanted(death, lost, facts) for death in ordered]
    follows = _innocent(ordered)
    follows |= {
        i for i, death in enumerate(ordered) if _follows(death, lost, facts)
    }
    first = _first(ordered, follows)
    if first is not None:
        moment = ordered[first].time
        follows |= {
            i
            for i, death in enumerate(ordered)
            if i != first and _complains(death) and _within(death.time, moment)
        }
    return tuple(
        attrs.evolve(death, is_first=i == first, is_collateral=i in follows)
        for i, death in enumerate(ordered)
    )


def _wanted(
    death: Death, lost: Mapping[str | None, float | None], facts: Facts
) -> Death:
    """
    Nobody died with a node that somebody stopped.
    """
    if death.kind != "node_died" or death.node_id in lost:
        return death
    is_wanted = _is_stopping(death, facts)
    return attrs.evolve(death, kind="intended") if is_wanted else death


def _moment(death: Death) -> tuple[bool, float, bool]:
    # A node dies before those who were on it.
    return death.time is None, death.time or 0.0, bool(death.worker_id)


def _first(ordered: Sequence[Death], follows: set[int]) -> int | None:
    wanted = [
        i
        for i, death in enumerate(ordered)
        if death.kind not in _NEVER_FIRST and i not in follows
    ]
    if not wanted or not _complains(ordered[wanted[0]]):
        return wanted[0] if wanted else None

    begin = ordered[wanted[0]].time
    others = (
        i
        for i in wanted
        if not _complains(ordered[i]) and _soon(ordered[i].time, begin)
    )
    return next(others, wanted[0])


def _soon(time: float | None, begin: float | None) -> bool:
    if time is None or begin is None:
        return False
    return time - begin <= _HEARTBEATS


def _within(time: float | None, first: float | None) -> bool:
    if time is None or first is None:
        return True
    return time >= first - _HEARTBEATS


def _complains(death: Death) -> bool:
    if death.kind == "collective_timeout":
        return True
    if death.kind not in {"native_crash", "init_error", "exit_code"}:
        return False
    return hear("\n".join((*death.last_lines, death.error or ""))).lost_peer


def _follows(
    death: Death, lost: Mapping[str | None, float | None], facts: Facts
) -> bool:
    if is_driver(death.worker_id) or not death.worker_id:
        return False
    if death.kind in {"owner_died", "job_ended"}:
        return True
    if death.kind == "intended":
        return False
    if death.kind == "node_died" and death.node_id in lost:
        return True
    return (
        _is_after_job(death, facts)
        or _is_stopping(death, facts)
        or _is_with_node(death, lost)
    )


def _is_with_node(
    death: Death, lost: Mapping[str | None, float | None]
) -> bool:
    moment = lost.get(death.node_id)
    if moment is None or death.time is None:
        return False
    return death.time >= moment - (
        _STOPPING if death.kind == "terminated" else 0.0
    )


def _is_after_job(death: Death, facts: Facts) -> bool:
    if death.time is None or not facts.jobs:
        return False
    end = facts.jobs.get(death.job_id or "")
    if end is None:
        end = max(facts.jobs.values()) if death.job_id is None else None
    # A process that dies with its driver is a little late, never early.
    return end is not None and death.time >= end


def _is_stopping(death: Death, facts: Facts) -> bool:
    """
    Whether somebody stopped the node at that time.
    """
    return any(
        node.is_expected
        and node.node_id == death.node_id
        and node.time is not None
        and death.time is not None
        and death.time >= node.time - _early(death)
        and not _has_ended_job(death, node.time, facts)
        for node in facts.nodes
    )


def _early(death: Death) -> float:
    """
    How long before its node a process may end that is stopped with it.
    """
    if death.kind == "terminated":
        return _STOPPING
    is_own = death.kind == "node_died" or death.exit_type is None
    return _OWN_CLOCK if is_own else _AT_ONCE


def _has_ended_job(death: Death, stopped: float, facts: Facts) -> bool:
    """
    Whether the driver ended after a death, and took its own node with it.
    """
    end = facts.jobs.get(death.job_id or "")
    if end is None or death.time is None or death.kind == "node_died":
        return False
    # Whoever stops all at once may be quicker with a worker.
    late = _AT_ONCE if death.kind == "terminated" else 0.0
    return death.time + late < end <= stopped


def _with_memory(death: Death, memory: Iterable[Memory]) -> Death:
    if death.kind not in {"ray_oom", "host_oom"}:
        return death
    sizes = [x.size for x in memory if _is_of(x, death)]
    return attrs.evolve(death, memory=max(sizes, default=None))


def _is_of(memory: Memory, death: Death) -> bool:
    if memory.worker_id is not None:
        return memory.worker_id == death.worker_id
    is_here = memory.node_id is None or memory.node_id == death.node_id
    return memory.pid == death.pid and is_here


def _innocent(ordered: Sequence[Death]) -> set[int]:
    """
    Those that Ray killed although another one had more memory.
    """
    killed = [
        (i, death)
        for i, death in enumerate(ordered)
        if death.kind == "ray_oom"
    ]
    killed.sort(key=lambda pair: pair[1].node_id or "")
    innocent: set[int] = set()
    for _, on_node in groupby(killed, lambda pair: pair[1].node_id):
        for burst in _bursts(list(on_node)):
            most = max(burst, key=lambda pair: pair[1].memory or 0)
            innocent |= {i for i, _ in burst} - {most[0]}
    return innocent


def _bursts(
    killed: Sequence[tuple[int, Death]],
) -> list[list[tuple[int, Death]]]:
    bursts: list[list[tuple[int, Death]]] = []
    last: float | None = None
    for index, death in killed:
        if last is None or (death.time or last) - last > _SAME_SHORTAGE:
            bursts.append([])
        bursts[-1].append((index, death))
        last = death.time or last or 0.0
    return bursts
