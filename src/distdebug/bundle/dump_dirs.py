"""
Where do the ranks of this node put their dumps?
"""

from __future__ import annotations

import os

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from ..flight_recorder.recording.variables import VARIABLES
from ..flight_recorder.sidecar import SIDECAR_SUFFIX
from ..processes.environ import read_environ


__all__ = ["find_dump_dirs"]

_MOST_RANKS = 256
_MOST_ENTRIES = 100_000


def find_dump_dirs(pids: Iterable[int]) -> dict[Path, tuple[str, ...]]:
    """
    Find out from ranks where they put their dumps.

    Args:
        pids: The ranks.

    Returns:
        The folders that their environments name, and in which somebody listens
        or has dumped.
    """
    named: dict[Path, set[str]] = {}
    for pid in islice(pids, _MOST_RANKS):
        environ, _ = read_environ(pid)
        for prefix in _prefixes(environ):
            folder, name = os.path.split(prefix)
            if Path(folder).is_absolute():
                named.setdefault(Path(folder), set()).add(name)
    return {
        folder: tuple(sorted(names))
        for folder, names in named.items()
        if _is_used(folder, names)
    }


def _prefixes(environ: Mapping[str, str]) -> Iterator[str]:
    for variable in VARIABLES:
        if variable.key in {"dump_prefix", "pipe_prefix"}:
            for spelling in variable.spellings:
                yield environ.get(spelling.name, "")


def _is_used(folder: Path, names: Iterable[str]) -> bool:
    """
    Whether a folder has files of ranks, and is not just some folder.

    Other folders can be huge, and none of our business.
    """
    starts = tuple(name for name in names if name)
    try:
        with os.scandir(folder) as entries:
            return any(
                entry.name.endswith(SIDECAR_SUFFIX)
                or (starts and entry.name.startswith(starts))
                for entry in islice(entries, _MOST_ENTRIES)
            )
    except (OSError, ValueError):
        return False
