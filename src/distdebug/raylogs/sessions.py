"""
Where are the sessions of Ray, on this machine or in a copied folder?

All nodes of a cluster give their session folder the same name, so what was
copied from several nodes are several folders of one name.
"""

from __future__ import annotations

import os
import re
import tempfile

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import attrs

from .._files import is_folder, is_link, resolved, stays_in
from .._text import clean
from ..errors import NoLogsError
from .model import RaySession
from .nodes import SESSION_NAME, named_hosts, session_facts


__all__ = ["find_ray_sessions", "open_ray_session"]

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
