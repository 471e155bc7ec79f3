"""
Who is told that a job hangs, and how?

A hook is called once a snapshot was taken.  It may fail, but it neither takes
longer than it may, nor leaves a process behind, nor ends the watch: what it
raises is for the log.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 names of hosts are encoded by it
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
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import attrs

from .._in_time import in_time
from .._io import read_ordinary
from .._text import clean, reason_of
from ..errors import ConfigError, HookError
from ..nodes import Bound, Ended, run_process
from .config import a_number
from .hang import Hang, say


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


_QUOTED = re.compile(r"""\\.|'[^']*'|"((?:\\.|[^"\\])*)\"""", re.DOTALL)
_VARIABLE = re.compile(r"(?<!\\)\$(?:\w+|[{(][^)}]*[)}]?)")
_OPERATOR = re.compile(r"&&|\|\||>>|[|&;<>]|`[^`]*`?")
# How long a command has to clean up after SIGTERM.
_GRACE_S = 2.0
_MOST_SUMMARY = 1000


def command_hook(
    command: str | Sequence[str], *, timeout_s: float = 60.0
) -> Callable[[Hang], None]:
    """
    Run a command when a job hangs.

    It finds all that is known as JSON on its standard input, and the folder
    and the summary in the environment, as ``DISTDEBUG_FOLDER`` and
    ``DISTDEBUG_SUMMARY``.  It runs without a shell, in a process group of its
    own, which is ended when its time is over.

    Args:
        command: Its words.  A text is split as a shell does it, but nothing
            in it is replaced, and pipes and variables are refused; for those,
            use ``sh -c '…'``.

        timeout_s: How long it may take, in seconds.

    Returns:
        The hook.  It raises :class:`~distdebug.errors.HookError` if the
        command cannot be started, fails, or does not end in time.

    Raises:
        ConfigError: There is no such command, it needs a shell, or
            *timeout_s* makes no sense.
    """
    words = _words(command)
    bound_s = _checked(timeout_s)

    def tell(hang: Hang) -> None:
        name = clean(Path(words[0]).name)
        try:
            ended = _run(words, hang, bound_s)
        except OSError as error:
            msg = f"{name} cannot be started: {error.strerror}"
            raise HookError(
                msg, remedy="name a program of this node by its full path"
            ) from None

        if ended.status != 0:
            msg = f"{name} {_ending(ended, bound_s)}"
            raise HookError(
                msg,
                remedy="try it by hand: it gets the hang by its input, as JSON",
            )

    return tell


def webhook_hook(
    file: str | os.PathLike[str], *, timeout_s: float = 10.0
) -> Callable[[Hang], None]:
    """
    Post a message when a job hangs.

    Slack, Google Chat, Discord, and Teams (workflows) are known by their host
    names, and get the summary and the folder as a message of theirs.  Any
    other service gets this as ``text``, together with all that is known.

    Args:
        file: Holds the address in its first line, and below it headers, as
            ``Name: value``; see
            :func:`~distdebug.watching.hooks.read_address`.  It is
            read again for every message, so that the address can be changed.

        timeout_s: How long it may take until the message has arrived, in
            seconds.

    Returns:
        The hook.  It raises :class:`~distdebug.errors.HookError` if the
        message does not arrive.

    Raises:
        ConfigError: The file cannot be used, or *timeout_s* makes no sense.
    """
    bound_s = _checked(timeout_s)
    read_address(file)  # a mistake is told now, not at night
    _warn_of_readers(file)

    def tell(hang: Hang) -> None:
        try:
            address = read_address(file)
        except ConfigError as error:
            raise HookError(str(error), remedy=error.remedy) from None

        data = hang.to_dict()
        host = clean(str(data.get("host") or ""))
        place = clean(os.fspath(hang.folder), limit=400)
        where = f"{place} on {host}" if host else place
        text = f"{clean(hang.summary, limit=_MOST_SUMMARY)}\n{where}"
        post(address, message_for(address, text, data), timeout_s=bound_s)

    return tell


def _checked(timeout_s: float) -> float:
    return a_number(timeout_s, "timeout_s of a hook", least=0.01)


def _words(command: str | Sequence[str]) -> list[str]:
    remedy = "name a program; for pipes and variables, use sh -c '...'"
    if isinstance(command, str) and (found := _for_a_shell(command)):
        msg = (
            f"a command for hangs is not run by a shell, which {clean(found)} "
            "needs"
        )
        raise ConfigError(msg, remedy="sh -c '...', or put it in '...'")

    try:
        words = shlex.split(command) if isinstance(command, str) else command
        words = [os.fspath(word) for word in words]
    except (TypeError, ValueError) as error:
        msg = f"a command for hangs cannot be understood: {clean(str(error))}"
        raise ConfigError(msg, remedy=remedy) from None

    if not words or any("\0" in word for word in words):
        msg = "a command for hangs is empty, or no text"
        raise ConfigError(msg, remedy=remedy)
    if shutil.which(words[0]) is None:
        msg = f"{clean(words[0])}: there is no such command"
        raise ConfigError(msg, remedy=remedy)

    return words


def _for_a_shell(text: str) -> str:
    """
    The first operator or variable in a command; nothing if it is plain.
    """
    # Inside of "..." a shell replaces variables, and nothing else.
    plain = _QUOTED.sub(
        lambda quoted: "".join(_VARIABLE.findall(quoted[1] or "")), text
    )
    found = _OPERATOR.search(plain) or _VARIABLE.search(plain)
    return found[0] if found else ""


def _run(words: Sequence[str], hang: Hang, timeout_s: float) -> Ended:
    environment: Mapping[str, str] = {
        **os.environ,
        "DISTDEBUG_FOLDER": os.fspath(hang.folder),
        "DISTDEBUG_SUMMARY": clean(hang.summary, limit=_MOST_SUMMARY),
    }
    return run_process(
        words,
        environment=environment,
        bound=Bound(timeout_s=timeout_s, grace_s=_GRACE_S),
        data=json.dumps(hang.to_dict()).encode(),
    )


def _ending(ended: Ended, timeout_s: float) -> str:
    if ended.status is None:
        ending = f"did not end within {timeout_s:g} s"
    elif ended.status < 0:
        ending = f"was ended by signal {-ended.status}"
        with suppress(ValueError):
            ending = f"was ended by {signal.Signals(-ended.status).name}"
    else:
        ending = f"failed with exit status {ended.status}"
    said = (ended.complaint.strip() or ended.output.strip()).splitlines()
    last = clean(said[-1].decode(errors="replace")) if said else ""
    return f"{ending}: {last}" if last else ending


def _warn_of_readers(file: str | os.PathLike[str]) -> None:
    with suppress(OSError):
        if Path(file).stat().st_mode & stat.S_IROTH:
            name = clean(os.fspath(file), limit=400)
            text = "%s holds a secret and can be read by everybody; try: "
            say(logging.WARNING, text + "chmod 600", name)
