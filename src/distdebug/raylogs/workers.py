"""
Which workers were there, and what did each of them run?
"""

from __future__ import annotations

import re
import time

from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import attrs

from ..findings import Missing
from .actors import (
    KnownActor,
    actors_by_worker,
    core_logs,
    exported_actors,
    with_core,
)
from .heads import is_whole, with_heads
from .listing import Listed, list_parts
from .model import LogPart, RaySession, WorkerLog


__all__ = [
    "explained",
    "is_told",
    "read_heads",
    "with_actor",
    "worker_files",
    "worker_logs",
]

_PREFIXES = ("worker-", "io_worker-")
_STEM = re.compile(
    r"(?P<kind>worker|io_worker)-(?P<worker>[0-9a-f]{28,56})"
    r"(?:-(?P<job>[0-9a-f]{8}))?-(?P<pid>\d{1,10})",
    re.ASCII,
)
_THREADS = 16
_CHUNK = 256
_SLOW_S = 0.003


def worker_logs(
    sessions: RaySession | Iterable[RaySession],
) -> tuple[WorkerLog, ...]:
    """
    Tell what each worker process of some sessions was, and where it printed.

    Only the beginnings of files are read, whatever their size.

    Args:
        sessions: A session, or those of several nodes.

    Returns:
        The workers, by node and number of the process.
    """
    if isinstance(sessions, RaySession):
        sessions = (sessions,)
    sessions = tuple(sessions)
    return explained(read_heads(worker_files(sessions)), sessions)


def worker_files(sessions: Iterable[RaySession]) -> tuple[WorkerLog, ...]:
    """
    List the logs of workers without opening any.

    Args:
        sessions: The sessions.

    Returns:
        The workers with what the names of their files tell.
    """
    return tuple(log for session in sessions for log in _listed(session))


def read_heads(logs: Iterable[WorkerLog]) -> list[WorkerLog]:
    """
    Read what workers wrote down of themselves.

    Args:
        logs: The logs of workers, with their files.

    Returns:
        The same with what the beginnings of the files tell.
    """
    return _each(with_heads, logs)


def explained(
    logs: Iterable[WorkerLog], sessions: Iterable[RaySession]
) -> tuple[WorkerLog, ...]:
    """
    Add what Ray's own files tell of workers.

    Args:
        logs: The logs of workers, with what they tell themselves.

        sessions: Where else may be told about them.

    Returns:
        The same with all that is known.
    """
    found = list(logs)
    clusters = defaultdict(list)
    for session in sessions:
        clusters[session.name].append(session)
    for name, members in clusters.items():
        found = _with_cluster(found, name, members)
    vague = {log.session.root: log.session for log in found if _is_vague(log)}
    for session in vague.values():
        core = core_logs(session)
        found = _each(partial(_with_core, core=core), found)
    return tuple(found)


def is_told(log: WorkerLog) -> bool:
    """
    Tell whether a worker wrote down all names that it has.

    Args:
        log: The log of a worker, with what it tells itself.

    Returns:
        Whether no other file can tell another class or representation.
    """
    if log.task_names and not log.actor_class:
        return True
    return log.actor_class is not None and (
        log.actor_repr is not None or is_whole(log.out) or is_whole(log.err)
    )


def _listed(session: RaySession) -> list[WorkerLog]:
    listed, missing = list_parts(session, *_PREFIXES)
    streams: dict[str, dict[str, tuple[LogPart, ...]]] = defaultdict(dict)
    for (stem, stream), parts in listed.items():
        if stream in {"out", "err"}:
            streams[stem][stream] = parts
    found = []
    for stem, parts_by_stream in streams.items():
        match = _STEM.fullmatch(stem)
        if match:
            found.append(_log(session, match, parts_by_stream, missing))
    return sorted(found, key=lambda x: (x.pid, x.worker_id))


def _log(
    session: RaySession,
    match: re.Match[str],
    parts: dict[str, tuple[LogPart, ...]],
    missing: list[Missing],
) -> WorkerLog:
    return WorkerLog(
        session=session,
        worker_id=match["worker"],
        pid=int(match["pid"]),
        name_job_id=match["job"],
        kind=match["kind"],
        out=parts.get("out", ()),
        err=parts.get("err", ()),
        missing=tuple(missing),
    )


def _is_vague(log: WorkerLog) -> bool:
    """
    Whether the log of its C++ half may tell which actor it was.
    """
    has_any = any(part.size for part in (*log.out, *log.err))
    is_actor = log.actor_class is not None or not log.task_names
    has_id = log.actor_id is not None or not is_actor
    return has_any and not (has_id and is_told(log))


def _with_core(log: WorkerLog, core: Listed) -> WorkerLog:
    return with_core(log, core) if _is_vague(log) else log


def _with_cluster(
    logs: list[WorkerLog], name: str, members: list[RaySession]
) -> list[WorkerLog]:
    by_worker: dict[str, str] = {}
    exported: dict[str, KnownActor] = {}
    for session in members:
        by_worker |= actors_by_worker(session)
        exported |= exported_actors(session)
    by_place = {(x.node_id, x.pid): x for x in exported.values() if x.pid}

    def told(log: WorkerLog) -> WorkerLog:
        if log.session.name != name:
            return log
        actor_id = log.actor_id or by_worker.get(log.worker_id)
        place = log.session.node_id or "", log.pid
        actor = exported.get(actor_id or "") or by_place.get(place)
        if actor is None:
            return attrs.evolve(log, actor_id=actor_id)
        return with_actor(log, actor)

    return [told(log) for log in logs]


def with_actor(log: WorkerLog, actor: KnownActor) -> WorkerLog:
    """
    Join a worker with what is known of its actor.

    Args:
        log: The log of the worker.

        actor: Its actor.

    Returns:
        The same; what the log itself told stays.
    """
    return attrs.evolve(
        log,
        actor_id=log.actor_id or actor.actor_id,
        actor_class=log.actor_class or actor.actor_class or None,
        actor_repr=log.actor_repr or actor.actor_repr or None,
        actor_name=log.actor_name or actor.actor_name or None,
    )


def _each(
    work: Callable[[WorkerLog], WorkerLog], logs: Iterable[WorkerLog]
) -> list[WorkerLog]:
    """
    Do the same with all of them.

    Threads only help where a file costs a round trip over the network; the
    first ones tell.
    """
    todo = list(logs)
    begin = time.monotonic()
    done = [work(log) for log in todo[:_CHUNK]]
    if time.monotonic() - begin < _CHUNK * _SLOW_S:
        return done + [work(log) for log in todo[_CHUNK:]]

    with ThreadPoolExecutor(_THREADS) as pool:
        return done + list(pool.map(work, todo[_CHUNK:]))
