"""
Which logs of which nodes tell who ended, and what do they tell?
"""

from __future__ import annotations

import json
import re

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from .._text import without_controls
from ..findings import Evidence, Missing
from ..logs import open_log, parse_time, read_tail
from .death_model import memory_notes
from .log_tail import (
    Exit,
    JobEnd,
    Killing,
    Memory,
    NodeEnd,
    Note,
    NotStarted,
    Orphan,
    Placement,
    Record,
    decoded,
    read_records,
)
from .sessions import RaySession, list_parts, parts_of


# A node and a driver that are stopped together end within these seconds.
_AT_ONCE = 5.0


@attrs.frozen(kw_only=True)
class Facts:
    """
    What was gathered, by what it is about.

    Attributes:
        exits: By worker: all lines about its end, the most trusted first.

        orphans: By worker that died with its owner.

        memory: All that is known of memory when it ran out.

        nodes: The ends of nodes, in the order of time.

        jobs: When the driver of a job was gone.

        placements: By worker: its process, actor, and node.

        not_started: Lines about workers that never registered.

        missing: What could not be read.
    """

    exits: Mapping[str, tuple[Exit, ...]]
    orphans: Mapping[str, Orphan]
    memory: tuple[Memory, ...]
    nodes: tuple[NodeEnd, ...]
    jobs: Mapping[str, float]
    placements: Mapping[str, Placement]
    not_started: tuple[NotStarted, ...]
    missing: tuple[Missing, ...]


def facts_of(notes: Iterable[Note], missing: Iterable[Missing]) -> Facts:
    """
    Put notes in order.

    Args:
        notes: All of all nodes; of several about the same, the first is the
            most trusted.

        missing: What could not be read.

    Returns:
        What they tell together.
    """
    by_type: dict[type, list[Any]] = defaultdict(list)
    for note in notes:
        by_type[type(note)].append(note)
    exits: dict[str, list[Exit]] = defaultdict(list)
    for told in (*by_type[Exit], *map(_as_exit, by_type[Killing])):
        exits[told.worker_id].append(told)
    memory: dict[tuple[str | None, int], Memory] = {}
    for size in by_type[Memory]:
        _keep_most(memory, size)
    jobs: dict[str, float] = {}
    for job in by_type[JobEnd]:
        if job.time is not None:
            jobs[job.job_id] = min(job.time, jobs.get(job.job_id, job.time))
    placements: dict[str, Placement] = {}
    for place in by_type[Placement]:
        before = placements.get(place.worker_id)
        placements[place.worker_id] = _joined(before, place)
    own = defaultdict(set)
    for place in placements.values():
        own[place.node_id].add((place.actor_id or "")[24:])
    nodes = [_in_time(x, own[x.node_id], jobs) for x in by_type[NodeEnd]]
    nodes.sort(key=lambda node: node.time or 0)
    return Facts(
        exits={worker: tuple(told) for worker, told in exits.items()},
        # The first of several is the most trusted.
        orphans={x.worker_id: x for x in reversed(by_type[Orphan])},
        memory=tuple(memory.values()),
        nodes=tuple(nodes),
        jobs=jobs,
        placements=placements,
        not_started=tuple(by_type[NotStarted]),
        missing=tuple(missing),
    )


def _in_time(
    node: NodeEnd, own: Collection[str], jobs: Mapping[str, float]
) -> NodeEnd:
    """
    A node that is stopped while its job goes on is lost to that job.
    """
    ends = [jobs[job] for job in own if job in jobs]
    if not node.is_expected or node.time is None or not ends:
        return node
    if max(ends) - node.time < _AT_ONCE:
        return node
    reason = f"{node.reason} while its job went on"
    return attrs.evolve(node, is_expected=False, reason=reason)


def _as_exit(note: Killing) -> Exit:
    return Exit(
        worker_id=note.worker_id,
        time=note.time,
        exit_type="NODE_OUT_OF_MEMORY",
        detail=note.detail,
        node_id=note.node_id,
        pid=note.pid,
        seen=note.seen,
    )


def _keep_most(
    memory: dict[tuple[str | None, int], Memory], note: Memory
) -> None:
    known = memory.get((note.node_id, note.pid), note)
    memory[note.node_id, note.pid] = attrs.evolve(
        note,
        size=max(known.size, note.size),
        worker_id=known.worker_id or note.worker_id,
        command=known.command or note.command,
    )


def _joined(known: Placement | None, note: Placement) -> Placement:
    if known is None:
        return note

    return attrs.evolve(
        known,
        actor_id=note.actor_id or known.actor_id,
        node_id=note.node_id or known.node_id,
        pid=note.pid or known.pid,
    )


