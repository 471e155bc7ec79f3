"""
How are many ranks asked at once, and none of them waited for too long?
"""

from __future__ import annotations

import os
import selectors
import socket
import time

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import attrs

from ..._io import read_ordinary
from ...errors import DebuggerError
from ...processes import Worker
from ...ranks import RankSelection, fold_ranks, parse_ranks
from ..protocol import Feed, WireError, is_selected, may_talk, pack, peer_uid
from .model import (
    IDLE,
    Listing,
    LostNode,
    Process,
    Session,
    Silent,
    ranks_shown,
)


_BLOCK = 1 << 16
# Who says more than this unasked floods us.
_MOST_BLOCKS = 256


class Line:
    """
    A connection to one rank, or to the relay of a node.

    Args:
        connection: A socket that is connected.

    Attributes:
        is_over: Whether the other end has hung up, or talks nonsense.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(0.0)
        self.socket = connection
        self.feed = Feed()
        self.count = 0
        self.unsent = bytearray()
        self.is_over = False

    @property
    def events(self) -> int:
        """
        What to wait for, as of :mod:`selectors`.
        """
        more = selectors.EVENT_WRITE if self.unsent else 0
        return selectors.EVENT_READ | more

    def close(self) -> None:
        """
        Hang up; the rank does not mind.
        """
        self.socket.close()

    def ask(self, request: Mapping[str, Any]) -> int:
        """
        Send a question, as far as it can be sent without waiting.

        Args:
            request: Plain data.

        Returns:
            The number that the answer will have.
        """
        self.count += 1
        self.unsent += pack({**request, "id": self.count})
        self.flush()
        return self.count

    def flush(self) -> None:
        """
        Send more of what could not be sent.
        """
        try:
            while self.unsent:
                del self.unsent[: self.socket.send(self.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()  # reading tells that it is closed

    def hear(self) -> list[dict[str, Any]] | None:
        """
        What has arrived?

        Returns:
            Messages; ``None`` if there will be no more.
        """
        try:
            if data := self.socket.recv(_BLOCK):
                return self.feed.take(data)
        except BlockingIOError:
            return []
        except (OSError, WireError):
            pass
        self.is_over = True
        return None

    def is_open(self) -> bool:
        """
        Whether somebody is still there.  What was said too late is dropped.
        """
        for _ in range(_MOST_BLOCKS):
            messages = self.hear()
            if not messages:
                return messages is not None

        return False


def open_line(path: Path, timeout_s: float) -> Line:
    """
    Connect to a rank.

    Args:
        path: Its socket.

        timeout_s: How long that may take, in seconds.

    Returns:
        The connection.

    Raises:
        OSError: It does not answer, or belongs to somebody else.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(os.fspath(path))
        # Root asks the jobs of others; nobody else may answer for them.
        _check_peer(peer_uid(connection))
    except BaseException:
        connection.close()
        raise

    return Line(connection)


def _check_peer(uid: int) -> None:
    if os.geteuid() != 0 and not may_talk(uid):
        msg = f"it belongs to user {uid}"
        raise PermissionError(msg)


@attrs.frozen
class Peer:
    """
    Who can be asked over a line.

    Args:
        line: The line.

        pid: The number of the process.

        uid: Its user.

        host: Its node; ``""`` if that is this one.

        name: Who is meant of those behind a relay; ``""`` is whoever is at
            the other end.
    """

    line: Line
    pid: int = 0
    uid: int = -1
    host: str = ""
    name: str = ""

    def ask(self, request: Mapping[str, Any]) -> int:
        """
        Send a question; see :meth:`Line.ask`.
        """
        if self.name:
            return self.line.ask({**request, "to": self.name})
        return self.line.ask(request)

    def hang_up(self) -> None:
        """
        Let whatever is still asked be, or the next question would wait for it.
        """
        if self.name:
            self.line.ask({"op": "hang up", "rank": self.name})
        else:
            self.line.close()


def ask_all(
    peers: Mapping[str, Peer],
    requests: Mapping[str, Mapping[str, Any]],
    timeout_s: float,
) -> dict[str, dict[str, Any] | None]:
    """
    Ask several, each its own question, all at the same time.

    Args:
        peers: Who, by any name.

        requests: The question to each, by the same name.

        timeout_s: How long to wait for all answers, in seconds.

    Returns:
        The answer of each; ``None`` if it hung up, or did not answer in time.
    """
    found: dict[str, dict[str, Any] | None] = dict.fromkeys(requests)
    until = time.monotonic() + timeout_s
    asked: dict[Line, dict[int, str]] = {}
    try:
        for name, request in requests.items():
            numbers = asked.setdefault(peers[name].line, {})
            numbers[_ask(peers[name], request)] = name
        _collect(asked, found, until)
    finally:
        for numbers in asked.values():
            for name in numbers.values():
                peers[name].hang_up()
    return found


