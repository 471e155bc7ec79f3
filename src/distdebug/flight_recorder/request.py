"""
Request dumps from the running ranks of this node.

Every rank listens on a pipe, and training continues while it dumps: torch's
own pipe where NCCL made one, and that of *distdebug* for every backend.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from .._io import is_folder, names_in
from .._render import Block, Entries, Entry, Shown
from .._text import clean
from ..ranks import (
    RankChoice,
    RankSelection,
    parse_rank_option,
    select_ranks,
)
from .sidecar import SIDECAR_SUFFIX, read_sidecar


_PIPE_NAME = re.compile(r".*?(?P<rank>\d{1,10}|unknown)\.pipe", re.DOTALL)
_OWN_PIPE_NAME = re.compile(r"(\d+-\d+)_request_(?:\d+|unknown)\.pipe")
_SIDECAR_NAME = re.compile(
    rf"(\d+-\d+)-\d+_rank_\w+{re.escape(SIDECAR_SUFFIX)}"
)

# Between two scans of the folder, which may be on a slow disk.
_FIRST_PAUSE_S = 0.01
_MAX_PAUSE_S = 0.25


@attrs.frozen
class DumpRequest(Shown):
    """
    The result of the request to one rank.

    Attributes:
        rank: The rank; ``None`` if the process did not know it.

        status: ``"dumped"``; ``"asked"`` if the pipe is torch's own, which
            gives no answer; ``"silent"`` if no answer came in time;
            ``"absent"`` if no process listens; ``"failed"`` otherwise.

        path: The dump, or else the pipe.

        reason: What went wrong, or ``""``.
    """

    rank: int | None
    status: Literal["dumped", "asked", "silent", "absent", "failed"]
    path: Path
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data, as ``distdebug dump --json`` prints for each rank.
        """
        return {**attrs.asdict(self), "path": str(self.path)}

    def _blocks_(self) -> Iterable[Block]:
        rank = "a rank" if self.rank is None else f"rank {self.rank}"
        labels = {"file": str(self.path), "why": self.reason}
        facts = [
            (label, clean(text)) for label, text in labels.items() if text
        ]
        yield Entries([Entry(f"{rank}: {self.status}", facts)])


def request_dumps(
    dump_dir_or_prefix: str | os.PathLike[str],
    *,
    ranks: RankChoice | None = None,
    timeout_s: float = 10.0,
) -> tuple[DumpRequest, ...]:
    """
    Request dumps from running ranks of this node; training continues.

    Args:
        dump_dir_or_prefix: Folder of the dumps, or the prefix of the pipe
            names, as in ``TORCH_NCCL_DEBUG_INFO_PIPE_FILE``.

        ranks: The ranks to ask, or a selection, which the sidecars in the
            folder resolve; all by default.

        timeout_s: How long to wait for the answers, in seconds.

    Returns:
        The results by rank.  A requested rank without a pipe is ``"absent"``.
    """
    place = Path(dump_dir_or_prefix)
    folder, start = (
        (place, "") if is_folder(place) else (place.parent, place.name)
    )
    before = set(names_in(folder))
    chosen = None if ranks is None else _select_ranks(ranks, folder, before)
    rows = [
        _request_dump(rank, [folder / name for name in names])
        for rank, names in _group_by_rank(
            (n for n in before if n.startswith(start)), chosen
        )
    ]
    rows = _await_answers(rows, folder, before, timeout_s)
    absent = sorted({*(chosen or ())}.difference(row.rank for row in rows))
    return (
        *rows,
        *(DumpRequest(r, "absent", Path(), "it has no pipe") for r in absent),
    )


# No node has more ranks; a larger number is a typing error.
_MOST_RANKS = 1 << 16


def _select_ranks(
    ranks: RankChoice, folder: Path, names: Iterable[str]
) -> tuple[int, ...]:
    if isinstance(ranks, str):
        ranks = parse_rank_option(ranks)
    mesh: dict[str, int] = {}
    world_size = 0
    for name in sorted(n for n in names if n.endswith(SIDECAR_SUFFIX)):
        with contextlib.suppress(OSError, ValueError):
            sidecar = read_sidecar(folder / name)
            mesh, world_size = dict(sidecar.mesh) or mesh, sidecar.world_size
    if isinstance(ranks, RankSelection) and ranks.by_rank:
        # Ranks without a process are named as well, and reported as absent.
        world_size = _MOST_RANKS
    return select_ranks(ranks, mesh, world_size)


