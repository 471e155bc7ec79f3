"""
Collect worker exits and node losses from all logs of Ray nodes.
"""

from __future__ import annotations

import re

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from .._text import without_controls
from ..findings import Evidence, Missing
from ..logs import READ_ERRORS, parse_time, read_tail
from .messages import (
    MemoryUse,
    Record,
    decode_log,
    parse_memory_notes,
    quote_log,
    read_json_objects,
    read_records,
    search_fields,
)
from .sessions import RaySession, find_parts, list_parts
from .workers import NO_ACTOR, KnownActor


# A node and a driver that stop together end within this time.
_SHUTDOWN_S = 5.0


@attrs.frozen(kw_only=True)
class WorkerExit:
    """
    The end of a worker, as one log line reports it.

    Attributes:
        worker_id: Ray's id of the worker.

        time: In seconds since the epoch.

        exit_type: Ray's exit type; ``""`` if the line has none.

        detail: Ray's explanation.

        node_id: Ray's id of the node.

        ip: The address of the node.

        pid: The process id on that node.

        evidence: The log line.
    """

    worker_id: str
    time: float | None = None
    exit_type: str = ""
    detail: str = ""
    node_id: str | None = None
    ip: str | None = None
    pid: int | None = None
    evidence: Evidence


@attrs.frozen(kw_only=True)
class NodeEnd:
    """
    A node that left the cluster.
    """

    node_id: str | None
    time: float | None
    reason: str
    is_expected: bool
    ip: str | None = None
    evidence: Evidence


@attrs.frozen(kw_only=True)
class DeathFacts:
    """
    What all logs report, by subject.

    Attributes:
        exits: All exits of each worker, the most trusted first.

        owners: The owner that died before each worker that died with it.

        memory: The memory of processes on nodes that ran out of memory, by
            node and process id.

        nodes: The ends of nodes, by time.

        jobs: The time when the driver of each job ended, by job.

        placements: The actor, node, and process id of each worker.

        not_started: Log lines about workers that did not register in time.

        missing: What could not be read.
    """

    exits: defaultdict[str, list[WorkerExit]] = attrs.field(
        factory=lambda: defaultdict(list)
    )
    owners: dict[str, str] = attrs.field(factory=dict)
    memory: dict[tuple[str | None, int], MemoryUse] = attrs.field(factory=dict)
    nodes: list[NodeEnd] = attrs.field(factory=list)
    jobs: dict[str, float] = attrs.field(factory=dict)
    placements: dict[str, KnownActor] = attrs.field(factory=dict)
    not_started: list[Evidence] = attrs.field(factory=list)
    missing: list[Missing] = attrs.field(factory=list)

    def add_exit(self, note: WorkerExit) -> None:
        """
        Add the end of a worker; the first is trusted most.
        """
        self.exits[note.worker_id].append(note)

    def add_memory(self, text: str) -> list[MemoryUse]:
        """
        Add, and return, the memory sizes in Ray's out-of-memory message.
        """
        notes = list(parse_memory_notes(text))
        for note in notes:
            known = self.memory.get((note.node_id, note.pid), note)
            self.memory[note.node_id, note.pid] = attrs.evolve(
                note,
                size=max(known.size, note.size),
                worker_id=known.worker_id or note.worker_id,
                command=known.command or note.command,
            )
        return notes

    def add_job_end(self, job_id: str, time: float | None) -> None:
        """
        Add the end of a driver; the earliest time counts.
        """
        if time is not None:
            self.jobs[job_id] = min(time, self.jobs.get(job_id, time))

    def add_placement(self, worker_id: str, **fields: Any) -> None:
        """
        Add what is known of the place of a worker; later notes count.
        """
        known = self.placements.get(worker_id, NO_ACTOR)
        given = {name: value for name, value in fields.items() if value}
        self.placements[worker_id] = attrs.evolve(known, **given)


