"""
Where are the sessions of Ray, on this machine or in a copied folder?

All nodes of a cluster give their session folder the same name, so what was
copied from several nodes are several folders of one name.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import attrs

from .._io import (
    is_file,
    is_folder,
    is_link,
    is_there,
    open_ordinary,
    resolved,
    stays_in,
)
from .._render import Block, Shown
from .._text import clean
from ..errors import NoLogsError
from ..findings import Missing, as_plain
from ..logs import PACKED


@attrs.frozen(kw_only=True)
class RaySession(Shown):
    """
    The folder that Ray keeps on one node for one life of a cluster.

    All nodes of a cluster call it by the same name, so several folders of
    that name are several nodes.

    Attributes:
        root: The folder of the session.

        logs: Where its logs are; *root* itself if only they were copied.

        name: Such as ``"session_2026-02-20_02-03-57_123456_4711"``.

        host: How to call the node: its name if the way to the folder tells,
            or else its address or the beginning of its id; ``""`` if nothing
            does.

        ip: The address of the node.

        node_id: What Ray calls the node, 56 hexadecimal digits.

        ray_version: Such as ``"2.40.0"``; older versions do not tell.

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

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return as_plain(self)

    def _blocks_(self) -> Iterable[Block]:
        where = f" of {self.host}" if self.host else ""
        yield clean(f"{self.name}{where}: {self.logs}", limit=4096)


@attrs.frozen(kw_only=True)
class LogPart:
    """
    One file of a log, which may be in several since it was rotated.

    Attributes:
        path: The file.

        index: 0 for the newest part, and greater the older a part is.

        size: How many bytes it had when it was looked at.

        mtime: When something was last written to it, in seconds since the
            epoch.
    """

    path: Path
    index: int = 0
    size: int = 0
    mtime: float = 0.0


