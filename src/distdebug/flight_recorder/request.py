"""
How is a running job asked for its dumps?

Every rank listens at a pipe, and training goes on while it dumps: torch's own
pipe where NCCL made one, and that of *distdebug* for every backend.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal

import attrs

from .._io import is_folder
from .._render import Block, Entries, Entry, Shown
from .._text import clean
from .sidecar import SIDECAR_SUFFIX, read_sidecar


_PIPE = re.compile(r".*?(?P<rank>\d{1,10}|unknown)\.pipe", re.DOTALL)
_OURS = re.compile(r"(\d+-\d+)_request_(?:\d+|unknown)\.pipe")
_ANSWER = re.compile(rf"(\d+-\d+)-\d+_rank_\w+{re.escape(SIDECAR_SUFFIX)}")

# Between two looks at the folder, in seconds; it may be on a slow disk.
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.25


@attrs.frozen
class DumpRequest(Shown):
    """
    What became of the request to one rank.

    Attributes:
        rank: The rank; ``None`` if the process did not know it.

        status: ``"dumped"``; ``"asked"`` if it was torch's own pipe, where
            no answer is given; ``"silent"`` if none came in time;
            ``"absent"`` if nobody listens; ``"failed"`` otherwise.

        path: The dump, or else the pipe.

        reason: What went wrong, or ``""``.
    """

    rank: int | None
    status: Literal["dumped", "asked", "silent", "absent", "failed"]
    path: Path
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data, as ``distdebug dump --json`` has it for each rank.
        """
        return {**attrs.asdict(self), "path": str(self.path)}

    def _blocks_(self) -> Iterable[Block]:
        rank = "a rank" if self.rank is None else f"rank {self.rank}"
        told = {"file": str(self.path), "why": self.reason}
        facts = [(label, clean(text)) for label, text in told.items() if text]
        yield Entries([Entry(f"{rank}: {self.status}", facts)])


def request_dumps(
    dump_dir_or_prefix: str | os.PathLike[str],
    *,
    ranks: Collection[int] | None = None,
    timeout_s: float = 10.0,
) -> tuple[DumpRequest, ...]:
    """
    Ask running ranks of this node for a dump, without disturbing them.

    Args:
        dump_dir_or_prefix: Folder of the dumps, or what the names of the
            pipes start with, as in ``TORCH_NCCL_DEBUG_INFO_PIPE_FILE``.

        ranks: Whom to ask; everybody by default.

        timeout_s: How long to wait for the answers, in seconds.

    Returns:
        What became of it, by rank.  A rank that was asked for and has no
        pipe is ``"absent"``.
    """
    where = Path(dump_dir_or_prefix)
    folder, start = (
        (where, "") if is_folder(where) else (where.parent, where.name)
    )
    before = _names(folder)
    rows = [
        _ask_any(rank, [folder / name for name in names])
        for rank, names in _group(
            (n for n in before if n.startswith(start)), ranks
        )
    ]
    return tuple(_await_answers(rows, folder, before, timeout_s))


def _names(folder: Path) -> set[str]:
    try:
        return {entry.name for entry in os.scandir(folder)}
    except OSError:
        return set()


def _group(
    names: Iterable[str], ranks: Collection[int] | None
) -> list[tuple[int | None, list[str]]]:
    """
    The pipes of each rank, the one to try first first: ours before torch's,
    and later processes before earlier ones.
    """
    found: dict[int, list[str]] = {}
    strangers = []
    for name in sorted(
        names, key=lambda n: (_token(n) != "", n), reverse=True
    ):
        match = _PIPE.fullmatch(name)
        if match and match["rank"].isdecimal():
            found.setdefault(int(match["rank"]), []).append(name)
        elif match:
            strangers.append(name)

    if ranks is not None:
        return [(rank, found.get(rank, [])) for rank in sorted(set(ranks))]
    return [*sorted(found.items()), *((None, [n]) for n in strangers)]


def _token(name: str) -> str:
    """
    What the files of the process behind one of our pipes start with.
    """
    match = _OURS.fullmatch(name)
    return match[1] if match else ""


def _ask_any(rank: int | None, pipes: Iterable[Path]) -> DumpRequest:
    row = DumpRequest(rank, "absent", Path(), "it has no pipe")
    for pipe in pipes:
        try:
            _knock(pipe)
        except OSError as exc:
            if exc.errno in {errno.ENXIO, errno.ENOENT}:
                row = DumpRequest(rank, "absent", pipe, "nobody listens")
            else:
                row = DumpRequest(rank, "failed", pipe, str(exc))
        else:
            if _token(pipe.name):
                return DumpRequest(rank, "silent", pipe, "no answer in time")
            return DumpRequest(rank, "asked", pipe)
    return row


def _knock(pipe: Path) -> None:
    if not stat.S_ISFIFO(pipe.lstat().st_mode):
        raise OSError(errno.EINVAL, "it is not a pipe", str(pipe))

    fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with contextlib.suppress(BlockingIOError):  # requests enough
            os.write(fd, b"1")
    finally:
        os.close(fd)


def _await_answers(
    rows: list[DumpRequest], folder: Path, before: set[str], timeout_s: float
) -> list[DumpRequest]:
    deadline = time.monotonic() + timeout_s
    pause = _FIRST_PAUSE
    while any(r.status == "silent" for r in rows):
        is_late = time.monotonic() >= deadline
        fresh = _fresh_sidecars(folder, before)
        rows = [
            _settle(r, fresh[token], is_late=is_late)
            if r.status == "silent" and (token := _token(r.path.name)) in fresh
            else r
            for r in rows
        ]
        if is_late:
            break
        time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    return rows


def _fresh_sidecars(folder: Path, before: set[str]) -> dict[str, Path]:
    """
    The last side-car that each process wrote since, by its token.
    """
    return {
        match[1]: folder / name
        for name in sorted(_names(folder) - before)
        if (match := _ANSWER.fullmatch(name))
    }


def _settle(row: DumpRequest, sidecar: Path, *, is_late: bool) -> DumpRequest:
    dump = sidecar.with_name(sidecar.name.removesuffix(SIDECAR_SUFFIX))
    try:
        answer = read_sidecar(sidecar)
    except (OSError, ValueError) as exc:
        return DumpRequest(row.rank, "failed", sidecar, str(exc))

    if not answer.dump:
        reason = "it has nothing to dump"
        return DumpRequest(answer.rank, "failed", sidecar, reason)

    # The link follows when the stacks are in the dump.
    link = dump.with_name("latest_" + dump.name.partition("_")[2])
    try:
        is_complete = str(link.readlink()) == dump.name
    except OSError:
        is_complete = False
    if is_complete or is_late:
        return DumpRequest(answer.rank, "dumped", dump)
    return row
