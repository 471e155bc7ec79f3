"""
List the processes of a Ray cluster that wait for a debugger.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import attrs

from .._render import Block, Shown
from .._text import clean
from ..capture import Check, check_blocks
from ..errors import MissingDependencyError, NodesError
from ..findings import Cause, Evidence, Finding, Location
from ..nodes import CommandLimits, run_process


_CHILD_MODULE = f"{__package__}.debugger_child"
# Time for Ray to end cleanly after the timeout, in seconds.
_GRACE_S = 3.0
# Share of the timeout for the tasks; the rest is for starting and connecting.
_CHILD_SHARE = 0.8


def query_cluster_state(
    address: str | None, *, timeout_s: float
) -> dict[str, Any]:
    """
    Query the head of a cluster for its debugger state.

    Args:
        address: The cluster, as ``HOST:PORT``; by default the one that this
            process, or this node, belongs to.

        timeout_s: The timeout, in seconds.

    Returns:
        See `debugger_child.read_cluster_state`.

    Raises:
        MissingDependencyError: Ray is not installed.

        NodesError: No such cluster answers in time.
    """
    answer = _query_cluster(address, None, timeout_s)
    if not isinstance(answer, dict):
        raise _make_answer_error(answer)
    return answer


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

        tasks: See `debugger_child.run_tasks`.

        timeout_s: The timeout for all tasks, in seconds.

    Returns:
        One answer for each task, in the same order; a failed one has
        ``reason``.

    Raises:
        MissingDependencyError: Ray is not installed.

        NodesError: No such cluster answers in time.
    """
    if not tasks:
        return []
    answer = _query_cluster(address, tasks, timeout_s)
    if not isinstance(answer, list) or len(answer) != len(tasks):
        raise _make_answer_error(answer)
    return [_parse_answer(row) for row in parse_rows(answer, keep_others=True)]


def parse_rows(
    value: object, *, keep_others: bool = False
) -> list[Mapping[str, Any]]:
    """
    Return the rows of a list that another process sent.

    Args:
        keep_others: Whether to return an empty row for an entry that is no
            row.
    """
    rows: Iterable[object] = value if isinstance(value, list) else ()
    return [
        row if isinstance(row, dict) else {}
        for row in rows
        if keep_others or isinstance(row, dict)
    ]


def plain_text(value: object, *, limit: int = 500) -> str:
    """
    Return a clean copy of *value* if it is a text, or else ``""``.
    """
    return clean(value, limit=limit) if isinstance(value, str) else ""