_CORE_LOG_NAME = re.compile(
    r"python-core-(?:worker|driver)-(?P<worker>[0-9a-f]{56})_"
    r"(?P<pid>\d{1,10})"
)
_TAIL_BYTES = 1 << 17
_CORE_EXITS = (
    re.compile(
        r"Disconnect, exit_type=(?P<type>\w{1,40}), exit_detail=(?P<detail>.*?)"
        r"(?:, has creation_task_exception_pb_bytes=\d{1,9}"
        r"|(?=\n\[20\d\d-)|\Z)",
        re.DOTALL,
    ),
    re.compile(
        r"exit_type=(?P<type>\w{1,40}), detail=(?P<detail>.*?)"
        r"(?=\n\[20\d\d-|\Z)",
        re.DOTALL,
    ),
    re.compile(
        r"(?P<detail>Shutting down the core worker because the local raylet "
        r"failed[^\n]{0,200})"
    ),
)
#: Longer explanations of Ray are cut.
MOST_DETAIL = 8000
_CORE_WORDS = (b"exit_type=", b"local raylet failed")


def _list_core_logs(session: RaySession) -> list[Path]:
    """
    List the newest core log of each worker and driver.
    """
    listed, _ = list_parts(session, "python-core-")
    return [
        parts[-1].path
        for (stem, _), parts in listed.items()
        if _CORE_LOG_NAME.fullmatch(stem)
    ]


def _read_core_log(facts: DeathFacts, session: RaySession, path: Path) -> None:
    """
    Read the exit at the end of the core log of a worker or driver.
    """
    name = _CORE_LOG_NAME.match(path.name)
    if name is None:  # a link with another target
        return
    worker_id, pid = name["worker"], int(name["pid"])
    facts.add_placement(worker_id, pid=pid)
    data = read_tail(path, _TAIL_BYTES)
    if not any(word in data for word in _CORE_WORDS):
        return

    text = decode_log(data)
    found = next(filter(None, (x.search(text) for x in _CORE_EXITS)), None)
    if found is None:
        return

    begin = text.rfind("\n", 0, found.start()) + 1
    line = text.count("\n", 0, begin) + 1
    # The line number is unknown if only the tail was read.
    location = "" if len(data) == _TAIL_BYTES else f"line {line}"
    record = text[begin : found.end()]
    facts.add_exit(
        WorkerExit(
            worker_id=worker_id,
            time=parse_time(record),
            exit_type=found.groupdict().get("type") or "SYSTEM_ERROR",
            detail=found["detail"][:MOST_DETAIL].strip(),
            node_id=session.node_id,
            ip=session.ip,
            pid=pid,
            evidence=quote_log(path, location, record),
        )
    )


_MOST_SECONDS = 1 << 33
_WORKER_ID = re.compile(r"[0-9a-f]{56}")


def _read_event_log(facts: DeathFacts, _: RaySession, path: Path) -> None:
    """
    Read the worker failures that a node reported as events.
    """
    for number, event in read_json_objects(path):
        message = event.get("message")
        fields = event.get("custom_fields")
        if not isinstance(message, str) or not isinstance(fields, Mapping):
            continue
        text = without_controls(message.replace("\\n", "\n"))
        text = text.replace("\\t", "\t")
        facts.add_memory(text)
        worker = fields.get("worker_id")
        is_worker = isinstance(worker, str) and _WORKER_ID.fullmatch(worker)
        if event.get("label") != "RAY_WORKER_FAILURE" or not is_worker:
            continue
        known: dict[str, Any] = {**search_fields(text)}
        known["worker_id"] = worker
        if "pid" in known:
            known["pid"] = int(known["pid"])
        facts.add_exit(
            WorkerExit(
                time=_parse_timestamp(event.get("timestamp")),
                evidence=quote_log(path, f"line {number}", text),
                **known,
            )
        )


