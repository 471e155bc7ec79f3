"""
Which processes of a Ray cluster wait for a debugger, and where?
"""

from __future__ import annotations

import re
import time

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from ...errors import NodesError
from ...findings import Location
from .asking import ask_tables, ask_workers, plain_text, rows_of
from .model import RayDebugSession
from .places import waiting_places


__all__ = ["ray_debug_sessions", "sessions_in"]

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
