"""
Which of these paths hold logs, Ray sessions, and facts about nodes?
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from ..._files import (
    is_file,
    is_folder,
    matching,
    open_ordinary,
    stays_in,
)
from ..._lines import walk_logs
from ...errors import NoLogsError
from ...findings import Missing
from ...flight_recorder.reading.files import parse_name
from ...raylogs.model import RaySession
from ...raylogs.sessions import find_ray_sessions
from ...stacks.files import is_captured


__all__ = ["Places", "find_places"]

# In a folder only what is called like a log is one: it may hold anything.
_LOG_NAME = re.compile(
    r"(?:\.(?:log|out|err|txt|stdout|stderr|output)|\.[oe]\d{1,12})"
    r"(?:[.-]\d{1,10})?(?:\.(?:gz|bz2|xz))?$|^(?:stdout|stderr|log)$",
    re.IGNORECASE,
)
# What a snapshot writes itself, or is never printed by a job.
_NO_LOG = re.compile(
    r"REPORT\.txt|requirements.*\.txt|CMakeLists\.txt|merges\.txt|vocab\.txt"
    r"|LICENSE.*|README.*",
    re.IGNORECASE,
)
_NODE_FACTS = "node.json"
_MOST_NODES = 16_384
_LOOK = 1 << 12


@attrs.frozen(kw_only=True)
class Places:
    """
    Where a job left words.

    Attributes:
        sessions: Folders of Ray, each of one node.

        logs: Other logs.

        nodes: Files with facts about a node, by its name.

        missing: What could not be looked at, and why.
    """

    sessions: tuple[RaySession, ...] = ()
    logs: tuple[Path, ...] = ()
    nodes: tuple[tuple[str, Path], ...] = ()
    missing: tuple[Missing, ...] = ()


def find_places(paths: Iterable[str | os.PathLike[str]]) -> Places:
    """
    Find what logs could tell.

    Args:
        paths: Files and folders.  A file is taken for a log unless its name or
            its beginning says that it is something else; in a folder its name
            has to say so.

    Returns:
        What there is.
    """
    given = [Path(path) for path in paths]
    folders = [path for path in given if is_folder(path)]
    sessions = _sessions(folders)
    inside = [session.logs.resolve() for session in sessions]
    walk = walk_logs(given)
    logs = tuple(
        path
        for path in walk
        if (_is_log(path) if path in given else _is_called_log(path.name))
        and not any(map(path.resolve().is_relative_to, inside))
    )
    # A dump that cannot be read is told by those who read dumps.
    missing = tuple(m for m in walk.missing if not _is_dump(m.source or ""))
    return Places(
        sessions=sessions,
        logs=logs,
        nodes=tuple(_nodes(folders)),
        missing=missing,
    )


def _sessions(folders: list[Path]) -> tuple[RaySession, ...]:
    # Without a place, those of this machine would be found.
    if not folders:
        return ()
    try:
        return find_ray_sessions(*folders)
    except NoLogsError:
        return ()


def _nodes(folders: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    for folder in folders:
        found = [folder / _NODE_FACTS, *matching(folder, f"*/{_NODE_FACTS}")]
        for path in found[:_MOST_NODES]:
            if is_file(path) and stays_in(path, folder):
                yield path.absolute().parent.name, path


def _is_called_log(name: str) -> bool:
    is_other = is_captured(name) or _NO_LOG.fullmatch(name)
    return _LOG_NAME.search(name) is not None and not is_other


def _is_log(path: Path) -> bool:
    if _is_called_log(path.name):
        return True
    if is_captured(path.name) or path.suffix == ".json" or _is_dump(path.name):
        return False
    try:
        with open_ordinary(path, "not an ordinary file") as file:
            return b"\0" not in file.read(_LOOK)
    except (OSError, ValueError):
        return False


def _is_dump(name: str) -> bool:
    return parse_name(name).is_dump_like
