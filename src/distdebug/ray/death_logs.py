"""
Find the deaths of Ray workers and nodes in the logs of all nodes.
"""

from __future__ import annotations

import math
import re

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs

from .._text import without_controls
from ..findings import Evidence, Missing
from ..identity import own_rank_in_text, rank_in_names, same_host
from ..logs import READ_ERRORS, read_tail
from .deaths import (
    MOST_SECONDS,
    Death,
    DeathFacts,
    Deaths,
    Exit,
    is_driver,
    mark_first_death,
)
from .messages import (
    PATTERNS,
    DeathKind,
    LogTail,
    Record,
    decode_log,
    parse_log_tail,
    quote_log,
    read_json_objects,
    read_log_tail,
    read_records,
    search_fields,
)
from .sessions import (
    RaySession,
    RaySessions,
    WorkerLog,
    as_sessions,
    find_parts,
    list_parts,
)
from .workers import NO_ACTOR, KnownActor, read_exported_actors, worker_logs


# A node and a driver that stop together end within this time.
_SHUTDOWN_S = 5.0


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
# Longer explanations of Ray are cut.
_MOST_DETAIL = 8000
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
    facts.add_exit(
        Record(
            text=text[begin : found.end()],
            # It is unknown if only the tail was read.
            number=0 if len(data) == _TAIL_BYTES else line,
            source=str(path),
        ),
        worker_id=worker_id,
        exit_type=found.groupdict().get("type") or "SYSTEM_ERROR",
        detail=found["detail"][:_MOST_DETAIL].strip(),
        node_id=session.node_id,
        ip=session.ip,
        pid=pid,
    )


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
        known: dict[str, Any] = {"time": None, **search_fields(text)}
        known["worker_id"] = worker
        if "pid" in known:
            known["pid"] = int(known["pid"])
        time = event.get("timestamp")
        # JSON numbers may be negative, infinite, or too large.
        if isinstance(time, int | float) and 0 <= time < MOST_SECONDS:
            known["time"] = float(time)
        facts.add_exit(
            Record(text=text, number=number, source=str(path)), **known
        )


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
                _add_node_end(facts, record, known)
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
    facts.add_exit(record, detail=detail, **fields)
    facts.add_memory(record.text)


