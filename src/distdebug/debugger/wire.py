"""
How do a rank and a client talk?

Each message is one line of JSON, an object, of at most one mebibyte.  What is
anything else ends the conversation.  Nothing that is received is evaluated or
unpickled here.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import json
import os
import socket
import struct

from typing import Any


__all__ = ["LIMIT_BYTES", "Feed", "WireError", "may_talk", "pack", "peer_uid"]

LIMIT_BYTES = 1 << 20

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class WireError(ValueError):
    """
    What came is no message.
    """


class Feed:
    """
    Puts messages together from the pieces in which they arrive.
    """

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[dict[str, Any]]:
        """
        Which messages are complete now?

        Args:
            data: What has arrived since the last call.

        Returns:
            The messages, in their order.

        Raises:
            WireError: A line is too long, no JSON, or no object.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LIMIT_BYTES:
            msg = f"a message is longer than {LIMIT_BYTES:,} bytes"
            raise WireError(msg)

        return [_message(line) for line in lines]


def _message(line: bytes) -> dict[str, Any]:
    if len(line) > LIMIT_BYTES:
        msg = f"a message is longer than {LIMIT_BYTES:,} bytes"
        raise WireError(msg)

    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as exc:
        msg = "a message is not JSON"
        raise WireError(msg) from exc

    if not isinstance(message, dict):
        msg = "a message is not an object"
        raise WireError(msg)

    return message


def pack(message: dict[str, Any]) -> bytes:
    """
    How is a message sent?

    Args:
        message: Plain data.

    Returns:
        One line.

    Raises:
        WireError: It is too long.
    """
    line = json.dumps(message, separators=(",", ":")).encode()
    if len(line) > LIMIT_BYTES:
        msg = f"the message is longer than {LIMIT_BYTES:,} bytes"
        raise WireError(msg)

    return line + b"\n"


def peer_uid(connection: socket.socket) -> int:
    """
    Which user is at the other end, as the kernel says?

    Args:
        connection: A connected Unix socket.

    Returns:
        The number of the user.

    Raises:
        OSError: The kernel does not tell.
    """
    data = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
    )
    _, uid, _ = _CREDENTIALS.unpack(data)
    return int(uid)


def may_talk(uid: int) -> bool:
    """
    May this user ask us, or answer us?

    Args:
        uid: Who is at the other end.

    Returns:
        Whether it is us, or root, who can do everything anyway.
    """
    return uid in {os.geteuid(), 0}