_NAME = re.compile(
    r"python-core-(?:worker|driver)-(?P<worker>[0-9a-f]{56})_"
    r"(?P<pid>\d{1,10})"
)
_TAIL = 1 << 17
_QUOTED = 600
_DISCONNECT = re.compile(
    r"Disconnect, exit_type=(?P<type>\w{1,40}), exit_detail=(?P<detail>.*?)"
    r"(?:, has creation_task_exception_pb_bytes=\d{1,9}|(?=\n\[20\d\d-)|\Z)",
    re.DOTALL,
)
_SIGNAL = re.compile(
    r"exit_type=(?P<type>\w{1,40}), detail=(?P<detail>.*?)(?=\n\[20\d\d-|\Z)",
    re.DOTALL,
)
_NO_RAYLET = re.compile(
    r"(?P<detail>Shutting down the core worker because the local raylet "
    r"failed[^\n]{0,200})"
)
_LONGEST = 8000
_WORDS = (b"exit_type=", b"local raylet failed")


def core_logs(session: RaySession) -> dict[str, tuple[Path, int]]:
    """
    Which logs of workers and drivers does a session have?

    Args:
        session: The session of one node.

    Returns:
        By worker: its newest file, and its process.
    """
    listed, _ = list_parts(session, "python-core-")
    found = ((_NAME.fullmatch(stem), x) for (stem, _), x in listed.items())
    return {
        name["worker"]: (parts[-1].path, int(name["pid"]))
        for name, parts in found
        if name
    }


def read_core(path: Path, worker_id: str, pid: int) -> Iterator[Note]:
    """
    Read how a worker ended, as it wrote itself.

    Args:
        path: Its log; of which the last 128 KiB are read.

        worker_id: What Ray calls it.

        pid: The number of its process.

    Yields:
        At most one end.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.
    """
    data = read_tail(path, _TAIL)
    if not any(word in data for word in _WORDS):
        return

    text = decoded(data)
    patterns = (_DISCONNECT, _SIGNAL, _NO_RAYLET)
    found = next(filter(None, (x.search(text) for x in patterns)), None)
    if found is None:
        return

    begin = text.rfind("\n", 0, found.start()) + 1
    groups = found.groupdict()
    yield Exit(
        worker_id=worker_id,
        time=parse_time(text[begin : found.end()]),
        exit_type=groups.get("type") or "SYSTEM_ERROR",
        detail=groups["detail"][:_LONGEST].strip(),
        pid=pid,
        seen=Evidence(
            kind="log",
            source=str(path),
            # In a part it is not known how many lines are before.
            location=""
            if len(data) == _TAIL
            else f"line {text.count(chr(10), 0, begin) + 1}",
            quote=text[begin : found.end()][:_QUOTED],
        ),
    )


_EVENTS_LONGEST = 1 << 18
_FIELDS = {
    "node_id": re.compile(r"Node ID: ([0-9a-f]{56})"),
    "ip": re.compile(r"Worker IP address: (\S{1,60})"),
    "pid": re.compile(r"Worker PID: (\d{1,10})"),
    "exit_type": re.compile(r"Worker exit type: (\w{1,40})"),
    "detail": re.compile(r"Worker exit detail: (.*)", re.DOTALL),
}
_MOST_SECONDS = 1 << 33
_WORKER = re.compile(r"[0-9a-f]{56}")


def read_events(path: Path) -> Iterator[Note]:
    """
    Read the ends that a node reported as events.

    Args:
        path: ``events/event_RAYLET.log``.

    Yields:
        What its lines tell; those that are no JSON tell nothing.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.
    """
    for number, event in _objects(path):
        message = event.get("message")
        fields = event.get("custom_fields")
        if not isinstance(message, str) or not isinstance(fields, Mapping):
            continue
        text = without_controls(message.replace("\\n", "\n"))
        text = text.replace("\\t", "\t")
        yield from memory_notes(text)
        worker, time = fields.get("worker_id"), event.get("timestamp")
        if event.get("label") != "RAY_WORKER_FAILURE" or not _is_worker(
            worker
        ):
            continue
        known = {
            name: found[1].strip()
            for name, pattern in _FIELDS.items()
            if (found := pattern.search(text))
        }
        pid = known.pop("pid", None)
        yield Exit(
            worker_id=str(worker),
            time=_moment(time),
            pid=int(pid) if pid else None,
            seen=Evidence(
                kind="log",
                source=str(path),
                location=f"line {number}",
                quote=text[:_QUOTED],
            ),
            **known,
        )


