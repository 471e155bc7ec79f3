"""
Collect worker exits and node losses from all logs of Ray nodes.
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
from .death_model import parse_memory_notes
from .log_tail import (
    JobEnd,
    MemoryKill,
    MemoryUse,
    NodeEnd,
    Note,
    NotStarted,
    Orphan,
    Placement,
    Record,
    WorkerExit,
    decode_log,
    read_records,
)
from .sessions import RaySession, find_parts, list_parts


# A node and a driver that stop together end within this time.
_SHUTDOWN_S = 5.0


@attrs.frozen(kw_only=True)
class DeathFacts:
    """
    Notes of all logs, grouped by subject.

    Attributes:
        exits: All exit notes of each worker, the most trusted first.

        orphans: Workers that died with their owner, by worker.

        memory: The memory of processes on nodes that ran out of memory.

        nodes: The ends of nodes, by time.

        jobs: The time when the driver of each job ended, by job.

        placements: The process, actor, and node of each worker.

        not_started: Workers that did not register with Ray in time.

        missing: What could not be read.
    """

    exits: Mapping[str, tuple[WorkerExit, ...]]
    orphans: Mapping[str, Orphan]
    memory: tuple[MemoryUse, ...]
    nodes: tuple[NodeEnd, ...]
    jobs: Mapping[str, float]
    placements: Mapping[str, Placement]
    not_started: tuple[NotStarted, ...]
    missing: tuple[Missing, ...]


def group_notes(
    notes: Iterable[Note], missing: Iterable[Missing]
) -> DeathFacts:
    """
    Group notes by worker, job, and node.

    Args:
        notes: The notes of all nodes; the first about a worker is trusted
            most.
    """
    by_type: dict[type, list[Any]] = defaultdict(list)
    for note in notes:
        by_type[type(note)].append(note)
    exits: dict[str, list[WorkerExit]] = defaultdict(list)
    for end in (*by_type[WorkerExit], *map(_to_exit, by_type[MemoryKill])):
        exits[end.worker_id].append(end)
    memory: dict[tuple[str | None, int], MemoryUse] = {}
    for size in by_type[MemoryUse]:
        _merge_memory(memory, size)
    jobs: dict[str, float] = {}
    for job in by_type[JobEnd]:
        if job.time is not None:
            jobs[job.job_id] = min(job.time, jobs.get(job.job_id, job.time))
    placements: dict[str, Placement] = {}
    for placement in by_type[Placement]:
        before = placements.get(placement.worker_id)
        placements[placement.worker_id] = _merge_placements(before, placement)
    job_ids = defaultdict(set)
    for placement in placements.values():
        job_ids[placement.node_id].add((placement.actor_id or "")[24:])
    nodes = [
        _mark_unexpected(x, job_ids[x.node_id], jobs) for x in by_type[NodeEnd]
    ]
    nodes.sort(key=lambda node: node.time or 0)
    return DeathFacts(
        exits={worker: tuple(ends) for worker, ends in exits.items()},
        # The first of several is the most trusted.
        orphans={x.worker_id: x for x in reversed(by_type[Orphan])},
        memory=tuple(memory.values()),
        nodes=tuple(nodes),
        jobs=jobs,
        placements=placements,
        not_started=tuple(by_type[NotStarted]),
        missing=tuple(missing),
    )


def _mark_unexpected(
    node: NodeEnd, job_ids: Collection[str], jobs: Mapping[str, float]
) -> NodeEnd:
    """
    Mark a node as lost if it stopped while its job went on.
    """
    ends = [jobs[job] for job in job_ids if job in jobs]
    if not node.is_expected or node.time is None or not ends:
        return node
    if max(ends) - node.time < _SHUTDOWN_S:
        return node
    reason = f"{node.reason} while its job went on"
    return attrs.evolve(node, is_expected=False, reason=reason)


def _to_exit(note: MemoryKill) -> WorkerExit:
    return WorkerExit(
        worker_id=note.worker_id,
        time=note.time,
        exit_type="NODE_OUT_OF_MEMORY",
        detail=note.detail,
        node_id=note.node_id,
        pid=note.pid,
        evidence=note.evidence,
    )


def _merge_memory(
    memory: dict[tuple[str | None, int], MemoryUse], note: MemoryUse
) -> None:
    known = memory.get((note.node_id, note.pid), note)
    memory[note.node_id, note.pid] = attrs.evolve(
        note,
        size=max(known.size, note.size),
        worker_id=known.worker_id or note.worker_id,
        command=known.command or note.command,
    )


def _merge_placements(known: Placement | None, note: Placement) -> Placement:
    if known is None:
        return note

    return attrs.evolve(
        known,
        actor_id=note.actor_id or known.actor_id,
        node_id=note.node_id or known.node_id,
        pid=note.pid or known.pid,
    )


_CORE_LOG_NAME = re.compile(
    r"python-core-(?:worker|driver)-(?P<worker>[0-9a-f]{56})_"
    r"(?P<pid>\d{1,10})"
)
_TAIL_BYTES = 1 << 17
_MOST_QUOTE = 600
_DISCONNECT = re.compile(
    r"Disconnect, exit_type=(?P<type>\w{1,40}), exit_detail=(?P<detail>.*?)"
    r"(?:, has creation_task_exception_pb_bytes=\d{1,9}|(?=\n\[20\d\d-)|\Z)",
    re.DOTALL,
)
_EXIT_SIGNAL = re.compile(
    r"exit_type=(?P<type>\w{1,40}), detail=(?P<detail>.*?)(?=\n\[20\d\d-|\Z)",
    re.DOTALL,
)
_RAYLET_FAILED = re.compile(
    r"(?P<detail>Shutting down the core worker because the local raylet "
    r"failed[^\n]{0,200})"
)
_MOST_DETAIL = 8000
_CORE_WORDS = (b"exit_type=", b"local raylet failed")


def list_newest_core_logs(session: RaySession) -> dict[str, tuple[Path, int]]:
    """
    List the newest core log of each worker and driver, with its process id.

    Returns:
        Path and process id, by worker id.
    """
    listed, _ = list_parts(session, "python-core-")
    found = (
        (_CORE_LOG_NAME.fullmatch(stem), x) for (stem, _), x in listed.items()
    )
    return {
        name["worker"]: (parts[-1].path, int(name["pid"]))
        for name, parts in found
        if name
    }


def read_core_log(path: Path, worker_id: str, pid: int) -> Iterator[Note]:
    """
    Read the exit that a worker wrote into its own core log.

    Args:
        path: The log; only the last 128 KiB are read.

        worker_id: Ray's id of the worker.

        pid: Its process id.

    Yields:
        At most one exit.

    Raises:
        OSError: The log cannot be read.

        ValueError: It is not an ordinary file.
    """
    data = read_tail(path, _TAIL_BYTES)
    if not any(word in data for word in _CORE_WORDS):
        return

    text = decode_log(data)
    patterns = (_DISCONNECT, _EXIT_SIGNAL, _RAYLET_FAILED)
    found = next(filter(None, (x.search(text) for x in patterns)), None)
    if found is None:
        return

    begin = text.rfind("\n", 0, found.start()) + 1
    groups = found.groupdict()
    yield WorkerExit(
        worker_id=worker_id,
        time=parse_time(text[begin : found.end()]),
        exit_type=groups.get("type") or "SYSTEM_ERROR",
        detail=groups["detail"][:_MOST_DETAIL].strip(),
        pid=pid,
        evidence=Evidence(
            kind="log",
            source=str(path),
            # The line number is unknown if only the tail was read.
            location=""
            if len(data) == _TAIL_BYTES
            else f"line {text.count(chr(10), 0, begin) + 1}",
            quote=text[begin : found.end()][:_MOST_QUOTE],
        ),
    )


_MOST_EVENT = 1 << 18
_EVENT_FIELDS = {
    "node_id": re.compile(r"Node ID: ([0-9a-f]{56})"),
    "ip": re.compile(r"Worker IP address: (\S{1,60})"),
    "pid": re.compile(r"Worker PID: (\d{1,10})"),
    "exit_type": re.compile(r"Worker exit type: (\w{1,40})"),
    "detail": re.compile(r"Worker exit detail: (.*)", re.DOTALL),
}
_MOST_SECONDS = 1 << 33
_WORKER_ID = re.compile(r"[0-9a-f]{56}")


def read_event_log(path: Path) -> Iterator[Note]:
    """
    Read the worker failures that a node reported as events.

    Args:
        path: ``events/event_RAYLET.log``; lines that are not JSON are skipped.

    Raises:
        OSError: The log cannot be read.

        ValueError: It is not an ordinary file.
    """
    for number, event in _json_objects(path):
        message = event.get("message")
        fields = event.get("custom_fields")
        if not isinstance(message, str) or not isinstance(fields, Mapping):
            continue
        text = without_controls(message.replace("\\n", "\n"))
        text = text.replace("\\t", "\t")
        yield from parse_memory_notes(text)
        worker, time = fields.get("worker_id"), event.get("timestamp")
        if event.get("label") != "RAY_WORKER_FAILURE" or not _is_worker_id(
            worker
        ):
            continue
        known = {
            name: found[1].strip()
            for name, pattern in _EVENT_FIELDS.items()
            if (found := pattern.search(text))
        }
        pid = known.pop("pid", None)
        yield WorkerExit(
            worker_id=str(worker),
            time=_parse_timestamp(time),
            pid=int(pid) if pid else None,
            evidence=Evidence(
                kind="log",
                source=str(path),
                location=f"line {number}",
                quote=text[:_MOST_QUOTE],
            ),
            **known,
        )


def _json_objects(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with open_log(path) as file:
        number = 0
        while line := file.readline(_MOST_EVENT):
            number += 1
            # Cheaper than an exception for most lines that are not JSON.
            if not line.lstrip().startswith(b"{"):
                continue
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield number, event


def _parse_timestamp(value: object) -> float | None:
    # JSON numbers may be negative, infinite, or too large.
    is_time = isinstance(value, int | float) and 0 <= value < _MOST_SECONDS
    return float(value) if is_time else None  # type: ignore[arg-type]


def _is_worker_id(value: object) -> bool:
    return isinstance(value, str) and _WORKER_ID.fullmatch(value) is not None


_GCS_WORDS = (
    b"Reporting worker exit",
    b"actor creation task",
    b"is failed on worker",
    b"marked dead",
    b"death reason",
    b"Marking job as finished",
    b"Finished marking job state",
)
_GCS_EXIT = re.compile(
    r"Reporting worker exit, worker id = (?P<worker>[0-9a-f]{56}), "
    r"node id = (?P<node>[0-9a-f]{56}|NIL_ID)?, address = (?P<ip>[^,]{0,60}), "
    r"exit_type = (?P<type>\w{0,40}), exit_detail = (?P<detail>.*)",
    re.DOTALL,
)
_DETAIL_SUFFIX = ". Unintentional worker failures have been reported."
_GCS_ACTOR = re.compile(
    r"\bactor(?:_id=| id = | )(?P<id>[0-9a-f]{32})\b", re.IGNORECASE
)
_GCS_WORKER = re.compile(
    r"\bworker(?:_id=| id = | )(?P<id>[0-9a-f]{56})\b", re.IGNORECASE
)
_GCS_NODE = re.compile(
    r"\bnode(?:_id=| id[=:] ?| )(?P<id>[0-9a-f]{56})\b", re.IGNORECASE
)
_NODE_DEATH_REASON = re.compile(
    r"death reason = (?P<reason>\w{1,40})(?:, death message = "
    r"(?P<message>.{0,300}?))?(?: node_id=|, node name|$)",
    re.MULTILINE,
)
# NodeDeathInfo of Ray's gcs.proto; all other reasons are intended.
_UNEXPECTED = re.compile(r"^UNEXPECTED|PREEMPTED")
_GCS_ADDRESS = re.compile(r"and address: (?P<ip>[^\s,]{1,60})")
_GCS_JOB = re.compile(
    r"\bjob(?:_id=| id = )(?P<id>[0-9a-f]{8})\b", re.IGNORECASE
)


def read_gcs_log(path: Path) -> Iterator[Note]:
    """
    Read exits, node losses, and placements from the log of the GCS.

    Args:
        path: ``gcs_server.out``, or a part of it.

    Raises:
        OSError: The log cannot be read.

        ValueError: It is not an ordinary file.
    """
    for record in read_records(path, _GCS_WORDS):
        if "Reporting worker exit" in record.text:
            yield from _parse_exit(record)
        elif "marked dead" in record.text or "death reason" in record.text:
            yield from _parse_node_end(record)
        elif "job" in record.text and "arking job" in record.text:
            if found := _GCS_JOB.search(record.text):
                yield JobEnd(job_id=found["id"], time=record.time)
        else:
            yield from _parse_placement(record)


def _parse_exit(record: Record) -> Iterator[Note]:
    found = _GCS_EXIT.search(record.text)
    if found is None:
        return

    yield WorkerExit(
        worker_id=found["worker"],
        time=record.time,
        exit_type=found["type"],
        detail=found["detail"].partition(_DETAIL_SUFFIX)[0].strip(),
        node_id=found["node"],
        ip=found["ip"] or None,
        evidence=record.evidence,
    )
    yield from parse_memory_notes(record.text)


def _parse_node_end(record: Record) -> Iterator[Note]:
    node = _GCS_NODE.search(record.text)
    if node is None:
        return

    reason = _NODE_DEATH_REASON.search(record.text)
    address = _GCS_ADDRESS.search(record.text)
    yield NodeEnd(
        node_id=node["id"],
        time=record.time,
        reason=(reason["message"] or reason["reason"])
        if reason
        else "it did not answer health checks",
        is_expected=reason is not None
        and not _UNEXPECTED.search(reason["reason"]),
        ip=address["ip"] if address else None,
        evidence=record.evidence,
    )


def _parse_placement(record: Record) -> Iterator[Note]:
    worker = _GCS_WORKER.search(record.text)
    if worker is None:
        return

    actor, node = _GCS_ACTOR.search(record.text), _GCS_NODE.search(record.text)
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
_EXIT_TYPES = {
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
_DRIVER_EXIT = re.compile(
    r"Driver \(pid=\d{1,10}\) is disconnected\."
    r".{0,100}?job_id[=:] ?(?P<job>[0-9a-f]{8})"
)
_RAYLET_STOP = re.compile(r"main\.cc:\d{1,6}: (?:Raylet )?received SIGTERM")


def read_raylet_log(path: Path, node_id: str | None = None) -> Iterator[Note]:
    """
    Read exits, orphans, and memory kills from the log of a raylet.

    Args:
        path: ``raylet.out``, or a part of it.

        node_id: Ray's id of the node.

    Raises:
        OSError: The log cannot be read.

        ValueError: It is not an ordinary file.
    """
    for record in read_records(path, _RAYLET_WORDS):
        text = record.text
        if found := _RAYLET_DISCONNECT.search(text):
            yield WorkerExit(
                worker_id=found["worker"],
                time=record.time,
                exit_type=_EXIT_TYPES.get(found["type"], ""),
                node_id=node_id,
                evidence=record.evidence,
            )
        elif found := _ORPHAN.search(text) or _ORPHAN_NEW.search(text):
            yield Orphan(
                worker_id=found["worker"],
                owner=found["owner"],
                time=record.time,
                evidence=record.evidence,
            )
        elif found := _DRIVER_EXIT.search(text):
            yield JobEnd(job_id=found["job"], time=record.time)
        elif "not registered within the timeout" in text:
            yield NotStarted(time=record.time, evidence=record.evidence)
        elif _RAYLET_STOP.search(text):
            yield NodeEnd(
                node_id=node_id,
                time=record.time,
                reason="received SIGTERM",
                is_expected=True,
                evidence=record.evidence,
            )
        elif "emory on the node" in text:
            yield from _parse_memory_kills(record, node_id)


def _parse_memory_kills(record: Record, node_id: str | None) -> Iterator[Note]:
    # The details begin with the memory message.
    detail = record.text[record.text.find("emory on the node") - 1 :]
    for note in parse_memory_notes(record.text):
        yield note
        if note.worker_id is not None:
            yield MemoryKill(
                worker_id=note.worker_id,
                time=record.time,
                detail=detail,
                pid=note.pid,
                node_id=note.node_id or node_id,
                evidence=record.evidence,
            )


def collect_facts(sessions: Iterable[RaySession]) -> DeathFacts:
    """
    Read all logs of a cluster that report deaths.

    Args:
        sessions: One session for each node.
    """
    missing: list[Missing] = []
    sessions = tuple(sessions)
    notes: list[Note] = []
    # The head's log comes first: its clock is the same for all nodes.
    for read in (
        _read_gcs_logs,
        _read_core_logs,
        _read_event_logs,
        _read_raylet_logs,
    ):
        for session in sessions:
            notes += read(session, missing)
    if not any(find_parts(x, "gcs_server", "out") for x in sessions):
        missing.append(_head_missing(sessions))
    return group_notes(notes, missing)


def _read_gcs_logs(
    session: RaySession, missing: list[Missing]
) -> Iterator[Note]:
    for path in find_parts(session, "gcs_server", "out"):
        yield from _read_safely(read_gcs_log, path, missing)


def _read_raylet_logs(
    session: RaySession, missing: list[Missing]
) -> Iterator[Note]:
    for path in find_parts(session, "raylet", "out"):
        yield from _read_safely(
            lambda path: read_raylet_log(path, session.node_id), path, missing
        )


def _read_event_logs(
    session: RaySession, missing: list[Missing]
) -> Iterator[Note]:
    folder = attrs.evolve(session, logs=session.logs / "events")
    for path in find_parts(folder, "event_RAYLET", "log"):
        yield from _read_safely(read_event_log, path, missing)


def _read_core_logs(
    session: RaySession, missing: list[Missing]
) -> Iterator[Note]:
    for worker, (path, pid) in list_newest_core_logs(session).items():
        yield Placement(worker_id=worker, pid=pid)
        for note in _read_safely(
            lambda path, w=worker, p=pid: read_core_log(path, w, p),  # type: ignore[misc]
            path,
            missing,
        ):
            if isinstance(note, WorkerExit):
                yield attrs.evolve(
                    note, node_id=session.node_id, ip=session.ip
                )


def _read_safely(
    read: Callable[[Path], Iterator[Note]], path: Path, missing: list[Missing]
) -> Iterator[Note]:
    try:
        yield from read(path)
    except (OSError, ValueError, EOFError) as exc:
        missing.append(Missing.log(path, exc))


def _head_missing(sessions: tuple[RaySession, ...]) -> Missing:
    return Missing(
        what="log",
        reason="gcs_server.out of the head node is not here: deaths on nodes "
        "that were not copied are unknown, and times are those of each node",
        source=str(sessions[0].logs) if sessions else None,
    )
