"""
Hang hooks: run a command, or post to a webhook (Slack, Discord, Teams, …).

A hook is called after a snapshot.  It may fail, but it ends in time, leaves no
process behind, and does not end the watch: its exception is logged.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 encodes host names
import json
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import stat
import time
import urllib.error
import urllib.request

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPSConnection,
    responses,
)
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs

from .._io import read_ordinary
from .._proc import Completed, in_time, run_child
from .._text import clean, reason_of
from ..errors import ConfigError, HookError
from .config import check_number
from .hang import Hang, log_message


_MAX_BYTES = 1 << 16
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# They follow from the message; a wrong one would break it.
_RESERVED_HEADERS = {
    "connection",
    "content-length",
    "host",
    "transfer-encoding",
}
_REMEDY = (
    "the first line is the address, https://...; those below may be headers, "
    "such as Authorization: Bearer ..."
)


@attrs.frozen
class Address:
    """
    The address of a webhook.

    Attributes:
        url: The whole URL; a secret.

        headers: The headers to send, by name; a secret.
    """

    url: str = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)

    @property
    def host(self) -> str:
        """
        Return the host name in lower case, the only part that may be shown.
        """
        return clean(urlsplit(self.url).hostname or "")

    @property
    def path(self) -> str:
        """
        Return the path of the URL.
        """
        return urlsplit(self.url).path


def read_address(path: str | os.PathLike[str]) -> Address:
    """
    Read the file with the address of a webhook, of at most 64 KiB.

    Empty lines and lines that begin with ``#`` are ignored.  The first other
    line is the address, and each one below it is a header, ``Name: value``.

    Raises:
        ConfigError: The file cannot be read, or has no address.  The message
            has the number of the line, and never its content.
    """
    try:
        return _parse(read_ordinary(path, _MAX_BYTES))
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        problem = "is not text"
    except ValueError as error:
        problem = str(error)
    msg = f"{clean(os.fspath(path), limit=400)}: {problem}"
    raise ConfigError(msg, remedy=_REMEDY)


def _parse(data: bytes) -> Address:
    lines = map(str.strip, data.decode("utf-8-sig").splitlines())
    numbered = [
        (number, line)
        for number, line in enumerate(lines, 1)
        if line and not line.startswith("#")
    ]
    if not numbered:
        msg = "there is no address in it"
        raise ValueError(msg)

    (number, url), *rest = numbered
    _check_url(number, url)
    return Address(url, dict(_header(*line) for line in rest))


def _check_url(number: int, url: str) -> None:
    # An error message of Python may quote the address.
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in {"http", "https"} and bool(parts.hostname)
        is_valid = is_web and parts.port != 0
    except ValueError:
        is_valid = False
    if (
        not is_valid
        or not url.isascii()
        or not url.isprintable()
        or " " in url
    ):
        msg = f"line {number} is no address of the form https://host/path"
        raise ValueError(msg)

    if "@" in parts.netloc:
        msg = (
            f"line {number} has a name or password before the host, which "
            "belongs in a header"
        )
        raise ValueError(msg)


def _header(number: int, line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    is_valid = (
        colon
        and _HEADER_NAME.fullmatch(name)
        and name.lower() not in _RESERVED_HEADERS
        and value.isascii()
        and value.isprintable()
    )
    if not is_valid:
        msg = f"line {number} is no header that can be sent, Name: value"
        raise ValueError(msg)

    return name, value.strip()


# In characters; services cut or refuse longer texts.
_MAX_TEXT = 1800
_MAX_MESSAGE_BYTES = 1 << 18
# Mentions that notify everybody; a file name may contain one.
_MENTIONS = re.compile(
    r"@(?=all\b|channel\b|everyone\b|here\b)|<(?=[!@#]|users/)"
)
_ZERO_WIDTH_SPACE = "\u200b"


def message_for(address: Address, text: str, data: Mapping[str, Any]) -> bytes:
    """
    Return the JSON message in the format of the service.

    Args:
        address: The host name selects the format.

        text: The text for people.

        data: The data for programs.  Only services that accept any key get it,
            and at most 256 KiB: above that, ``diagnosis`` is left out.
    """
    safe_text = _MENTIONS.sub(
        lambda x: x[0] + _ZERO_WIDTH_SPACE, text[:_MAX_TEXT]
    )
    format_text = _formatter(address)
    if format_text is not None:
        return _json(format_text(safe_text))

    message = {**data, "text": safe_text}
    body = _json(message)
    if len(body) > _MAX_MESSAGE_BYTES:
        message.pop("diagnosis", None)
        body = _json(message)
    return body


def _json(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode()


def _slack(text: str) -> dict[str, Any]:
    return {"text": escape(text, quote=False)}


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


_FORMATTERS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "slack.com": _slack,
    "slack-gov.com": _slack,
    "chat.googleapis.com": lambda text: {"text": text},
    "discord.com": _discord,
    "discordapp.com": _discord,
    "webhook.office.com": lambda text: {"text": text},
    # Workflows, which have replaced the connectors of Teams.
    "logic.azure.com": _teams,
    "powerautomate.com": _teams,
    "powerplatform.com": _teams,
}


def _formatter(address: Address) -> Callable[[str], dict[str, Any]] | None:
    # Discord accepts Slack's format at an address of its own.
    is_slack = address.path.endswith("/slack")
    for name, format_text in _FORMATTERS.items():
        if f".{address.host}".endswith(f".{name}"):
            is_discord = format_text is _discord
            return _slack if is_discord and is_slack else format_text
    return None


_RETRY_PAUSES_S = (1.0, 3.0)
_HEADERS = {"Content-Type": "application/json", "User-Agent": "distdebug"}


def post(address: Address, body: bytes, *, timeout_s: float) -> None:
    """
    Send a message, with at most two retries.

    A retry follows if the service is busy or unreachable.  The environment
    sets proxies (``HTTPS_PROXY``, ``NO_PROXY``) and trusted certificates
    (``SSL_CERT_FILE``).  Redirects are not followed, and only the status of an
    answer is read.

    Args:
        body: The message, in JSON.

        timeout_s: The time for all of that, in seconds, however slowly the
            service answers.

    Raises:
        HookError: It did not arrive.  Of the address, the message has only the
            host.
    """
    opened: list[HTTPConnection] = []
    send = partial(_send, address, body, time.monotonic() + timeout_s, opened)
    try:
        problem = in_time(send, timeout_s)
    except TimeoutError:
        _close_connections(opened)
        problem = f"did not answer within {timeout_s:g} s"
    if problem is not None:
        msg = f"the webhook at {address.host} {problem}"
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
    Send, with retries; return the last error, or ``None``.
    """
    for pause in (*_RETRY_PAUSES_S, None):
        try:
            _send_once(address, body, deadline, opened)
        except urllib.error.HTTPError as error:
            error.close()
            problem = f"answered {_status(error.code)}"
            can_recover = error.code == 429 or error.code >= 500
        except (OSError, HTTPException, ValueError) as error:
            problem = _error_text(error)
            can_recover = isinstance(error, OSError)
        else:
            return None

        is_late = pause is None or time.monotonic() + pause >= deadline
        if is_late or not can_recover:
            break

        time.sleep(pause or 0.0)
    return problem


