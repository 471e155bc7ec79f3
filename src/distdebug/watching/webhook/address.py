"""
Where does a message go?

The address of a webhook is a secret: whoever knows it can write to the channel.
So it stands in a file, and neither in a command line, which all users of a node
can read, nor in anything that is logged.
"""

from __future__ import annotations

import os
import re

from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

import attrs

from ..._files import read_ordinary
from ..._text import clean
from ...errors import ConfigError


__all__ = ["Address", "read_address"]

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
