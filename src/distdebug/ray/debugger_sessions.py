"""
List the processes of a Ray cluster that wait, and attach VS Code to them.

The format of ``launch.json`` is that of VS Code's Python debugger.  It does
not need Ray's extension, and other debugpy clients read it, too.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

import attrs

from .._io import (
    is_folder,
    make_private_folder,
    read_ordinary,
    write_whole,
)
from .._render import Block, Shown, as_plain
from .._text import clean
from ..capture import Check, Checklist
from ..causes import Cause
from ..errors import LaunchFileError, NodesError
from ..findings import Evidence, Finding, Location
from .cluster import make_answer_error, plain_text, query_cluster
from .cluster_child import loads_object


# As in the marketplaces of VS Code and Cursor.
EXTENSION = "anyscalecompute.ray-distributed-debugger"


@attrs.frozen(kw_only=True)
class RayDebugSession(Shown):
    """
    A process of a Ray cluster that waits for a debugger.

    Attributes:
        kind: ``"debugpy"`` if VS Code can attach; ``"legacy"`` if
            ``ray debug`` can.

        host: The address where it listens.

        port: The port where it listens.

        node: The name of its node, or ``""``.

        node_id: Ray's id of the node.

        pid: The process id on that node; 0 if unknown.

        worker_id: Ray's id of the worker.

        job_id: The job, or ``""``.

        actor_id: The actor, or ``""``.

        actor: The name of the actor, or ``""``.

        task: The running task, such as ``"Trainer.step"``, or ``""``.

        is_driver: Whether it is a driver, not a worker.

        paused: The number of waiting threads.

        locations: The lines where they wait, if known.

        cwd: The working directory, or ``""``.

        note: The reason if *locations* is unknown, or ``""``.
    """

    kind: Literal["debugpy", "legacy"]
    host: str
    port: int
    node: str = ""
    node_id: str = ""
    pid: int = 0
    worker_id: str = ""
    job_id: str = ""
    actor_id: str = ""
    actor: str = ""
    task: str = ""
    is_driver: bool = False
    paused: int = 1
    locations: tuple[Location, ...] = ()
    cwd: str = ""
    note: str = ""

    @property
    def location(self) -> Location | None:
        """
        Return the line where the first thread waits.
        """
        return self.locations[0] if self.locations else None

    @property
    def title(self) -> str:
        """
        Return the running task and the actor's name.
        """
        task = self.task or ("driver" if self.is_driver else "worker")
        return clean(f"{task} ({self.actor})" if self.actor else task)

    def _blocks_(self) -> Iterable[Block]:
        where = self.location.brief if self.location else self.note
        yield (
            f"{self.title}, pid {self.pid} on {clean(self.node)}, "
            f"{clean(self.host)}:{self.port}: {clean(where or 'unknown')}"
        )


@attrs.frozen(kw_only=True)
class RayDebuggerCheck(Checklist, Shown):
    """
    The result of checking the prerequisites of Ray's debugger.

    Attributes:
        checks: All checks, with remedies.

        sessions: The processes that wait in the debugger, without locations;
            see `ray_debug_sessions`.

        address: The address of the cluster, or ``""``.

        dashboard: The address of its dashboard, or ``""``.

        head_node: The name of its head node, or ``""``.

        local_port: A port for the tunnel that is free here.

        tunnel: The command that forwards the dashboard to that port of the
            machine where VS Code runs, or ``""``.

        extension: The id of the VS Code extension.
    """

    checks: tuple[Check, ...]
    sessions: tuple[RayDebugSession, ...] = ()
    address: str = ""
    dashboard: str = ""
    head_node: str = ""
    local_port: int = 0
    tunnel: str = ""
    extension: str = EXTENSION

    @property
    def findings(self) -> tuple[Finding, ...]:
        """
        Return one finding for each failed check.
        """
        return tuple(
            Finding(
                cause=Cause.NODE_MISCONFIGURED,
                ranks=(),
                summary=f"Ray's debugger will not work: {check.detail}",
                confidence="certain",
                remedy=check.remedy or None,
                evidence=(
                    Evidence(
                        kind="check",
                        source="check_ray_debugger",
                        location=check.name,
                        quote=check.detail,
                    ),
                ),
            )
            for check in self.checks
            if check.ok is False
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        plain = as_plain(self)
        return {
            "ready": self.is_ready,
            "checks": plain.pop("checks"),
            "sessions": plain.pop("sessions"),
            "findings": [finding.to_dict() for finding in self.findings],
            **plain,
        }


class UsedEnvironment(NamedTuple):
    """
    A runtime environment in use.
    """

    used_by: str
    node_ids: Sequence[str]
    runtime_env: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class ClusterState:
    """
    What the head of a cluster knows of its debugger.

    Attributes:
        address: The address of the head.

        dashboard: The address of the dashboard.

        ray_version: The version that the cluster was started with.

        nodes: The names of the nodes that are alive, by id.

        head: The name of the head, or ``""``.

        sessions: The waiting processes, without their lines.

        environments: The runtime environments in use.
    """

    address: str = ""
    dashboard: str = ""
    ray_version: str = ""
    nodes: Mapping[str, str] = attrs.field(factory=dict)
    head: str = ""
    sessions: tuple[RayDebugSession, ...] = ()
    environments: tuple[UsedEnvironment, ...] = ()


def query_cluster_state(
    address: str | None, *, timeout_s: float
) -> ClusterState:
    """
    Query the head of a cluster for its debugger state.

    Args:
        address: The cluster, as ``HOST:PORT``; by default the one that this
            process, or this node, belongs to.

        timeout_s: The timeout, in seconds.

    Raises:
        MissingDependencyError: Ray is not installed.

        NodesError: No such cluster answers in time.
    """
    answer = query_cluster(address, "read_cluster_state", timeout_s=timeout_s)
    if not isinstance(answer, dict):
        raise make_answer_error(answer)

    nodes = {
        plain_text(row.get("node_id")): plain_text(row.get("host"))
        for row in _rows(answer.get("nodes"))
    }
    return ClusterState(
        address=plain_text(answer.get("address")),
        dashboard=plain_text(answer.get("dashboard")),
        ray_version=plain_text(answer.get("ray_version"), limit=40),
        nodes=nodes,
        head=nodes.get(plain_text(answer.get("head")), ""),
        sessions=_parse_sessions(answer, nodes),
        environments=tuple(_parse_environments(answer)),
    )


def _rows(value: object) -> list[Mapping[str, Any]]:
    rows: Iterable[object] = value if isinstance(value, list) else ()
    return [row for row in rows if isinstance(row, dict)]


def _parse_environments(
    answer: Mapping[str, Any],
) -> Iterator[UsedEnvironment]:
    for row in _rows(answer.get("environments")):
        env, nodes, users = row.get("env"), row.get("nodes"), row.get("who")
        if isinstance(env, dict) and isinstance(nodes, list):
            names = [
                *map(plain_text, users if isinstance(users, list) else ())
            ]
            used_by = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            yield UsedEnvironment(used_by, [*map(plain_text, nodes)], env)


# Timeout for py-spy on each process, in seconds.
_PYSPY_TIMEOUT_S = 10.0
# Ray puts the running task into the process title.
_PROCESS_TITLE = re.compile(r"ray::(.{1,300})")
_PDB_ADDRESS = re.compile(r"(?:tcp://)?\[?([^\s\]]{1,255})\]?:(\d{1,5})")
_NO_FRAMES = (
    "an error ended what ran: its frames are seen once one has attached"
)
# More threads of one process are not shown.
_MOST_LOCATIONS = 100


def ray_debug_sessions(
    address: str | None = None, *, timeout_s: float = 60.0
) -> tuple[RayDebugSession, ...]:
    """
    List the processes that wait in Ray's debugger, and their lines.

    The head of the cluster knows the paused processes, their ports, and their
    actors, but not the lines: a task on each of their nodes reads the stacks
    with py-spy, which pauses nothing.  If that fails, the session has a note
    instead.

    Args:
        address: The cluster, as ``HOST:PORT``; by default the one that this
            process, or this node, belongs to.

        timeout_s: The timeout, in seconds.

    Returns:
        The sessions, by node, actor, and process.  A process with an attached
        debugger no longer waits.

    Raises:
        MissingDependencyError: Ray is not installed.

        NodesError: No such cluster answers in time.
    """
    deadline = time.monotonic() + timeout_s
    sessions = query_cluster_state(address, timeout_s=timeout_s).sessions
    by_node: dict[str, list[int]] = {}
    for session in sessions:
        by_node.setdefault(session.node_id, []).append(session.pid)
    remaining_s = max(deadline - time.monotonic(), 1.0)
    pyspy_timeout_s = max(min(_PYSPY_TIMEOUT_S, remaining_s / 2), 1.0)
    tasks = [
        {
            "ask": "see_processes",
            "with": [pids, pyspy_timeout_s],
            "node": node,
            "env": {},
        }
        for node, pids in by_node.items()
    ]
    answers = query_workers(address, tasks, timeout_s=remaining_s)
    by_id = dict(zip(by_node, answers, strict=True))
    found = (_add_location(x, by_id[x.node_id]) for x in sessions)
    return tuple(sorted(found, key=_sort_key))


def _add_location(
    session: RayDebugSession, answer: Mapping[str, Any]
) -> RayDebugSession:
    """
    Add task, folder, and lines of a process.

    Args:
        answer: The processes of its node, see `debugger_worker.see_processes`.
    """
    process = answer.get(str(session.pid))
    if not isinstance(process, dict):
        reason = plain_text(answer.get("reason")) or "its node said nothing"
        return attrs.evolve(session, note=reason)

    rows = process.get("places")
    note = plain_text(process.get("reason")) or "py-spy saw nothing"
    places: tuple[Location, ...] = ()
    if isinstance(rows, list):
        places = tuple(_parse_locations(rows[:_MOST_LOCATIONS]))
        note = _NO_FRAMES if rows else "no thread of it waits any more"
    return attrs.evolve(
        _set_task(session, process.get("title")),
        cwd=plain_text(process.get("cwd")),
        locations=places or session.locations,
        note="" if places else note,
    )


def _parse_locations(rows: Iterable[object]) -> Iterator[Location]:
    for row in rows:
        match row:
            case [str(function), str(file), int(line)]:
                yield Location(
                    function=plain_text(function),
                    file=plain_text(file),
                    line=line,
                )


def _parse_sessions(
    answer: Mapping[str, Any], nodes: Mapping[str, str]
) -> tuple[RayDebugSession, ...]:
    """
    Return the waiting processes in the cluster state, without their lines.
    """
    workers = _rows(answer.get("workers"))
    fields = [_parse_fields(row, nodes) for row in workers]
    debugpy = (
        RayDebugSession(kind="debugpy", **known)
        for known in fields
        if known["paused"] and known["host"] and 0 < known["port"] < 1 << 16
    )
    by_worker = {x["worker_id"]: x for x in fields if x["worker_id"]}
    legacy = _parse_legacy(_rows(answer.get("legacy")), by_worker)
    return tuple(sorted([*debugpy, *legacy], key=_sort_key))


def _parse_legacy(
    records: Iterable[Mapping[str, Any]], workers: Mapping[str, dict[str, Any]]
) -> Iterator[RayDebugSession]:
    for record in records:
        # The record of a killed process is not deleted.
        worker = workers.get(plain_text(record.get("worker_id")))
        match = _PDB_ADDRESS.fullmatch(plain_text(record.get("pdb_address")))
        if not (worker and match):
            continue
        place = Location(
            function="",
            file=plain_text(record.get("filename")),
            line=_parse_number(record.get("lineno")),
        )
        where = {"host": match[1], "port": int(match[2]), "paused": 1}
        session = RayDebugSession(
            kind="legacy",
            locations=(place,) if place.file else (),
            **worker | where,
        )
        yield _set_task(session, record.get("proctitle"))


def _parse_fields(
    row: Mapping[str, Any], nodes: Mapping[str, str]
) -> dict[str, Any]:
    texts = ("node_id", "worker_id", "job_id", "actor_id", "actor", "task")
    fields = {key: plain_text(row.get(key)) for key in texts}
    host = plain_text(row.get("ip"))
    return {
        **fields,
        **{x: _parse_number(row.get(x)) for x in ("pid", "port", "paused")},
        "host": host,
        "node": nodes.get(fields["node_id"]) or host,
        "is_driver": row.get("is_driver") is True,
    }


def _sort_key(s: RayDebugSession) -> tuple[Any, ...]:
    return s.node, s.node_id, s.task, s.actor, s.pid


def _set_task(session: RayDebugSession, title: object) -> RayDebugSession:
    match = _PROCESS_TITLE.match(plain_text(title))
    return attrs.evolve(session, task=match[1].strip()) if match else session


def _parse_number(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 40 else 0


# A check must not start workers all over a large cluster.
_MOST_TASKS = 64


class WorkerEnvironment(NamedTuple):
    """
    The debugger settings in one runtime environment.

    Attributes:
        name: The jobs and actors that use the environment, and the node whose
            worker answered.

        facts: See `debugger_worker.tell_environment`; only ``reason`` if there
            is no answer.
    """

    name: str
    facts: Mapping[str, Any]


def query_environments(
    address: str | None, state: ClusterState, *, timeout_s: float
) -> tuple[WorkerEnvironment, ...]:
    """
    Query the debugger settings of every runtime environment in use.

    Args:
        address: As for `query_cluster_state`.

        state: The state of the cluster.

        timeout_s: The timeout for all workers, in seconds.
    """
    used = state.environments or [
        UsedEnvironment("no job", [*state.nodes], {})
    ]
    # One node of each environment first, then the next nodes.
    by_turns = chain(
        *zip_longest(*([(x, n) for n in x.node_ids] for x in used))
    )
    places = list(filter(None, by_turns))[:_MOST_TASKS]
    tasks = [
        {
            "ask": "tell_environment",
            "with": [],
            "node": node,
            "env": env.runtime_env,
        }
        for env, node in places
    ]
    answers = query_workers(address, tasks, timeout_s=timeout_s)
    names = (f"{x.used_by} on {state.nodes.get(n) or n}" for x, n in places)
    return tuple(map(WorkerEnvironment, names, answers))


def query_workers(
    address: str | None,
    tasks: Sequence[Mapping[str, Any]],
    *,
    timeout_s: float,
) -> list[Mapping[str, Any]]:
    """
    Run tasks on workers of the cluster and return their answers.

    Args:
        address: As for `query_cluster_state`.

        tasks: See `cluster_child.run_tasks`.

        timeout_s: The timeout for all tasks, in seconds.

    Returns:
        One answer for each task, in the same order; a failed one has
        ``reason``.
    """
    if not tasks:
        return []
    try:
        answer = query_cluster(
            address, "run_tasks", timeout_s=timeout_s, tasks=tasks
        )
        if not isinstance(answer, list) or len(answer) != len(tasks):
            raise make_answer_error(answer)
    except NodesError as exc:
        return [{"reason": str(exc)}] * len(tasks)
    return [_parse_answer(x if isinstance(x, dict) else {}) for x in answer]


def _parse_answer(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(row.get("answer"), str):
        return {"reason": plain_text(row.get("reason")) or "no answer"}
    facts = loads_object(row["answer"])
    return facts or {"reason": "the answer of a worker is not understood"}


# Entries with this prefix are replaced.
_NAME_PREFIX = "distdebug Ray: "
_COMPOUND_NAME = f"{_NAME_PREFIX}all"
_MOST_BYTES = 1 << 20
_MOST_NAME = 150
# Where Ray unpacks the working folder and modules of a job.
_UNPACKED_FOLDER = re.compile(
    r"(?P<root>.{1,1000}?/runtime_resources/(?:working_dir_files|"
    r"py_modules_files)/[^/]{1,255})(?:/|$)"
)


def launch_json(
    waiting: RayDebuggerCheck | Iterable[RayDebugSession],
    *,
    path_mappings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """
    Return a ``launch.json`` that attaches to waiting processes.

    Args:
        waiting: The result of `ray_debug_sessions` or `check_ray_debugger`;
            only the former has the lines for the names.

        path_mappings: Local folders where VS Code runs, each with its folder
            on the nodes; by default Ray's copy of the working folder is mapped
            to the open workspace, and all else has the same path.

    Returns:
        A configuration for each debugpy session, and a compound that starts
        all.  Sessions of the older debugger have none, because VS Code cannot
        attach to them.
    """
    if isinstance(waiting, RayDebuggerCheck):
        waiting = waiting.sessions
    configurations = [
        {
            "name": _make_name(session),
            "type": "debugpy",
            "request": "attach",
            "connect": {"host": session.host, "port": session.port},
            "justMyCode": False,
            **_make_mappings(session, path_mappings),
        }
        for session in waiting
        if session.kind == "debugpy"
    ]
    names = [x["name"] for x in configurations]
    compounds = (
        [{"name": _COMPOUND_NAME, "configurations": names}] if names else []
    )
    return {
        "version": "0.2.0",
        "configurations": configurations,
        "compounds": compounds,
    }


def write_launch_json(
    path: str | os.PathLike[str], launch: Mapping[str, Any]
) -> Path:
    """
    Merge configurations into a ``launch.json`` file.

    Other entries stay as they are.  Earlier entries of distdebug are replaced,
    because their ports are no longer valid.

    Args:
        path: The file, or a folder that contains ``.vscode/launch.json``.

        launch: The result of `launch_json`.

    Returns:
        The file.

    Raises:
        LaunchFileError: The file is not plain JSON (comments would be lost),
            or cannot be read or written.
    """
    file = _find_target(Path(path))
    existing = _read_existing(file)
    merged = {**existing}
    for key in ("version", "configurations", "compounds"):
        merged.setdefault(key, launch[key])
    for key in ("configurations", "compounds"):
        entries = existing.get(key, [])
        if not isinstance(entries, list):
            raise _make_error(file, f"{key!r} is not a list")
        others = [x for x in entries if not _is_own_entry(x)]
        merged[key] = [*others, *launch[key]]
    text = json.dumps(merged, indent=4, ensure_ascii=False) + "\n"
    try:
        mode = stat.S_IMODE(file.stat().st_mode) if existing else None
        make_private_folder(file.parent)
        write_whole(file, text.encode("utf-8", "surrogatepass"))
        if mode is not None:
            file.chmod(mode)
    except OSError as exc:
        raise _make_error(file, f"it cannot be written: {exc}") from exc
    return file


def _find_target(path: Path) -> Path:
    file = path / ".vscode" / "launch.json" if is_folder(path) else path
    try:
        # Write to the target, so a link stays a link.
        return file.resolve()
    except (OSError, RuntimeError) as exc:
        raise _make_error(file, f"it cannot be found: {exc}") from exc


def _make_name(session: RayDebugSession) -> str:
    """
    Return a name for a session; the address makes it unique.
    """
    line = ""
    if session.location is not None:
        line = f" {session.location.brief.rpartition('(')[2].rstrip(')')}"
    title = clean(f"{session.title}{line}", limit=_MOST_NAME)
    node = clean(session.node, limit=_MOST_NAME)
    address = f"{clean(session.host)}:{session.port}"
    return f"{_NAME_PREFIX}{title}, {node} {address}"


def _make_mappings(
    session: RayDebugSession, mappings: Mapping[str, str] | None
) -> dict[str, Any]:
    if mappings is None:
        paths = [*(x.file for x in session.locations), f"{session.cwd}/"]
        roots = filter(None, map(_UNPACKED_FOLDER.match, paths))
        pairs = {("${workspaceFolder}", x["root"]): None for x in roots}
    else:
        pairs = dict.fromkeys(mappings.items())
    found = [
        {"localRoot": local, "remoteRoot": remote} for local, remote in pairs
    ]
    return {"pathMappings": found} if found else {}


def _read_existing(file: Path) -> dict[str, Any]:
    try:
        data = read_ordinary(file, _MOST_BYTES)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise _make_error(file, f"it cannot be read: {exc}") from exc
    try:
        existing = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as exc:
        reason = f"it is not plain JSON, perhaps for its comments: {exc}"
        raise _make_error(file, reason) from exc
    if not isinstance(existing, dict):
        raise _make_error(file, "it is not a launch.json")
    return existing


def _is_own_entry(entry: object) -> bool:
    name = entry.get("name") if isinstance(entry, dict) else None
    return isinstance(name, str) and name.startswith(_NAME_PREFIX)


def _make_error(file: Path, reason: str) -> LaunchFileError:
    msg = f"{file} is left as it is: {reason}"
    return LaunchFileError(
        msg, remedy="write to another file, and copy what you want of it"
    )