def _send_once(
    address: Address,
    body: bytes,
    deadline: float,
    opened: list[HTTPConnection],
) -> None:
    # The standard opener would follow redirects, and read local files.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Connections(opened, deadline),
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


class _TimedConnection(HTTPConnection):
    """
    A connection that sends nothing if it comes about too late.

    Until it does, it cannot be closed from outside.
    """

    deadline = float("inf")

    def connect(self) -> None:
        """
        Connect, as for the first request.
        """
        super().connect()
        if time.monotonic() >= self.deadline:
            self.close()
            raise TimeoutError


class _TimedSecureConnection(_TimedConnection, HTTPSConnection):
    """
    The same, with encryption.
    """


class _Connections(urllib.request.AbstractHTTPHandler):
    """
    Opens connections, and records them so that they can be closed.
    """

    def __init__(self, opened: list[HTTPConnection], deadline: float) -> None:
        super().__init__()
        self._opened = opened
        self._deadline = deadline

    def http_open(self, request: urllib.request.Request) -> Any:
        """
        Send without encryption, for example to a relay on the same node.
        """
        return self.do_open(self._tracked(_TimedConnection), request)

    def https_open(self, request: urllib.request.Request) -> Any:
        """
        Send to a host whose certificate is verified.
        """
        context = ssl.create_default_context()
        return self.do_open(
            self._tracked(_TimedSecureConnection), request, context=context
        )

    # An opener looks for these names.
    http_request = urllib.request.AbstractHTTPHandler.do_request_
    https_request = urllib.request.AbstractHTTPHandler.do_request_

    def _tracked(self, kind: Callable[..., _TimedConnection]) -> Any:
        def connect(host: str, **kwargs: Any) -> HTTPConnection:
            connection = kind(host, **kwargs)
            connection.deadline = self._deadline
            self._opened.append(connection)
            return connection

        return connect


