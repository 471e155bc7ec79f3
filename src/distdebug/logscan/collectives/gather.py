"""
What do these logs say about collectives?
"""

from __future__ import annotations

import os
import time

from collections.abc import Iterable

import attrs

from ..._lines import walk_logs
from ...errors import LogError, NoLogsError
from ...findings import Missing
from .given import PathsOrLines, attempt_of, told_apart
from .kept import Kept
from .logs import CollectiveLogs
from .rows import rows_of_file, rows_of_lines
from .whose import ranks_of_files, size_by_files


__all__ = ["PathsOrLines", "read_collective_logs"]

_MOST_RANKS = 1 << 24


def read_collective_logs(
    paths_or_lines: PathsOrLines, *, world_size: int | None = None
) -> CollectiveLogs:
    """
    Find what watchdogs, NCCL, Gloo, and the store wrote.

    Args:
        paths_or_lines: A file, a folder, several of them; or lines, as a text
            or one by one.

        world_size: How many ranks the job has.  Without it, a rank that wrote
            nothing is only missed if NCCL's own lines tell how many there are,
            or the files of one launch, an empty one too, are those of ranks 0
            to N - 1.

    Returns:
        What was found, without repetitions.

    Raises:
        NoLogsError: There is no log.

        LogError: *world_size* is no number of ranks.
    """
    if world_size is not None and not 1 <= world_size <= _MOST_RANKS:
        is_short = abs(world_size) < _MOST_RANKS
        told = world_size if is_short else "so many"
        msg = f"a job has 1 to {_MOST_RANKS:,} ranks, not {told}"
        raise LogError(msg)

    paths, lines = told_apart(paths_or_lines)
    found = Kept()
    if paths is None:
        found.read(rows_of_lines(lines), "", None, 0)
        return found.result(world_size, [])

    files, missing = _files(paths)
    ranks = ranks_of_files(files)
    for file in files:
        try:
            found.read(
                rows_of_file(file), file, ranks.get(file), attempt_of(file)
            )
        except (OSError, ValueError, EOFError) as exc:
            missing.append(Missing.log(file, exc))
    logs = found.result(world_size, missing, size_by_files(files))
    return attrs.evolve(logs, quiet=_quiet(files))


def _files(
    paths: list[str | os.PathLike[str]],
) -> tuple[list[str], list[Missing]]:
    walk = walk_logs(paths)
    files = [str(path) for path in walk]
    if not files:
        reasons = "; ".join(f"{x.source}: {x.reason}" for x in walk.missing)
        raise NoLogsError(
            reasons or "no log there",
            remedy="give the files or folders that torchrun or Ray wrote to",
        )
    return files, list(walk.missing)


def _quiet(files: Iterable[str]) -> float | None:
    """
    For how long nobody has written to them.
    """
    last = None
    for file in files:
        try:
            written = os.stat(file).st_mtime  # noqa: PTH116 a path is no gain
        except OSError:  # gone meanwhile
            continue
        last = written if last is None else max(last, written)
    return None if last is None else max(time.time() - last, 0.0)
