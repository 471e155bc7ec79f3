"""
What does a job tell through the debug server of torch that it runs?

``torch.distributed.debug.start_debug_server`` (torch 2.10 and later) lets every
rank answer questions by HTTP, and the node of rank 0 show the answers.  Where
the ranks listen stands in the job's store, which the server shows too; so each
is asked for itself, and the pages are for those who cannot be reached from
here.
"""

from __future__ import annotations

import os
import time

from collections.abc import Mapping
from pathlib import Path

import attrs

from ..._text import reason_of
from ...findings import Missing
from ...ranks import ranks_text
from .asking import DebugServer
from .fetch import LATE, Allowance, NoAnswerError, Place, parse_place
from .files import Told, dumped_lately, keep_told
from .pages import read_addresses


__all__ = ["keep_debug_server"]

_MOST_BYTES = 1 << 30

_STORE = "/tcpstore"
# The store answers at once, or not at all.
_STORE_S = 10.0
# How much of the time is for the ranks, if pages may have to follow.
_SHARE_OF_RANKS = 0.6
# What comes last has to be written, too.
_SHARE_OF_ALL = 0.95

_STRANGER = "what answers there shows no ranks: is it a debug server?"


def keep_debug_server(
    address: str, folder: Path, deadline: float
) -> tuple[list[Path], list[Missing]]:
    """
    Take stacks and recorded calls of all ranks from a running debug server.

    The ranks are asked at the addresses that the server names, and nobody
    else is.

    Args:
        address: ``HOST:PORT`` of its pages, which are on the node of rank 0,
            usually at port 25999; an address of IPv6 in brackets.

        folder: Where to; it is made if there is anything to keep.  What a
            snapshot has put there before, stacks of the same processes and
            new dumps of the same ranks, says more and stays as it is.

        deadline: When to stop, on the monotonic clock, whatever the server
            does.

    Returns:
        What was written, at most 1 GiB and half of what the disk has left;
        and what was not, and why.
    """
    try:
        place = parse_place(address)
        disk = os.statvfs(folder.parent)
    except (ValueError, OSError) as exc:
        reason = reason_of(exc)
        return [], [Missing(what="debug server", reason=reason)]

    size = min(_MOST_BYTES, disk.f_bavail * disk.f_frsize // 2)
    left = max(deadline - time.monotonic(), 0.0)
    ends = time.monotonic() + left * _SHARE_OF_ALL
    server = DebugServer(place, ends, Allowance(size))
    taking = _Taking(server, folder, dumped_lately(folder))
    taking.take()
    return taking.files, taking.missing


@attrs.define
class _Taking:
    """
    What was taken so far.
    """

    server: DebugServer
    folder: Path
    dumped: set[int]
    files: list[Path] = attrs.Factory(list)
    missing: list[Missing] = attrs.Factory(list)

    def take(self) -> None:
        """
        Take everything that can be had.
        """
        deadline = self.server.within(0.25, _STORE_S)
        workers = self.server.show([_STORE], read_addresses, deadline)[_STORE]
        if isinstance(workers, NoAnswerError):
            if workers.kind == "unseen":
                self._miss_server(workers.reason)
                return
            workers = {}

        unseen = self._ask_ranks(workers)
        if unseen or not workers:
            self._ask_pages(unseen)

    def _ask_ranks(self, workers: Mapping[int, Place]) -> dict[int, Told]:
        """
        Ask the ranks themselves, and give those that cannot be reached.
        """
        seen: set[int] = set()
        missed = {rank: _late(place) for rank, place in workers.items()}
        size = max(workers, default=-1) + 1
        deadline = self.server.within(_SHARE_OF_RANKS)
        for rank, told in self.server.ask_ranks(workers, deadline):
            if told.is_seen:
                seen.add(rank)
                del missed[rank]
                self._keep(rank, told, size)
            else:
                missed[rank] = told

        # If others on its node can be reached, it is gone, and no page brings
        # it back.
        hosts = {workers[rank].host for rank in seen}
        gone = {r for r in missed if workers[r].host in hosts}
        for rank in sorted(gone):
            self._keep(rank, missed.pop(rank), size)
        if gaps := set(range(size)).difference(workers):
            self._miss_server(f"it has no address of {ranks_text(gaps)}")
        return missed

    def _ask_pages(self, unseen: Mapping[int, Told]) -> None:
        """
        Take from the pages what these ranks told; or all, if none is known.
        """
        told, problems = self.server.ask_pages()
        size = max({*told, *unseen}, default=-1) + 1
        for rank in sorted({*told, *unseen}):
            if rank in unseen or not unseen:
                self._keep(rank, told.get(rank) or unseen[rank], size)
        for path, reason in problems.items():
            # There is no such page where torch was built without NCCL.
            if not told or not reason.startswith("status 404"):
                self._miss_server(f"{path}: {reason}")
        if not (told or unseen or problems):
            self._miss_server(_STRANGER)

    def _keep(self, rank: int, told: Told, size: int) -> None:
        if rank in self.dumped:
            told.dump = ""
            told.missing.pop("dump", None)
        try:
            for file in keep_told(told, rank, size, self.folder):
                self.files.append(file)
        except OSError as exc:
            reason = f"not written: {exc.strerror}"
            self._miss_rank("stacks and dump", rank, reason, told.place)
        for what, reason in told.missing.items():
            self._miss_rank(what, rank, reason, told.place)

    def _miss_server(self, reason: str) -> None:
        source = f"http://{self.server.place}"
        self.missing.append(
            Missing(what="debug server", reason=reason, source=source)
        )

    def _miss_rank(
        self, what: str, rank: int, reason: str, place: Place | None
    ) -> None:
        source = f"http://{place or self.server.place}"
        self.missing.append(
            Missing(what=what, reason=reason, rank=rank, source=source)
        )


def _late(place: Place) -> Told:
    missing = {"stack": LATE, "dump": LATE}
    return Told(place=place, is_seen=False, missing=missing)
