"""
What does a web server answer, if it may be slow, without end, or hostile?

Only the place that is given is asked, and only by HTTP: no redirection is
followed, and no proxy of the environment is used.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import threading
import time

from contextlib import closing
from typing import Any, Literal

import attrs

from .._text import clean, reason_of


LATE = "no answer in time"

_PLACE = re.compile(
    r"(?:http://)?"
    r"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45}(?:%\w{1,15})?)\]"
    r"|(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}))"
    r":(?P<port>[0-9]{1,5})/?"
)


class NoAnswerError(Exception):
    """
    No answer came that can be used.

    Args:
        reason: Why, in a few words.

        kind: ``"unseen"`` if there was no connection; ``"late"`` if there
            was, but the time was over; ``"bad"`` if something else came.
    """

    def __init__(
        self, reason: str, kind: Literal["unseen", "late", "bad"]
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


@attrs.frozen
class Place:
    """
    Where a server listens.

    Attributes:
        host: Its name, or its address without brackets.

        port: The number of its port.
    """

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Allowance:
    """
    How many bytes may still come, of all servers together.

    Args:
        size: So many.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def spend(self, count: int) -> None:
        """
        Take *count* bytes off; a negative number gives them back.

        Raises:
            ValueError: There were not so many.
        """
        with self._lock:
            self._left -= count
            if self._left < 0:
                msg = "more bytes than there is space for"
                raise ValueError(msg)


def parse_place(address: str) -> Place:
    """
    Which place does ``HOST:PORT`` mean?

    Args:
        address: The host by name or address, one of IPv6 in brackets, and the
            port; ``http://`` may stand before it.

    Returns:
        The place.

    Raises:
        ValueError: It is something else.
    """
    match = _PLACE.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        msg = f"not HOST:PORT: {clean(address, limit=80)!r}"
        raise ValueError(msg)

    return Place(match["six"] or match["host"], int(match["port"]))


def fetch(  # noqa: PLR0913 three of them are limits
    place: Place,
    target: str,
    *,
    method: Literal["GET", "POST"] = "GET",
    deadline: float,
    allowance: Allowance,
    most: int,
) -> str:
    """
    Ask a server for one thing.

    Looking up the name of the host cannot be limited: it may take longer.

    Args:
        place: Where it listens.

        target: What to ask for: path and query.

        method: How to ask.

        deadline: When to stop, on the monotonic clock, also if something
            comes all the time.

        allowance: How much may come of all servers together.  What comes and
            is of no use is given back.

        most: How many bytes this answer may have.

    Returns:
        What it answered with status 200.

    Raises:
        NoAnswerError: There is no such answer.
    """
    if time.monotonic() >= deadline:
        raise NoAnswerError(LATE, "unseen")

    try:
        connection = _connect(place, deadline)
    except (OSError, ValueError) as exc:
        reason = f"no connection: {_words(exc)}"
        raise NoAnswerError(reason, "unseen") from None

    source = _Limited(connection, deadline, allowance, most)
    with connection:
        try:
            _send(connection, f"{method} {target}", place, deadline)
            return _receive(source, method)
        except TimeoutError:
            source.give_back()
            raise NoAnswerError(LATE, "late") from None
        except (OSError, ValueError, http.client.HTTPException) as exc:
            source.give_back()
            raise NoAnswerError(_words(exc), "bad") from None


def _words(exc: Exception) -> str:
    if isinstance(exc, http.client.HTTPException):
        return clean(f"no answer in HTTP: {exc!r}", limit=120)
    return clean(reason_of(exc), limit=120)


def _left_s(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        msg = "the time was over"
        raise TimeoutError(msg)

    return left


def _connect(place: Place, deadline: float) -> socket.socket:
    error = OSError("the host has no address")
    found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(found):
        # One that never answers must not take the time of the others.
        share = _left_s(deadline) / (len(found) - number)
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(share)
            connection.connect(address)
        except OSError as exc:
            connection.close()
            error = exc
        else:
            return connection

    raise error


def _send(
    connection: socket.socket, request: str, place: Place, deadline: float
) -> None:
    connection.settimeout(_left_s(deadline))
    lines = [
        f"{request} HTTP/1.0",
        f"Host: {place}",
        "Content-Length: 0",
        "Connection: close",
    ]
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))


class _Limited(io.RawIOBase):
    """
    What comes through a connection, as long and as much as is allowed.

    Time-outs of a socket are for each piece, and a server that sends one byte
    now and then would hold us for ever.
    """

    def __init__(
        self,
        connection: socket.socket,
        deadline: float,
        allowance: Allowance,
        most: int,
    ) -> None:
        super().__init__()
        self._connection = connection
        self._deadline = deadline
        self._allowance = allowance
        self._most = most
        self._spent = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_left_s(self._deadline))
        count = self._connection.recv_into(buffer)
        self._spent += count
        self._allowance.spend(count)
        if self._spent > self._most:
            msg = f"an answer of more than {self._most:,} bytes"
            raise ValueError(msg)

        return count

    def give_back(self) -> None:
        """
        Let others have what came, because it is of no use.
        """
        self._allowance.spend(-self._spent)
        self._spent = 0

    def makefile(self, _mode: str) -> io.BufferedReader:
        # All that http.client wants of a socket.
        return io.BufferedReader(self)


def _receive(source: _Limited, method: str) -> str:
    as_socket: Any = source
    # Otherwise Python complains, from 3.14 on, of what it finds half closed.
    with closing(http.client.HTTPResponse(as_socket, method=method)) as answer:
        answer.begin()
        text = answer.read().decode("utf-8", "replace")
    return _told(answer, text)


def _told(response: http.client.HTTPResponse, text: str) -> str:
    if response.status == 200:
        return text

    if 300 <= response.status < 400:
        msg = f"status {response.status}: redirections are not followed"
        raise ValueError(msg)

    # Others send pages, of which nothing can be shown in a line.
    is_plain = response.headers.get_content_type() == "text/plain"
    told = (
        f": {text}" if is_plain and "Content-Type" in response.headers else ""
    )
    msg = f"status {response.status}{told}"
    raise ValueError(msg)