def _group_by_rank(
    names: Iterable[str], ranks: Collection[int] | None
) -> list[tuple[int | None, list[str]]]:
    """
    Return the pipes of each rank in the order to try them.

    Our pipes come before torch's, and later processes before earlier ones.
    """
    found: dict[int, list[str]] = {}
    unknown_ranks = []
    for name in sorted(
        names, key=lambda n: (_pipe_token(n) != "", n), reverse=True
    ):
        match = _PIPE_NAME.fullmatch(name)
        if match and match["rank"].isdecimal():
            found.setdefault(int(match["rank"]), []).append(name)
        elif match:
            unknown_ranks.append(name)

    known: list[tuple[int | None, list[str]]] = [*sorted(found.items())]
    if ranks is not None:
        known = [(rank, own) for rank, own in known if rank in ranks]
        # They may be those of ranks that had no number yet when they began.
        if len(known) == len(set(ranks)):
            return known
    return [*known, *((None, [name]) for name in unknown_ranks)]


def _pipe_token(name: str) -> str:
    """
    Return the file prefix of the process behind one of our pipes, or ``""``.
    """
    match = _OWN_PIPE_NAME.fullmatch(name)
    return match[1] if match else ""


def _request_dump(rank: int | None, pipes: Sequence[Path]) -> DumpRequest:
    row = DumpRequest(rank, "absent", pipes[0], "nobody listens")
    for pipe in pipes:
        try:
            _send_request(pipe)
        except OSError as exc:
            if exc.errno in {errno.ENXIO, errno.ENOENT}:
                row = DumpRequest(rank, "absent", pipe, "nobody listens")
            else:
                row = DumpRequest(rank, "failed", pipe, str(exc))
        else:
            if _pipe_token(pipe.name):
                return DumpRequest(rank, "silent", pipe, "no answer in time")
            return DumpRequest(rank, "asked", pipe)
    return row


def _send_request(pipe: Path) -> None:
    if not stat.S_ISFIFO(pipe.lstat().st_mode):
        raise OSError(errno.EINVAL, "it is not a pipe", str(pipe))

    fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with contextlib.suppress(BlockingIOError):  # the pipe is full
            os.write(fd, b"1")
    finally:
        os.close(fd)


def _await_answers(
    rows: list[DumpRequest], folder: Path, before: set[str], timeout_s: float
) -> list[DumpRequest]:
    deadline = time.monotonic() + timeout_s
    pause = _FIRST_PAUSE_S
    while any(r.status == "silent" for r in rows):
        is_late = time.monotonic() >= deadline
        sidecars = _new_sidecars(folder, before)
        rows = [
            _update(r, sidecars[token], is_late=is_late)
            if r.status == "silent"
            and (token := _pipe_token(r.path.name)) in sidecars
            else r
            for r in rows
        ]
        if is_late:
            break
        time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
        pause = min(pause * 1.5, _MAX_PAUSE_S)
    return rows


def _new_sidecars(folder: Path, before: set[str]) -> dict[str, Path]:
    """
    Return the last sidecar that each process wrote since, by its token.
    """
    return {
        match[1]: folder / name
        for name in sorted(set(names_in(folder)) - before)
        if (match := _SIDECAR_NAME.fullmatch(name))
    }


def _update(row: DumpRequest, sidecar: Path, *, is_late: bool) -> DumpRequest:
    dump = sidecar.with_name(sidecar.name.removesuffix(SIDECAR_SUFFIX))
    try:
        answer = read_sidecar(sidecar)
    except (OSError, ValueError) as exc:
        return DumpRequest(row.rank, "failed", sidecar, str(exc))

    if not answer.dump:
        reason = "it has nothing to dump"
        return DumpRequest(answer.rank, "failed", sidecar, reason)

    # The link is set once the stacks are in the dump.
    link = dump.with_name("latest_" + dump.name.partition("_")[2])
    try:
        is_complete = str(link.readlink()) == dump.name
    except OSError:
        is_complete = False
    if is_complete or is_late:
        return DumpRequest(answer.rank, "dumped", dump)
    return row
