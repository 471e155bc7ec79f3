"""
Which workers were there, and what did each of them run?
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import time

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from .._io import matching
from .._text import clean
from ..findings import Missing
from ..logs import BROKEN, PACKED, open_log, split_block
from .sessions import (
    Listed,
    LogPart,
    RaySession,
    WorkerLog,
    list_parts,
    parts_of,
)


_EXPORTS, _EXPORTED = "export_events", "event_EXPORT_ACTOR"
_BLOCK = 1 << 18
_LONGEST = 1 << 16
# What a worker writes before its actor lives; the rest is statistics.
_MOST_OF_CORE = 1 << 22
_CREATING = re.compile(rb"Creating actor:? (?:actor_id=)?([0-9a-f]{32})\b")
_REPR = re.compile(
    rb"Actor creation task finished[^\n]{0,300}"
    rb"actor_repr_name:[ \t]{0,4}([^\r\n]{0,400})\r?\n"
)
# Ray ≤ 2.40 "Finished actor creation task for actor A on worker W", later
# "Submitting actor creation task to worker. actor_id=A worker_id=W".
_ASSIGNED = re.compile(
    rb"actor creation task [^\n]{0,60}?\bactor(?:_id=|: | )([0-9a-f]{32})\b"
    rb"[^\n]{0,40}?\bworker(?:_id=|: | )([0-9a-f]{56})\b"
)


@attrs.frozen(kw_only=True)
class KnownActor:
    """
    One actor, as Ray exported it or tells of it while it lives.

    Attributes:
        actor_id: Its id, 32 hexadecimal digits.

        actor_class: Its class.

        actor_name: The name it was given, or ``""``.

        actor_repr: What its ``__repr__`` returned, or ``""``.

        pid: Its process, 0 if it never had any.

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


def with_core(log: WorkerLog, core: Listed) -> WorkerLog:
    """
    Read the log of the C++ half of a worker.

    Args:
        log: What the worker printed.

        core: The logs of such halves, by name and stream.

    Returns:
        The same with the id and the representation of its actor.
    """
    stem = f"python-core-worker-{log.worker_id}_{log.pid}"
    actor, text = log.actor_id, log.actor_repr
    for part in core.get((stem, "log"), ()):
        with suppress(*BROKEN):
            found = _core_facts(part.path)
            actor, text = actor or found[0], text or found[1]
        if actor and text is not None:
            break
    return attrs.evolve(log, actor_id=actor, actor_repr=text or None)


def actors_by_worker(session: RaySession) -> dict[str, str]:
    """
    Read in the log of the GCS which actor was sent to which worker.

    Args:
        session: A session; only that of the head has such a log.

    Returns:
        The id of the actor, by that of the worker.
    """
    found = {}
    for path in parts_of(session, "gcs_server", "out"):
        for line in _lines_with(path, b"actor creation task"):
            match = _ASSIGNED.search(line)
            if match:
                found[match[2].decode()] = match[1].decode()
    return found


def exported_actors(session: RaySession) -> dict[str, KnownActor]:
    """
    Read the actors that Ray exported, if it was asked to.

    Args:
        session: A session; only that of the head has any.

    Returns:
        What was told last of each actor, by its id.
    """
    folder = attrs.evolve(session, logs=session.logs / _EXPORTS)
    found: dict[str, KnownActor] = {}
    for path in parts_of(folder, _EXPORTED, "log"):
        for line in _lines_with(path, b'"actor_id"'):
            actor = _exported(line)
            if actor:
                found[actor.actor_id] = _merged(
                    found.get(actor.actor_id), actor
                )
    return found


def has_exports(session: RaySession) -> bool:
    """
    Tell whether Ray exported anything about actors.

    Args:
        session: A session.

    Returns:
        Whether names may be known that no worker wrote down.
    """
    return bool(matching(session.logs / _EXPORTS, f"{_EXPORTED}*"))


def core_logs(session: RaySession) -> Listed:
    """
    List the logs of the C++ halves of workers.

    Args:
        session: The session.

    Returns:
        The parts of each, by name and stream.
    """
    return list_parts(session, "python-core-worker-")[0]


