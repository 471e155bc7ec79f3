"""
List Ray's worker logs and system logs, and identify the actors.
"""

from __future__ import annotations

import base64
import json
import os
import re
import time

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from .._io import matching
from .._proc import map_with_timeout
from .._render import as_plain
from .._text import clean
from ..findings import Missing
from ..logs import PACKED_SUFFIXES, READ_ERRORS, find_lines, open_log
from .messages import read_json_objects
from .sessions import (
    LogPart,
    PartsByLog,
    RaySession,
    RaySessions,
    WorkerLog,
    as_sessions,
    find_parts,
    list_parts,
)


_EXPORT_FOLDER, _EXPORT_STEM = "export_events", "event_EXPORT_ACTOR"
_BLOCK = 1 << 18
# Part of a core log before the actor runs; the rest is statistics.
_MOST_OF_CORE = 1 << 22
_CREATING = re.compile(rb"Creating actor:? (?:actor_id=)?([0-9a-f]{32})\b")
_ACTOR_REPR = re.compile(
    rb"Actor creation task finished[^\n]{0,300}"
    rb"actor_repr_name:[ \t]{0,4}([^\r\n]{0,400})\r?\n"
)
# Ray <= 2.40 "Finished actor creation task for actor A on worker W", later
# "Submitting actor creation task to worker. actor_id=A worker_id=W".
_ASSIGNED = re.compile(
    rb"actor creation task [^\n]{0,60}?\bactor(?:_id=|: | )([0-9a-f]{32})\b"
    rb"[^\n]{0,40}?\bworker(?:_id=|: | )([0-9a-f]{56})\b"
)


@attrs.frozen(kw_only=True)
class KnownActor:
    """
    An actor in Ray's exported events or in a live cluster.

    Attributes:
        actor_id: Its id, 32 hexadecimal digits.

        actor_class: Its class.

        actor_name: The name given in ``.options(name=…)``, or ``""``.

        actor_repr: Its ``__repr__``, or ``""``.

        pid: Its process id; 0 if it never had one.

        node_id: Its node, or ``""``.

        state: Such as ``"ALIVE"`` or ``"DEAD"``.
    """

    actor_id: str
    actor_class: str = ""
    actor_name: str = ""
    actor_repr: str = ""
    pid: int = 0
    node_id: str = ""
    state: str = ""


NO_ACTOR = KnownActor(actor_id="")


def _add_core_facts(log: WorkerLog, core: PartsByLog) -> WorkerLog:
    """
    Add the actor's id and repr from the core log (C++) of a worker.

    Args:
        core: The core logs of the session, by name and stream.
    """
    if not _needs_core_log(log):
        return log
    stem = f"python-core-worker-{log.worker_id}_{log.pid}"
    actor, text = log.actor_id, log.actor_repr
    for part in core.get((stem, "log"), ()):
        with suppress(*READ_ERRORS):
            found = _read_core_facts(part.path)
            actor, text = actor or found[0], text or found[1]
        if actor and text is not None:
            break
    return attrs.evolve(log, actor_id=actor, actor_repr=text or None)


def _read_actor_assignments(session: RaySession) -> dict[str, str]:
    """
    Read the actor of each worker, by id, from the log of the GCS.
    """
    found = {}
    for path in find_parts(session, "gcs_server", "out"):
        with suppress(*READ_ERRORS):
            for _, line in find_lines(path, [b"actor creation task"]):
                if match := _ASSIGNED.search(line):
                    found[match[2].decode()] = match[1].decode()
    return found


def read_exported_actors(session: RaySession) -> dict[str, KnownActor]:
    """
    Read the actors that Ray exported, if the export was enabled.

    Args:
        session: A session; only the head has that log.

    Returns:
        The latest state of each actor, by its id.
    """
    found: dict[str, KnownActor] = {}
    for path in find_parts(session, _EXPORT_STEM, "log", _EXPORT_FOLDER):
        with suppress(*READ_ERRORS):
            for _, event in read_json_objects(path):
                if actor := _parse_exported(event):
                    known = found.get(actor.actor_id, actor)
                    # The later state may omit fields.
                    later = attrs.asdict(actor, filter=lambda _, x: bool(x))
                    found[actor.actor_id] = attrs.evolve(known, **later)
    return found


