"""
What did the job say last?
"""

from __future__ import annotations

import os
import stat

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .._files import is_there, open_ordinary, write_whole
from ..findings import Missing


__all__ = ["keep_tails", "own_logs"]

_MOST_BYTES = 1 << 20
_MOST_LOGS = 256
_SUFFIXES = {".err", ".log", ".out", ".txt"}


def keep_tails(
    logs: Iterable[str | os.PathLike[str]], folder: Path
) -> tuple[list[Path], list[Missing]]:
    """
    Copy the ends of logs.

    Args:
        logs: The files.

        folder: Where to; it is made if there is anything to keep.

    Returns:
        What was written, at most 1 MiB of each; and what was not, and why.
    """
    files: list[Path] = []
    missing: list[Missing] = []
    for number, log in enumerate(map(Path, logs)):
        try:
            if number >= _MOST_LOGS:
                _refuse(f"only {_MOST_LOGS} logs are kept")
            data = _tail(log)
            folder.mkdir(mode=0o700, exist_ok=True)
            path = _free_name(folder, log)
            write_whole(path, data)
        except (OSError, ValueError) as exc:
            missing.append(Missing.log(log, exc))
        else:
            files.append(path)
    return files, missing


def own_logs(pids: Iterable[int]) -> list[Path]:
    """
    Into which files do these processes print?

    Args:
        pids: The processes, on this node.

    Returns:
        The ordinary files that are their standard output and standard error,
        as far as they are known here by a name; each once.
    """
    found: dict[tuple[int, int], Path] = {}
    for pid in pids:
        for stream in (1, 2):
            link = Path(f"/proc/{pid}/fd/{stream}")
            # Who is gone, or of another user, or in a container of its own.
            with suppress(OSError):
                log, status = link.readlink(), link.stat()
                is_there = log.is_absolute() and log.samefile(link)
                if stat.S_ISREG(status.st_mode) and is_there:
                    found.setdefault((status.st_dev, status.st_ino), log)
    return list(found.values())


def _tail(log: Path) -> bytes:
    with open_ordinary(log, "it is not a file") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - _MOST_BYTES, 0))
        return file.read(_MOST_BYTES)


def _refuse(reason: str) -> None:
    raise OSError(0, reason)


def _free_name(folder: Path, log: Path) -> Path:
    # A log called rank_0 would be taken for a dump.
    is_plain = log.suffix in _SUFFIXES
    stem, suffix = (log.stem, log.suffix) if is_plain else (log.name, ".log")
    path, number = folder / f"{stem}{suffix}", 1
    while is_there(path):
        number += 1
        path = folder / f"{stem}.{number}{suffix}"
    return path
