"""
What Ray leaves in the folder of a session.
"""

from __future__ import annotations

import json

from contextlib import suppress
from itertools import islice

from distdebug.errors import LogError, NoLogsError
from distdebug.ray import (
    death_findings,
    driver_findings,
    driver_lines,
    find_actor_logs,
    find_deaths,
    find_ray_sessions,
    last_activity,
    read_driver_log,
    read_parts,
    read_tail,
    system_logs,
    worker_logs,
)
from distdebug.ray.messages import parse_log_tail

from ..places import file_of, folder_of, parcel_of
from ..target import HERE, target


_SAMPLES = HERE.parent / "data" / "ray_sessions"
_LOGS = "session_2026-11-22_03-17-53_779780_27567/logs"


def _sessions() -> list[bytes]:
    folders = sorted(_SAMPLES.glob("*/*/"))
    return [parcel_of(x, most=600)[: 1 << 14] for x in folders]


def _files(pattern: str) -> list[bytes]:
    files = sorted(_SAMPLES.glob(f"*/**/{pattern}"))
    return [x.read_bytes()[-(1 << 12) :] for x in files[:12]]


def _judged(folder: object) -> object:
    sessions = find_ray_sessions(folder, every=True)
    deaths = find_deaths(sessions)
    return deaths, death_findings(deaths)


@target(seeds=_sessions)
def ray_session(data: bytes) -> object:
    """
    A folder with anything, out of which sessions are made.
    """
    folder = folder_of(data, "ray")
    sessions = find_ray_sessions(folder, every=True)
    logs = worker_logs(sessions)
    return (
        sessions,
        logs,
        [read_tail(log, lines=3) for log in logs],
        [list(read_parts(log))[:3] for log in logs],
        find_actor_logs("*", sessions),
        find_actor_logs("514428", sessions),
        system_logs(sessions),
        last_activity(sessions, now=1.8e9),
        _judged(folder),
    )


def _one(data: bytes, name: str) -> object:
    folder = folder_of(b"", "ray")
    for file, content in (
        (name, data),
        ("raylet.err", b""),
        (f"worker-{'ab' * 28}-01000000-28115.err", b""),
    ):
        path = folder / _LOGS / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return _judged(folder)


@target(seeds=lambda: _files("gcs_server.out"))
def ray_gcs(data: bytes) -> object:
    """
    The log of the head.
    """
    return _one(data, "gcs_server.out")


@target(seeds=lambda: _files("raylet.out"))
def ray_raylet(data: bytes) -> object:
    """
    The log of a node.
    """
    return _one(data, "raylet.out")


@target(seeds=lambda: _files("python-core-worker-*.log"))
def ray_core(data: bytes) -> object:
    """
    The log of the core of a worker.
    """
    return _one(data, f"python-core-worker-{'ab' * 28}_28115.log")


@target(seeds=lambda: _files("event_*.log"))
def ray_events(data: bytes) -> object:
    """
    What Ray writes as JSON, line by line.
    """
    return _one(data, "events/event_RAYLET.log")


def _exports() -> list[bytes]:
    told = {"actor_id": "AAEC", "node_id": "AAEC", "class_name": "A"}
    more = {"name": "a", "repr_name": "A(1)", "state": "ALIVE", "pid": 28115}
    return [json.dumps({"event_data": {**told, **more}}).encode() + b"\n"]


@target(seeds=_exports)
def ray_exports(data: bytes) -> object:
    """
    What Ray tells of actors, if it was asked to.
    """
    name = f"{_LOGS}/export_events/event_EXPORT_ACTOR.log"
    folder = folder_of(b"@@@ %s\n%s" % (name.encode(), data), "ray")
    file_of(b":job_id:1\n", f"ray/{_LOGS}/worker-{'ab' * 28}-01-28115.out")
    return worker_logs(find_ray_sessions(folder))


@target(seeds=lambda: _files("worker-*.err"))
def ray_worker(data: bytes) -> object:
    """
    What a worker printed last.
    """
    parse_log_tail(data.decode("utf-8", "replace"))
    return _one(data, f"worker-{'ab' * 28}-01000000-28115.err")


@target(NoLogsError, seeds=lambda: _files("driver.log"))
def ray_driver(data: bytes) -> object:
    """
    The output of a driver.
    """
    path = file_of(data, "driver.log")
    log = read_driver_log(path)
    lines = []
    with suppress(LogError):  # of these, and not of the log as a whole
        lines += [line.text for line in islice(driver_lines(path), 99)]
    return log, lines, driver_findings(log)
