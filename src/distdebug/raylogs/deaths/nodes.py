"""
Which nodes were lost, and who was on them?
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ..model import RaySession, WorkerLog
from .facts import Facts
from .model import Death
from .ranks import rank_of


__all__ = ["died_with_node", "node_deaths"]

# The head waits for some heartbeats before it gives a node up.
_SAME_LOSS = 120.0


def node_deaths(
    facts: Facts, sessions: Iterable[RaySession]
) -> tuple[Death, ...]:
    """
    Which nodes were lost although nobody stopped them?

    Args:
        facts: What was gathered.

        sessions: The nodes that were looked at.

    Returns:
        A death for each node.
    """
    known = {x.node_id: x for x in sessions if x.node_id}
    lost: dict[str, Death] = {}
    stopped = {x.node_id for x in facts.nodes if x.is_expected}
    for node in facts.nodes:
        if node.is_expected or not node.node_id or node.node_id in stopped:
            continue
        session = known.get(node.node_id)
        death = lost.get(node.node_id)
        lost[node.node_id] = Death(
            kind="node_died",
            time=death.time
            if death
            else _noticed(facts, node.node_id, node.time),
            node_id=node.node_id,
            ip=node.ip
            or (death.ip if death else None)
            or (session.ip if session else None),
            host=session.host if session else "",
            detail=node.reason if death is None else death.detail,
            log=Path(node.seen.source),
            evidence=(*(death.evidence if death else ()), node.seen),
        )
    return tuple(lost.values())


def _noticed(facts: Facts, node_id: str, told: float | None) -> float | None:
    """
    When the workers of the node noticed, which is before the head did.
    """
    times = [
        x.time
        for exits in facts.exits.values()
        for x in exits
        if x.node_id == node_id and x.time and "local raylet" in x.detail
    ]
    if told is None:
        return min(times, default=None)
    return min([told, *(x for x in times if x >= told - _SAME_LOSS)])


def died_with_node(
    facts: Facts,
    nodes: Sequence[Death],
    told: Collection[str],
    logs: Mapping[str, WorkerLog],
) -> Iterator[Death]:
    """
    Who was on a node when it was lost, and whose end nobody tells?

    Args:
        facts: What was gathered.

        nodes: The nodes that were lost.

        told: The workers whose ends are told.

        logs: The logs of all workers.

    Yields:
        A death for each actor.
    """
    lost = {node.node_id: node for node in nodes}
    for worker_id, placement in facts.placements.items():
        node = lost.get(placement.node_id)
        if node is None or worker_id in told:
            continue
        log = logs.get(worker_id)
        yield Death(
            kind="node_died",
            time=node.time,
            worker_id=worker_id,
            pid=log.pid if log else None,
            node_id=node.node_id,
            ip=node.ip,
            host=node.host,
            actor_id=placement.actor_id,
            actor=log.label if log else "",
            actor_class=log.actor_class if log else None,
            actor_name=log.actor_name if log else None,
            rank=rank_of((log.label, log.actor_name), "") if log else None,
            job_id=(placement.actor_id or "")[24:] or None,
            detail=node.detail,
            log=log.err[-1].path if log and log.err else node.log,
            evidence=node.evidence[:1],
        )
