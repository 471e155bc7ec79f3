"""
Mask hosts, users, addresses, and paths outside of the code in what is shown.

The same name has the same stand-in everywhere, so that a reader still sees which
ranks share a node, or a file.
"""

from __future__ import annotations

import re

from collections import defaultdict
from collections.abc import Iterable
from typing import Any


_LOCAL = frozenset({"127.0.0.1", "0.0.0.0", "localhost"})  # noqa: S104 no socket
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)")
# Link-local, private, and public addresses; nothing such as c10d::add.
_IPV6 = re.compile(
    r"(?<![\w:])(?:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3})(?::[0-9a-f]{0,4}){2,7}"
    r"(?![\w:])",
    re.IGNORECASE,
)
_HOME = re.compile(r"(?<=/)(home|Users|users)/([^/\s'\"\\<>&]{1,64})")
_PATH = re.compile(
    r"(?<![\w./:<>-])/(?:[\w.@%+=,~-]{1,255}/){1,40}[\w.@%+=,~-]{1,255}"
)
# Files of these kinds are code, or what tells where it runs.
_CODE = re.compile(r"\.(?:py|pyx|ipynb|c|cc|cpp|cu|cuh|h|hpp|rs|so[\d.]*)$")
_SYSTEM = re.compile(r"/(?:proc|sys|dev|etc|usr|lib|lib64|opt|__w)/")
# Evidence names the file of a call by its last part.
_IN_CALL = re.compile(r"\(([\w.@%+=,~-]{1,255})\)")
# Of the page, what is not shown.
_PROGRAM = re.compile(
    r"(<style\b.*?</style>|<script(?![^>]*application/json)\b.*?</script>)",
    re.DOTALL,
)


class Anonymizer:
    """
    Replaces names by stand-ins such as ``host-1``.

    Args:
        hosts: Names of hosts; addresses and users are known by their form.

        files: Paths that may stand somewhere by their last part alone.
    """

    def __init__(
        self, hosts: Iterable[str] = (), files: Iterable[str] = ()
    ) -> None:
        self._names: defaultdict[str, dict[str, str]] = defaultdict(dict)
        names = {x for x in hosts if x and x not in _LOCAL}
        # A short name is part of a long one.
        listed = sorted(names, key=lambda x: (-len(x), x))
        for name in sorted(names):
            self._stand_in("host", name)
        either = "|".join(map(re.escape, listed)) or r"(?!)"
        # Names of files have an underscore beside it.
        self._host = re.compile(
            rf"(?<![A-Za-z0-9.-])(?:{either})(?![A-Za-z0-9-])"
        )
        self._files = {
            path.rpartition("/")[2]: path
            for path in files
            if _PATH.fullmatch(path) and not _is_code(path)
        }

    def text(self, text: str) -> str:
        """
        Return a text without these names.
        """
        text = _HOME.sub(
            lambda x: f"{x[1]}/{self._stand_in('user', x[2])}", text
        )
        text = self._host.sub(lambda x: self._stand_in("host", x[0]), text)
        for pattern in (_IPV4, _IPV6):
            text = pattern.sub(self._address, text)
        text = _IN_CALL.sub(self._file, text)
        return _PATH.sub(self._path, text)

    def data(self, data: Any) -> Any:
        """
        Return plain data, of which only the values are masked.
        """
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, dict):
            return {key: self.data(value) for key, value in data.items()}
        if isinstance(data, list | tuple):
            return [self.data(value) for value in data]
        return data

    def page(self, html: str) -> str:
        """
        Return a page whose programs and styles are left as they are.
        """
        parts = _PROGRAM.split(html)
        return "".join(
            part if i % 2 else self.text(part) for i, part in enumerate(parts)
        )

    def _stand_in(self, kind: str, name: str) -> str:
        known = self._names[kind]
        return known.setdefault(name, f"{kind}-{len(known) + 1}")

    def _address(self, found: re.Match[str]) -> str:
        is_local = found[0] in _LOCAL or found[0] in {"::1", "::"}
        return found[0] if is_local else self._stand_in("ip", found[0])

    def _file(self, found: re.Match[str]) -> str:
        path = self._files.get(found[1])
        return f"({self._stand_in('path', path)})" if path else found[0]

    def _path(self, found: re.Match[str]) -> str:
        path = found[0]
        if _is_code(path):
            return path
        suffix = re.search(r"\.\w{1,8}$", path)
        return f"/{self._stand_in('path', path)}{suffix[0] if suffix else ''}"


def _is_code(path: str) -> bool:
    return bool(_CODE.search(path) or _SYSTEM.match(path))
