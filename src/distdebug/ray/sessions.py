"""
Find Ray session folders and list their log files.

All nodes of a cluster give their session folder the same name, so folders of
one name that were copied from several nodes are several nodes.
"""

from __future__ import annotations

import os
import re
import stat

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from shlex import join
from typing import Any

import attrs

from .._io import (
    is_folder,
    is_link,
    matching,
    names_in,
    resolved,
    stays_in,
)
from .._lazy import late_pattern
from .._render import Block, Shown
from .._text import clean
from ..errors import NoLogsError
from ..findings import Missing
from ..logs import PACKED_SUFFIXES, READ_ERRORS, open_log


@attrs.frozen(kw_only=True)
class RaySession(Shown):
    """
    The session folder of one Ray node.

    All nodes of a cluster give it the same name, so several folders of one
    name are several nodes.

    Attributes:
        root: The folder of the session.

        logs: The folder of its logs; *root* itself if only the logs were
            copied.

        name: Such as ``"session_2026-02-20_02-03-57_123456_4711"``.

        host: The display name of the node: its host name if the path contains
            it, or else its address or the beginning of its id; ``""`` if
            unknown.

        ip: The address of the node.

        node_id: Ray's id of the node, 56 hexadecimal digits.

        ray_version: Such as ``"2.40.0"``; older versions do not log it.

        is_head: Whether the node was the head of the cluster.
    """

    root: Path
    logs: Path
    name: str
    host: str = ""
    ip: str | None = None
    node_id: str | None = None
    ray_version: str | None = None
    is_head: bool = False

    def _blocks_(self) -> Iterable[Block]:
        where = f" of {self.host}" if self.host else ""
        yield clean(f"{self.name}{where}: {self.logs}", limit=4096)


@attrs.frozen(kw_only=True)
class LogPart:
    """
    One file of a log, which may have several after rotation.

    Attributes:
        path: The file.

        index: 0 for the newest part, and greater for older ones.

        size: Its size when it was listed, in bytes.

        mtime: The time of the last write, in seconds since the epoch.
    """

    path: Path
    index: int = 0
    size: int = 0
    mtime: float = 0.0


