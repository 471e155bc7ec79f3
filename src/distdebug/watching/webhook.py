"""
How does a chat service learn that a job hangs?
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 names of hosts are encoded by it
import json
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.request

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, urlsplit

import attrs

from .._in_time import in_time
from .._io import read_ordinary
from .._text import clean, reason_of
from ..errors import ConfigError, HookError


_MOST_BYTES = 1 << 16
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# They follow from the message; a wrong one would make it unreadable.
_OURS = {"connection", "content-length", "host", "transfer-encoding"}
_REMEDY = (
    "the first line is the address, https://...; those below may be headers, "
    "such as Authorization: Bearer ..."
)


@attrs.frozen
class Address:
    """
    Where a message goes.

    Attributes:
        url: All of it; a secret.

        headers: What to send along, by name; a secret.
    """

    url: str = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)

    @property
    def host(self) -> str:
        """
        The only part that may be shown, in small letters.
        """
        return clean(urlsplit(self.url).hostname or "")

    @property
    def path(self) -> str:
        """
        What stands behind the host.
        """
        return urlsplit(self.url).path


def read_address(path: str | os.PathLike[str]) -> Address:
    """
    Read a file with the address of a webhook.

    Empty lines and those that begin with ``#`` do not count.  The first other
    one is the address, and each below it is a header, ``Name: value``.

    Args:
        path: The file, of at most 64 KiB.

    Returns:
        The address.

    Raises:
        ConfigError: The file cannot be read, or has no address.  It says
            which line is wrong, and never what stands there.
    """
    try:
        return _parse(read_ordinary(path, _MOST_BYTES))
    except OSError as error:
        trouble = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        trouble = "is no text"
    except ValueError as error:
        trouble = str(error)
    msg = f"{clean(os.fspath(path), limit=400)}: {trouble}"
    raise ConfigError(msg, remedy=_REMEDY)


def _parse(data: bytes) -> Address:
    lines = _lines(data)
    if not lines:
        msg = "there is no address in it"
        raise ValueError(msg)

    (number, url), *rest = lines
    _check(number, url)
    return Address(url, dict(_header(*line) for line in rest))


def _lines(data: bytes) -> list[tuple[int, str]]:
    lines = map(str.strip, data.decode("utf-8-sig").splitlines())
    return [
        (number, line)
        for number, line in enumerate(lines, 1)
        if line and not line.startswith("#")
    ]


def _check(number: int, url: str) -> None:
    # What Python says of a wrong address may quote it.
    try:
        parts = urlsplit(url)
        is_fine = _is_fine(url, parts)
    except ValueError:
        is_fine = False
    if not is_fine:
        msg = f"line {number} is no address of the form https://host/path"
        raise ValueError(msg)

    if "@" in parts.netloc:
        msg = (
            f"line {number} has a name or password before the host, which "
            "belongs in a header"
        )
        raise ValueError(msg)


def _is_fine(url: str, parts: SplitResult) -> bool:
    is_plain = url.isascii() and url.isprintable() and " " not in url
    is_web = parts.scheme in {"http", "https"} and bool(parts.hostname)
    return is_plain and is_web and parts.port != 0


def _header(number: int, line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    is_fine = (
        colon
        and _NAME.fullmatch(name)
        and name.lower() not in _OURS
        and value.isascii()
        and value.isprintable()
    )
    if not is_fine:
        msg = f"line {number} is no header that can be sent, Name: value"
        raise ValueError(msg)

    return name, value.strip()


# Services cut longer texts, or refuse them.
_MOST_TEXT = 1800
_MESSAGE_MOST_BYTES = 1 << 18
# What wakes up everybody: it may stand in the name of a file.
_CALLS = re.compile(
    r"@(?=all\b|channel\b|everyone\b|here\b)|<(?=[!@#]|users/)"
)
_ZERO_WIDTH_SPACE = "\u200b"


def message_for(address: Address, text: str, data: Mapping[str, Any]) -> bytes:
    """
    Write a message in the words of the service that gets it.

    Args:
        address: Where it goes; the service is known by the name of the host.

        text: What people shall read.

        data: What programs may want to know.  Only services that no key can
            upset get it, and never more of it than 256 KiB: then ``diagnosis``
            is left out.

    Returns:
        JSON.
    """
    quiet = _CALLS.sub(lambda x: x[0] + _ZERO_WIDTH_SPACE, text[:_MOST_TEXT])
    words = _words_of(address)
    if words is not None:
        return _json(words(quiet))

    message = {**data, "text": quiet}
    body = _json(message)
    if len(body) > _MESSAGE_MOST_BYTES:
        message.pop("diagnosis", None)
        body = _json(message)
    return body


def _json(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode()


def _text(text: str) -> dict[str, Any]:
    return {"text": text}


def _slack(text: str) -> dict[str, Any]:
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(char, entity)
    return {"text": text}


def _discord(text: str) -> dict[str, Any]:
    return {"content": text, "allowed_mentions": {"parse": []}}


def _teams(text: str) -> dict[str, Any]:
    block = {"type": "TextBlock", "text": text, "wrap": True}
    card = {"type": "AdaptiveCard", "version": "1.2", "body": [block]}
    kind = "application/vnd.microsoft.card.adaptive"
    return {
        "type": "message",
        "attachments": [{"contentType": kind, "content": card}],
    }


_WORDS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "slack.com": _slack,
    "slack-gov.com": _slack,
    "chat.googleapis.com": _text,
    "discord.com": _discord,
    "discordapp.com": _discord,
    "webhook.office.com": _text,
    # Workflows, which took the place of the connectors of Teams.
    "logic.azure.com": _teams,
    "powerautomate.com": _teams,
    "powerplatform.com": _teams,
}


def _words_of(address: Address) -> Callable[[str], dict[str, Any]] | None:
    for name, words in _WORDS.items():
        if f".{address.host}".endswith(f".{name}"):
            # Discord speaks the language of others at addresses of their own.
            is_slack = words is _discord and address.path.endswith("/slack")
            return _slack if is_slack else words
    return None


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
