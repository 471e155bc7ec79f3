"""
Which logs belong to this actor?
"""

from __future__ import annotations

import os
import re

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from .._lines import Origin, parse_line
from ..errors import LogError
from .actors import has_exports
from .model import RaySession, WorkerLog
from .sessions import find_ray_sessions
from .workers import explained, is_told, read_heads, worker_files


__all__ = ["Places", "find_actor_logs", "sessions_of"]

Place = str | os.PathLike[str] | RaySession
Places = Place | Iterable[Place] | None

_ID = re.compile(r"[0-9a-f]{6,56}")
_MOST_PID_DIGITS = 7


def find_actor_logs(
    actor: str | int, sessions: Places = None
) -> tuple[WorkerLog, ...]:
    """
    Find what an actor printed, on whatever node it was.

    Args:
        actor: A pattern of a shell such as ``"TrainerActor*"``, which is
            compared with the class, the ``__repr__``, and the name of each
            actor; the number of a process; at least six digits of the id of an
            actor or a worker; or the beginning of a line of the driver, such
            as ``"(SglEngine pid=514428, ip=10.0.0.2)"``.

        sessions: Sessions, or places where to look for them; by default where
            Ray has them on this machine.

    Returns:
        The logs, those of one node after the other; none if nobody is called
        so.

    Raises:
        NoLogsError: There is no session.

        LogError: *actor* is empty, or neither a text nor a number.
    """
    if not isinstance(actor, str | int):
        msg = f"which actor? A pattern or a number, and not {actor!r:.60}"
        raise LogError(msg, remedy='name it first: find_actor_logs("*", …)')
    if isinstance(actor, str) and not actor.strip():
        msg = "which actor? The pattern is empty"
        raise LogError(msg, remedy='"*" is everybody')

    found = sessions_of(sessions)
    logs = worker_files(found)
    origin = _origin(actor)
    if origin:
        heads = read_heads(_with_pid(logs, origin))
        return _of_origin(explained(heads, found), origin)

    text = str(actor).strip()
    by_file = [log for log in logs if _is_file_of(log, text)]
    if by_file:
        return explained(read_heads(by_file), found)
    heads = read_heads(logs)
    if not _ID.fullmatch(text) and not any(map(has_exports, found)):
        # Those that nothing else can tell more of need not be looked up.
        heads = [x for x in heads if _is_called(x, text) or not is_told(x)]
    return tuple(x for x in explained(heads, found) if _is_called(x, text))


def sessions_of(sessions: Places) -> tuple[RaySession, ...]:
    """
    Take sessions as they are, and look for others in places.

    Args:
        sessions: Sessions, places, or both; ``None`` for the usual places.

    Returns:
        The sessions.

    Raises:
        NoLogsError: There is no session in the places.
    """
    if sessions is None:
        return find_ray_sessions()
    if isinstance(sessions, (str, os.PathLike, RaySession)):
        sessions = (sessions,)
    given = list(sessions)
    known = [x for x in given if isinstance(x, RaySession)]
    places = [x for x in given if not isinstance(x, RaySession)]
    if places or not known:
        known += find_ray_sessions(*places)
    return tuple(known)


def _origin(actor: str | int) -> Origin | None:
    """
    Who printed a line, if it is one.
    """
    if isinstance(actor, str):
        line = parse_line(actor.strip())
        if line.origin and line.origin.pid is not None:
            return line.origin
    return None


def _with_pid(logs: Iterable[WorkerLog], origin: Origin) -> list[WorkerLog]:
    return [
        log
        for log in logs
        if log.pid == origin.pid
        and (origin.ip is None or log.session.ip in {None, origin.ip})
    ]


def _of_origin(
    logs: tuple[WorkerLog, ...], origin: Origin
) -> tuple[WorkerLog, ...]:
    """
    Those of that name; numbers of processes are the same on other nodes.
    """
    is_sure: tuple[Callable[[WorkerLog], bool], ...] = (
        lambda log: origin.ip is not None and log.session.ip == origin.ip,
        lambda log: _is_named(log, origin.name),
        # Ray leaves out the address of the driver's own node.
        lambda log: origin.ip is None and log.session.is_head,
    )
    for is_it in is_sure:
        logs = tuple(filter(is_it, logs)) or logs
    return logs


def _is_named(log: WorkerLog, name: str) -> bool:
    # Ray writes the name of a task where there is no actor.
    return name in {
        *(log.actor_class, log.actor_repr, log.actor_name),
        *log.task_names,
    }


def _is_file_of(log: WorkerLog, text: str) -> bool:
    if text.isdecimal() and len(text) <= _MOST_PID_DIGITS:
        return log.pid == int(text)
    return _begins(log.worker_id, text)


def _is_called(log: WorkerLog, text: str) -> bool:
    names = [log.actor_class, log.actor_repr, log.actor_name]
    if log.actor_class:
        names.append(log.actor_class.rpartition(".")[2])
    if _begins(log.worker_id, text) or _begins(log.actor_id, text):
        return True
    # A representation may hold brackets, which mean something in a pattern.
    return any(x and (x == text or fnmatchcase(x, text)) for x in names)


def _begins(name: str | None, text: str) -> bool:
    return bool(name and name.startswith(text) and _ID.fullmatch(text))