def _ask(peer: Peer, request: Mapping[str, Any]) -> int:
    return peer.ask(request)


def _collect(
    asked: Mapping[Line, dict[int, str]],
    found: dict[str, dict[str, Any] | None],
    until: float,
) -> None:
    with selectors.DefaultSelector() as selector:
        for line in asked:
            if line.socket.fileno() >= 0:
                selector.register(line.socket, line.events, line)
        while selector.get_map():
            left = until - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                return
            for line in (key.data for key, _ in ready):
                line.flush()
                if _take(line, asked[line], found):
                    selector.modify(line.socket, line.events, line)
                else:
                    selector.unregister(line.socket)


def _take(
    line: Line,
    numbers: dict[int, str],
    found: dict[str, dict[str, Any] | None],
) -> bool:
    """
    Take what was answered; whether there is more to come.
    """
    messages = line.hear()
    for message in messages or ():
        number = message.get("id")
        if number is None:
            # It did not understand us, and hangs up.
            found.update(dict.fromkeys(numbers.values(), message))
            numbers.clear()
        # An earlier answer may come after it was given up.
        elif type(number) is int and number in numbers:
            name = numbers.pop(number)
            found[name] = None if message.get("gone") else message
    return messages is not None and bool(numbers)


@attrs.frozen(kw_only=True)
class Reached:
    """
    Who can be asked now?

    Attributes:
        peers: The ranks, by their sockets.

        silent: Those that cannot be connected to.

        lost: Nodes that cannot be asked.

        idle: Nodes on which nobody listens.
    """

    peers: Mapping[str, Peer] = attrs.field(factory=dict)
    silent: tuple[Silent, ...] = ()
    lost: tuple[LostNode, ...] = ()
    idle: tuple[str, ...] = ()


class Reach(Protocol):
    """
    Where ranks are looked for.
    """

    timeout_s: float

    def peers(self) -> Reached:
        """
        Who can be asked now?
        """

    def broken(self) -> tuple[LostNode, ...]:
        """
        Which nodes were lost since they were asked?
        """

    def outside(self, silent: Iterable[Silent]) -> tuple[str, ...]:
        """
        Where are those that do not answer, as seen from outside?
        """

    def unarmed(self) -> tuple[Worker, ...]:
        """
        Which other ranks of the job were started without us?
        """

    def close(self) -> None:
        """
        Hang up.
        """


# Who has no number is meant where all are.
_EVERYBODY = parse_ranks("ranks(:)").by_rank[0]


def choose(
    listing: Listing, ranks: RankSelection | str | None, group: str | None
) -> tuple[Process, ...]:
    """
    Which processes does a selection mean?

    Args:
        listing: All there are.

        ranks: The selection; all if it is ``None``.

        group: Of which group; it may be left out if there is only one.

    Returns:
        The processes, in the order of the listing, each once.

    Raises:
        DebuggerError: It means none, or it is not clear of which group.

        RankSyntaxError: The selection cannot be read.
    """
    selection = parse_ranks(ranks) if isinstance(ranks, str) else ranks
    there = _of_group(listing, group, is_needed=selection is not None)
    if selection is None:
        return there

    found = tuple(p for p in there if _is_meant(p, selection))
    if not found:
        msg = f"{selection} selects nobody{_unknown(selection, there)}"
        raise DebuggerError(msg, remedy=_what_exists(there))

    return found


def _is_meant(process: Process, selection: RankSelection) -> bool:
    if process.rank is None:
        return _EVERYBODY in selection.by_rank

    return is_selected(
        selection.by_rank,
        selection.by_dimension,
        process.rank,
        process.coords,
    )


def choose_workers(
    workers: Iterable[Worker],
    ranks: RankSelection | str | None,
    group: str | None,
) -> tuple[Worker, ...]:
    """
    Which ranks that are not armed does a selection mean?

    Args:
        workers: Those there are.

        ranks: The selection; all if it is ``None``.

        group: Of which group; who is not armed belongs to none but that which
            has no other name.

    Returns:
        The workers; none is no mistake.

    Raises:
        RankSyntaxError: The selection cannot be read.
    """
    selection = parse_ranks(ranks) if isinstance(ranks, str) else ranks
    if group not in {None, "job"}:
        return ()

    return tuple(
        worker
        for worker in workers
        if selection is None
        or (
            worker.rank is not None
            and is_selected(
                selection.by_rank,
                selection.by_dimension,
                worker.rank,
                dict(worker.coordinates),
            )
        )
    )


