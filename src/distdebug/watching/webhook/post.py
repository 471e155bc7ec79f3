"""
Does a message arrive, in time?

It is sent by a thread of this process, not by a program: when a job hangs
because a file system does, no program can be started.  For the same reason
everything that is needed is imported before.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 names of hosts are encoded by it
import socket
import ssl
import time
import urllib.error
import urllib.request

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

from ..._in_time import in_time
from ..._text import clean, reason_of
from ...errors import HookError
from .address import Address


__all__ = ["post"]

_PAUSES_S = (1.0, 3.0)
_HEADERS = {"Content-Type": "application/json", "User-Agent": "distdebug"}


def post(address: Address, body: bytes, *, timeout_s: float) -> None:
    """
    Send a message.

    If the service is busy or cannot be reached, it is tried up to twice more.
    Proxies are taken from the environment (``HTTPS_PROXY``, ``NO_PROXY``), and
    so are certificates that are trusted (``SSL_CERT_FILE``).
    An address that leads to another one is not followed, and nothing but the
    status of an answer is read.

    Args:
        address: Where it goes.

        body: The message, in JSON.

        timeout_s: How long all of that may take, in seconds, however slowly
            the service answers.

    Raises:
        HookError: It did not arrive.  Of the address, only the host is told.
    """
    opened: list[HTTPConnection] = []
    send = partial(_send, address, body, time.monotonic() + timeout_s, opened)
    try:
        trouble = in_time(send, timeout_s)
    except TimeoutError:
        _hang_up(opened)
        trouble = f"did not answer within {timeout_s:g} s"
    if trouble is not None:
        msg = f"the webhook at {address.host} {trouble}"
        raise HookError(
            msg,
            remedy="see whether the address is right, and whether this node "
            "may reach it",
        )


def _send(
    address: Address,
    body: bytes,
    deadline: float,
    opened: list[HTTPConnection],
) -> str | None:
    """
    Send, again if that may help; tell what went wrong in the end.
    """
    for pause in (*_PAUSES_S, None):
        try:
            _send_once(address, body, deadline, opened)
        except urllib.error.HTTPError as error:
            error.close()
            trouble = f"answered {_status(error.code)}"
            can_recover = error.code == 429 or error.code >= 500
        except (OSError, HTTPException, ValueError) as error:
            trouble = _why(error)
            can_recover = isinstance(error, OSError)
        else:
            return None

        is_late = pause is None or time.monotonic() + pause >= deadline
        if is_late or not can_recover:
            break

        time.sleep(pause or 0.0)
    return trouble


def _send_once(
    address: Address,
    body: bytes,
    deadline: float,
    opened: list[HTTPConnection],
) -> None:
    # The standard opener would follow redirections, and read local files.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Connections(opened),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    request = urllib.request.Request(  # noqa: S310 http or https, as checked
        address.url,
        data=body,
        headers={**_HEADERS, **address.headers},
        method="POST",
    )
    left = max(0.1, deadline - time.monotonic())
    opener.open(request, timeout=left).close()


class _Connections(urllib.request.AbstractHTTPHandler):
    """
    Opens connections, and takes note of them, so that they can be closed.
    """

    def __init__(self, opened: list[HTTPConnection]) -> None:
        super().__init__()
        self._opened = opened

    def http_open(self, request: urllib.request.Request) -> Any:
        """
        Send in the clear, as to a relay on the same node.
        """
        return self.do_open(self._noted(HTTPConnection), request)

    def https_open(self, request: urllib.request.Request) -> Any:
        """
        Send to a host that has to prove its name.
        """
        context = ssl.create_default_context()
        return self.do_open(
            self._noted(HTTPSConnection), request, context=context
        )

    # The names that an opener looks for.
    http_request = urllib.request.AbstractHTTPHandler.do_request_
    https_request = urllib.request.AbstractHTTPHandler.do_request_

    def _noted(self, kind: Callable[..., HTTPConnection]) -> Any:
        def connect(host: str, **kwargs: Any) -> HTTPConnection:
            connection = kind(host, **kwargs)
            self._opened.append(connection)
            return connection

        return connect


def _hang_up(opened: list[HTTPConnection]) -> None:
    # Else the thread would go on for as long as somebody sends it a byte.
    for connection in opened:
        used: socket.socket | None = connection.sock
        if used is not None:
            with suppress(OSError):
                used.shutdown(socket.SHUT_RDWR)


def _status(code: int) -> str:
    # Not in the words of the service, which may be any.
    try:
        return f"{code} ({HTTPStatus(code).phrase})"
    except ValueError:
        return str(code)


def _why(error: Exception) -> str:
    if isinstance(error, urllib.error.URLError):
        reason = error.reason
        error = reason if isinstance(reason, Exception) else error
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has no valid certificate: {clean(error.verify_message)}"
    if isinstance(error, OSError):
        text = reason_of(error)
        return f"cannot be reached: {clean(text)}"
    # What others say may quote the address.
    return f"cannot be reached: {type(error).__name__}"
