"""
What did the ranks of this node record last?
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO

from .._io import open_whole
from .._text import reason_of
from ..findings import Missing
from ..flight_recorder import (
    SIDECAR_SUFFIX,
    VARIABLES,
    DumpFile,
    DumpRequest,
    Found,
    Search,
    Sidecar,
    find_files,
    request_dumps,
)
from ..processes import read_environ


# Of all dumps of a node.
MOST_BYTES = 1 << 30
_ONE_MOST_BYTES = 1 << 28
_MOST_FILES = 200_000
_BLOCK = 1 << 20
# Other files of ranks lie in folders too, such as checkpoints.
_LIKELY = re.compile("nccl|rccl|xccl|gloo|trace|flight|dump", re.IGNORECASE)
# Times of files are kept less precisely than the clock's.
_TICK_S = 0.1
_PAUSE_S = 0.25


def ask_ranks(
    dump_dir: str | os.PathLike[str],
    timeout_s: float,
    *,
    ranks: Collection[int] | None = None,
    starts: tuple[str, ...] | None = None,
) -> list[Missing]:
    """
    Ask the ranks of this node for dumps.

    Args:
        dump_dir: Where they put them.

        timeout_s: How long to wait for answers, in seconds.

        ranks: Whom to ask; by default everybody who has a pipe there.

        starts: What the names of dumps start with, if that is known; see
            :class:`~distdebug.flight_recorder.reading.files.Search`.

    Returns:
        Who gave none, and why.
    """
    asked, deadline = time.time(), time.monotonic() + timeout_s
    rows = request_dumps(dump_dir, ranks=ranks, timeout_s=timeout_s)
    if not rows:
        reason = "nobody could be asked for dumps: there are no pipes"
        return [Missing(what="dump", reason=reason, source=str(dump_dir))]

    search = Search(deadline, _MOST_FILES, starts)
    late = _await_files(rows, dump_dir, asked, search)
    return [
        Missing(
            what="fresh dump",
            reason=row.reason or "torch was asked for it, and wrote none",
            rank=row.rank,
            source=str(row.path),
        )
        for row in rows
        if row.status != "dumped" and (row.status != "asked" or row in late)
    ]


def _await_files(
    rows: Iterable[DumpRequest],
    dump_dir: str | os.PathLike[str],
    asked: float,
    search: Search,
) -> set[DumpRequest]:
    """
    Who was asked through a pipe of torch, and wrote nothing in time?

    Torch does not answer; a new file is all there is to see.
    """
    late = {row for row in rows if row.status == "asked"}
    while late:
        begun = time.monotonic()
        files = find_files([os.fspath(dump_dir)], search).files
        fresh = {f.rank for f in files if f.modified >= asked - _TICK_S}
        late = {row for row in late if row.rank not in fresh}
        now = time.monotonic()
        if now >= search.deadline:
            break
        if late:
            # A large folder is not looked at all the time.
            pause_s = max(_PAUSE_S, now - begun)
            time.sleep(min(pause_s, search.deadline - now))
    return late


def keep_dumps(  # noqa: PLR0913 each can be left out
    dump_dir: str | os.PathLike[str],
    folder: Path,
    deadline: float,
    *,
    own: Collection[int] | None = None,
    starts: tuple[str, ...] | None = None,
    most_bytes: int = MOST_BYTES,
) -> tuple[list[Path], list[Missing]]:
    """
    Copy the newest dump and side-car of each rank.

    Also of those that did not answer: what a rank left when it died is worth
    most.

    Args:
        dump_dir: Where the ranks put them.

        folder: Where to; it is made if there is anything to keep.

        deadline: When to stop, on the monotonic clock.

        own: The ranks that are alive on this node, if others share the
            folder: what is known to be of another node is left to it.

        starts: What the names of dumps start with, if that is known.

        most_bytes: How much to keep, at most.

    Returns:
        What was written, with the times of the originals, and at most half of
        what the disk has left; and what was not, and why.
    """
    root = Path(dump_dir)
    # Copying takes time too.
    now = time.monotonic()
    search_ends = min(deadline, now + max(deadline - now, 0.0) / 2)
    search = Search(search_ends, _MOST_FILES, starts)
    found = find_files([str(root)], search)
    if own is not None:
        found = _of_this_node(found, own)
    files: list[Path] = []
    missing = list(found.problems)
    # The job may need the rest of the disk.
    left = min(most_bytes, _free_bytes(folder.parent) // 2)
    for rank, source in _newest(found):
        try:
            if time.monotonic() > deadline:
                _refuse("the time was over")
            path = folder / source.relative_to(root)
            path.parent.mkdir(parents=True, exist_ok=True)
            most = min(left, _ONE_MOST_BYTES)
            left -= _copy(source, path, most, deadline)
        except OSError as exc:
            reason = reason_of(exc)
            missing.append(
                Missing(
                    what="dump", reason=reason, rank=rank, source=str(source)
                )
            )
        else:
            files.append(path)
    return files, missing


def _of_this_node(found: Found, own: Collection[int]) -> Found:
    here = socket.gethostname()

    def is_ours(sidecar: Sidecar | None) -> bool:
        return sidecar is None or sidecar.host == here or sidecar.rank in own

    return found._replace(
        files=[file for file in found.files if is_ours(file.sidecar)],
        sidecars=[s for s in found.sidecars if is_ours(s)],
    )


def _newest(found: Found) -> Iterator[tuple[int, Path]]:
    seen: set[str] = set()
    for rank, file in _last_by_rank(found.files).items():
        yield rank, Path(file.path)
        if file.sidecar:
            seen.add(file.sidecar.path)
            yield rank, Path(file.sidecar.path)

    # One that died may have left a side-car only.
    last: dict[int, Sidecar] = {}
    for sidecar in sorted(found.sidecars, key=lambda s: s.written):
        last[sidecar.rank] = sidecar
    for rank, sidecar in sorted(last.items()):
        if sidecar.path not in seen:
            yield rank, Path(sidecar.path)


def _last_by_rank(files: Iterable[DumpFile]) -> dict[int, DumpFile]:
    last: dict[int, DumpFile] = {}
    for file in sorted(files, key=lambda f: (_is_likely(f), f.modified)):
        # Configurations and notes are not ours to take.
        is_dump = file.is_expected
        if is_dump and file.rank is not None:
            last[file.rank] = file
    return dict(sorted(last.items()))


def _is_likely(file: DumpFile) -> bool:
    name = Path(file.path).name
    return file.sidecar is not None or bool(_LIKELY.search(name))


def _copy(source: Path, path: Path, most: int, deadline: float) -> int:
    """
    Copy a file, and give its size.
    """
    fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            _refuse("it is not a file")
        if status.st_size > most:
            _refuse("it is too large for the space that is left")
        with open_whole(path) as copy:
            _copy_blocks(file, copy, status.st_size, deadline)
            copy.flush()  # or else it would be of now
            times = status.st_atime_ns, status.st_mtime_ns
            os.utime(copy.fileno(), ns=times)

    return status.st_size


def _copy_blocks(
    file: IO[bytes], copy: IO[bytes], size: int, deadline: float
) -> None:
    """
    Copy what was there when it was looked at; it may still grow.
    """
    left = size
    while left > 0 and (block := file.read(min(left, _BLOCK))):
        if time.monotonic() > deadline:
            _refuse("the time was over")
        copy.write(block)
        left -= len(block)


def _free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _refuse(reason: str) -> None:
    raise OSError(0, reason)


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
