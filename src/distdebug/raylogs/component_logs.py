"""
What did Ray itself write on a node, and when did it last do so?

Measured on Ray 2.60: the raylet rewrites ``debug_state.txt`` every 10 s on
every node, and the autoscaler ``monitor.log`` every 5 s on the head; but
``raylet.out`` and ``gcs_server.out`` are silent for up to a minute on an idle
cluster.
"""

from __future__ import annotations

import time

from collections.abc import Iterable
from typing import Any

import attrs

from .sessions import LogPart, RaySession, list_parts
from .workers import worker_files


_WORKERS = ("worker-", "io_worker-", "python-core-")
# How long each may be silent while it is alive, in seconds.
_LIMITS_S = {
    ("debug_state", "txt"): 30.0,
    ("raylet", "out"): 150.0,
    ("gcs_server", "out"): 150.0,
    ("monitor", "log"): 60.0,
}


@attrs.frozen(kw_only=True)
class SystemLog:
    """
    A log of Ray itself on one node.

    Attributes:
        session: The session, and with it the node.

        component: Who wrote it, such as ``"raylet"``, ``"gcs_server"``,
            ``"monitor"``, or ``"dashboard_agent"``.

        stream: ``"out"``, ``"err"``, ``"log"``, or ``"txt"``, which is a
            state rather than a log.

        parts: Its parts, oldest first.
    """

    session: RaySession
    component: str
    stream: str
    parts: tuple[LogPart, ...]


@attrs.frozen(kw_only=True)
class Activity:
    """
    When was a component last seen?

    Attributes:
        session: The session, and with it the node.

        component: Such as ``"raylet"``; ``"debug_state"`` is also written by
            the raylet, and ``"workers"`` are all workers of the node.

        path: The file that was written last.

        time: When, in seconds since the epoch.

        age_s: How long ago, in seconds.

        limit_s: How long it may be silent while it is alive; ``None`` where
            silence means nothing.

        is_alarming: Whether it was silent for longer, and nothing else tells
            that it is alive.
    """

    session: RaySession
    component: str
    path: str
    time: float
    age_s: float
    limit_s: float | None = None
    is_alarming: bool = False

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        plain = attrs.asdict(self, recurse=False)
        return {**plain, "session": self.session.to_dict()}

    def __str__(self) -> str:
        where = f" of {self.session.host}" if self.session.host else ""
        alarm = (
            f", alarming after {self.limit_s:.0f} s"
            if self.is_alarming
            else ""
        )
        return f"{self.component}{where}: {self.age_s:.0f} s ago{alarm}"


def system_logs(
    sessions: RaySession | Iterable[RaySession],
) -> tuple[SystemLog, ...]:
    """
    Find the logs of Ray itself: raylet, GCS, monitor, dashboard, agents.

    Args:
        sessions: A session, or those of several nodes.

    Returns:
        The logs, by node, component, and stream.
    """
    if isinstance(sessions, RaySession):
        sessions = (sessions,)
    return tuple(
        SystemLog(session=session, component=stem, stream=stream, parts=parts)
        for session in sessions
        for (stem, stream), parts in sorted(list_parts(session)[0].items())
        if not stem.startswith(_WORKERS)
    )


def last_activity(
    sessions: RaySession | Iterable[RaySession], *, now: float | None = None
) -> tuple[Activity, ...]:
    """
    Tell when each component of Ray, and any worker, last wrote something.

    Args:
        sessions: A session, or those of several nodes.

        now: Seconds since the epoch; by default this moment.  Of copied
            sessions the time of the copy, or of the last line of any; they
            tell something only if the copy kept the times of files.

    Returns:
        One for each component and node, by node.
    """
    if isinstance(sessions, RaySession):
        sessions = (sessions,)
    now = time.time() if now is None else now
    return tuple(
        activity for one in sessions for activity in _activities(one, now)
    )


def _activities(session: RaySession, now: float) -> list[Activity]:
    found = [
        _activity(session, log.component, log.parts, now, limit)
        for log in system_logs(session)
        if (limit := _LIMITS_S.get((log.component, log.stream)))
    ]
    workers = [
        part
        for log in worker_files([session])
        for part in (*log.out, *log.err)
    ]
    if workers:
        found.append(_activity(session, "workers", workers, now, None))
    is_alive = any(
        x.component == "debug_state" and not x.is_alarming for x in found
    )
    return [
        attrs.evolve(x, is_alarming=False)
        if is_alive and x.component == "raylet"
        else x
        for x in found
    ]


def _activity(
    session: RaySession,
    component: str,
    parts: Iterable[LogPart],
    now: float,
    limit_s: float | None,
) -> Activity:
    last = max(parts, key=lambda part: part.mtime)
    age_s = max(0.0, now - last.mtime)
    return Activity(
        session=session,
        component=component,
        path=str(last.path),
        time=last.mtime,
        age_s=age_s,
        limit_s=limit_s,
        is_alarming=limit_s is not None and age_s > limit_s,
    )