@attrs.frozen(kw_only=True)
class WorkerLog(Shown):
    """
    The log files of one worker process, and its identity.

    Attributes:
        session: The session, and with it the node.

        worker_id: Ray's id of the worker, 56 hexadecimal digits.

        pid: The process id on its node.

        name_job_id: The job in the file names, which is wrong for processes
            that Ray started ahead of their job.

        job_id: The job that the process itself logged.

        actor_id: The actor, 32 hexadecimal digits; ``None`` if it only ran
            tasks, or the actor is unknown.

        actor_class: The class of the actor.

        actor_repr: The ``__repr__`` of the actor, if it defines one.

        actor_name: The name given in ``.options(name=…)``.

        task_names: The functions that it ran as tasks, as far as was read.

        kind: ``"worker"``, or ``"io_worker"`` for those that spill objects.

        out: The parts of its standard output, oldest first.

        err: The parts of its standard error, where ``logging`` writes, oldest
            first.

        missing: What could not be read, and why.
    """

    session: RaySession
    worker_id: str
    pid: int
    name_job_id: str | None = None
    job_id: str | None = None
    actor_id: str | None = None
    actor_class: str | None = None
    actor_repr: str | None = None
    actor_name: str | None = None
    task_names: tuple[str, ...] = ()
    kind: str = "worker"
    out: tuple[LogPart, ...] = ()
    err: tuple[LogPart, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def parts(self) -> tuple[LogPart, ...]:
        """
        Return the parts of both streams.
        """
        return (*self.out, *self.err)

    @property
    def mtime(self) -> float:
        """
        Return the time of its last output, in seconds since the epoch.
        """
        return max((x.mtime for x in self.parts), default=0.0)

    @property
    def label(self) -> str:
        """
        Return a label such as ``"SglEngine"`` or ``"worker"``.
        """
        known = self.actor_repr or self.actor_class or self.actor_name
        return known or (self.task_names[-1] if self.task_names else self.kind)

    def _blocks_(self) -> Iterable[Block]:
        where = f" on {self.session.host}" if self.session.host else ""
        yield clean(f"{self.label} (pid={self.pid}{where})", limit=1000)


SessionSource = str | os.PathLike[str] | RaySession
#: The session of one node, or those of several, or folders to search.
RaySessions = SessionSource | Iterable[SessionSource]


def as_sessions(sessions: RaySessions) -> tuple[RaySession, ...]:
    """
    Return the given sessions, and those found in the given folders.

    Raises:
        NoLogsError: The folders contain no session.
    """
    if isinstance(sessions, str | os.PathLike | RaySession):
        sessions = (sessions,)
    entries = list(sessions)
    known = [x for x in entries if isinstance(x, RaySession)]
    places = [x for x in entries if not isinstance(x, RaySession)]
    if places:
        known += find_ray_sessions(*places)
    return tuple(known)


SESSION_NAME = late_pattern(r"session_2\d{3}-\d\d-\d\d_[\w.-]{1,80}", re.ASCII)
_SESSION_IN_LOG = late_pattern(
    rb"\b(session_2\d{3}-\d\d-\d\d_\d\d-\d\d-\d\d_\d{1,9}_\d{1,9})\b"
)
_HEAD_BYTES = 1 << 16
_MOST_CORE_LOGS = 100
_STATE_ID = late_pattern(rb"^Node ID: ([0-9a-f]{56})$", re.MULTILINE)
_STATE_NAME = late_pattern(rb"^Node name: (\S{1,100})$", re.MULTILINE)
_LOG_ID = late_pattern(
    rb"(?:node_id=|[Nn]ode ID |NodeManager with ID )([0-9a-f]{56})"
)
_ADDRESS = late_pattern(
    rb"Initializing worker at address: \[?([0-9a-fA-F.:]{2,45}?)\]?:\d{1,5}\b"
)
_JSON_ADDRESS = late_pattern(rb'"node_ip_address": "([0-9a-fA-F.:]{2,45})"')
_VERSION = late_pattern(
    rb"(?:ray_version=|Ray version: )(\d{1,4}\.[\w.+-]{1,40})"
)
_PORT = late_pattern(r"[a-z_]{1,60}_port_([0-9a-f]{56})", re.ASCII)
_COMPONENTS = ("debug_state.", "raylet.", "gcs_server.", "monitor.")
_STATE = ("debug_state", "txt")
_HEADS_WITH_VERSION = (("gcs_server", "out"), ("monitor", "log"))
_HEADS = (_STATE, ("raylet", "out"), *_HEADS_WITH_VERSION)
_HEAD_NODE_FILES = frozenset(
    {*_HEADS_WITH_VERSION, ("gcs_server", "err"), ("monitor", "out")}
)
# Folder names that are the same on every node.
_COMMON_FOLDER_NAME = late_pattern(
    r"(?:ray|session)(?:[_.-].{0,200})?|tmp|temp|logs?|old|old_logs|var|data"
)


def _read_session_facts(session: RaySession) -> dict[str, Any]:
    """
    Read name, node, address, and version from the files of a session.

    Args:
        session: The session, of which only the folders are known.

    Returns:
        The attributes of `RaySession`.
    """
    listed, _ = list_parts(session, *_COMPONENTS)
    # The beginning of a log is in its oldest part.
    heads = {
        name: _read_head(listed[name][0].path)
        for name in _HEADS
        if name in listed
    }
    raylet, state = heads.get(("raylet", "out"), b""), heads.get(_STATE, b"")
    ports = filter(None, map(_PORT.fullmatch, names_in(session.root)))
    node_id = (
        _search(_STATE_ID, state)
        or next((match[1] for match in ports), None)
        or _search(_LOG_ID, raylet)
    )
    ip = _parse_ip(_search(_STATE_NAME, state)) or _find_ip(session)
    # If only the logs were copied, their folder may have another name.
    name = None
    if not SESSION_NAME.fullmatch(session.name):
        name = _search(_SESSION_IN_LOG, raylet)
    # Old versions of the GCS do not log the version.
    versions = (
        _search(_VERSION, heads.get(x, b"")) for x in _HEADS_WITH_VERSION
    )
    return {
        "name": name or session.name,
        "node_id": node_id,
        "ip": ip,
        "ray_version": next(filter(None, versions), None),
        "is_head": not _HEAD_NODE_FILES.isdisjoint(listed),
        "host": ip or (node_id or "")[:8],
    }


def name_hosts(
    sessions: Iterable[RaySession], places: Sequence[Path]
) -> list[RaySession]:
    """
    Name the hosts of sessions after the folders that they were copied to.

    Args:
        places: The folders that were searched.

    Returns:
        The sessions: several of one name get the name of the folder in which
        their paths differ, and all get the version that one of them logs.
    """
    clusters = defaultdict(list)
    for session in sessions:
        clusters[session.name].append(session)
    found = []
    for members in clusters.values():
        versions = [x.ray_version for x in members if x.ray_version]
        base = _find_common_folder([x.root for x in members], places)
        for session in members:
            parts = session.root.relative_to(base).parts
            own = (x for x in parts if not _COMMON_FOLDER_NAME.fullmatch(x))
            names = [next(own, ""), session.host]
            # Of a single session, the folder may be named after the job.
            if len(members) == 1:
                names.reverse()
            host = clean(names[0] or names[1])
            version = session.ray_version or next(iter(versions), None)
            found.append(attrs.evolve(session, host=host, ray_version=version))
    return found


def _find_common_folder(roots: Sequence[Path], places: Sequence[Path]) -> Path:
    if len(roots) > 1:
        return Path(os.path.commonpath(roots))
    (root,) = roots
    containing = [p for x in places if root.is_relative_to(p := resolved(x))]
    return max(containing, default=root, key=lambda p: len(p.parts))


def _read_head(path: Path) -> bytes:
    with suppress(*READ_ERRORS), open_log(path) as file:
        return file.read(_HEAD_BYTES)
    return b""


def _search(pattern: re.Pattern[bytes], data: bytes) -> str | None:
    match = pattern.search(data)
    return match[1].decode("ascii", "replace") if match else None


def _find_ip(session: RaySession) -> str | None:
    data = _read_head(session.root / "node_ip_address.json")
    if found := _parse_ip(_search(_JSON_ADDRESS, data)):
        return found
    # Only the oldest part of a rotated log has it.
    names = (x for x in names_in(session.logs) if x.startswith("python-core-"))
    for name in islice(names, _MOST_CORE_LOGS):
        head = _read_head(session.logs / name)
        if found := _parse_ip(_search(_ADDRESS, head)):
            return found
    return None


def _parse_ip(text: str | None) -> str | None:
    with suppress(ValueError):
        return str(ip_address(text or ""))
    return None


_LATEST_LINK = "session_latest"
_LOG_NAME = late_pattern(
    r"(?:raylet|gcs_server)[\w.]{0,20}\.(?:out|err)"
    r"|(?:io_)?worker-[0-9a-f]{28,56}-.{1,60}"
    r"|python-core-(?:worker|driver)-.{1,120}",
    re.ASCII,
)
_OWN_LOG_NAME = late_pattern(
    r"(?:raylet|gcs_server|dashboard|(?:log_)?monitor|runtime_env|agent|worker"
    r"|io_worker|python-core|debug_state|job-driver|ray_client|ray_process"
    r"|reaper|plasma|redis|serve|events?|export|autoscaler)\b.{0,200}"
    r"|(?:dashboard|runtime_env|debug_state|ray_client|events?)_.{1,200}",
    re.ASCII,
)
_MOST_DEPTH = 5
_MOST_FOLDERS = 20_000
_REMEDY = (
    "name the folder that was given to Ray as --temp-dir, or set RAY_TMPDIR; "
    "the logs of other nodes are on those nodes"
)


def is_own_log(name: str) -> bool:
    """
    Return whether Ray itself writes a log of this name into a session.
    """
    return _OWN_LOG_NAME.fullmatch(name) is not None


def find_ray_sessions(
    *places: str | os.PathLike[str], every: bool = False
) -> tuple[RaySession, ...]:
    """
    Find the session folders of Ray.

    The latest session of a temporary folder is the one that ``session_latest``
    points to, even after both were moved; or else the one with the latest
    name.

    Args:
        places: Session folders, their ``logs``, temporary folders of Ray, and
            folders that contain those, such as one for each node.  A link that
            is given is followed; one below a given folder only if it stays
            inside.  Without any, ``RAY_TMPDIR`` is searched; or else all
            folders of this machine with the usual names.

        every: Whether to find all sessions of a temporary folder, not only the
            latest.

    Returns:
        The sessions, the latest first, and the head of each cluster first.

    Raises:
        NoLogsError: There is none.
    """
    roots: list[Path] = []
    folders = [Path(place) for place in places] or _list_default_folders()
    if any("\0" in str(place) for place in folders):
        msg = "a path holds a null byte"
        raise NoLogsError(msg)

    depth = _MOST_DEPTH if places else 2
    budget = iter(range(_MOST_FOLDERS))
    for place in folders:
        top = _resolve_latest_link(place.absolute())
        below = _find_sessions_below(top, budget, depth, every=every)
        roots += (root for root in below if stays_in(root, top))

    # Several paths may lead to one session.
    each_once = {x.root: x for x in map(_load_session, roots)}.values()
    found = name_hosts(each_once, folders)
    if not found:
        tried = ", ".join(map(str, folders)) or "the usual places"
        msg = f"no Ray session in {tried}"
        remedy = _REMEDY
        if places:
            command = join(["distdebug", "diagnose", *map(str, places)])
            remedy += f"; logs of other launchers: {command}"
        raise NoLogsError(msg, remedy=remedy)

    found.sort(key=lambda x: (not x.is_head, x.host, str(x.root)))
    return tuple(sorted(found, key=lambda x: x.name, reverse=True))


def open_ray_session(path: str | os.PathLike[str]) -> RaySession:
    """
    Open the session in a folder.

    Args:
        path: The folder of a session, its ``logs``, or ``session_latest``.

    Raises:
        NoLogsError: The folder is not a session.
    """
    root = _resolve_latest_link(Path(path).absolute())
    if not _is_session(root):
        msg = f"{root} is not a folder of a Ray session"
        remedy = "find_ray_sessions() looks for them below a folder"
        raise NoLogsError(msg, remedy=remedy)

    return _load_session(root)


def _load_session(root: Path) -> RaySession:
    root = resolved(root)
    is_session = SESSION_NAME.fullmatch(root.parent.name) is not None
    if root.name == "logs" and is_session and _has_logs(root):
        root = root.parent
    session = RaySession(
        root=root,
        logs=_find_logs(root),
        # The user may have chosen the name.
        name=clean(root.parent.name if root.name == "logs" else root.name),
    )
    return attrs.evolve(session, **_read_session_facts(session))


def _is_session(folder: Path) -> bool:
    return _has_logs(_find_logs(folder)) or _has_logs(folder)


def _find_logs(root: Path) -> Path:
    """
    Return the log folder of a session; a link that leaves it is ignored.
    """
    logs = root / "logs"
    return logs if is_folder(logs) and stays_in(logs, root) else root


def _has_logs(folder: Path) -> bool:
    return any(map(_LOG_NAME.fullmatch, names_in(folder)))


def _find_sessions_below(
    folder: Path, budget: Iterator[int], depth: int, *, every: bool
) -> list[Path]:
    """
    Find the sessions at and below a folder.
    """
    if _is_session(folder):
        return [folder]
    entries = _list_folders(folder)
    dated = sorted(x for x in entries if SESSION_NAME.fullmatch(x))
    if dated or _LATEST_LINK in entries:
        places = [*map(folder.joinpath, dated), folder / _LATEST_LINK]
        # A session that never started has no logs.
        sessions = [*filter(_is_session, map(_resolve_latest_link, places))]
        return sessions if every else _pick_latest(folder, sessions)
    if depth <= 0:
        return []

    found = []
    for name in sorted(entries):
        # Do not follow links: they may leave the folder, or form a cycle.
        path = folder / name
        if not is_link(path) and next(budget, None) is not None:
            found += _find_sessions_below(path, budget, depth - 1, every=every)
    return found


def _list_folders(folder: Path) -> list[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [
            x.name for x in entries if x.is_dir() or x.name == _LATEST_LINK
        ]
    return []


def _pick_latest(folder: Path, sessions: list[Path]) -> list[Path]:
    """
    Return the session that the link points to, or else the latest name.
    """
    linked = _resolve_latest_link(folder / _LATEST_LINK)
    if linked != folder / _LATEST_LINK and linked in sessions:
        return [linked]
    others = [x for x in sessions if x != linked]
    return others[-1:] or sessions[-1:]


def _resolve_latest_link(path: Path) -> Path:
    """
    Resolve the link ``session_latest`` after both were copied.

    Its target is absolute, so after copying it is elsewhere or missing.
    """
    if path.name == _LATEST_LINK and is_link(path):
        with suppress(OSError):
            target = path.parent / path.readlink().name
            return target if is_folder(target) else path
    return path


def _list_default_folders() -> list[Path]:
    if ray_tmpdir := os.environ.get("RAY_TMPDIR"):
        return [Path(ray_tmpdir, "ray"), Path(ray_tmpdir)]
    import tempfile  # slow to import

    tops = dict.fromkeys((tempfile.gettempdir(), "/tmp"))  # noqa: S108 Ray's own default
    return [path for top in tops for path in matching(top, "ray*")]


# Folders with parts of a log, relative to the log folder.
_OLD = "old"
_LOG_FOLDERS = (_OLD, "")
_STREAMS = frozenset({"out", "err", "log", "txt"})
_MOST_DIGITS = 4

# (stem, stream) -> parts, oldest first
PartsByLog = dict[tuple[str, str], tuple[LogPart, ...]]


def list_parts(
    session: RaySession, *prefixes: str
) -> tuple[PartsByLog, list[Missing]]:
    """
    List the logs of a session by prefix.

    Args:
        prefixes: The beginnings of the names; all logs without any.

    Returns:
        The parts of each log, oldest first, by name and stream such as
        ``("raylet", "out")``; and what could not be read.
    """
    found: dict[tuple[str, str], list[LogPart]] = defaultdict(list)
    missing: list[Missing] = []
    for name in _LOG_FOLDERS:
        folder = session.logs / name if name else session.logs
        try:
            for key, part in _list_parts_in(folder, session.root, prefixes):
                found[key].append(part)
        except FileNotFoundError:
            continue
        except OSError as exc:
            missing.append(Missing.log(folder, exc))

    # The sort is stable: of two parts with one index, that in old/ is older.
    return {
        key: tuple(sorted(parts, key=lambda x: -x.index))
        for key, parts in found.items()
    }, missing


def find_parts(
    session: RaySession, stem: str, stream: str, folder: str = ""
) -> list[Path]:
    """
    Return the files of one of Ray's own logs, oldest first.

    Args:
        stem: Such as ``"gcs_server"``.

        stream: Such as ``"out"``.

        folder: Its folder below the log folder.
    """
    place = attrs.evolve(session, logs=session.logs / folder)
    listed, _ = list_parts(place, f"{stem}.")
    return [part.path for part in listed.get((stem, stream), ())]


def split_log_name(name: str) -> tuple[str, str, int]:
    """
    Split the name of a log file into log, stream, and part number.

    Args:
        name: Such as ``"raylet.1.out"``.

    Returns:
        Such as ``("raylet", "out", 1)``; the stream is ``""`` if it is no log.
    """
    # No regular expression: a session may have 200,000 files.
    name_parts = name.split(".")
    if f".{name_parts[-1]}" in PACKED_SUFFIXES:
        name_parts.pop()
    index = _pop_index(name_parts)
    stream = name_parts.pop() if name_parts else ""
    if stream not in _STREAMS:
        return name, "", 0

    index = index or _pop_index(name_parts)
    return ".".join(name_parts), stream, index


def is_rotated(path: Path) -> bool:
    """
    Return whether a file is an older part of a log.
    """
    return path.parent.name == _OLD or split_log_name(path.name)[2] > 0


def rotated_parts(path: Path) -> Iterator[Path]:
    """
    Yield the older parts of a log.

    Args:
        path: The newest part, of Ray or of any other program.
    """
    log = split_log_name(path.name)[:2]
    for folder in (path.parent / _OLD, path.parent):
        for found in matching(folder, "*"):
            name = found.name
            # Logs of other programs may have any name.
            number = name.removeprefix(f"{path.name}.")
            is_numbered = number != name and _is_index(number)
            if found != path and (
                is_numbered or (log[1] and split_log_name(name)[:2] == log)
            ):
                yield found


def _list_parts_in(
    folder: Path, root: Path, prefixes: tuple[str, ...]
) -> Iterator[tuple[tuple[str, str], LogPart]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if prefixes and not entry.name.startswith(prefixes):
                continue
            stem, stream, index = split_log_name(entry.name)
            part = _make_part(entry, folder, root, index) if stream else None
            if part:
                yield (stem, stream), part


def _pop_index(name_parts: list[str]) -> int:
    last = name_parts[-1] if len(name_parts) > 1 else ""
    return int(name_parts.pop()) if _is_index(last) else 0


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _make_part(
    entry: os.DirEntry[str], folder: Path, root: Path, index: int
) -> LogPart | None:
    path = folder / entry.name
    try:
        if entry.is_symlink():
            # Follow only links that stay inside the session.
            path = path.resolve(strict=True)
            if not path.is_relative_to(root):
                return None
        status = entry.stat()
    except (OSError, RuntimeError):  # deleted meanwhile, or a broken link
        return None

    if not stat.S_ISREG(status.st_mode):
        return None

    return LogPart(
        path=path, index=index, size=status.st_size, mtime=status.st_mtime
    )