def _close_connections(opened: list[HTTPConnection]) -> None:
    # Otherwise a slow server could keep the thread alive for ever.
    for connection in opened:
        used: socket.socket | None = connection.sock
        with suppress(OSError):
            if used is not None:
                used.shutdown(socket.SHUT_RDWR)


def _status(code: int) -> str:
    # Not the phrase of the service, which may be any text.
    phrase = responses.get(code)
    return f"{code} ({phrase})" if phrase else str(code)


_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})\b")


def _error_text(error: Exception) -> str:
    if isinstance(error, urllib.error.URLError):
        reason = error.reason
        error = reason if isinstance(reason, Exception) else error
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has no valid certificate: {clean(error.verify_message)}"
    if found := _TUNNEL.match(str(error)):
        return (
            f"cannot be reached: the proxy answered {_status(int(found[1]))}"
        )
    if isinstance(error, OSError):
        return f"cannot be reached: {clean(reason_of(error))}"
    # The message of another error may quote the address.
    return f"cannot be reached: {type(error).__name__}"


_QUOTED = re.compile(r"""\\.|'[^']*'|"((?:\\.|[^"\\])*)\"""", re.DOTALL)
_VARIABLE = re.compile(r"(?<!\\)\$(?:\w+|[{(][^)}]*[)}]?)")
_OPERATOR = re.compile(r"&&|\|\||>>|[|&;<>]|`[^`]*`?")
# How long a command has to clean up after SIGTERM.
_GRACE_S = 2.0


def command_hook(
    command: str | Sequence[str], *, timeout_s: float = 60.0
) -> Callable[[Hang], None]:
    """
    Return a hook that runs a command when a job hangs.

    The command gets the diagnosis as JSON on its standard input, and the
    folder and summary in ``DISTDEBUG_FOLDER`` and ``DISTDEBUG_SUMMARY``.  It
    runs without a shell, in its own process group, which is killed at the
    timeout.

    Args:
        command: The program and its arguments.  A string is split as in a
            shell, but nothing is expanded, and pipes and variables are
            refused; for those, use ``sh -c '…'``.

        timeout_s: How long it may take, in seconds.

    Returns:
        The hook.  It raises :class:`~distdebug.errors.HookError` if the
        command cannot be started, fails, or does not end in time.

    Raises:
        ConfigError: There is no such command, it needs a shell, or *timeout_s*
            is invalid.
    """
    words = _split_command(command)
    bound_s = _check_timeout(timeout_s)

    def run_hook(hang: Hang) -> None:
        name = clean(Path(words[0]).name)
        try:
            completed = _run(words, hang, bound_s)
        except OSError as error:
            msg = f"{name} cannot be started: {error.strerror}"
            raise HookError(
                msg, remedy="name a program of this node by its full path"
            ) from None

        if completed.status != 0:
            msg = f"{name} {_exit_text(completed, bound_s)}"
            raise HookError(
                msg,
                remedy="try it by hand: it gets the hang by its input, as JSON",
            )

    return run_hook


