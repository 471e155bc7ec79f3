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

import attrs


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
# What may be the name of a host, or begin with one.
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
_SUFFIX = re.compile(r"\.?(?:\.[A-Za-z]{1,5})?\.?")
# Of the page, what is not shown.
_PROGRAM = re.compile(
    r"<(style|script)\b(?![^>]{0,200}application/json)[^>]{0,200}>"
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
        for name in sorted({x for x in hosts if x and x not in _LOCAL}):
            self._stand_in("host", name)
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
        text = _WORD.sub(self._host, text)
        for pattern in (_IPV4, _IPV6):
            text = pattern.sub(self._address, text)
        text = _IN_CALL.sub(self._file, text)
        return _PATH.sub(self._path, text)

    def data(self, data: Any) -> Any:
        """
        Return data of which only the values are masked: plain, or of attrs.
        """
        if isinstance(data, str):
            return self.text(data)
        if attrs.has(type(data)):
            names = [field.name for field in attrs.fields(type(data))]
            values = {name: self.data(getattr(data, name)) for name in names}
            return attrs.evolve(data, **values)
        if isinstance(data, dict):
            return {key: self.data(value) for key, value in data.items()}
        if isinstance(data, list | tuple):
            return [self.data(value) for value in data]
        return data

    def page(self, html: str) -> str:
        """
        Return a page whose programs and styles are left as they are.
        """
        parts, at = [], 0
        for found in _PROGRAM.finditer(html):
            end = html.find(f"</{found[1]}>", found.end())
            if end < 0:
                break
            if found.start() >= at:
                parts.append(self.text(html[at : found.start()]))
                parts.append(html[found.start() : end])
                at = end
        return "".join([*parts, self.text(html[at:])])

    def _stand_in(self, kind: str, name: str) -> str:
        known = self._names[kind]
        return known.setdefault(name, f"{kind}-{len(known) + 1}")

    def _host(self, found: re.Match[str]) -> str:
        word, known = found[0], self._names["host"]
        if word in known:
            return known[word]
        for dot in re.finditer(r"\.", word):
            if stand_in := known.get(word[: dot.start()]):
                # Behind it stands the suffix of a file, or a domain.
                rest = word[dot.start() :]
                return stand_in + (rest if _SUFFIX.fullmatch(rest) else "")
        return word

    def _address(self, found: re.Match[str]) -> str:
        is_local = found[0] in _LOCAL
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
