"""
How are many ranks asked at once, and none of them waited for too long?
"""

from __future__ import annotations

import os
import selectors
import socket
import time

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ..wire import Feed, WireError, may_talk, pack, peer_uid


__all__ = ["Line", "Peer", "ask_all", "open_line"]

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