@attrs.frozen(kw_only=True)
class WorkerLog(Shown):
    """
    All that one worker process printed, and whose it is.

    Attributes:
        session: The session, and with it the node.

        worker_id: What Ray calls the process, 56 hexadecimal digits.

        pid: Its number on its node.

        name_job_id: The job in the names of the files, which Ray gets wrong
            for processes that it had started ahead of their job.

        job_id: The job that the process itself wrote down.

        actor_id: Which actor it was, 32 hexadecimal digits; ``None`` if it
            only ran tasks, or nothing tells.

        actor_class: The class of the actor.

        actor_repr: What the ``__repr__`` of the actor returned, if it has
            its own.

        actor_name: The name the actor was given by ``.options(name=…)``.

        task_names: The functions that it ran as tasks, as far as was read.

        kind: ``"worker"``, or ``"io_worker"`` for those that spill objects.

        out: The parts of what it printed, oldest first.

        err: The parts of what it printed to its standard error, where
            ``logging`` goes, oldest first.

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
    def mtime(self) -> float:
        """
        When it last printed anything, in seconds since the epoch.
        """
        return max((x.mtime for x in (*self.out, *self.err)), default=0.0)

    @property
    def label(self) -> str:
        """
        What a person calls it, such as ``"SglEngine"`` or ``"worker"``.
        """
        known = self.actor_repr or self.actor_class or self.actor_name
        return known or (self.task_names[-1] if self.task_names else self.kind)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return as_plain(self)

    def _blocks_(self) -> Iterable[Block]:
        where = f" on {self.session.host}" if self.session.host else ""
        yield clean(f"{self.label} (pid={self.pid}{where})", limit=1000)


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


_LATEST = "session_latest"
_LOGS = re.compile(
    r"(?:raylet|gcs_server)[\w.]{0,20}\.(?:out|err)"
    r"|(?:io_)?worker-[0-9a-f]{28,56}-.{1,60}"
    r"|python-core-(?:worker|driver)-.{1,120}",
    re.ASCII,
)
_MOST_DEPTH = 5
_MOST_FOLDERS = 20_000
_REMEDY = (
    "name the folder that was given to Ray as --temp-dir, or set RAY_TMPDIR; "
    "the logs of other nodes are on those nodes"
)


def find_ray_sessions(
    *places: str | os.PathLike[str], every: bool = False
) -> tuple[RaySession, ...]:
    """
    Find the sessions that Ray left in some places.

    The latest session of a temporary folder is that which ``session_latest``
    points to, also after both were moved; or else that with the latest name.

    Args:
        places: Folders of sessions, their ``logs``, temporary folders of Ray,
            and folders with anything of that below, such as one for each
            node.  A link is followed if it is named itself, and not if it
            leads out of such a folder.  Without any, ``RAY_TMPDIR`` is looked
            at; or else all folders of this machine that are called like those
            of Ray.

        every: Whether to find all sessions of a temporary folder, rather than
            the latest.

    Returns:
        The sessions, the latest first, and of one cluster the head first.

    Raises:
        NoLogsError: None is there.
    """
    roots: list[Path] = []
    wanted = [Path(place) for place in places] or list(_usual_places())
    if any("\0" in str(place) for place in wanted):
        msg = "a path holds a null byte"
        raise NoLogsError(msg)

    depth = _MOST_DEPTH if places else 2
    budget = iter(range(_MOST_FOLDERS))
    for place in wanted:
        top = _beside(place.absolute())
        below = _below(top, budget, depth, every=every)
        roots += (root for root in below if stays_in(root, top))

    # Several ways may lead to one session.
    each_once = {x.root: x for x in map(_session, roots)}.values()
    found = named_hosts(each_once, wanted)
    if not found:
        tried = ", ".join(map(str, wanted)) or "the usual places"
        msg = f"no Ray session in {tried}"
        raise NoLogsError(msg, remedy=_REMEDY)

    found.sort(key=lambda x: (not x.is_head, x.host, str(x.root)))
    return tuple(sorted(found, key=lambda x: x.name, reverse=True))


def open_ray_session(path: str | os.PathLike[str]) -> RaySession:
    """
    Tell what a folder of a session is.

    Args:
        path: The folder of a session, its ``logs``, or ``session_latest``.

    Returns:
        The session.

    Raises:
        NoLogsError: The folder is none.
    """
    root = _beside(Path(path).absolute())
    if not _is_session(root):
        msg = f"{root} is no folder of a Ray session"
        remedy = "find_ray_sessions() looks for them below a folder"
        raise NoLogsError(msg, remedy=remedy)

    return _session(root)


def _session(root: Path) -> RaySession:
    root = resolved(root)
    if root.name == "logs" and _has_logs(root):
        # What lies beside the logs belongs to the session, if it is one.
        root = (
            root.parent if SESSION_NAME.fullmatch(root.parent.name) else root
        )
    session = RaySession(
        root=root,
        logs=_logs(root),
        # Whoever made the folder chose it.
        name=clean(root.parent.name if root.name == "logs" else root.name),
    )
    return attrs.evolve(session, **session_facts(session))


def _is_session(folder: Path) -> bool:
    return _has_logs(_logs(folder)) or _has_logs(folder)


def _logs(root: Path) -> Path:
    """
    Where the logs of a session are; a link that leads out is not followed.
    """
    logs = root / "logs"
    return logs if is_folder(logs) and stays_in(logs, root) else root


def _has_logs(folder: Path) -> bool:
    with suppress(OSError), os.scandir(folder) as entries:
        return any(_LOGS.fullmatch(entry.name) for entry in entries)
    return False


def _below(
    folder: Path, budget: Iterator[int], depth: int, *, every: bool
) -> list[Path]:
    """
    The sessions at and below a folder.
    """
    if _is_session(folder):
        return [folder]
    entries = _entries(folder)
    dated = sorted(x for x in entries if SESSION_NAME.fullmatch(x))
    if dated or _LATEST in entries:
        sessions = [*map(folder.joinpath, dated), folder / _LATEST]
        # One that never began has no logs.
        sessions = list(filter(_is_session, map(_beside, sessions)))
        return sessions if every else _latest(folder, sessions)
    if depth <= 0:
        return []

    found = []
    for name in sorted(entries):
        # No link is followed: it may lead out, or round in circles.
        path = folder / name
        if not is_link(path) and next(budget, None) is not None:
            found += _below(path, budget, depth - 1, every=every)
    return found


def _entries(folder: Path) -> list[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [x.name for x in entries if x.is_dir() or x.name == _LATEST]
    return []


def _latest(folder: Path, sessions: list[Path]) -> list[Path]:
    """
    The one that the link means, or else that with the latest name.
    """
    linked = _beside(folder / _LATEST)
    if linked != folder / _LATEST and linked in sessions:
        return [linked]
    others = [x for x in sessions if x != linked]
    return others[-1:] or sessions[-1:]


def _beside(path: Path) -> Path:
    """
    What the link ``session_latest`` meant before both were copied.

    Its target is absolute: after copying it is somewhere else, or nowhere.
    """
    if path.name == _LATEST and is_link(path):
        with suppress(OSError):
            beside = path.parent / path.readlink().name
            return beside if is_folder(beside) else path
    return path


def _usual_places() -> Iterator[Path]:
    given = os.environ.get("RAY_TMPDIR")
    if given:
        yield from (Path(given, "ray"), Path(given))
        return
    for folder in dict.fromkeys((tempfile.gettempdir(), "/tmp")):  # noqa: S108 Ray's own default
        with suppress(OSError):
            yield from sorted(x for x in Path(folder).glob("ray*"))


# Where parts of one log lie, below the folder of the logs.
_FOLDERS = ("old", "")
_STREAMS = frozenset({"out", "err", "log", "txt"})
_MOST_DIGITS = 4

# (stem, stream) → parts, oldest first
Listed = dict[tuple[str, str], tuple[LogPart, ...]]


def list_parts(
    session: RaySession, *prefixes: str
) -> tuple[Listed, list[Missing]]:
    """
    Find the logs of a session whose names begin in some way.

    Args:
        session: The session.

        prefixes: What the names begin with; all of them without any.

    Returns:
        The parts of each log, oldest first, by its name and stream such as
        ``("raylet", "out")``; and what could not be looked at.
    """
    found: dict[tuple[str, str], list[LogPart]] = defaultdict(list)
    missing: list[Missing] = []
    for name in _FOLDERS:
        folder = session.logs / name if name else session.logs
        try:
            for key, part in _parts_in(folder, session.root, prefixes):
                found[key].append(part)
        except FileNotFoundError:
            continue
        except OSError as exc:
            missing.append(Missing.log(folder, exc))

    # The sort is stable: of two with one number that in old/ is the older.
    return {
        key: tuple(sorted(parts, key=lambda x: -x.index))
        for key, parts in found.items()
    }, missing


def parts_of(session: RaySession, stem: str, stream: str) -> list[Path]:
    """
    Find the files of one log of Ray itself.

    Args:
        session: The session.

        stem: Such as ``"gcs_server"``.

        stream: Such as ``"out"``.

    Returns:
        Its parts, oldest first; none if there is no such log.
    """
    listed, _ = list_parts(session, f"{stem}.")
    return [part.path for part in listed.get((stem, stream), ())]


def taken_apart(name: str) -> tuple[str, str, int]:
    """
    Tell which part of which log a file is, by its name.

    Args:
        name: The name of the file, such as ``"raylet.1.out"``.

    Returns:
        The name of the log, its stream, and the number of the part, as in
        ``("raylet", "out", 1)``; the stream is ``""`` if it is no log.
    """
    # Sessions of 200,000 files exist, so this is no regular expression.
    words = name.split(".")
    if f".{words[-1]}" in PACKED:
        words.pop()
    index = _popped_index(words)
    stream = words.pop() if words else ""
    if stream not in _STREAMS:
        return name, "", 0

    index = index or _popped_index(words)
    return ".".join(words), stream, index


def _parts_in(
    folder: Path, root: Path, prefixes: tuple[str, ...]
) -> Iterator[tuple[tuple[str, str], LogPart]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if prefixes and not entry.name.startswith(prefixes):
                continue
            stem, stream, index = taken_apart(entry.name)
            part = _part(entry, folder, root, index) if stream else None
            if part:
                yield (stem, stream), part


def _popped_index(words: list[str]) -> int:
    last = words[-1] if len(words) > 1 else ""
    if last.isascii() and last.isdigit() and len(last) <= _MOST_DIGITS:
        return int(words.pop())
    return 0


def _part(
    entry: os.DirEntry[str], folder: Path, root: Path, index: int
) -> LogPart | None:
    path = folder / entry.name
    try:
        if entry.is_symlink():
            # Only those that stay in the session may be followed.
            path = path.resolve(strict=True)
            if not path.is_relative_to(root):
                return None
        status = entry.stat()
    except (OSError, RuntimeError):  # gone meanwhile, or a link to nothing
        return None

    if not stat.S_ISREG(status.st_mode):
        return None

    return LogPart(
        path=path, index=index, size=status.st_size, mtime=status.st_mtime
    )