def _objects(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with open_log(path) as file:
        number = 0
        while line := file.readline(_EVENTS_LONGEST):
            number += 1
            # Most of what is none is told without an exception.
            if not line.lstrip().startswith(b"{"):
                continue
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield number, event


def _moment(value: object) -> float | None:
    # JSON knows numbers that are no time, and such that are too large.
    is_time = isinstance(value, int | float) and 0 <= value < _MOST_SECONDS
    return float(value) if is_time else None  # type: ignore[arg-type]


def _is_worker(value: object) -> bool:
    return isinstance(value, str) and _WORKER.fullmatch(value) is not None


_GCS_WORDS = (
    b"Reporting worker exit",
    b"actor creation task",
    b"is failed on worker",
    b"marked dead",
    b"death reason",
    b"Marking job as finished",
    b"Finished marking job state",
)
_EXIT = re.compile(
    r"Reporting worker exit, worker id = (?P<worker>[0-9a-f]{56}), "
    r"node id = (?P<node>[0-9a-f]{56}|NIL_ID)?, address = (?P<ip>[^,]{0,60}), "
    r"exit_type = (?P<type>\w{0,40}), exit_detail = (?P<detail>.*)",
    re.DOTALL,
)
_SUFFIX = ". Unintentional worker failures have been reported."
_ACTOR = re.compile(
    r"\bactor(?:_id=| id = | )(?P<id>[0-9a-f]{32})\b", re.IGNORECASE
)
_GCS_WORKER = re.compile(
    r"\bworker(?:_id=| id = | )(?P<id>[0-9a-f]{56})\b", re.IGNORECASE
)
_NODE = re.compile(
    r"\bnode(?:_id=| id[=:] ?| )(?P<id>[0-9a-f]{56})\b", re.IGNORECASE
)
_REASON = re.compile(
    r"death reason = (?P<reason>\w{1,40})(?:, death message = "
    r"(?P<message>.{0,300}?))?(?: node_id=|, node name|$)",
    re.MULTILINE,
)
# NodeDeathInfo of Ray's gcs.proto; all others are wanted.
_LOST = re.compile(r"^UNEXPECTED|PREEMPTED")
_ADDRESS = re.compile(r"and address: (?P<ip>[^\s,]{1,60})")
_JOB = re.compile(r"\bjob(?:_id=| id = )(?P<id>[0-9a-f]{8})\b", re.IGNORECASE)


def read_gcs(path: Path) -> Iterator[Note]:
    """
    Read what the log of the head tells about ends.

    Args:
        path: ``gcs_server.out``, or a part of it.

    Yields:
        What its lines tell.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.
    """
    for record in read_records(path, _GCS_WORDS):
        if "Reporting worker exit" in record.text:
            yield from _exits(record)
        elif "marked dead" in record.text or "death reason" in record.text:
            yield from _nodes(record)
        elif "job" in record.text and "arking job" in record.text:
            if found := _JOB.search(record.text):
                yield JobEnd(job_id=found["id"], time=record.time)
        else:
            yield from _placements(record)


def _exits(record: Record) -> Iterator[Note]:
    found = _EXIT.search(record.text)
    if found is None:
        return

    yield Exit(
        worker_id=found["worker"],
        time=record.time,
        exit_type=found["type"],
        detail=found["detail"].partition(_SUFFIX)[0].strip(),
        node_id=found["node"],
        ip=found["ip"] or None,
        seen=record.seen,
    )
    yield from memory_notes(record.text)


def _nodes(record: Record) -> Iterator[Note]:
    node = _NODE.search(record.text)
    if node is None:
        return

    reason = _REASON.search(record.text)
    address = _ADDRESS.search(record.text)
    yield NodeEnd(
        node_id=node["id"],
        time=record.time,
        reason=(reason["message"] or reason["reason"])
        if reason
        else "it did not answer health checks",
        is_expected=reason is not None and not _LOST.search(reason["reason"]),
        ip=address["ip"] if address else None,
        seen=record.seen,
    )


def _placements(record: Record) -> Iterator[Note]:
    worker = _GCS_WORKER.search(record.text)
    if worker is None:
        return

    actor, node = _ACTOR.search(record.text), _NODE.search(record.text)
    yield Placement(
        worker_id=worker["id"],
        actor_id=actor["id"] if actor else None,
        node_id=node["id"] if node else None,
    )


_RAYLET_WORDS = (
    b"isconnecting ",
    b"its owner died",
    b"because the owner process",
    b"emory on the node",
    b"kill details",
    b"Killing worker with task",
    b"have not registered within the timeout",
    b"received SIGTERM",
    b"is disconnected",
)
# WorkerExitType of Ray's common.proto.
_TYPES = {
    "0": "SYSTEM_ERROR",
    "1": "INTENDED_SYSTEM_EXIT",
    "2": "USER_ERROR",
    "3": "INTENDED_USER_EXIT",
    "4": "NODE_OUT_OF_MEMORY",
}
_RAYLET_DISCONNECT = re.compile(
    r"Disconnecting (?:worker|client|driver), graceful=(?P<graceful>\w{1,5}), "
    r"disconnect_type=(?P<type>\d), .{0,200}?"
    r"worker_id=(?P<worker>[0-9a-f]{56})"
)
_ORPHAN = re.compile(
    r"leased worker (?P<worker>[0-9a-f]{56}) is killed because the owner "
    r"process (?P<owner>[0-9a-f]{56}) died"
)
_ORPHAN_NEW = re.compile(
    r"its owner died\. worker_id=(?P<worker>[0-9a-f]{56}) "
    r"owner_worker_id=(?P<owner>[0-9a-f]{56})"
)
_DRIVER = re.compile(
    r"Driver \(pid=\d{1,10}\) is disconnected\."
    r".{0,100}?job_id[=:] ?(?P<job>[0-9a-f]{8})"
)
_STOP = re.compile(r"main\.cc:\d{1,6}: (?:Raylet )?received SIGTERM")


def read_raylet(path: Path, node_id: str | None = None) -> Iterator[Note]:
    """
    Read what the log of a node tells about ends.

    Args:
        path: ``raylet.out``, or a part of it.

        node_id: What Ray calls the node.

    Yields:
        What its lines tell.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.
    """
    for record in read_records(path, _RAYLET_WORDS):
        text = record.text
        if found := _RAYLET_DISCONNECT.search(text):
            yield Exit(
                worker_id=found["worker"],
                time=record.time,
                exit_type=_TYPES.get(found["type"], ""),
                node_id=node_id,
                seen=record.seen,
            )
        elif found := _ORPHAN.search(text) or _ORPHAN_NEW.search(text):
            yield Orphan(
                worker_id=found["worker"],
                owner=found["owner"],
                time=record.time,
                seen=record.seen,
            )
        elif found := _DRIVER.search(text):
            yield JobEnd(job_id=found["job"], time=record.time)
        elif "not registered within the timeout" in text:
            yield NotStarted(time=record.time, seen=record.seen)
        elif _STOP.search(text):
            yield NodeEnd(
                node_id=node_id,
                time=record.time,
                reason="received SIGTERM",
                is_expected=True,
                seen=record.seen,
            )
        elif "emory on the node" in text:
            yield from _killings(record, node_id)


def _killings(record: Record, node_id: str | None) -> Iterator[Note]:
    # The message that goes with the record is where the details begin.
    detail = record.text[record.text.find("emory on the node") - 1 :]
    for note in memory_notes(record.text):
        yield note
        if note.worker_id is not None:
            yield Killing(
                worker_id=note.worker_id,
                time=record.time,
                detail=detail,
                pid=note.pid,
                node_id=note.node_id or node_id,
                seen=record.seen,
            )


def gather(sessions: Iterable[RaySession]) -> Facts:
    """
    Read what the nodes of a cluster tell about ends.

    Args:
        sessions: One for each node.

    Returns:
        What they tell.
    """
    missing: list[Missing] = []
    sessions = tuple(sessions)
    notes: list[Note] = []
    # The clock of the head is the same for all nodes, so it comes first.
    for read in (_of_head, _of_workers, _of_events, _of_node):
        for session in sessions:
            notes += read(session, missing)
    if not any(parts_of(x, "gcs_server", "out") for x in sessions):
        missing.append(_no_head(sessions))
    return facts_of(notes, missing)


def _of_head(session: RaySession, missing: list[Missing]) -> Iterator[Note]:
    for path in parts_of(session, "gcs_server", "out"):
        yield from _guarded(read_gcs, path, missing)


def _of_node(session: RaySession, missing: list[Missing]) -> Iterator[Note]:
    for path in parts_of(session, "raylet", "out"):
        yield from _guarded(
            lambda path: read_raylet(path, session.node_id), path, missing
        )


def _of_events(session: RaySession, missing: list[Missing]) -> Iterator[Note]:
    folder = attrs.evolve(session, logs=session.logs / "events")
    for path in parts_of(folder, "event_RAYLET", "log"):
        yield from _guarded(read_events, path, missing)


def _of_workers(session: RaySession, missing: list[Missing]) -> Iterator[Note]:
    for worker, (path, pid) in core_logs(session).items():
        yield Placement(worker_id=worker, pid=pid)
        for note in _guarded(
            lambda path, w=worker, p=pid: read_core(path, w, p),  # type: ignore[misc]
            path,
            missing,
        ):
            if isinstance(note, Exit):
                yield attrs.evolve(
                    note, node_id=session.node_id, ip=session.ip
                )


def _guarded(
    read: Callable[[Path], Iterator[Note]], path: Path, missing: list[Missing]
) -> Iterator[Note]:
    try:
        yield from read(path)
    except (OSError, ValueError, EOFError) as exc:
        missing.append(Missing.log(path, exc))


def _no_head(sessions: tuple[RaySession, ...]) -> Missing:
    return Missing(
        what="log",
        reason="gcs_server.out of the head node is not here: deaths on nodes "
        "that were not copied are unknown, and times are those of each node",
        source=str(sessions[0].logs) if sessions else None,
    )