def choose_session(
    listing: Listing,
    *,
    rank: int | None = None,
    group: str | None = None,
    number: int | None = None,
) -> tuple[Process, Session]:
    """
    Which session does a person want to attach to?

    Args:
        listing: All there are.

        rank: Its rank.

        group: The group of that.

        number: Or its number in the listing, counted from 1.

    Returns:
        The process, and its thread.

    Raises:
        DebuggerError: There is no such session, or more than one.
    """
    everyone = list(enumerate(listing.sessions, start=1))
    found = [
        (n, pair)
        for n, pair in everyone
        if (n == number if number is not None else pair[0].rank == rank)
        and (group is None or pair[0].group == group)
    ]
    what = f"#{number}" if number is not None else f"rank {rank}"
    if not found:
        raise _not_stopped(listing, what, rank, group)
    if len(found) > 1:
        names = ", ".join(
            f"#{n} ({p.group}, {s.thread})" for n, (p, s) in found
        )
        msg = f"{what} is stopped more than once: {names}"
        raise DebuggerError(msg, remedy=f"attach #{found[0][0]}")

    return found[0][1]


def _not_stopped(
    listing: Listing, what: str, rank: int | None, group: str | None
) -> DebuggerError:
    """
    Why can nobody attach to that, and what helps?
    """
    there = _of_group(listing, group, is_needed=False)
    ranks = ranks_shown(p.rank for p in there if p.sessions) or "none"
    stopped = f"stopped are: {ranks}; see: list"
    if rank is None:
        return DebuggerError(f"{what} is not stopped", remedy=stopped)
    if all(p.rank != rank for p in there):
        remedy = f"{_what_exists(there)}; attach #N goes by the list"
        return DebuggerError(f"there is no {what}", remedy=remedy)

    who = f"{group} ranks({rank})" if group else f"ranks({rank})"
    remedy = f"to stop it: interrupt {who}; {stopped}"
    return DebuggerError(f"{what} is not stopped", remedy=remedy)


def _of_group(
    listing: Listing, group: str | None, *, is_needed: bool
) -> tuple[Process, ...]:
    groups = sorted({p.group for p in listing.processes})
    if not groups:
        msg = "no rank listens here"
        raise DebuggerError(
            msg, remedy="call distdebug.arm() in the job, or set DISTDEBUG=1"
        )
    if group is None and is_needed:
        # Ray keeps workers for tasks to come.
        groups = [name for name in groups if name != IDLE] or groups
        group = groups[0] if len(groups) == 1 else None
    if group is None and len(groups) > 1 and is_needed:
        msg = f"there are several groups: {', '.join(groups)}"
        raise DebuggerError(
            msg,
            remedy=f"write the group before ranks(...): {groups[0]} ranks(:)",
        )
    if group is not None and group not in groups:
        msg = f"there is no group {group}"
        raise DebuggerError(msg, remedy=f"there are: {', '.join(groups)}")

    return tuple(p for p in listing.processes if group in {None, p.group})


def _unknown(selection: RankSelection, there: Iterable[Process]) -> str:
    known = {name for p in there for name in p.coords}
    names = [name for name, _ in selection.by_dimension if name not in known]
    return f": there is no dimension {', '.join(names)}" if names else ""


def _what_exists(there: Iterable[Process]) -> str:
    by_group: dict[str, list[Process]] = {}
    for process in there:
        by_group.setdefault(process.group, []).append(process)
    return "there are: " + "; ".join(
        f"{group} ranks {ranks_shown(p.rank for p in found)}{_sizes(found)}"
        for group, found in by_group.items()
    )


def _sizes(processes: Iterable[Process]) -> str:
    indexes: dict[str, set[int]] = {}
    for process in processes:
        for name, index in process.coords.items():
            indexes.setdefault(name, set()).add(index)
    text = ", ".join(f"{k}={fold_ranks(v)}" for k, v in indexes.items())
    return f" ({text})" if text else ""


_MOST_BYTES = 400_000  # JSON needs more than one byte for some
_MOST_FILES = 20


def sources_to_lend(
    uid: int, files: object, *, is_elsewhere: bool = False
) -> Iterator[dict[str, Any]]:
    """
    What can be sent to a rank that misses some files?

    Args:
        uid: Its user.

        files: Their names, as it says.

        is_elsewhere: Whether it runs on another node.

    Yields:
        A request for each that is here.
    """
    # Root could read more than the user whose job it debugs.
    if not isinstance(files, list) or uid != os.geteuid():
        return

    for file in files[:_MOST_FILES]:
        if isinstance(file, str) and file.endswith(".py"):
            with suppress(OSError, ValueError):
                if is_elsewhere and not _is_below(file):
                    continue
                text = read_ordinary(file, _MOST_BYTES).decode()
                yield {"op": "source", "file": file, "text": text}


def _is_below(file: str) -> bool:
    return Path(file).resolve().is_relative_to(Path.cwd())