def _add_node_end(
    facts: DeathFacts, record: Record, known: Mapping[str, str]
) -> None:
    reason = _NODE_DEATH_REASON.search(record.text)
    told = reason["message"] or reason["reason"] if reason else ""
    is_expected = reason is not None and not _UNEXPECTED.search(
        reason["reason"]
    )
    facts.add_exit(
        record,
        node_id=known["node_id"],
        detail=told or "it did not answer health checks",
        is_expected=is_expected,
        ip=known.get("ip"),
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
                record,
                worker_id=found["worker"],
                exit_type=_EXIT_TYPES.get(found["type"], ""),
                node_id=session.node_id,
            )
        elif found := _ORPHAN.search(text) or _ORPHAN_NEW.search(text):
            # The first of several is the most trusted.
            facts.owners.setdefault(found[1], found[2])
        elif found := _DRIVER_EXIT.search(text):
            facts.add_job_end(found["job"], record.time)
        elif "not registered within the timeout" in text:
            facts.not_started.append(record.evidence)
        elif _RAYLET_STOP.search(text):
            facts.add_exit(
                record,
                node_id=session.node_id,
                detail="received SIGTERM",
                is_expected=True,
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
                record,
                worker_id=note.worker_id,
                exit_type="NODE_OUT_OF_MEMORY",
                detail=detail,
                pid=note.pid,
                node_id=note.node_id or session.node_id,
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


def _collect_facts(sessions: Iterable[RaySession]) -> DeathFacts:
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
    for node_id, exits in facts.nodes.items():
        last = max(ends[node_id], default=-math.inf)
        for i, x in enumerate(exits):
            if not x.is_expected or x.time is None:
                continue
            if last - x.time >= _SHUTDOWN_S:
                detail = f"{x.detail} while its job went on"
                exits[i] = attrs.evolve(x, is_expected=False, detail=detail)
        exits.sort(key=lambda x: x.time or 0.0)


def _head_missing(sessions: tuple[RaySession, ...]) -> Missing:
    return Missing(
        what="log",
        reason="gcs_server.out of the head node is not here: deaths on nodes "
        "that were not copied are unknown, and times are those of each node",
        source=str(sessions[0].logs) if sessions else None,
    )


_EXIT_CODE = re.compile(r"[Ee]xit code:? (?P<code>-?\d{1,5})")


def _find_exit_code(exits: Iterable[Exit]) -> int | None:
    codes = (_EXIT_CODE.search(x.detail) for x in exits)
    return next((int(x["code"]) for x in codes if x), None)


def _classify_death(
    exits: Sequence[Exit], owner: str | None, tail: LogTail
) -> tuple[DeathKind, str | None]:
    """
    Classify the end of a worker.

    Args:
        exits: Its exits, the most trusted first.

        owner: The dead owner for which the raylet killed it, if any.

        tail: The details of its error log.

    Returns:
        The kind, and the owner if the owner's end is the reason.
    """
    types = {x.exit_type for x in exits if x.exit_type}
    detail = "\n".join(x.detail for x in exits)
    if "NODE_OUT_OF_MEMORY" in types or PATTERNS["ray_oom"].search(detail):
        return "ray_oom", None

    # A worker that the raylet ends may report the signal first.
    is_orphan = owner is not None and PATTERNS["terminated"].search(detail)
    owners = [x["id"] for x in PATTERNS["owner_died"].finditer(detail)]
    if "SYSTEM_ERROR" not in types or is_orphan or owners:
        owner = next(filter(None, owners), owner)
        if owner is not None:
            return "job_ended" if is_driver(owner) else "owner_died", owner
        if "USER_ERROR" in types:
            return "init_error", None
        if types and "SYSTEM_ERROR" not in types:
            has_ended = PATTERNS["job_ended"].search(detail)
            return "job_ended" if has_ended else "intended", None
    return _classify_system_error(exits, detail, tail), None


def _classify_system_error(
    exits: Sequence[Exit], detail: str, tail: LogTail
) -> DeathKind:
    if PATTERNS["terminated"].search(detail) or tail.signal == "SIGTERM":
        return "terminated"
    if tail.signal is not None:
        is_watchdog = tail.is_watchdog and tail.signal == "SIGABRT"
        return "collective_timeout" if is_watchdog else "native_crash"
    if _find_exit_code(exits) is not None:
        return "exit_code"
    if PATTERNS["node_lost"].search(detail):
        return "node_died"
    return "collective_timeout" if tail.is_watchdog else "killed_or_exited"


def _identify_worker(
    death: Death, log: WorkerLog | None, exported: KnownActor = NO_ACTOR
) -> Death:
    """
    Add the names and ids of the worker to a death.

    Args:
        log: The logs of the worker, if they were found.

        exported: The actor in Ray's exported events.
    """
    if is_driver(death.worker_id):
        return attrs.evolve(death, actor="driver", job_id=death.worker_id[:8])
    actor_id = (log.actor_id if log else None) or death.actor_id
    # An actor's id ends in that of its job.
    job_id = (actor_id or "")[24:] or None
    if log is not None:
        is_here = death.node_id in {None, log.session.node_id}
        return attrs.evolve(
            death,
            actor=log.label,
            pid=log.pid,
            actor_class=log.actor_class,
            actor_name=log.actor_name,
            actor_id=actor_id,
            job_id=log.job_id or job_id,
            node_id=death.node_id or log.session.node_id,
            ip=death.ip or log.session.ip,
            host=log.session.host if is_here else "",
        )
    return attrs.evolve(
        death,
        actor=exported.actor_repr or exported.actor_class,
        actor_class=exported.actor_class or None,
        actor_name=exported.actor_name or None,
        pid=death.pid or exported.pid or None,
        job_id=job_id,
    )


_CRASHES = frozenset(
    {
        *("native_crash", "collective_timeout", "init_error"),
        *("exit_code", "killed_or_exited"),
    }
)


def _add_log_tail(
    death: Death, log: WorkerLog | None, text: str, tail: LogTail
) -> Death:
    """
    Add rank, signal, stacks, and last lines to a death.

    Args:
        log: The logs of the worker, if they were found.

        text: The end of its error log.

        tail: The details parsed from *text*.
    """
    rank = rank_in_names((death.actor, death.actor_name))
    if rank is None:
        rank = own_rank_in_text(text)
    if log is None:
        return attrs.evolve(death, rank=rank)

    newest = (log.err or log.out)[-1].path
    death = attrs.evolve(death, rank=rank, log=newest, last_lines=tail.lines)
    if death.kind in _CRASHES:
        death = attrs.evolve(
            death,
            signal=tail.signal,
            error=tail.error,
            python_frames=tail.python_frames,
            native_frames=tail.native_frames,
        )
    is_quoted = tail.signal is not None or death.kind == "init_error"
    return _add_quote(death, tail) if is_quoted else death


def _add_quote(death: Death, tail: LogTail) -> Death:
    """
    Add the line that reports a crash as evidence.
    """
    crash_lines = (x for x in tail.lines if "***" in x or "Fatal" in x)
    received = f"{tail.signal} received" if tail.signal else None
    quote = tail.error or next(crash_lines, received)
    if quote is None:
        return death
    evidence = quote_log(death.log, "near the end", quote)
    return attrs.evolve(death, evidence=(*death.evidence, evidence))


def _add_host(death: Death, places: Mapping[str, RaySession]) -> Death:
    """
    Add the host and address of the node to a death.

    Args:
        places: The sessions, by node id.
    """
    session = places.get(death.node_id or "")
    if death.host or session is None:
        return death
    return attrs.evolve(death, host=session.host, ip=death.ip or session.ip)


def _mark_kernel_kill(
    death: Death, oom_kills: Iterable[tuple[str, int]]
) -> Death:
    """
    Mark a death as an out-of-memory kill if the kernel reported it.

    Args:
        oom_kills: Host or address (``""`` for any) and process id of each
            kill.
    """
    is_killed = death.kind == "killed_or_exited" and any(
        pid == death.pid
        and (place in {"", death.ip} or same_host(place, death.host))
        for place, pid in oom_kills
    )
    if not is_killed:
        return death
    return attrs.evolve(death, kind="host_oom", signal="SIGKILL")


# The head waits for some heartbeats before it reports a node as lost.
_SAME_LOSS_S = 120.0


def _find_lost_nodes(facts: DeathFacts) -> tuple[Death, ...]:
    """
    Return a death for each node that was lost and not stopped.
    """
    return tuple(
        Death(
            kind="node_died",
            time=_find_first_notice(facts, node_id, exits[0].time),
            node_id=node_id,
            ip=_first_known(x.ip for x in reversed(exits)),
            detail=exits[0].detail,
            log=Path(exits[-1].evidence.source),
            evidence=tuple(x.evidence for x in exits),
        )
        for node_id, exits in facts.nodes.items()
        if node_id and not any(x.is_expected for x in exits)
    )


def _find_first_notice(
    facts: DeathFacts, node_id: str, reported: float | None
) -> float | None:
    """
    Return when the workers of a node noticed its loss.

    They notice before the head does.
    """
    times = [
        x.time
        for exits in facts.exits.values()
        for x in exits
        if x.node_id == node_id and x.time and "local raylet" in x.detail
    ]
    if reported is None:
        return min(times, default=None)
    return min([reported, *(x for x in times if x >= reported - _SAME_LOSS_S)])


_T = TypeVar("_T")


def find_deaths(
    sessions: RaySessions,
    *,
    oom_kills: Collection[tuple[str, int]] = (),
) -> Deaths:
    """
    Find the deaths of a Ray cluster, their kinds, and the first one.

    Only files are read, so this works days after the cluster was stopped.  The
    log of the head reports the deaths of all nodes; the folders of the nodes
    add names and last log lines.

    Args:
        sessions: The sessions of the nodes of a cluster, or folders to search
            for them.

        oom_kills: Processes that the kernel killed for lack of memory, which
            no Ray log reports: the host or address of the node (``""`` for
            any) and the process id.

    Returns:
        All ends, by time, including those that were intended.

    Raises:
        NoLogsError: A given folder contains no session.
    """
    sessions = as_sessions(sessions)
    facts = _collect_facts(sessions)
    logs = {log.worker_id: log for log in worker_logs(sessions)}
    actors: dict[str, KnownActor] = {}
    for session in sessions:
        actors |= read_exported_actors(session)
    places = {x.node_id: x for x in sessions if x.node_id}
    nodes = _find_lost_nodes(facts)
    workers = _find_worker_deaths(facts, nodes, logs, actors)
    deaths = [
        _mark_kernel_kill(_add_host(x, places), oom_kills)
        for x in [*workers, *nodes]
    ]
    return Deaths(
        deaths=mark_first_death(deaths, facts),
        missing=tuple(facts.missing),
        not_started=tuple(facts.not_started),
    )


def _find_worker_deaths(
    facts: DeathFacts,
    nodes: Iterable[Death],
    logs: Mapping[str, WorkerLog],
    actors: Mapping[str, KnownActor],
) -> Iterator[Death]:
    """
    Yield the deaths of all workers.

    Those are the reported exits, the crashes that only a worker's log reports,
    and the workers of lost nodes whose exit no log reports.

    Args:
        nodes: The lost nodes.

        logs: The logs of all workers, by worker id.

        actors: The exported actors, by id.
    """
    lost = {node.node_id: node for node in nodes}
    for worker_id in {**facts.exits, **logs, **facts.placements}:
        exits, log = facts.exits.get(worker_id, []), logs.get(worker_id)
        place = facts.placements.get(worker_id, NO_ACTOR)
        # The log of a worker that exited as intended has no crash details.
        is_intended = exits and all(
            x.exit_type.startswith("INTENDED") for x in exits
        )
        text = read_log_tail(log.err) if log and not is_intended else ""
        has_crash = exits or "SIG" in text or "Fatal" in text
        tail = parse_log_tail(text) if has_crash else LogTail()
        if exits or tail.signal is not None:
            owner = facts.owners.get(worker_id) if exits else None
            death = _merge_exits(exits, owner, place, log, tail)
        elif node := lost.get(place.node_id):
            death = attrs.evolve(node, evidence=node.evidence[:1])
            text, tail = "", LogTail()
        else:
            continue
        death = attrs.evolve(
            death, worker_id=worker_id, actor_id=place.actor_id or None
        )
        exported = actors.get(place.actor_id, NO_ACTOR)
        death = _identify_worker(death, log, exported)
        yield _add_log_tail(death, log, text, tail)


def _merge_exits(
    exits: Sequence[Exit],
    owner: str | None,
    place: KnownActor,
    log: WorkerLog | None,
    tail: LogTail,
) -> Death:
    """
    Merge the exits of one worker, the most trusted first.

    Args:
        owner: The dead owner for which the raylet killed it, if any.

        log: Its logs, which have the time if no exit is reported.

        tail: The details of its error log.
    """
    kind, owner = _classify_death(exits, owner, tail)
    one_per_source: dict[str, Evidence] = {}
    for x in exits:
        one_per_source.setdefault(x.evidence.source, x.evidence)
    times = [x.time for x in exits]
    if log and not exits:
        times = [tail.time, log.mtime]
    return Death(
        kind=kind,
        owner=owner,
        time=_first_known(times),
        pid=_first_known([*(x.pid for x in exits), place.pid]),
        # Nodes on one machine may share a folder, so trust the head first.
        node_id=_first_known([place.node_id, *(x.node_id for x in exits)]),
        ip=_first_known(x.ip for x in exits),
        exit_type=_first_known(x.exit_type for x in exits),
        detail=(_first_known(x.detail for x in exits) or "")[:_MOST_DETAIL],
        exit_code=_find_exit_code(exits),
        evidence=tuple(one_per_source.values()),
        log=Path(exits[0].evidence.source) if exits else None,
    )


def _first_known(values: Iterable[_T | None]) -> _T | None:
    return next(filter(None, values), None)
