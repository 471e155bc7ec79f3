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

from ..wire import Feed, WireError, may_talk, pack, peer_uid


__all__ = ["Line", "ask_all", "open_line"]

_BLOCK = 1 << 16


class Line:
    """
    A connection to one rank.

    Args:
        connection: A socket that is connected.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.feed = Feed()
        self.count = 0

    def close(self) -> None:
        """
        Hang up; the rank does not mind.
        """
        self.socket.close()

    def is_open(self) -> bool:
        """
        Whether the rank is still there.  What it said too late is dropped.
        """
        try:
            self.socket.settimeout(0.0)
            while data := self.socket.recv(_BLOCK):
                self.feed.take(data)
        except BlockingIOError:
            return True
        except (OSError, WireError):
            return False

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


def ask_all(
    lines: Mapping[str, Line],
    requests: Mapping[str, dict[str, Any]],
    timeout_s: float,
) -> dict[str, dict[str, Any] | None]:
    """
    Ask several ranks, each its own question, all at the same time.

    Args:
        lines: The connections, by any name.

        requests: The question to each, by the same name.

        timeout_s: How long to wait for all answers, in seconds.

    Returns:
        The answer of each; ``None`` if it hung up, or did not answer in time.
    """
    found: dict[str, dict[str, Any] | None] = dict.fromkeys(requests)
    try:
        _collect(lines, requests, found, timeout_s)
    finally:
        # A rank that is still busy with this would let the next one wait.
        for name, answer in found.items():
            if answer is None:
                lines[name].close()
    return found


def _collect(
    lines: Mapping[str, Line],
    requests: Mapping[str, dict[str, Any]],
    found: dict[str, dict[str, Any] | None],
    timeout_s: float,
) -> None:
    end = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for name, request in requests.items():
            if _send(lines[name], request, timeout_s):
                selector.register(
                    lines[name].socket, selectors.EVENT_READ, name
                )
        while selector.get_map():
            left = end - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                return
            for key, _ in ready:
                done, answer = _receive(lines[key.data])
                if done:
                    selector.unregister(key.fileobj)
                    found[key.data] = answer


def _send(line: Line, request: dict[str, Any], timeout_s: float) -> bool:
    line.count += 1
    try:
        line.socket.settimeout(timeout_s)
        line.socket.sendall(pack({**request, "id": line.count}))
    except OSError:
        return False

    return True


def _receive(line: Line) -> tuple[bool, dict[str, Any] | None]:
    """
    Whether this rank is done, and what it said.
    """
    try:
        data = line.socket.recv(_BLOCK)
        messages = line.feed.take(data)
    except (OSError, WireError):
        return True, None

    for message in messages:
        # An earlier answer may come after it was given up.
        if message.get("id") in {line.count, None}:
            return True, message

    return not data, None
