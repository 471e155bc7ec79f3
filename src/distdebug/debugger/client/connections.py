"""
Non-blocking connections to ranks, and requests to many of them.

:func:`ask_all` asks many ranks at once, with one timeout for all of them.
"""

from __future__ import annotations

import os
import selectors
import socket
import time

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from ..._io import read_ordinary
from ..._text import clean
from ..protocol import (
    Message,
    MessageDecoder,
    WireError,
    encode_message,
    is_allowed_peer,
    peer_uid,
)
from .model import SilentProcess


_RECV_BYTES = 1 << 16
# A peer that sends more than this without a request floods the client.
_MAX_RECV_BLOCKS = 256


class Connection:
    """
    A non-blocking connection to one rank, or to the relay of a node.

    Args:
        connection: A connected socket.

    Attributes:
        pending: Names for the requests whose answers are expected, by ID.

        is_closed: Whether the peer has closed it, or sent an invalid message,
            or rejected a request, and closes it.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(0.0)
        self.socket = connection
        self.decoder = MessageDecoder()
        self.count = 0
        self.unsent = bytearray()
        self.pending: dict[int, Any] = {}
        self.is_closed = False

    @property
    def events(self) -> int:
        """
        Return the events to wait for, as in :mod:`selectors`.
        """
        more = selectors.EVENT_WRITE if self.unsent else 0
        return selectors.EVENT_READ | more

    def close(self) -> None:
        """
        Close the connection; the rank is not affected.
        """
        self.socket.close()

    def ask(self, request: Message) -> int:
        """
        Queue a request, and send as much as possible without blocking.

        Returns:
            The ID of the request, which the answer repeats.
        """
        self.count += 1
        self.unsent += encode_message({**request, "id": self.count})
        self.flush()
        return self.count

    def flush(self) -> None:
        """
        Send more of the queued data, without blocking.
        """
        try:
            while self.unsent:
                del self.unsent[: self.socket.send(self.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()  # receive() reports the closed connection

    def receive(self) -> list[Message] | None:
        """
        Return the messages that have arrived.

        Returns:
            ``None`` if the connection is closed.
        """
        try:
            if data := self.socket.recv(_RECV_BYTES):
                return self.decoder.decode(data)
        except BlockingIOError:
            return []
        except (OSError, WireError):
            pass
        self.is_closed = True
        return None

    def answers(self) -> list[tuple[Any, Message]]:
        """
        Return the expected answers that have arrived.

        Returns:
            The name of each request, and its answer.  A rejection answers all
            pending requests.
        """
        self.flush()
        found = []
        for message in self.receive() or ():
            number = message.get("id")
            if number is None:
                found += [(name, message) for name in self.pending.values()]
                self.pending.clear()
                self.is_closed = True
            # The answer to an earlier request may arrive after its timeout.
            elif type(number) is int and number in self.pending:
                found.append((self.pending.pop(number), message))
        return found

    def is_open(self) -> bool:
        """
        Return whether the peer is still connected; drop late messages.
        """
        for _ in range(_MAX_RECV_BLOCKS):
            messages = self.receive()
            if not messages:
                return messages is not None

        return False


def open_connection(path: Path, timeout_s: float) -> Connection:
    """
    Connect to the socket of a rank.

    Raises:
        OSError: The rank does not answer, or belongs to another user.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(os.fspath(path))
        # Root may ask the jobs of all users; other users ask only their own.
        _check_peer(peer_uid(connection))
    except BaseException:
        connection.close()
        raise

    return Connection(connection)


def _check_peer(uid: int) -> None:
    if os.geteuid() != 0 and not is_allowed_peer(uid):
        msg = f"it belongs to user {uid}"
        raise PermissionError(msg)