def _parse_timestamp(value: object) -> float | None:
    # JSON numbers may be negative, infinite, or too large.
    is_time = isinstance(value, int | float) and 0 <= value < _MOST_SECONDS
    return float(value) if is_time else None  # type: ignore[arg-type]


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
    r"Reporting worker exit, worker id = (?P<worker_id>[0-9a-f]{56}), node id "
    r"= (?P<node_id>[0-9a-f]{56}|NIL_ID)?, address = (?P<ip>[^,]{0,60}), "
    r"exit_type = (?P<exit_type>\w{0,40}), exit_detail = (?P<detail>.*)",
    re.DOTALL,
)
_DETAIL_SUFFIX = ". Unintentional worker failures have been reported."
_GCS_FIELDS = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "actor_id": r"\bactor(?:_id=| id = | )([0-9a-f]{32})\b",
        "worker_id": r"\bworker(?:_id=| id = | )([0-9a-f]{56})\b",
        "node_id": r"\bnode(?:_id=| id[=:] ?| )([0-9a-f]{56})\b",
        "job_id": r"\bjob(?:_id=| id = )([0-9a-f]{8})\b",
        "ip": r"and address: ([^\s,]{1,60})",
    }.items()
}
_NODE_DEATH_REASON = re.compile(
    r"death reason = (?P<reason>\w{1,40})(?:, death message = "
    r"(?P<message>.{0,300}?))?(?: node_id=|, node name|$)",
    re.MULTILINE,
)
# NodeDeathInfo of Ray's gcs.proto; all other reasons are intended.
_UNEXPECTED = re.compile(r"^UNEXPECTED|PREEMPTED")


def _read_gcs_log(facts: DeathFacts, _: RaySession, path: Path) -> None:
    """
    Read exits, node losses, and placements from the log of the GCS.
    """
    for record in read_records(path, _GCS_WORDS):
        text = record.text
        if "Reporting worker exit" in text:
            _add_gcs_exit(facts, record)
            continue
        known = search_fields(text, _GCS_FIELDS)
        if "marked dead" in text or "death reason" in text:
            if "node_id" in known:
                facts.nodes.append(_parse_node_end(record, known))
        elif "arking job" in text:
            if "job_id" in known:
                facts.add_job_end(known["job_id"], record.time)
        elif "worker_id" in known:
            facts.add_placement(
                known["worker_id"],
                actor_id=known.get("actor_id"),
                node_id=known.get("node_id"),
            )


def _add_gcs_exit(facts: DeathFacts, record: Record) -> None:
    found = _GCS_EXIT.search(record.text)
    if found is None:
        return

    fields: dict[str, Any] = found.groupdict()
    detail = fields.pop("detail").partition(_DETAIL_SUFFIX)[0].strip()
    fields["ip"] = fields["ip"] or None
    facts.add_exit(
        WorkerExit(
            time=record.time,
            detail=detail,
            evidence=record.evidence,
            **fields,
        )
    )
    facts.add_memory(record.text)


def _parse_node_end(record: Record, known: Mapping[str, str]) -> NodeEnd:
    reason = _NODE_DEATH_REASON.search(record.text)
    told = reason["message"] or reason["reason"] if reason else ""
    is_expected = reason is not None and not _UNEXPECTED.search(
        reason["reason"]
    )
    return NodeEnd(
        node_id=known["node_id"],
        time=record.time,
        reason=told or "it did not answer health checks",
        is_expected=is_expected,
        ip=known.get("ip"),
        evidence=record.evidence,
    )


_RAYLET_WORDS = (
    b"isconnecting ",
    b"its owner died",
    b"because the owner process",
    b"emory on the node",
    b"kill details",
    b"Killing worker with task",
    b"not registered within the timeout",
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
    r"Disconnecting (?:worker|client|driver), graceful=\w{1,5}, "
    r"disconnect_type=(?P<type>\d), .{0,200}?"
    r"worker_id=(?P<worker>[0-9a-f]{56})"
)
_ORPHAN = re.compile(
    r"leased worker ([0-9a-f]{56}) is killed because the owner process "
    r"([0-9a-f]{56}) died"
)
_ORPHAN_NEW = re.compile(
    r"its owner died\. worker_id=([0-9a-f]{56}) owner_worker_id=([0-9a-f]{56})"
)
_DRIVER_EXIT = re.compile(
    r"Driver \(pid=\d{1,10}\) is disconnected\."
    r".{0,100}?job_id[=:] ?(?P<job>[0-9a-f]{8})"
)
_RAYLET_STOP = re.compile(r"main\.cc:\d{1,6}: (?:Raylet )?received SIGTERM")


