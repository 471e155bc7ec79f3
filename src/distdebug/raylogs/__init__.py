"""
Which log belongs to that Ray actor, who died first, and why?

All of it is read from files, also days after the cluster was stopped and from
copies of the folders of several nodes.
"""

from __future__ import annotations

from .deaths import Death, Deaths, death_findings, death_of, find_deaths
from .driver import (
    DriverLog,
    DriverSource,
    Failure,
    OriginMatch,
    driver_findings,
    driver_lines,
    find_driver_logs,
    map_origins,
    read_driver_log,
)
from .find import find_actor_logs
from .following import follow_lines
from .live import LiveCluster, ask_live_actors, with_live
from .model import LogPart, RaySession, WorkerLog
from .sessions import find_ray_sessions, open_ray_session
from .system import Activity, SystemLog, last_activity, system_logs
from .tails import read_parts, read_tail
from .workers import worker_logs


__all__ = [
    "Activity",
    "Death",
    "Deaths",
    "DriverLog",
    "DriverSource",
    "Failure",
    "LiveCluster",
    "LogPart",
    "OriginMatch",
    "RaySession",
    "SystemLog",
    "WorkerLog",
    "ask_live_actors",
    "death_findings",
    "death_of",
    "driver_findings",
    "driver_lines",
    "find_actor_logs",
    "find_deaths",
    "find_driver_logs",
    "find_ray_sessions",
    "follow_lines",
    "last_activity",
    "map_origins",
    "open_ray_session",
    "read_driver_log",
    "read_parts",
    "read_tail",
    "system_logs",
    "with_live",
    "worker_logs",
]