@attrs.frozen
class Peer:
    """
    A rank or relay that can be asked over a connection.

    Args:
        pid: The process; 0 for a relay.

        uid: The owner of the process.

        host: The node; ``""`` for this one.

        name: The rank behind a relay; ``""`` is the peer itself.
    """

    connection: Connection
    pid: int = 0
    uid: int = -1
    host: str = ""
    name: str = ""

    def ask(self, request: Message) -> int:
        """
        Send a request; see :meth:`Connection.ask`.
        """
        if self.name:
            return self.connection.ask({**request, "to": self.name})
        return self.connection.ask(request)

    def hang_up(self) -> None:
        """
        Cancel the open requests, so that the next one does not wait for them.
        """
        if self.name:
            self.connection.ask({"op": "hang up", "rank": self.name})
        else:
            self.connection.close()


def parse_relay_ranks(
    relay: Peer, host: str, answer: Message
) -> tuple[dict[str, Peer], list[SilentProcess]] | None:
    """
    Parse the answer of the relay of a node to *who*.

    Returns:
        The ranks by socket path, and the processes that do not answer it;
        ``None`` if the answer is invalid.
    """
    ranks, pids = answer.get("ranks"), answer.get("silent")
    if not isinstance(ranks, dict) or not isinstance(pids, list):
        return None

    folder = clean(str(answer.get("folder") or ""), limit=1000)
    peers = {
        f"{host}:{folder}/{name}": Peer(
            relay.connection, ids[0], ids[1], host, name
        )
        for name, ids in ranks.items()
        if name.isprintable()
        and isinstance(ids, list)
        and list(map(type, ids)) == [int, int]
    }
    silent = [SilentProcess(host=host, pid=p) for p in pids if type(p) is int]
    return peers, silent


def ask_all(
    peers: Mapping[str, Peer],
    requests: Mapping[str, Message],
    timeout_s: float,
) -> dict[str, Message | None]:
    """
    Send a request to each of several peers, and wait for the answers together.

    Args:
        peers: The peers, by any name.

        requests: The request to each peer, by the same name.

        timeout_s: The limit for all answers together, in seconds.

    Returns:
        The answer of each peer; ``None`` if it hung up or timed out.
    """
    answers: dict[str, Message | None] = dict.fromkeys(requests)
    deadline = time.monotonic() + timeout_s
    connections = {peers[name].connection for name in requests}
    try:
        for name, request in requests.items():
            peer = peers[name]
            peer.connection.pending[peer.ask(request)] = name
        _collect_answers(connections, answers, deadline)
    finally:
        for connection in connections:
            for name in connection.pending.values():
                peers[name].hang_up()
            connection.pending.clear()
    return answers


def _collect_answers(
    connections: Iterable[Connection],
    answers: dict[str, Message | None],
    deadline: float,
) -> None:
    with selectors.DefaultSelector() as selector:
        for one in connections:
            if one.socket.fileno() >= 0:
                selector.register(one.socket, one.events, one)
        while selector.get_map():
            remaining_s = deadline - time.monotonic()
            ready = selector.select(remaining_s) if remaining_s > 0 else []
            if not ready:
                return
            for one in (key.data for key, _ in ready):
                for name, answer in one.answers():
                    answers[name] = None if answer.get("gone") else answer
                if one.pending and not one.is_closed:
                    selector.modify(one.socket, one.events, one)
                else:
                    selector.unregister(one.socket)


_MAX_SOURCE_BYTES = 400_000  # JSON escapes some characters
_MAX_SOURCE_FILES = 20


def source_requests(
    uid: int, files: object, *, is_remote: bool = False
) -> Iterator[Message]:
    """
    Yield requests that send missing source files to a rank.

    Args:
        uid: The owner of the rank.

        files: The file names, as received from the rank.

        is_remote: Whether the rank runs on another node; then only files
            below the current folder are sent.
    """
    # Root can read files that the owner of the job cannot.
    if not isinstance(files, list) or uid != os.geteuid():
        return

    for file in files[:_MAX_SOURCE_FILES]:
        if isinstance(file, str) and file.endswith(".py"):
            with suppress(OSError, ValueError):
                if is_remote and not _is_below_cwd(file):
                    continue
                text = read_ordinary(file, _MAX_SOURCE_BYTES).decode()
                yield {"op": "source", "file": file, "text": text}


def _is_below_cwd(file: str) -> bool:
    return Path(file).resolve().is_relative_to(Path.cwd())