def has_exports(session: RaySession) -> bool:
    """
    Return whether Ray exported events about actors.
    """
    return bool(matching(session.logs / _EXPORT_FOLDER, f"{_EXPORT_STEM}*"))


def _read_core_facts(path: Path) -> tuple[str | None, str | None]:
    actor, data = None, b""
    with open_log(path) as file:
        for _ in range(_MOST_OF_CORE // _BLOCK):
            block = file.read(_BLOCK)
            # Keep the end of the last block, in case a match spans both.
            data = data[-2000:] + block
            if actor is None and (found := _CREATING.search(data)):
                actor = found[1].decode()
            if text := _ACTOR_REPR.search(data):
                return actor, text[1].decode("utf-8", "replace").strip()
            if not block:
                break
    return actor, None


def _parse_exported(event: Mapping[str, Any]) -> KnownActor | None:
    try:
        data = event["event_data"]
        return KnownActor(
            actor_id=_decode_id(data["actor_id"]),
            actor_class=_get_text(data, "class_name"),
            actor_name=_get_text(data, "name"),
            actor_repr=_get_text(data, "repr_name"),
            pid=int(data.get("pid") or 0),
            node_id=_decode_id(data.get("node_id") or ""),
            state=_get_text(data, "state"),
        )
    except (LookupError, OverflowError, TypeError, ValueError):
        return None


def _decode_id(text: str) -> str:
    # binascii.Error is a ValueError.
    return base64.b64decode(text, validate=True).hex()


def _get_text(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


_MARKER_KINDS = ("job_id", "actor_name", "task_name")
# Beginnings of marker lines that Ray itself writes into worker logs.
MARKER_PREFIXES = tuple(f":{kind}:" for kind in _MARKER_KINDS)
_HEAD_BYTES = 1 << 13
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_MARKER = re.compile(rb"\n:(job_id|actor_name|task_name):([^\r\n]{1,400})")
_JOB_ID = re.compile(r"[0-9a-f]{8,32}")
_CLASS_NAME = re.compile(r"[\w.<>]+")
_JSON_RECORD = re.compile(rb'^\{"asctime": [^\n]{0,4000}', re.MULTILINE)
_JSON_ACTOR_NAME = re.compile(rb'"actor_name": ("(?:[^"\\\n]|\\.){1,200}")')
_JSON_ACTOR_ID = re.compile(rb'"actor_id": "([0-9a-f]{32})"')
_MOST_TASKS = 100


def _read_markers(log: WorkerLog) -> WorkerLog:
    """
    Add job, class, and tasks from the first lines of a worker's logs.

    Args:
        log: The log of a worker, of which only the files are known.
    """
    missing: list[Missing] = []
    markers: dict[str, dict[str, None]] = {kind: {} for kind in _MARKER_KINDS}
    name = actor = None
    # Records with an actor name come from logging, which writes to err.
    for parts in (log.err, log.out):
        for head in _read_part_heads(parts, missing):
            _add_markers(head, markers)
            if name is None:
                name, actor = _find_recorded_actor(head)
        # The class comes before the repr, and has no brackets.
        names = markers["actor_name"]
        name_of_class = next(filter(_CLASS_NAME.fullmatch, names), None)
        if markers["job_id"] and name_of_class and _is_complete_head(parts):
            break
    texts = [x for x in names if x != name_of_class]
    return attrs.evolve(
        log,
        job_id=next(filter(_JOB_ID.fullmatch, markers["job_id"]), None),
        actor_class=name_of_class,
        actor_repr=next(iter(texts), None),
        actor_name=name,
        actor_id=actor,
        task_names=tuple(markers["task_name"])[:_MOST_TASKS],
        missing=(*log.missing, *missing),
    )


def _is_complete_head(parts: Sequence[LogPart]) -> bool:
    """
    Return whether the head of a stream is the whole stream.

    Args:
        parts: Its parts, oldest first.
    """
    return (
        [part.index for part in parts] == [0]
        and 0 < parts[0].size < _HEAD_BYTES
        and parts[0].path.suffix not in PACKED_SUFFIXES
    )


def _read_part_heads(
    parts: Sequence[LogPart], missing: list[Missing]
) -> Iterator[bytes]:
    for part in parts:
        if not part.size:
            continue
        try:
            yield _read_head(part.path)
        except FileNotFoundError:  # rotated or deleted meanwhile
            continue
        except READ_ERRORS as exc:
            missing.append(Missing.log(part.path, exc))


def _read_head(path: Path) -> bytes:
    if path.suffix in PACKED_SUFFIXES:
        with open_log(path) as file:
            return file.read(_HEAD_BYTES)

    # Tens of thousands of files: a descriptor costs half of a file object.
    descriptor = os.open(path, _FLAGS)
    try:
        return os.read(descriptor, _HEAD_BYTES)
    finally:
        os.close(descriptor)


def _add_markers(head: bytes, markers: dict[str, dict[str, None]]) -> None:
    for match in _MARKER.finditer(b"\n" + head):
        # A line at the end of the head may be cut off.
        if match.end() <= _HEAD_BYTES:
            # A process may have any name.
            value = clean(match[2].decode("utf-8", "replace"))
            markers[match[1].decode()][value] = None


def _find_recorded_actor(head: bytes) -> tuple[str | None, str | None]:
    """
    Find the name and id of the actor in JSON log records.
    """
    records = _JSON_RECORD.findall(head) if b'"actor_name": "' in head else ()
    for record in records:
        if name := _JSON_ACTOR_NAME.search(record):
            actor = _JSON_ACTOR_ID.search(record)
            text = None
            with suppress(ValueError):
                text = str(json.loads(name[1]))
            return text, actor and actor[1].decode()
    return None, None


_PREFIXES = ("worker-", "io_worker-")
_WORKER_STEM = re.compile(
    r"(?P<kind>worker|io_worker)-(?P<worker>[0-9a-f]{28,56})"
    r"(?:-(?P<job>[0-9a-f]{8}))?-(?P<pid>\d{1,10})",
    re.ASCII,
)
_THREADS = 16
_CHUNK = 256
_SLOW_S = 0.003


def worker_logs(sessions: RaySessions) -> tuple[WorkerLog, ...]:
    """
    List the worker logs of sessions, with the identity of each worker.

    Only the beginnings of files are read.

    Args:
        sessions: A session, or those of several nodes.

    Returns:
        The workers, by node and process id.
    """
    sessions = as_sessions(sessions)
    return add_cluster_facts(read_heads(worker_files(sessions)), sessions)


def worker_files(sessions: Iterable[RaySession]) -> tuple[WorkerLog, ...]:
    """
    List the worker logs of sessions without opening a file.

    Returns:
        The workers, with what their file names contain.
    """
    return tuple(log for session in sessions for log in _list_workers(session))


def read_heads(logs: Iterable[WorkerLog]) -> list[WorkerLog]:
    """
    Add job, class, and tasks from the beginnings of the logs.
    """
    return _map_logs(_read_markers, logs)


def add_cluster_facts(
    logs: Iterable[WorkerLog], sessions: Iterable[RaySession]
) -> tuple[WorkerLog, ...]:
    """
    Add actor names and ids from Ray's own logs.

    Args:
        logs: The logs of workers, after `read_heads`.

        sessions: The sessions whose logs to read.
    """
    found = list(logs)
    # Actor ids repeat across clusters, whose sessions have different names.
    assigned: defaultdict[str, dict[str, str]] = defaultdict(dict)
    exported: defaultdict[str, dict[str, KnownActor]] = defaultdict(dict)
    for session in sessions:
        assigned[session.name] |= _read_actor_assignments(session)
        exported[session.name] |= read_exported_actors(session)
    for name, actors in exported.items():
        own = [log for log in found if log.session.name == name]
        joined = join_actors(own, actors.values(), assigned[name])
        found = [
            next(joined) if log.session.name == name else log for log in found
        ]
    incomplete = {
        log.session.root: log.session for log in found if _needs_core_log(log)
    }
    for session in incomplete.values():
        core, _ = list_parts(session, "python-core-worker-")
        found = _map_logs(partial(_add_core_facts, core=core), found)
    return tuple(found)


def has_all_names(log: WorkerLog) -> bool:
    """
    Return whether no other file can add a class or repr to a worker.
    """
    if log.actor_class is None:
        return bool(log.task_names)
    streams = (log.out, log.err)
    return log.actor_repr is not None or any(map(_is_complete_head, streams))


def _list_workers(session: RaySession) -> list[WorkerLog]:
    listed, missing = list_parts(session, *_PREFIXES)
    stems = {stem for stem, stream in listed if stream in {"out", "err"}}
    found = (
        WorkerLog(
            session=session,
            worker_id=match["worker"],
            pid=int(match["pid"]),
            name_job_id=match["job"],
            kind=match["kind"],
            out=listed.get((match[0], "out"), ()),
            err=listed.get((match[0], "err"), ()),
            missing=tuple(missing),
        )
        for match in filter(None, map(_WORKER_STEM.fullmatch, stems))
    )
    return sorted(found, key=lambda x: (x.pid, x.worker_id))


def _needs_core_log(log: WorkerLog) -> bool:
    """
    Return whether the core log of a worker may identify its actor.
    """
    has_any = any(part.size for part in log.parts)
    is_actor = log.actor_class is not None or not log.task_names
    has_id = log.actor_id is not None or not is_actor
    return has_any and not (has_id and has_all_names(log))


def join_actors(
    logs: Iterable[WorkerLog],
    actors: Iterable[KnownActor],
    assigned: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[WorkerLog]:
    """
    Add what is known of actors to their workers; known fields stay.

    Args:
        actors: Actors of the cluster, matched by id, or else by node and
            process id.

        assigned: Actor ids by worker id.
    """
    actors = tuple(actors)
    by_id = {x.actor_id: x for x in actors}
    by_process = {(x.node_id, x.pid): x for x in actors if x.pid}
    for log in logs:
        actor_id = log.actor_id or assigned.get(log.worker_id) or ""
        process = log.session.node_id or "", log.pid
        actor = by_id.get(actor_id) or by_process.get(process)
        actor = actor or KnownActor(actor_id=actor_id)
        yield attrs.evolve(
            log,
            actor_id=log.actor_id or actor.actor_id or None,
            actor_class=log.actor_class or actor.actor_class or None,
            actor_repr=log.actor_repr or actor.actor_repr or None,
            actor_name=log.actor_name or actor.actor_name or None,
        )


def _map_logs(
    work: Callable[[WorkerLog], WorkerLog], logs: Iterable[WorkerLog]
) -> list[WorkerLog]:
    """
    Apply a function to all logs.

    Threads only help if a file costs a network round trip, so time the first
    ones.
    """
    pending = list(logs)
    begin = time.monotonic()
    done = [work(log) for log in pending[:_CHUNK]]
    if time.monotonic() - begin < _CHUNK * _SLOW_S:
        return done + [work(log) for log in pending[_CHUNK:]]

    rest = dict(enumerate(pending[_CHUNK:]))
    replies = map_with_timeout(
        lambda key: work(rest[key]), rest, threads=_THREADS, may_block=True
    )
    rest |= {key: future.result() for key, future in replies}
    return done + list(rest.values())


_WORKER_PREFIXES = ("worker-", "io_worker-", "python-core-")
# Longest silence of a live component, in seconds; the state before the raylet.
# Silence of the workers means nothing.
_SILENCE_LIMITS_S: Mapping[tuple[str, str], float | None] = {
    ("debug_state", "txt"): 30.0,
    ("gcs_server", "out"): 150.0,
    ("monitor", "log"): 60.0,
    ("raylet", "out"): 150.0,
    ("workers", ""): None,
}


@attrs.frozen(kw_only=True)
class SystemLog:
    """
    A log of a Ray component on one node.

    Attributes:
        session: The session, and with it the node.

        component: Such as ``"raylet"``, ``"gcs_server"``, ``"monitor"``, or
            ``"dashboard_agent"``.

        stream: ``"out"``, ``"err"``, ``"log"``, or ``"txt"``, which is a state
            file rather than a log.

        parts: Its parts, oldest first.
    """

    session: RaySession
    component: str
    stream: str
    parts: tuple[LogPart, ...]


@attrs.frozen(kw_only=True)
class Activity:
    """
    The last activity of a Ray component.

    Attributes:
        session: The session, and with it the node.

        component: Such as ``"raylet"``; ``"debug_state"``, which the raylet
            writes, too; ``"workers"`` for all workers of the node.

        path: The file that was written last.

        time: The time of the last write, in seconds since the epoch.

        age_s: The time since then, in seconds.

        limit_s: The longest silence while it is alive, in seconds; ``None`` if
            silence means nothing.

        is_alarming: Whether it was silent for longer, and no other file shows
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
        Return plain data.
        """
        return as_plain(self)

    def __str__(self) -> str:
        where = f" of {self.session.host}" if self.session.host else ""
        told = f"{self.component}{where}: {self.age_s:.0f} s ago"
        if not self.is_alarming:
            return told
        return f"{told}, alarming after {self.limit_s:.0f} s"


def system_logs(sessions: RaySessions) -> tuple[SystemLog, ...]:
    """
    Find the logs of Ray's components: raylet, GCS, monitor, dashboard, agents.

    Args:
        sessions: A session, or those of several nodes.

    Returns:
        The logs, by node, component, and stream.
    """
    return tuple(
        SystemLog(session=session, component=stem, stream=stream, parts=parts)
        for session in as_sessions(sessions)
        for (stem, stream), parts in sorted(list_parts(session)[0].items())
        if not stem.startswith(_WORKER_PREFIXES)
    )


def last_activity(
    sessions: RaySessions, *, now: float | None = None
) -> tuple[Activity, ...]:
    """
    Return when each Ray component, and any worker, last wrote a log.

    Args:
        sessions: A session, or those of several nodes.

        now: Seconds since the epoch; by default the current time.  For copied
            sessions give the time of the copy, or of the last log line; this
            works only if the copy kept the file times.

    Returns:
        One activity for each component and node, by node.
    """
    now = time.time() if now is None else now
    return tuple(
        activity
        for session in as_sessions(sessions)
        for activity in _list_activities(session, now)
    )


def _list_activities(session: RaySession, now: float) -> Iterator[Activity]:
    listed, _ = list_parts(session)
    workers = worker_files([session])
    listed["workers", ""] = tuple(x for log in workers for x in log.parts)
    is_alive = False
    for (component, stream), limit_s in _SILENCE_LIMITS_S.items():
        parts = listed.get((component, stream))
        if not parts:
            continue
        last = max(parts, key=lambda part: part.mtime)
        age_s = max(0.0, now - last.mtime)
        is_silent = limit_s is not None and age_s > limit_s
        # The raylet writes the state, too.
        is_alive |= component == "debug_state" and not is_silent
        yield Activity(
            session=session,
            component=component,
            path=str(last.path),
            time=last.mtime,
            age_s=age_s,
            limit_s=limit_s,
            is_alarming=is_silent and not (is_alive and component == "raylet"),
        )
