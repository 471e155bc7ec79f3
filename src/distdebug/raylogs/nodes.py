"""
Which node is this the session of?
"""

from __future__ import annotations

import os
import re

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import attrs

from .._files import is_file, is_there, open_ordinary, resolved
from .._text import clean
from .model import RaySession


__all__ = ["SESSION_NAME", "named_hosts", "session_facts"]

SESSION_NAME = re.compile(r"session_2\d{3}-\d\d-\d\d_[\w.-]{1,80}", re.ASCII)
_TOLD_NAME = re.compile(
    rb"\b(session_2\d{3}-\d\d-\d\d_\d\d-\d\d-\d\d_\d{1,9}_\d{1,9})\b"
)
_HEAD = 1 << 16
_MOST_PARTS = 9
_STATE_ID = re.compile(rb"^Node ID: ([0-9a-f]{56})$", re.MULTILINE)
_STATE_NAME = re.compile(rb"^Node name: (\S{1,100})$", re.MULTILINE)
_LOG_ID = re.compile(
    rb"(?:node_id=|[Nn]ode ID |NodeManager with ID )([0-9a-f]{56})"
)
_ADDRESS = re.compile(
    rb"Initializing worker at address: \[?([0-9a-fA-F.:]{2,45}?)\]?:\d{1,5}\b"
)
_JSON_ADDRESS = re.compile(rb'"node_ip_address": "([0-9a-fA-F.:]{2,45})"')
_VERSION = re.compile(
    rb"(?:ray_version=|Ray version: )(\d{1,4}\.[\w.+-]{1,40})"
)
_PORT = re.compile(r"[a-z_]{1,60}_port_([0-9a-f]{56})", re.ASCII)
_HEADS = ("gcs_server.out", "gcs_server.err", "monitor.log", "monitor.out")
# Folders that are called the same on every node.
_NO_HOST = re.compile(
    r"(?:ray|session)(?:[_.-].{0,200})?|tmp|temp|logs?|old|old_logs|var|data"
)


def session_facts(session: RaySession) -> dict[str, Any]:
    """
    Tell what the files of a session say about its node.

    Args:
        session: The session, of which only the folders are known.

    Returns:
        The attributes that are known now.
    """
    logs = session.logs
    state = _head(logs / "debug_state.txt")
    raylet = _head(logs / "raylet.out")
    node_id = (
        _first(_STATE_ID, state)
        or _id_of_ports(session.root)
        or _first(_LOG_ID, raylet)
    )
    ip = _ip(_first(_STATE_NAME, state)) or _ip_of_files(session)
    # Where only the logs were copied, their folder has a name of its own.
    name = None
    if not SESSION_NAME.fullmatch(session.name):
        name = _first(_TOLD_NAME, raylet)
    return {
        "name": name or session.name,
        "node_id": node_id,
        "ip": ip,
        "ray_version": _version(logs),
        "is_head": any(is_there(logs / name) for name in _HEADS),
        "host": ip or (node_id or "")[:8],
    }


def named_hosts(
    sessions: Iterable[RaySession], places: Sequence[Path]
) -> list[RaySession]:
    """
    Call nodes by the folders that they were copied to.

    Args:
        sessions: The sessions.

        places: Where they were looked for.

    Returns:
        The same sessions: several of one name each with the name of the
        folder in which they differ, and all with the version that one of
        them tells.
    """
    clusters = defaultdict(list)
    for session in sessions:
        clusters[session.name].append(session)
    found = []
    for members in clusters.values():
        versions = [x.ray_version for x in members if x.ray_version]
        base = _common([x.root for x in members], places)
        for session in members:
            # Of one, a folder may as well be the name of the job.
            named = _host_in(session.root, base)
            names = (named, session.host)[:: 1 if len(members) > 1 else -1]
            host = clean(names[0] or names[1])
            version = session.ray_version or next(iter(versions), None)
            found.append(attrs.evolve(session, host=host, ray_version=version))
    return found


def _version(logs: Path) -> str | None:
    """
    What the head tells; the GCS of old versions does not.
    """
    heads = (_head(logs / name) for name in ("gcs_server.out", "monitor.log"))
    return next(filter(None, (_first(_VERSION, x) for x in heads)), None)


def _common(roots: Sequence[Path], places: Sequence[Path]) -> Path:
    if len(roots) > 1:
        return Path(os.path.commonpath(roots))
    (root,) = roots
    around = [p for x in places if root.is_relative_to(p := resolved(x))]
    return max(around, default=root, key=lambda p: len(p.parts))


def _host_in(root: Path, base: Path) -> str:
    """
    The first folder below *base* that is not called the same everywhere.
    """
    parts = root.relative_to(base).parts
    return next((x for x in parts if not _NO_HOST.fullmatch(x)), "")


def _head(path: Path) -> bytes:
    """
    The beginning of a file, or of its oldest part if it was rotated.
    """
    for number in range(_MOST_PARTS, 0, -1):
        part = path.with_name(f"{path.name}.{number}")
        if is_file(part):
            path = part
            break
    with (
        suppress(OSError, ValueError),
        open_ordinary(path, "no file") as file,
    ):
        return file.read(_HEAD)
    return b""


def _first(pattern: re.Pattern[bytes], data: bytes) -> str | None:
    match = pattern.search(data)
    return match[1].decode("ascii", "replace") if match else None


def _id_of_ports(root: Path) -> str | None:
    with suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            match = _PORT.fullmatch(entry.name)
            if match:
                return match[1]
    return None


def _ip_of_files(session: RaySession) -> str | None:
    data = _head(session.root / "node_ip_address.json")
    found = _ip(_first(_JSON_ADDRESS, data))
    if found:
        return found
    with suppress(OSError), os.scandir(session.logs) as entries:
        for entry in entries:
            if entry.name.startswith("python-core-"):
                return _ip(_first(_ADDRESS, _head(Path(entry.path))))
    return None


def _ip(text: str | None) -> str | None:
    with suppress(ValueError):
        return str(ip_address(text or ""))
    return None