def _query_cluster(
    address: str | None,
    tasks: Sequence[Mapping[str, Any]] | None,
    timeout_s: float,
) -> Any:
    cluster = _resolve_address(address)
    if find_spec("ray") is None:
        msg = "Ray is not installed here"
        raise MissingDependencyError(
            msg, remedy="install the version of the cluster: ray==..."
        )
    query = {
        "address": cluster,
        "errands": tasks,
        "timeout_s": timeout_s * _CHILD_SHARE,
    }
    child = run_process(
        [sys.executable, "-P", "-m", _CHILD_MODULE],
        # Keep Ray from applying this process's `uv run` to the workers.
        environment={**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"},
        limits=CommandLimits(timeout_s=timeout_s, grace_s=_GRACE_S),
        data=json.dumps(query).encode() + b"\n",
    )
    if child.status is None:
        msg = f"no Ray cluster answers at {cluster} within {timeout_s:g} s"
        raise NodesError(msg, remedy=_REMEDY)
    reply = _loads(child.output)
    if "answer" in reply:
        return reply["answer"]
    error_text = clean(child.stderr.decode("utf-8", "replace")[-300:])
    reason = plain_text(reply.get("reason")) or error_text or "no answer"
    msg = f"there is no way to a Ray cluster at {cluster}: {reason}"
    raise NodesError(msg, remedy=_REMEDY)


_REMEDY = (
    "run it on a node of the cluster, where `ray status` answers, with the "
    "Ray and the Python of the cluster; with RAY_AUTH_MODE=token if it wants one"
)


def _resolve_address(address: str | None) -> str:
    if address in {"", "local"} or "://" in (address or ""):
        msg = f"{address!r} is no address of a running Ray cluster"
        raise NodesError(msg, remedy="say 'auto' or 'HOST:6379'")
    ray = sys.modules.get("ray")
    if address in {None, "auto"} and ray and ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    return address or "auto"


def _parse_answer(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(row.get("answer"), str):
        return {"reason": plain_text(row.get("reason")) or "no answer"}
    facts = _loads(row["answer"])
    return facts or {"reason": "a worker answered what nobody understands"}


def _loads(data: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _make_answer_error(answer: object) -> NodesError:
    msg = f"the Ray cluster answered what nobody understands: {answer!r:.80}"
    return NodesError(msg, remedy="use the Ray of the cluster here")


NO_FRAMES = (
    "an error ended what ran: its frames are seen once one has attached"
)
# More threads of one process are not shown.
_MOST_LOCATIONS = 100


def find_waiting_locations(
    process: Mapping[str, Any],
) -> tuple[tuple[Location, ...], str]:
    """
    Return the lines where threads of a process wait in the debugger.

    Args:
        process: One process in the answer of `debugger_worker.see_processes`.

    Returns:
        The line of each thread, and the reason if there is none, or ``""``.
    """
    rows = process.get("places")
    if not isinstance(rows, list):
        return (), plain_text(process.get("reason")) or "py-spy saw nothing"
    found = [_parse_location(row) for row in rows[:_MOST_LOCATIONS]]
    places = tuple(place for place in found if place is not None)
    if places:
        return places, ""
    return (), NO_FRAMES if found else "no thread of it waits any more"


def _parse_location(row: object) -> Location | None:
    match row:
        case [str(function), str(file), int(line)]:
            return Location(
                function=plain_text(function), file=plain_text(file), line=line
            )
    return None


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

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        data = attrs.asdict(self)
        return {**data, "locations": list(data["locations"])}

    def _blocks_(self) -> Iterable[Block]:
        where = self.location.brief if self.location else self.note
        yield (
            f"{self.title}, pid {self.pid} on {clean(self.node)}, "
            f"{clean(self.host)}:{self.port}: {clean(where or 'unknown')}"
        )


@attrs.frozen(kw_only=True)
class RayDebuggerCheck(Shown):
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
    def is_ready(self) -> bool:
        """
        Return whether no check failed.
        """
        return all(check.ok is not False for check in self.checks)

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

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per check, for a data frame.
        """
        return [attrs.asdict(check) for check in self.checks]

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        rest = attrs.asdict(
            self,
            filter=lambda field, _: field.name not in {"checks", "sessions"},
        )
        return {
            "ready": self.is_ready,
            "checks": self.to_records(),
            "sessions": [session.to_dict() for session in self.sessions],
            "findings": [finding.to_dict() for finding in self.findings],
            **rest,
        }

    def _blocks_(self) -> Iterable[Block]:
        return check_blocks(self.checks)


# Timeout for py-spy on each process, in seconds.
_PYSPY_TIMEOUT_S = 10.0
# Ray puts the running task into the process title.
_PROCESS_TITLE = re.compile(r"ray::(.{1,300})")
_PDB_ADDRESS = re.compile(r"(?:tcp://)?\[?([^\s\]]{1,255})\]?:(\d{1,5})")


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
    cluster_state = query_cluster_state(address, timeout_s=timeout_s)
    sessions = parse_sessions(cluster_state)
    return _sort_sessions(
        _add_locations(sessions, address, deadline - time.monotonic())
    )


def parse_sessions(
    cluster_state: Mapping[str, Any],
) -> tuple[RayDebugSession, ...]:
    """
    Return the waiting processes in the cluster state, without their lines.

    Args:
        cluster_state: See `debugger_child.read_cluster_state`.
    """
    names = {
        plain_text(row.get("id")): plain_text(row.get("name"))
        for row in parse_rows(cluster_state.get("nodes"))
    }
    workers = parse_rows(cluster_state.get("workers"))
    legacy = _list_legacy_sessions(
        parse_rows(cluster_state.get("legacy")), workers, names
    )
    return _sort_sessions([*_list_debugpy_sessions(workers, names), *legacy])


def _sort_sessions(
    sessions: Iterable[RayDebugSession],
) -> tuple[RayDebugSession, ...]:
    return tuple(
        sorted(
            sessions,
            key=lambda s: (s.node, s.node_id, s.task, s.actor, s.pid),
        )
    )


def _list_debugpy_sessions(
    workers: Iterable[Mapping[str, Any]], names: Mapping[str, str]
) -> Iterator[RayDebugSession]:
    for row in workers:
        port, host = _parse_number(row.get("port")), plain_text(row.get("ip"))
        paused = _parse_number(row.get("paused"))
        if paused and host and 0 < port < 1 << 16:
            yield RayDebugSession(
                kind="debugpy",
                host=host,
                port=port,
                paused=paused,
                **_parse_fields(row, names),
            )


def _list_legacy_sessions(
    records: Iterable[Mapping[str, Any]],
    workers: Iterable[Mapping[str, Any]],
    names: Mapping[str, str],
) -> Iterator[RayDebugSession]:
    alive = {row.get("worker_id"): row for row in workers}
    for record in records:
        row = alive.get(_text_or_empty(record.get("worker_id")))
        text = plain_text(record.get("pdb_address"))
        match = _PDB_ADDRESS.fullmatch(text)
        # The record of a killed process is not deleted.
        if not (row and match):
            continue
        place = Location(
            function="",
            file=plain_text(record.get("filename")),
            line=_parse_number(record.get("lineno")),
        )
        session = RayDebugSession(
            kind="legacy",
            host=match[1],
            port=int(match[2]),
            locations=(place,) if place.file else (),
            **_parse_fields(row, names),
        )
        title = plain_text(record.get("proctitle"))
        yield _set_task(session, title)


def _parse_fields(
    row: Mapping[str, Any], names: Mapping[str, str]
) -> dict[str, Any]:
    texts = ("node_id", "worker_id", "job_id", "actor_id", "actor", "task")
    fields: dict[str, Any] = {key: plain_text(row.get(key)) for key in texts}
    return {
        **fields,
        "node": names.get(fields["node_id"]) or plain_text(row.get("ip")),
        "pid": _parse_number(row.get("pid")),
        "is_driver": row.get("is_driver") is True,
    }


def _add_locations(
    sessions: Sequence[RayDebugSession], address: str | None, timeout_s: float
) -> tuple[RayDebugSession, ...]:
    by_node: dict[str, list[int]] = {}
    for session in sessions:
        by_node.setdefault(session.node_id, []).append(session.pid)
    pyspy_timeout_s = max(min(_PYSPY_TIMEOUT_S, timeout_s / 2), 1.0)
    tasks = [
        {
            "ask": "see_processes",
            "with": [pids, pyspy_timeout_s],
            "node": node,
            "env": {},
        }
        for node, pids in by_node.items()
    ]
    try:
        answers = query_workers(address, tasks, timeout_s=max(timeout_s, 1.0))
    except NodesError as exc:
        answers = [{"reason": str(exc)}] * len(tasks)
    by_id = dict(zip(by_node, answers, strict=True))
    return tuple(
        _add_location(session, by_id[session.node_id]) for session in sessions
    )


def _add_location(
    session: RayDebugSession, answer: Mapping[str, Any]
) -> RayDebugSession:
    process = answer.get(str(session.pid))
    if not isinstance(process, dict):
        reason = plain_text(answer.get("reason")) or "its node said nothing"
        return attrs.evolve(session, note=reason)
    session = _set_task(session, plain_text(process.get("title")))
    session = attrs.evolve(session, cwd=plain_text(process.get("cwd")))
    places, note = find_waiting_locations(process)
    return attrs.evolve(
        session, locations=places or session.locations, note=note
    )


def _set_task(session: RayDebugSession, title: str) -> RayDebugSession:
    match = _PROCESS_TITLE.match(title)
    return attrs.evolve(session, task=match[1].strip()) if match else session


def _parse_number(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 40 else 0


def _text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""


# A check must not start workers all over a large cluster.
_MOST_TASKS = 64


class WorkerEnvironment(NamedTuple):
    """
    The debugger settings in one runtime environment.

    Attributes:
        used_by: The jobs and actors that use the environment.

        node: The node whose worker answered.

        facts: See `debugger_worker.tell_environment`; only ``reason`` if there
            is no answer.
    """

    used_by: str
    node: str
    facts: Mapping[str, Any]


def query_environments(
    address: str | None, cluster_state: Mapping[str, Any], *, timeout_s: float
) -> tuple[WorkerEnvironment, ...]:
    """
    Query the debugger settings of every runtime environment in use.

    Args:
        address: As for `query_cluster_state`.

        cluster_state: See `debugger_child.read_cluster_state`.

        timeout_s: The timeout for all workers, in seconds.
    """
    requests = _list_requests(cluster_state)
    tasks = [
        {"ask": "tell_environment", "with": [], "node": node, "env": env}
        for _, node, env in requests
    ]
    try:
        answers = query_workers(address, tasks, timeout_s=timeout_s)
    except NodesError as exc:
        answers = [{"reason": str(exc)}] * len(tasks)
    names = {
        row.get("id"): plain_text(row.get("name"))
        for row in parse_rows(cluster_state.get("nodes"))
    }
    return tuple(
        WorkerEnvironment(used_by, names.get(node) or node, facts)
        for (used_by, node, _), facts in zip(requests, answers, strict=True)
    )


def _list_requests(
    cluster_state: Mapping[str, Any],
) -> list[tuple[str, str, Mapping[str, Any]]]:
    """
    List users, node, and runtime environment of each query.
    """
    found: list[list[tuple[str, str, Mapping[str, Any]]]] = []
    for row in parse_rows(cluster_state.get("environments")):
        env, nodes = row.get("env"), row.get("nodes")
        users = row.get("who")
        if not (isinstance(env, dict) and isinstance(nodes, list)):
            continue
        names = (
            [plain_text(x) for x in users] if isinstance(users, list) else []
        )
        text = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        found.append([(text, plain_text(node), env) for node in nodes])
    if not found:
        rows = parse_rows(cluster_state.get("nodes"))
        ids = [plain_text(row.get("id")) for row in rows]
        found = [[("no job", node, {}) for node in ids]]
    # One node of each environment first, then the next nodes.
    longest = max(map(len, found))
    by_turns = (
        row[i] for i in range(longest) for row in found if i < len(row)
    )
    return list(by_turns)[:_MOST_TASKS]
