"""
On which node, and in which file, is all that a source of a driver printed?
"""

from __future__ import annotations

import os

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..model import RaySession, WorkerLog
from ..workers import worker_logs
from .model import DriverLog, DriverSource, OriginMatch


__all__ = ["map_origins"]


def map_origins(
    log: DriverLog, sessions: RaySession | Iterable[RaySession]
) -> tuple[OriginMatch, ...]:
    """
    Find the node and the files of everybody who printed into a driver's log.

    Ray leaves out the address of the node that the driver is on.

    Args:
        log: What :func:`~distdebug.raylogs.driver.read.read_driver_log` returned.

        sessions: The session folders of the nodes.

    Returns:
        One for each source of *log*, in its order.
    """
    if isinstance(sessions, RaySession):
        sessions = (sessions,)
    sessions = tuple(sessions)
    by_pid: dict[int, list[WorkerLog]] = defaultdict(list)
    for worker in worker_logs(sessions):
        by_pid[worker.pid].append(worker)
    own = tuple(x for x in sessions if _has_driver(x))
    return tuple(_match(x, by_pid, sessions, own) for x in log.sources)


def _has_driver(session: RaySession) -> bool:
    try:
        with os.scandir(session.logs) as listed:
            return any(
                x.name.startswith("python-core-driver-") for x in listed
            )
    except OSError:
        return False


def _match(
    source: DriverSource,
    by_pid: dict[int, list[WorkerLog]],
    sessions: Sequence[RaySession],
    own: Sequence[RaySession],
) -> OriginMatch:
    origin = source.origin
    if origin.ip is not None:
        nodes = [x for x in sessions if x.ip == origin.ip]
        reason = f"the folder of {origin.ip} is not here"
    else:
        nodes = list(own or [x for x in sessions if x.is_head])
        reason = "the folder of the driver's node is not here"
    session = nodes[0] if len(nodes) == 1 else None
    if origin.pid is None:
        return OriginMatch(
            source=source, session=session, reason="a part of Ray, no worker"
        )

    roots = {x.root for x in nodes}
    workers = by_pid.get(origin.pid, [])
    # Nodes that do not tell their address may still have the process.
    found = [x for x in workers if x.session.root in roots] or [
        x for x in workers if x.session.ip is None
    ]
    if len(found) > 1:
        named = [
            x for x in found if {x.label, x.actor_class} & set(source.names)
        ]
        found = named or found
    if len(found) != 1:
        if found:
            reason = f"{len(found)} workers had number {origin.pid}"
        elif nodes:
            reason = f"no worker there had number {origin.pid}"
        return OriginMatch(source=source, session=session, reason=reason)
    return OriginMatch(
        source=source, worker=found[0], session=found[0].session
    )
