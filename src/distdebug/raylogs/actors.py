"""
Which actor was in which worker, as files of Ray itself tell?

In the order of trust: the log of the worker's own C++ half, that of the GCS on
the head, and the export events, which are only there if they were asked for.
Their wording differs over versions, that of the ids does not.
"""

from __future__ import annotations

import base64
import binascii
import json
import re

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from .._files import matching
from .._lines import BROKEN, open_log, split_block
from .listing import Listed, list_parts, parts_of
from .model import RaySession, WorkerLog


__all__ = [
    "KnownActor",
    "actors_by_worker",
    "core_logs",
    "exported_actors",
    "has_exports",
    "with_core",
]

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
