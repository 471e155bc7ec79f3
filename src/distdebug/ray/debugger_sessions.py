"""
Which processes of a Ray cluster wait for a debugger, and where?
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
from ..nodes import Bound, run_process


_MODULE = f"{__package__}.debugger_child"
# So long may Ray end by itself what it began.
_GRACE_S = 3.0
# The rest of the time is for the way there and back.
_SHARE = 0.8


def ask_tables(address: str | None, *, timeout_s: float) -> dict[str, Any]:
    """
    What does the head of the cluster know?

    Args:
        address: Where the cluster is, as ``HOST:PORT``; by default the one
            that this process, or this node, belongs to.

        timeout_s: How long it may take, in seconds.

    Returns:
        See `read_tables`.

    Raises:
        MissingDependencyError: Ray is not installed.

        NodesError: No such cluster answers in time.
    """
    answer = _ask(address, None, timeout_s)
    if not isinstance(answer, dict):
        raise _misunderstood(answer)
    return answer


def ask_workers(
    address: str | None,
    errands: Sequence[Mapping[str, Any]],
    *,
    timeout_s: float,
) -> list[Mapping[str, Any]]:
    """
    What do workers of the cluster answer?

    Args:
        address: As for `ask_tables`.

        errands: What to ask of whom; see `errands.ask_workers`.

        timeout_s: How long all may take, in seconds.

    Returns:
        One answer for each, in the same order; ``reason`` tells why there is
        none.

    Raises:
        MissingDependencyError: Ray is not installed.

        NodesError: No such cluster answers in time.
    """
    if not errands:
        return []
    answer = _ask(address, errands, timeout_s)
    if not isinstance(answer, list) or len(answer) != len(errands):
        raise _misunderstood(answer)
    return [_read(row) for row in rows_of(answer, keep_others=True)]


def rows_of(
    value: object, *, keep_others: bool = False
) -> list[Mapping[str, Any]]:
    """
    Which rows has a table from elsewhere?

    Args:
        value: The table.

        keep_others: Whether to keep the place of what is no row.
    """
    rows: Iterable[object] = value if isinstance(value, list) else ()
    return [
        row if isinstance(row, dict) else {}
        for row in rows
        if keep_others or isinstance(row, dict)
    ]


def plain_text(value: object, *, limit: int = 500) -> str:
    """
    What does a value from elsewhere say, if it is a text?
    """
    return clean(value, limit=limit) if isinstance(value, str) else ""


def _ask(
    address: str | None,
    errands: Sequence[Mapping[str, Any]] | None,
    timeout_s: float,
) -> Any:
    where = _where(address)
    if find_spec("ray") is None:
        msg = "Ray is not installed here"
        raise MissingDependencyError(
            msg, remedy="install the version of the cluster: ray==..."
        )
    question = {
        "address": where,
        "errands": errands,
        "timeout_s": timeout_s * _SHARE,
    }
    ended = run_process(
        [sys.executable, "-P", "-m", _MODULE],
        # What *we* were started by is no matter of the workers.
        environment={**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"},
        bound=Bound(timeout_s=timeout_s, grace_s=_GRACE_S),
        data=json.dumps(question).encode() + b"\n",
    )
    if ended.status is None:
        msg = f"no Ray cluster answers at {where} within {timeout_s:g} s"
        raise NodesError(msg, remedy=_REMEDY)
    said = _loads(ended.output)
    if "answer" in said:
        return said["answer"]
    complaint = clean(ended.complaint.decode("utf-8", "replace")[-300:])
    reason = plain_text(said.get("reason")) or complaint or "no answer"
    msg = f"there is no way to a Ray cluster at {where}: {reason}"
    raise NodesError(msg, remedy=_REMEDY)


_REMEDY = (
    "run it on a node of the cluster, where `ray status` answers, with the "
    "Ray and the Python of the cluster; with RAY_AUTH_MODE=token if it wants one"
)


def _where(address: str | None) -> str:
    if address in {"", "local"} or "://" in (address or ""):
        msg = f"{address!r} is no address of a running Ray cluster"
        raise NodesError(msg, remedy="say 'auto' or 'HOST:6379'")
    ray = sys.modules.get("ray")
    if address in {None, "auto"} and ray and ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    return address or "auto"


def _read(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(row.get("answer"), str):
        return {"reason": plain_text(row.get("reason")) or "no answer"}
    told = _loads(row["answer"])
    return told or {"reason": "a worker answered what nobody understands"}


def _loads(data: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _misunderstood(answer: object) -> NodesError:
    msg = f"the Ray cluster answered what nobody understands: {answer!r:.80}"
    return NodesError(msg, remedy="use the Ray of the cluster here")


NO_FRAMES = (
    "an error ended what ran: its frames are seen once one has attached"
)
# Nobody looks at more threads of one process.
_MOST_PLACES = 100


def waiting_places(
    look: Mapping[str, Any],
) -> tuple[tuple[Location, ...], str]:
    """
    Where do the threads of a process wait?

    Args:
        look: What `see_processes` tells of it.

    Returns:
        The line of each thread, and why there is none, or ``""``.
    """
    rows = look.get("places")
    if not isinstance(rows, list):
        return (), plain_text(look.get("reason")) or "py-spy saw nothing"
    found = [_place(row) for row in rows[:_MOST_PLACES]]
    places = tuple(place for place in found if place is not None)
    if places:
        return places, ""
    return (), NO_FRAMES if found else "no thread of it waits any more"


def _place(row: object) -> Location | None:
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
    One process of a Ray cluster that waits for a debugger.

    Attributes:
        kind: ``"debugpy"`` for what VS Code attaches to; ``"legacy"`` for
            what ``ray debug`` does.

        host: The address where it listens.

        port: The port where it listens.

        node: The name of its node, or ``""``.

        node_id: What Ray calls the node.

        pid: Its number there; 0 if that is not known.

        worker_id: What Ray calls the process.

        job_id: The job, or ``""``.

        actor_id: The actor, or ``""``.

        actor: The name of the actor, or ``""``.

        task: What it runs, such as ``"Trainer.step"``, or ``""``.

        is_driver: Whether it is the program itself, not a worker of it.

        paused: How many of its threads wait.

        locations: Where they wait, as far as that can be known.

        cwd: The folder where it works, or ``""``.

        note: Why it is not known where they wait, or ``""``.
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
        Where the first of its threads waits.
        """
        return self.locations[0] if self.locations else None

    @property
    def title(self) -> str:
        """
        What it runs, and as which actor, in the words of the job.
        """
        task = self.task or ("driver" if self.is_driver else "worker")
        return clean(f"{task} ({self.actor})" if self.actor else task)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
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
    What was checked before Ray's debugger is used.

    Attributes:
        checks: Each prerequisite, and what to do where it is not met.

        sessions: Who waits in the debugger now, without where; see
            `ray_debug_sessions`.

        address: Where the cluster is, or ``""``.

        dashboard: Where its dashboard is, or ``""``.

        head_node: The name of its head node, or ``""``.

        local_port: A port that is free here, for the tunnel.

        tunnel: The command that makes the dashboard reachable at that port
            of the machine where VS Code runs, or ``""``.

        extension: What the extension of VS Code is called.
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
        Whether no prerequisite is known to be missing.
        """
        return all(check.ok is not False for check in self.checks)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """
        What has to be mended, one conclusion for each.
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
        One plain dictionary per check, for a data frame.
        """
        return [attrs.asdict(check) for check in self.checks]

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
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


# Of each look of py-spy.
_LOOK_S = 10.0
# Ray names a process after what it runs.
_TITLE = re.compile(r"ray::(.{1,300})")
_ADDRESS = re.compile(r"(?:tcp://)?\[?([^\s\]]{1,255})\]?:(\d{1,5})")


def ray_debug_sessions(
    address: str | None = None, *, timeout_s: float = 60.0
) -> tuple[RayDebugSession, ...]:
    """
    Who waits in Ray's debugger now, and at which line?

    The head of the cluster knows who waits, where to attach, and who the
    actor is.  It does not know the line: a task on each node concerned looks
    at the stacks with py-spy, which stops nobody.  Where that does not work
    the session is there all the same, with a note.

    Args:
        address: Where the cluster is, as ``HOST:PORT``; by default the one
            that this process, or this node, belongs to.

        timeout_s: How long it may take, in seconds.

    Returns:
        The sessions, by node, actor and process.  A process that somebody
        attached to does not wait any more.

    Raises:
        MissingDependencyError: Ray is not installed.

        NodesError: No such cluster answers in time.
    """
    deadline = time.monotonic() + timeout_s
    tables = ask_tables(address, timeout_s=timeout_s)
    sessions = sessions_in(tables)
    return _sorted(_located(sessions, address, deadline - time.monotonic()))


def sessions_in(tables: Mapping[str, Any]) -> tuple[RayDebugSession, ...]:
    """
    Who waits, as far as the head of the cluster knows?

    Args:
        tables: See `read_tables`.

    Returns:
        The sessions, without what only their nodes know.
    """
    names = {
        plain_text(row.get("id")): plain_text(row.get("name"))
        for row in rows_of(tables.get("nodes"))
    }
    workers = rows_of(tables.get("workers"))
    legacy = _legacy(rows_of(tables.get("legacy")), workers, names)
    return _sorted([*_waiting(workers, names), *legacy])


def _sorted(
    sessions: Iterable[RayDebugSession],
) -> tuple[RayDebugSession, ...]:
    return tuple(
        sorted(
            sessions,
            key=lambda s: (s.node, s.node_id, s.task, s.actor, s.pid),
        )
    )


def _waiting(
    workers: Iterable[Mapping[str, Any]], names: Mapping[str, str]
) -> Iterator[RayDebugSession]:
    for row in workers:
        port, host = _number(row.get("port")), plain_text(row.get("ip"))
        paused = _number(row.get("paused"))
        if paused and host and 0 < port < 1 << 16:
            yield RayDebugSession(
                kind="debugpy",
                host=host,
                port=port,
                paused=paused,
                **_who(row, names),
            )


def _legacy(
    records: Iterable[Mapping[str, Any]],
    workers: Iterable[Mapping[str, Any]],
    names: Mapping[str, str],
) -> Iterator[RayDebugSession]:
    alive = {row.get("worker_id"): row for row in workers}
    for record in records:
        row = alive.get(_hashable(record.get("worker_id")))
        text = plain_text(record.get("pdb_address"))
        match = _ADDRESS.fullmatch(text)
        # The record of who was killed stays.
        if not (row and match):
            continue
        place = Location(
            function="",
            file=plain_text(record.get("filename")),
            line=_number(record.get("lineno")),
        )
        session = RayDebugSession(
            kind="legacy",
            host=match[1],
            port=int(match[2]),
            locations=(place,) if place.file else (),
            **_who(row, names),
        )
        title = plain_text(record.get("proctitle"))
        yield _titled(session, title)


def _who(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    texts = ("node_id", "worker_id", "job_id", "actor_id", "actor", "task")
    who: dict[str, Any] = {key: plain_text(row.get(key)) for key in texts}
    return {
        **who,
        "node": names.get(who["node_id"]) or plain_text(row.get("ip")),
        "pid": _number(row.get("pid")),
        "is_driver": row.get("is_driver") is True,
    }


def _located(
    sessions: Sequence[RayDebugSession], address: str | None, timeout_s: float
) -> tuple[RayDebugSession, ...]:
    by_node: dict[str, list[int]] = {}
    for session in sessions:
        by_node.setdefault(session.node_id, []).append(session.pid)
    look_s = max(min(_LOOK_S, timeout_s / 2), 1.0)
    errands = [
        {
            "ask": "see_processes",
            "with": [pids, look_s],
            "node": node,
            "env": {},
        }
        for node, pids in by_node.items()
    ]
    try:
        answers = ask_workers(address, errands, timeout_s=max(timeout_s, 1.0))
    except NodesError as exc:
        answers = [{"reason": str(exc)}] * len(errands)
    seen = dict(zip(by_node, answers, strict=True))
    return tuple(_seen(session, seen[session.node_id]) for session in sessions)


def _seen(
    session: RayDebugSession, answer: Mapping[str, Any]
) -> RayDebugSession:
    look = answer.get(str(session.pid))
    if not isinstance(look, dict):
        reason = plain_text(answer.get("reason")) or "its node said nothing"
        return attrs.evolve(session, note=reason)
    session = _titled(session, plain_text(look.get("title")))
    session = attrs.evolve(session, cwd=plain_text(look.get("cwd")))
    places, note = waiting_places(look)
    return attrs.evolve(
        session, locations=places or session.locations, note=note
    )


def _titled(session: RayDebugSession, title: str) -> RayDebugSession:
    match = _TITLE.match(title)
    return attrs.evolve(session, task=match[1].strip()) if match else session


def _number(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 40 else 0


def _hashable(value: object) -> str:
    return value if isinstance(value, str) else ""


# Workers that are asked; a cluster is not woken up for a check.
_MOST_ERRANDS = 64


class Told(NamedTuple):
    """
    What a worker said of its environment.

    Attributes:
        who: Whose environment it is.

        node: Where it was asked.

        facts: See `tell_environment`; ``reason`` alone if there is none.
    """

    who: str
    node: str
    facts: Mapping[str, Any]


def ask_environments(
    address: str | None, tables: Mapping[str, Any], *, timeout_s: float
) -> tuple[Told, ...]:
    """
    What does a breakpoint find in every environment that is in use?

    Args:
        address: As for `ask_tables`.

        tables: See `read_tables`.

        timeout_s: How long all may take, in seconds.

    Returns:
        What each worker said that was asked.
    """
    whom = _whom(tables)
    errands = [
        {"ask": "tell_environment", "with": [], "node": node, "env": env}
        for _, node, env in whom
    ]
    try:
        answers = ask_workers(address, errands, timeout_s=timeout_s)
    except NodesError as exc:
        answers = [{"reason": str(exc)}] * len(errands)
    names = {
        row.get("id"): plain_text(row.get("name"))
        for row in rows_of(tables.get("nodes"))
    }
    return tuple(
        Told(who, names.get(node) or node, facts)
        for (who, node, _), facts in zip(whom, answers, strict=True)
    )


def _whom(
    tables: Mapping[str, Any],
) -> list[tuple[str, str, Mapping[str, Any]]]:
    """
    Whose environment, the node where it is, and the environment.
    """
    found: list[list[tuple[str, str, Mapping[str, Any]]]] = []
    for row in rows_of(tables.get("environments")):
        env, nodes = row.get("env"), row.get("nodes")
        who = row.get("who")
        if not (isinstance(env, dict) and isinstance(nodes, list)):
            continue
        names = [plain_text(x) for x in who] if isinstance(who, list) else []
        text = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        found.append([(text, plain_text(node), env) for node in nodes])
    if not found:
        rows = rows_of(tables.get("nodes"))
        ids = [plain_text(row.get("id")) for row in rows]
        found = [[("no job", node, {}) for node in ids]]
    # Each environment before all nodes of one.
    longest = max(map(len, found))
    turns = (row[i] for i in range(longest) for row in found if i < len(row))
    return list(turns)[:_MOST_ERRANDS]
