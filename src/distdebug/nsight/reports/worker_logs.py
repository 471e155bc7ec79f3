"""
Which logs has the process of a report, and which actor was it?
"""

from __future__ import annotations

import os
import re

from collections import defaultdict
from pathlib import Path

from ..._files import open_ordinary
from ..._text import clean


__all__ = ["WorkerLogs"]

_FILE = re.compile(
    r"worker-[0-9a-f]{8,64}-[0-9a-f]{4,32}-(?P<pid>[0-9]{1,7})\.(?:out|err)"
)
_ACTOR = re.compile(rb"^:actor_name:(.{1,200})$", re.MULTILINE)
_MOST_BYTES = 1 << 16


class WorkerLogs:
    """
    The logs of Ray's workers; each folder is listed once.
    """

    def __init__(self) -> None:
        self._folders: dict[Path, dict[int, list[str]]] = {}

    def of(
        self, folder: Path, pid: int | None
    ) -> tuple[str | None, tuple[str, ...]]:
        """
        Which actor was this process, and where are its logs?

        Args:
            folder: The folder ``logs`` of a session.

            pid: The number of the process.

        Returns:
            The class of the actor, if its logs tell, and the logs.
        """
        if pid is None:
            return None, ()
        if folder not in self._folders:
            self._folders[folder] = _listed(folder)

        files = [folder / name for name in self._folders[folder].get(pid, ())]
        actors = filter(None, map(_actor, files))
        return next(actors, None), tuple(str(file) for file in files)


def _listed(folder: Path) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 there may be 200,000
    except OSError:
        return found
    for name in names:
        if match := _FILE.fullmatch(name):
            found[int(match["pid"])].append(name)
    return found


def _actor(file: Path) -> str | None:
    try:
        with open_ordinary(file, "not an ordinary file") as opened:
            head = opened.read(_MOST_BYTES)
    except (OSError, ValueError):
        return None

    match = _ACTOR.search(head)
    return clean(match[1].decode("utf-8", "replace")) if match else None