def _read_raylet_log(
    facts: DeathFacts, session: RaySession, path: Path
) -> None:
    """
    Read exits, orphans, and memory kills from the log of a raylet.
    """
    for record in read_records(path, _RAYLET_WORDS):
        text = record.text
        if found := _RAYLET_DISCONNECT.search(text):
            facts.add_exit(
                WorkerExit(
                    worker_id=found["worker"],
                    time=record.time,
                    exit_type=_EXIT_TYPES.get(found["type"], ""),
                    node_id=session.node_id,
                    evidence=record.evidence,
                )
            )
        elif found := _ORPHAN.search(text) or _ORPHAN_NEW.search(text):
            # The first of several is the most trusted.
            facts.owners.setdefault(found[1], found[2])
        elif found := _DRIVER_EXIT.search(text):
            facts.add_job_end(found["job"], record.time)
        elif "not registered within the timeout" in text:
            facts.not_started.append(record.evidence)
        elif _RAYLET_STOP.search(text):
            facts.nodes.append(
                NodeEnd(
                    node_id=session.node_id,
                    time=record.time,
                    reason="received SIGTERM",
                    is_expected=True,
                    evidence=record.evidence,
                )
            )
        elif "emory on the node" in text:
            _add_memory_kills(facts, session, record)


def _add_memory_kills(
    facts: DeathFacts, session: RaySession, record: Record
) -> None:
    # The details begin with the memory message.
    detail = record.text[record.text.find("emory on the node") - 1 :]
    for note in facts.add_memory(record.text):
        if note.worker_id is not None:
            facts.add_exit(
                WorkerExit(
                    worker_id=note.worker_id,
                    time=record.time,
                    exit_type="NODE_OUT_OF_MEMORY",
                    detail=detail,
                    pid=note.pid,
                    node_id=note.node_id or session.node_id,
                    evidence=record.evidence,
                )
            )


# The head's log comes first: its clock is the same for all nodes.
_READERS = (
    (partial(find_parts, stem="gcs_server", stream="out"), _read_gcs_log),
    (_list_core_logs, _read_core_log),
    (
        partial(
            find_parts, stem="event_RAYLET", stream="log", folder="events"
        ),
        _read_event_log,
    ),
    (partial(find_parts, stem="raylet", stream="out"), _read_raylet_log),
)


def collect_facts(sessions: Iterable[RaySession]) -> DeathFacts:
    """
    Read all logs of a cluster that report deaths.

    Args:
        sessions: One session for each node.
    """
    sessions = tuple(sessions)
    facts = DeathFacts()
    for find, read in _READERS:
        for session in sessions:
            for path in find(session):
                try:
                    read(facts, session, path)
                except READ_ERRORS as exc:
                    facts.missing.append(Missing.log(path, exc))
    if not any(find_parts(x, "gcs_server", "out") for x in sessions):
        facts.missing.append(_head_missing(sessions))
    _mark_unexpected(facts)
    return facts


def _mark_unexpected(facts: DeathFacts) -> None:
    """
    Mark nodes as lost that stopped while their job went on, and sort all.
    """
    ends: defaultdict[str | None, list[float]] = defaultdict(list)
    for place in facts.placements.values():
        job_id = place.actor_id[24:]
        if job_id in facts.jobs:
            ends[place.node_id].append(facts.jobs[job_id])
    for i, node in enumerate(facts.nodes):
        last = max(ends[node.node_id], default=None)
        if not node.is_expected or node.time is None or last is None:
            continue
        if last - node.time >= _SHUTDOWN_S:
            reason = f"{node.reason} while its job went on"
            facts.nodes[i] = attrs.evolve(
                node, is_expected=False, reason=reason
            )
    facts.nodes.sort(key=lambda node: node.time or 0)


def _head_missing(sessions: tuple[RaySession, ...]) -> Missing:
    return Missing(
        what="log",
        reason="gcs_server.out of the head node is not here: deaths on nodes "
        "that were not copied are unknown, and times are those of each node",
        source=str(sessions[0].logs) if sessions else None,
    )