def _core_facts(path: Path) -> tuple[str | None, str | None]:
    actor, data = None, b""
    with open_log(path) as file:
        for _ in range(_MOST_OF_CORE // _BLOCK):
            block = file.read(_BLOCK)
            # What stands over the end of a block is found with the next.
            data = data[-2000:] + block
            found = _CREATING.search(data)
            actor = actor or (found[1].decode() if found else None)
            text = _REPR.search(data)
            if text:
                return actor, text[1].decode("utf-8", "replace").strip()
            if not block:
                break
    return actor, None


def _lines_with(path: Path, text: bytes) -> Iterator[bytes]:
    """
    The lines with a text; most blocks have none, and are not taken apart.
    """
    rest = b""
    with suppress(*BROKEN), open_log(path) as file:
        while block := file.read(_BLOCK):
            if text not in rest + block:
                rest = (rest + block)[-_LONGEST:].rpartition(b"\n")[2]
                continue
            lines, rest = split_block(rest, block)
            yield from (line for line in lines if text in line)
        if text in rest:
            yield rest


def _exported(line: bytes) -> KnownActor | None:
    try:
        data = json.loads(line)["event_data"]
        return KnownActor(
            actor_id=_hex(data["actor_id"]),
            actor_class=_text(data, "class_name"),
            actor_name=_text(data, "name"),
            actor_repr=_text(data, "repr_name"),
            pid=int(data.get("pid") or 0),
            node_id=_hex(data.get("node_id") or ""),
            state=_text(data, "state"),
        )
    except (
        *(LookupError, OverflowError, RecursionError),
        *(TypeError, ValueError),
    ):
        return None


def _merged(old: KnownActor | None, new: KnownActor) -> KnownActor:
    """
    What was told last; what is left out at the end was told before.
    """
    if old is None:
        return new
    fields = attrs.asdict(old)
    fields.update({k: v for k, v in attrs.asdict(new).items() if v})
    return KnownActor(**fields)


def _hex(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).hex()
    except binascii.Error as exc:
        raise ValueError(text) from exc


def _text(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


# How each of Ray's lines begins that nobody printed.
MAGIC = (":job_id:", ":actor_name:", ":task_name:")

_KINDS = ("job_id", "actor_name", "task_name")
_HEAD = 1 << 13
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_MARK = re.compile(rb"\n:(job_id|actor_name|task_name):([^\r\n]{1,400})")
_JOB = re.compile(r"[0-9a-f]{8,32}")
_CLASS = re.compile(r"[\w.<>]+")
_RECORD = re.compile(rb'^\{"asctime": [^\n]{0,4000}', re.MULTILINE)
_NAME = re.compile(rb'"actor_name": "((?:[^"\\\n]|\\.){1,200})"')
_ACTOR = re.compile(rb'"actor_id": "([0-9a-f]{32})"')
_MOST_TASKS = 100


def with_heads(log: WorkerLog) -> WorkerLog:
    """
    Read what the beginnings of its parts tell of a worker.

    Args:
        log: The log of a worker, of which only the files are known.

    Returns:
        The same with job, class, and tasks, as far as they tell.
    """
    missing: list[Missing] = []
    marks: dict[str, dict[str, None]] = {kind: {} for kind in _KINDS}
    name = actor = None
    # What logging writes, and so a record with a name, is in the second.
    for parts in (log.err, log.out):
        for head in _heads(parts, missing):
            _add_marks(head, marks)
            if name is None:
                name, actor = _recorded(head)
        # The class comes first if it is there, and has no brackets.
        names = marks["actor_name"]
        name_of_class = next(filter(_CLASS.fullmatch, names), None)
        if marks["job_id"] and name_of_class and is_whole(parts):
            break
    texts = [x for x in names if x != name_of_class]
    return attrs.evolve(
        log,
        job_id=next(filter(_JOB.fullmatch, marks["job_id"]), None),
        actor_class=name_of_class,
        actor_repr=next(iter(texts), None),
        actor_name=name,
        actor_id=actor,
        task_names=tuple(marks["task_name"])[:_MOST_TASKS],
        missing=(*log.missing, *missing),
    )


def is_whole(parts: Sequence[LogPart]) -> bool:
    """
    Tell whether the beginning of a stream is all of it.

    Args:
        parts: Its parts, oldest first.

    Returns:
        Whether nothing else of it may hold another of Ray's lines.
    """
    return (
        [part.index for part in parts] == [0]
        and 0 < parts[0].size < _HEAD
        and parts[0].path.suffix not in PACKED
    )


def read_head(path: str, most: int = _HEAD) -> bytes:
    """
    Read the beginning of a file, unpacked if it is packed.

    Args:
        path: The file, which is no link.

        most: How many bytes to read.

    Returns:
        At most so many.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file, or damaged.
    """
    if path.endswith(tuple(PACKED)):
        with open_log(path) as file:
            return file.read(most)

    # There are tens of thousands: this is half of what a file object costs.
    descriptor = os.open(path, _FLAGS)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def _heads(
    parts: Sequence[LogPart], missing: list[Missing]
) -> Iterator[bytes]:
    for part in parts:
        if not part.size:
            continue
        path = str(part.path)
        try:
            yield read_head(path)
        except FileNotFoundError:  # rotated or deleted meanwhile
            continue
        except BROKEN as exc:
            missing.append(Missing.log(path, exc))


def _add_marks(head: bytes, marks: dict[str, dict[str, None]]) -> None:
    for match in _MARK.finditer(b"\n" + head):
        # Where the head ends, the line may go on.
        if match.end() <= _HEAD:
            # A process may call itself anything.
            value = clean(match[2].decode("utf-8", "replace"))
            marks[match[1].decode()][value] = None


def _recorded(head: bytes) -> tuple[str | None, str | None]:
    """
    The name and the id of the actor, as records in JSON tell.
    """
    if b'"actor_name": "' in head:
        for record in _RECORD.finditer(head):
            name, actor = _NAME.search(record[0]), _ACTOR.search(record[0])
            if name:
                return _unquoted(name[1]), actor and actor[1].decode()
    return None, None


def _unquoted(text: bytes) -> str | None:
    with suppress(ValueError):
        return str(json.loads(b'"' + text + b'"'))
    return None


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
