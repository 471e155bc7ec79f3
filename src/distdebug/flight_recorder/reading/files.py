"""
Which file is the dump of which rank?

A dump does not say so itself.  A side-car does; otherwise the name of the file
has to.  Folders hold other files, too: those are left alone.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import time

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

from ..._io import open_ordinary
from ..._text import reason_of
from ...findings import Missing
from ..sidecar import MOST_RANKS, SIDECAR_SUFFIX, Sidecar, read_sidecar


_DEPTH_LIMIT = 32
_KERNEL = ("/proc/", "/sys/", "/dev/")

_UNFINISHED = re.compile(
    r"^\.|\.(?:tmp|temp|part|partial|swp)\b|~$", re.IGNORECASE
)


class Search(NamedTuple):
    """
    How far to look.

    Attributes:
        deadline: When to stop, on the monotonic clock.

        most: How many files and folders to look at, in each place.

        starts: What the names of dumps start with, if that is known: then
            only the place itself is looked at, and of it only those, and what
            side-cars are about.  An empty one is that of names that are
            numbers.
    """

    deadline: float = float("inf")
    most: int = 10_000_000
    starts: tuple[str, ...] | None = None

    def wants(self, name: str, names: Iterable[str]) -> bool:
        """
        Whether this file may be a dump, or tell of one.
        """
        if self.starts is None:
            return True

        starts = tuple(filter(None, self.starts))
        return (
            name.endswith(SIDECAR_SUFFIX)
            or name + SIDECAR_SUFFIX in names
            or (bool(starts) and name.startswith(starts))
            or ("" in self.starts and name.isdigit())
        )


def walk(
    path: str,
    seen: set[tuple[int, int]],
    problems: list[Missing],
    search: Search,
) -> Iterator[tuple[str, float]]:
    """
    List regular files, each once.

    Args:
        path: A folder, which is searched with all that is in it, or a file.

        seen: Files and folders that were listed before; it grows.

        problems: What cannot be read; it grows.

        search: How far to look.

    Yields:
        Each with the time of its last change.
    """
    # Links come last, so that they are what is left out.
    links: list[tuple[str, int]] = []
    todo = [(path, 0)]
    while todo or links:
        reason = _reason_to_stop(search, len(todo) + len(links))
        if reason:
            problems.append(Missing(what="dump", reason=reason, source=path))
            return

        place, depth = todo.pop() if todo else links.pop()
        try:
            status = Path(place).stat()
        except (OSError, ValueError) as exc:
            if place == path:
                problems.append(_unreadable(place, exc))
            continue

        search = search._replace(most=search.most - 1)
        key = (status.st_dev, status.st_ino)
        if key in seen:
            continue

        seen.add(key)
        if stat.S_ISREG(status.st_mode):
            yield place, status.st_mtime
        elif stat.S_ISDIR(status.st_mode) and depth < _depth(search):
            inner, found = _inside(place, path, problems, search)
            todo += ((child, depth + 1) for child in inner)
            links += ((child, depth + 1) for child in found)


def _reason_to_stop(search: Search, waiting: int) -> str:
    if time.monotonic() > search.deadline:
        return "the time was over"
    if search.most <= 0 < waiting:
        return "there are too many files to look at all of them"
    return ""


def _depth(search: Search) -> int:
    return _DEPTH_LIMIT if search.starts is None else 1


def _inside(
    folder: str, root: str, problems: list[Missing], search: Search
) -> tuple[list[str], list[str]]:
    """
    What is in a folder, and which links.
    """
    entries = _listed(folder, problems, search.most)
    names = {entry.name for entry in entries}
    inner: list[str] = []
    links: list[str] = []
    for entry in entries:
        if not search.wants(entry.name, names):
            continue
        if not _is_link(entry):
            inner.append(entry.path)
        elif not _leads_out(entry.path, root):
            links.append(entry.path)
    return inner, links


def _is_link(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_symlink()
    except OSError:
        return True


def _leads_out(link: str, root: str) -> bool:
    """
    Whether a link leads to a folder around *root*, perhaps to all there is, or
    to what the kernel makes up, which may have no end.
    """
    try:
        target = os.path.realpath(link)
        around = os.path.commonpath([target, os.path.realpath(root)]) == target
        return around or f"{target}/".startswith(_KERNEL)
    except OSError:  # it may not be read, or is gone
        return True


def _listed(
    folder: str, problems: list[Missing], most: int
) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            # One more, so that it is seen that there are too many.
            some = itertools.islice(entries, most + 1)
            return [e for e in some if not _UNFINISHED.search(e.name)]
    except OSError as exc:
        problems.append(_unreadable(folder, exc))
        return []


def _unreadable(path: str, exc: Exception) -> Missing:
    reason = reason_of(exc)
    return Missing(
        what="dump", reason=f"cannot be read: {reason}", source=path
    )


_SUFFIXES = {
    *(".bin", ".dat", ".dump", ".fr", ".gz"),
    *(".json", ".pickle", ".pkl", ".trace"),
}

# These are never announced as broken dumps, whatever else is in their names.
_FOREIGN = {
    *(".bz2", ".cfg", ".core", ".csv", ".db", ".err", ".folded", ".html"),
    *(".ini", ".jsonl", ".lock", ".log", ".md", ".npy", ".npz", ".nsys-rep"),
    *(".out", ".parquet", ".pid", ".pipe", ".png", ".prof", ".pt", ".pth"),
    *(".py", ".pyc", ".safetensors", ".sh", ".so", ".sqlite", ".stderr"),
    *(".stdout", ".svg", ".tar", ".tgz", ".toml", ".txt", ".xml", ".xz"),
    *(".yaml", ".yml", ".zip", ".zst"),
}

# What a capture of stacks leaves beside the dumps; a child process for each of
# thousands would take minutes.
_STACKS = re.compile(
    r"(?:pyspy|cudagdb)_.+_[0-9]+\.(?:json|txt)|workers\.json"
)

_RANK = re.compile(
    r"(?<!local)(?<!local[_-])(?<!node)(?<!node[_-])(?<!group)(?<!group[_-])"
    r"rank[_-]?([0-9]{1,9})(?![0-9])",
    re.IGNORECASE,
)
_TRAILING = re.compile(r"(?<![0-9])([0-9]{1,9})$")

# What dumps are called; whatever else a name says may be the host.
_WORDS = re.compile(
    r"(?<![a-z0-9])(?:comm|debug|dump|dumps|flight|fr|gloo|global|info|lib"
    r"|nccl|rank|rccl|record|recorder|trace|xccl)(?![a-z0-9])",
    re.IGNORECASE,
)


class FileName(NamedTuple):
    """
    What a file name says.

    Attributes:
        rank: Global rank, if there is a number for it.

        host: What may be the name of the host, or ``""``.

        family: The name without its numbers and known suffixes; the dumps of
            a job have it in common.

        is_dump_like: Whether a dump is to be expected.
    """

    rank: int | None
    host: str
    family: str
    is_dump_like: bool


class DumpFile(NamedTuple):
    """
    A file that may be a dump.

    Attributes:
        path: Where it is.

        name: What its name says.

        host: Name of the node, if it can be told.

        modified: When it was changed last, in seconds since the epoch.

        sidecar: What *distdebug* noted beside it.
    """

    path: str
    name: FileName
    host: str | None
    modified: float
    sidecar: Sidecar | None = None

    @property
    def rank(self) -> int | None:
        """
        Whose dump it is.
        """
        return self.sidecar.rank if self.sidecar else self.name.rank

    @property
    def is_expected(self) -> bool:
        """
        Whether it ought to be a dump: by its name, or as a side-car says.
        """
        return self.name.is_dump_like or self.sidecar is not None


class Found(NamedTuple):
    """
    What lies in the places that were looked at.
    """

    files: list[DumpFile]
    sidecars: list[Sidecar]
    problems: list[Missing]


_EVERYTHING = Search()
# Of JSON and of gzip; nothing at all may follow a long indentation.
_BEGINNINGS = {b"{", b"[", b"\x1f", b""}


def find_files(paths: Iterable[str], search: Search = _EVERYTHING) -> Found:
    """
    Find what may be dumps, and the side-cars.

    Args:
        paths: Folders, which are searched with all that is in them, and
            files.

        search: How far to look; what is left out is told as a problem.

    Returns:
        The files by their paths.  Links to a file that is listed already are
        left out, as is everything that is not a regular file.
    """
    problems: list[Missing] = []
    seen: set[tuple[int, int]] = set()
    listed: list[tuple[str, str, float]] = []
    for path in paths:
        listed += [
            (path, *place) for place in walk(path, seen, problems, search)
        ]

    sidecars: dict[str, Sidecar] = {}
    rest = []
    for root, path, modified in listed:
        if path.endswith(SIDECAR_SUFFIX):
            _read_sidecar(path, sidecars, problems)
        elif _STACKS.fullmatch(PurePath(path).name) is None:
            rest.append((root, path, modified))

    by_dump = _by_dump(sidecars.values())
    files = [
        DumpFile(
            path,
            parse_name(path),
            None,
            modified,
            by_dump.get(PurePath(path)),
        )
        for _, path, modified in rest
    ]
    files = [f for f in files if _may_be_dump(f)]
    roots = {path: root for root, path, _ in rest}
    hosts = _hosts(files, [roots[f.path] for f in files])
    return Found(
        sorted(f._replace(host=h) for f, h in zip(files, hosts, strict=True)),
        list(sidecars.values()),
        problems,
    )


def _may_be_dump(file: DumpFile) -> bool:
    """
    Return whether a file is worth a process that decodes it.

    A folder of a job holds logs, too: what is called like a dump is tried in
    any case, and anything else if it begins as a pickle, JSON, or gzip does.
    """
    if file.is_expected:
        return True

    try:
        with open_ordinary(file.path, "it is no file") as opened:
            head = opened.read(64)
    except (OSError, ValueError):
        return True

    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return head[:1] == b"\x80" or text[:1] in _BEGINNINGS


def parse_name(path: str) -> FileName:
    """
    What does the name of a file say?

    The rank is the number after the last ``rank``; or else the number that
    the name ends in.

    Args:
        path: The file.
    """
    name = PurePath(path)
    while name.suffix.lower() in _SUFFIXES:
        name = name.with_suffix("")

    is_foreign = name.suffix.lower() in _FOREIGN
    stem = name.stem if is_foreign else name.name

    named = list(_RANK.finditer(stem))
    matches = named or list(_TRAILING.finditer(stem))
    if not matches:
        return FileName(None, "", stem, is_dump_like=False)

    found, number = matches[-1], int(matches[-1][1])
    rest = f"{stem[: found.start()]}_{stem[found.end() :]}"
    host = _WORDS.sub("", rest).strip("_-.")
    return FileName(
        rank=number if number < MOST_RANKS else None,
        # A number alone is a time or a process.
        host=host if re.search(r"[a-z]", host, re.IGNORECASE) else "",
        family=re.sub(r"[0-9]+", "#", stem),
        is_dump_like=not is_foreign and bool(named or _WORDS.search(stem)),
    )


def _read_sidecar(
    path: str, sidecars: dict[str, Sidecar], problems: list[Missing]
) -> None:
    try:
        sidecars[path] = read_sidecar(Path(path))
    except (OSError, ValueError) as exc:
        problems.append(
            Missing(
                what="sidecar",
                reason=str(exc),
                rank=parse_name(path.removesuffix(SIDECAR_SUFFIX)).rank,
                source=path,
            )
        )


def _by_dump(sidecars: Iterable[Sidecar]) -> dict[PurePath, Sidecar]:
    """
    The newest side-car that names each dump beside it.
    """
    by_dump: dict[PurePath, Sidecar] = {}
    for sidecar in sorted(sidecars, key=lambda s: s.written):
        # A side-car has no say about files elsewhere.
        if sidecar.dump and PurePath(sidecar.dump).name == sidecar.dump:
            path = PurePath(sidecar.path).with_name(sidecar.dump)
            by_dump[path] = sidecar

    return by_dump


def _hosts(files: list[DumpFile], roots: list[str]) -> list[str | None]:
    """
    The host of each file: from its side-car, its name, or its folder.
    """
    names = {f.name.host for f in files if f.name.host}
    level = _first_difference(
        [_folders(f, root) for f, root in zip(files, roots, strict=True)]
    )
    hosts: list[str | None] = []
    for file, root in zip(files, roots, strict=True):
        folders = _folders(file, root)
        if file.sidecar is not None:
            hosts.append(file.sidecar.host or None)
        elif file.name.host and len(names) > 1:
            # What all names have in common tells nothing.
            hosts.append(file.name.host)
        elif level is not None and level < len(folders):
            hosts.append(folders[level])
        else:
            hosts.append(None)

    return hosts


def _folders(file: DumpFile, root: str) -> list[str]:
    path = PurePath(file.path)
    return list(path.relative_to(root).parts[:-1])


def _first_difference(folders: list[list[str]]) -> int | None:
    """
    At which level do the files lie in different folders?
    """
    for level in range(max(map(len, folders), default=0)):
        if len({f[level] for f in folders if level < len(f)}) > 1:
            return level

    return None