def webhook_hook(
    file: str | os.PathLike[str], *, timeout_s: float = 10.0
) -> Callable[[Hang], None]:
    """
    Return a hook that posts a message when a job hangs.

    Slack, Google Chat, Discord, and Teams (workflows) are recognized by their
    host names, and get the summary and the folder as a message in their
    format.  Any other service gets this as ``text``, together with the
    diagnosis.

    Args:
        file: Has the address in its first line, and headers below it, as
            ``Name: value``; see
            :func:`~distdebug.watching.hooks.read_address`.  It is read again
            for each message, so that the address can be changed.

        timeout_s: How long a message may take to arrive, in seconds.

    Returns:
        The hook.  It raises :class:`~distdebug.errors.HookError` if the
        message does not arrive.

    Raises:
        ConfigError: The file cannot be used, or *timeout_s* is invalid.
    """
    bound_s = _check_timeout(timeout_s)
    read_address(file)  # an error is raised now, not at the first hang
    _warn_if_readable(file)

    def run_hook(hang: Hang) -> None:
        try:
            address = read_address(file)
        except ConfigError as error:
            raise HookError(str(error), remedy=error.remedy) from None

        body = message_for(address, hang.message, hang.to_dict())
        post(address, body, timeout_s=bound_s)

    return run_hook


def _check_timeout(timeout_s: float) -> float:
    return check_number(timeout_s, "timeout_s of a hook", least=0.01)


def _split_command(command: str | Sequence[str]) -> list[str]:
    remedy = "name a program; for pipes and variables, use sh -c '...'"
    if isinstance(command, str) and (found := _shell_syntax(command)):
        msg = (
            f"a command for hangs is not run by a shell, which {clean(found)} "
            "needs"
        )
        raise ConfigError(msg, remedy="sh -c '...', or put it in '...'")

    try:
        words = shlex.split(command) if isinstance(command, str) else command
        words = [os.fspath(word) for word in words]
    except (TypeError, ValueError) as error:
        msg = f"a command for hangs cannot be parsed: {clean(str(error))}"
        raise ConfigError(msg, remedy=remedy) from None

    if not words or any("\0" in word for word in words):
        msg = "a command for hangs is empty, or no text"
        raise ConfigError(msg, remedy=remedy)
    if shutil.which(words[0]) is None:
        msg = f"{clean(words[0])}: there is no such command"
        raise ConfigError(msg, remedy=remedy)

    return words


def _shell_syntax(text: str) -> str:
    """
    Return the first operator or variable in a command, or ``""``.
    """
    # Inside "..." a shell expands only variables.
    plain = _QUOTED.sub(
        lambda quoted: "".join(_VARIABLE.findall(quoted[1] or "")), text
    )
    found = _OPERATOR.search(plain) or _VARIABLE.search(plain)
    return found[0] if found else ""


def _run(words: Sequence[str], hang: Hang, timeout_s: float) -> Completed:
    environment: Mapping[str, str] = {
        **os.environ,
        "DISTDEBUG_FOLDER": os.fspath(hang.folder),
        "DISTDEBUG_SUMMARY": hang.summary,
    }
    return run_child(
        words,
        environment=environment,
        timeout_s=timeout_s,
        grace_s=_GRACE_S,
        data=json.dumps(hang.to_dict()).encode(),
    )


def _exit_text(completed: Completed, timeout_s: float) -> str:
    if completed.status is None:
        text = f"did not end within {timeout_s:g} s"
    elif completed.status < 0:
        text = f"was ended by signal {-completed.status}"
        with suppress(ValueError):
            text = f"was ended by {signal.Signals(-completed.status).name}"
    else:
        text = f"failed with exit status {completed.status}"
    lines = (completed.stderr.strip() or completed.output.strip()).splitlines()
    last = clean(lines[-1].decode(errors="replace")) if lines else ""
    return f"{text}: {last}" if last else text


def _warn_if_readable(file: str | os.PathLike[str]) -> None:
    with suppress(OSError):
        if Path(file).stat().st_mode & stat.S_IROTH:
            name = clean(os.fspath(file), limit=400)
            text = "%s holds a secret and can be read by everybody; try: "
            log_message(logging.WARNING, text + "chmod 600", name)
