"""
Find dump files and sidecars, and map dump files to ranks and hosts.

A dump does not name its rank.  Its sidecar does; otherwise the file name has
to.  Files that are clearly something else are skipped.
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
from ..sidecar import MAX_RANKS, SIDECAR_SUFFIX, Sidecar, read_sidecar


_DEPTH_LIMIT = 32
_KERNEL_FOLDERS = ("/proc/", "/sys/", "/dev/")

_UNFINISHED = re.compile(
    r"^\.|\.(?:tmp|temp|part|partial|swp)\b|~$", re.IGNORECASE
)


class SearchLimits(NamedTuple):
    """
    Limits of a search for dumps.

    Attributes:
        deadline: When to stop, on the monotonic clock.

        max_files: How many files and folders to list, per path.

        prefixes: Prefixes of the names of dumps, if known: then subfolders are
            skipped, and only matching files and files with sidecars count.  An
            empty prefix matches names that are numbers.
    """

    deadline: float = float("inf")
    max_files: int = 10_000_000
    prefixes: tuple[str, ...] | None = None

    def is_candidate(self, name: str, names: Iterable[str]) -> bool:
        """
        Return whether this file may be a dump or a sidecar.
        """
        if self.prefixes is None:
            return True

        prefixes = tuple(filter(None, self.prefixes))
        return (
            name.endswith(SIDECAR_SUFFIX)
            or name + SIDECAR_SUFFIX in names
            or (bool(prefixes) and name.startswith(prefixes))
            or ("" in self.prefixes and name.isdigit())
        )


def walk_files(
    path: str,
    seen: set[tuple[int, int]],
    problems: list[Missing],
    search: SearchLimits,
) -> Iterator[tuple[str, float]]:
    """
    List regular files, each once.

    Args:
        path: A file, or a folder that is searched recursively.

        seen: Files and folders that were listed before; it grows.

        problems: Paths that cannot be read; it grows.

    Yields:
        Each with the time of its last change.
    """
    # Links come last, so that a file's own path is preferred.
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

        search = search._replace(max_files=search.max_files - 1)
        key = (status.st_dev, status.st_ino)
        if key in seen:
            continue

        seen.add(key)
        if stat.S_ISREG(status.st_mode):
            yield place, status.st_mtime
        elif stat.S_ISDIR(status.st_mode) and depth < _depth_limit(search):
            inner, found = _list_folder(place, path, problems, search)
            todo += ((child, depth + 1) for child in inner)
            links += ((child, depth + 1) for child in found)


def _reason_to_stop(search: SearchLimits, waiting: int) -> str:
    if time.monotonic() > search.deadline:
        return "the time was over"
    if search.max_files <= 0 < waiting:
        return "there are too many files to look at all of them"
    return ""


def _depth_limit(search: SearchLimits) -> int:
    return _DEPTH_LIMIT if search.prefixes is None else 1


def _list_folder(
    folder: str, root: str, problems: list[Missing], search: SearchLimits
) -> tuple[list[str], list[str]]:
    """
    Return the candidates of a folder: files and folders, and links.
    """
    entries = _scan_folder(folder, problems, search.max_files)
    names = {entry.name for entry in entries}
    inner: list[str] = []
    links: list[str] = []
    for entry in entries:
        if not search.is_candidate(entry.name, names):
            continue
        if not _is_link(entry):
            inner.append(entry.path)
        elif not _leaves_root(entry.path, root):
            links.append(entry.path)
    return inner, links


def _is_link(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_symlink()
    except OSError:
        return True


def _leaves_root(link: str, root: str) -> bool:
    """
    Return whether a link leads to a parent of *root* or to a kernel folder.

    Such a folder may hold the whole system, or have no end.
    """
    try:
        target = os.path.realpath(link)
        is_ancestor = (
            os.path.commonpath([target, os.path.realpath(root)]) == target
        )
        return is_ancestor or f"{target}/".startswith(_KERNEL_FOLDERS)
    except OSError:  # not readable, or removed meanwhile
        return True


def _scan_folder(
    folder: str, problems: list[Missing], max_files: int
) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            # One more, to notice that there are too many.
            some = itertools.islice(entries, max_files + 1)
            return [e for e in some if not _UNFINISHED.search(e.name)]
    except OSError as exc:
        problems.append(_unreadable(folder, exc))
        return []


def _unreadable(path: str, exc: Exception) -> Missing:
    reason = reason_of(exc)
    return Missing(
        what="dump", reason=f"cannot be read: {reason}", source=path
    )


_DUMP_SUFFIXES = {
    *(".bin", ".dat", ".dump", ".fr", ".gz"),
    *(".json", ".pickle", ".pkl", ".trace"),
}

# Files with these suffixes are never reported as broken dumps.
_FOREIGN_SUFFIXES = {
    *(".bz2", ".cfg", ".core", ".csv", ".db", ".err", ".folded", ".html"),
    *(".ini", ".jsonl", ".lock", ".log", ".md", ".npy", ".npz", ".nsys-rep"),
    *(".out", ".parquet", ".pid", ".pipe", ".png", ".prof", ".pt", ".pth"),
    *(".py", ".pyc", ".safetensors", ".sh", ".so", ".sqlite", ".stderr"),
    *(".stdout", ".svg", ".tar", ".tgz", ".toml", ".txt", ".xml", ".xz"),
    *(".yaml", ".yml", ".zip", ".zst"),
}

# Files of captured stacks beside the dumps: trying to decode thousands of them
# takes minutes.
_STACK_FILES = re.compile(
    r"(?:pyspy|cudagdb)_.+_[0-9]+\.(?:json|txt)|workers\.json"
)

_RANK_NUMBER = re.compile(
    r"(?<!local)(?<!local[_-])(?<!node)(?<!node[_-])(?<!group)(?<!group[_-])"
    r"rank[_-]?([0-9]{1,9})(?![0-9])",
    re.IGNORECASE,
)
_LAST_NUMBER = re.compile(r"(?<![0-9])([0-9]{1,9})$")

# Usual words in names of dumps; other words may be the host.
_DUMP_WORDS = re.compile(
    r"(?<![a-z0-9])(?:comm|debug|dump|dumps|flight|fr|gloo|global|info|lib"
    r"|nccl|rank|rccl|record|recorder|trace|xccl)(?![a-z0-9])",
    re.IGNORECASE,
)


class FileName(NamedTuple):
    """
    Fields of a file name.

    Attributes:
        rank: Global rank, if there is a number for it.

        host: Possible name of the host, or ``""``.

        family: The name without its numbers and known suffixes; the dumps of
            a job have it in common.

        is_dump_like: Whether the name is typical of a dump.
    """

    rank: int | None
    host: str
    family: str
    is_dump_like: bool


class DumpFile(NamedTuple):
    """
    A file that may be a dump.

    Attributes:
        path: Its path.

        name: The fields of its name.

        host: Name of the node, if known.

        modified: When it was last changed, in seconds since the epoch.

        sidecar: The sidecar beside it.
    """

    path: str
    name: FileName
    host: str | None
    modified: float
    sidecar: Sidecar | None = None

    @property
    def rank(self) -> int | None:
        """
        Return its rank, by its sidecar or else by its name.
        """
        return self.sidecar.rank if self.sidecar else self.name.rank

    @property
    def is_expected(self) -> bool:
        """
        Return whether its name or sidecar says that it is a dump.
        """
        return self.name.is_dump_like or self.sidecar is not None


class FoundFiles(NamedTuple):
    """
    Files that may be dumps, sidecars, and paths that cannot be read.
    """

    files: list[DumpFile]
    sidecars: list[Sidecar]
    problems: list[Missing]


_NO_LIMITS = SearchLimits()
# First bytes of JSON and gzip; b"" if the indentation is longer than the head.
_FIRST_BYTES = {b"{", b"[", b"\x1f", b""}


def find_files(
    paths: Iterable[str], search: SearchLimits = _NO_LIMITS
) -> FoundFiles:
    """
    Find files that may be dumps, and sidecars.

    Args:
        paths: Files, and folders that are searched recursively.

        search: Limits; a search that reaches one adds a problem.

    Returns:
        The files by their paths.  Links to listed files, and everything that
        is not a regular file, are left out.
    """
    problems: list[Missing] = []
    seen: set[tuple[int, int]] = set()
    listed: list[tuple[str, str, float]] = []
    for path in paths:
        listed += [
            (path, *place)
            for place in walk_files(path, seen, problems, search)
        ]

    sidecars: dict[str, Sidecar] = {}
    rest = []
    for root, path, modified in listed:
        if path.endswith(SIDECAR_SUFFIX):
            _read_sidecar(path, sidecars, problems)
        elif _STACK_FILES.fullmatch(PurePath(path).name) is None:
            rest.append((root, path, modified))

    by_dump = _sidecars_by_dump(sidecars.values())
    files = [
        DumpFile(
            path,
            parse_dump_name(path),
            None,
            modified,
            by_dump.get(PurePath(path)),
        )
        for _, path, modified in rest
    ]
    files = [f for f in files if _may_be_dump(f)]
    roots = {path: root for root, path, _ in rest}
    hosts = _infer_hosts(files, [roots[f.path] for f in files])
    return FoundFiles(
        sorted(f._replace(host=h) for f, h in zip(files, hosts, strict=True)),
        list(sidecars.values()),
        problems,
    )


def _may_be_dump(file: DumpFile) -> bool:
    """
    Return whether a file is worth a process that decodes it.

    A folder of a job also holds logs: a file with the name of a dump is always
    tried, and any other if it begins like a pickle, JSON, or gzip.
    """
    if file.is_expected:
        return True

    try:
        with open_ordinary(file.path, "it is no file") as opened:
            head = opened.read(64)
    except (OSError, ValueError):
        return True

    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return head[:1] == b"\x80" or text[:1] in _FIRST_BYTES


def parse_dump_name(path: str) -> FileName:
    """
    Parse rank, host, and family from the name of a dump.

    The rank is the number after the last ``rank``, or else the number at the
    end of the name.
    """
    name = PurePath(path)
    while name.suffix.lower() in _DUMP_SUFFIXES:
        name = name.with_suffix("")

    is_foreign = name.suffix.lower() in _FOREIGN_SUFFIXES
    stem = name.stem if is_foreign else name.name

    ranks = list(_RANK_NUMBER.finditer(stem))
    matches = ranks or list(_LAST_NUMBER.finditer(stem))
    if not matches:
        return FileName(None, "", stem, is_dump_like=False)

    found, number = matches[-1], int(matches[-1][1])
    rest = f"{stem[: found.start()]}_{stem[found.end() :]}"
    host = _DUMP_WORDS.sub("", rest).strip("_-.")
    return FileName(
        rank=number if number < MAX_RANKS else None,
        # A number alone is a time or a process id.
        host=host if re.search(r"[a-z]", host, re.IGNORECASE) else "",
        family=re.sub(r"[0-9]+", "#", stem),
        is_dump_like=not is_foreign
        and bool(ranks or _DUMP_WORDS.search(stem)),
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
                rank=parse_dump_name(path.removesuffix(SIDECAR_SUFFIX)).rank,
                source=path,
            )
        )


def _sidecars_by_dump(sidecars: Iterable[Sidecar]) -> dict[PurePath, Sidecar]:
    """
    Return the newest sidecar that names each dump beside it.
    """
    by_dump: dict[PurePath, Sidecar] = {}
    for sidecar in sorted(sidecars, key=lambda s: s.written):
        # A sidecar only describes files in its own folder.
        if sidecar.dump and PurePath(sidecar.dump).name == sidecar.dump:
            path = PurePath(sidecar.path).with_name(sidecar.dump)
            by_dump[path] = sidecar

    return by_dump


def _infer_hosts(files: list[DumpFile], roots: list[str]) -> list[str | None]:
    """
    Return the host of each file: from its sidecar, its name, or its folder.
    """
    names = {f.name.host for f in files if f.name.host}
    level = _first_differing_level(
        [
            _parent_folders(f, root)
            for f, root in zip(files, roots, strict=True)
        ]
    )
    hosts: list[str | None] = []
    for file, root in zip(files, roots, strict=True):
        folders = _parent_folders(file, root)
        if file.sidecar is not None:
            hosts.append(file.sidecar.host or None)
        elif file.name.host and len(names) > 1:
            # A word that all names have in common is not the host.
            hosts.append(file.name.host)
        elif level is not None and level < len(folders):
            hosts.append(folders[level])
        else:
            hosts.append(None)

    return hosts


def _parent_folders(file: DumpFile, root: str) -> list[str]:
    path = PurePath(file.path)
    return list(path.relative_to(root).parts[:-1])


def _first_differing_level(folders: list[list[str]]) -> int | None:
    """
    Return the first level at which the files are in different folders.
    """
    for level in range(max(map(len, folders), default=0)):
        if len({f[level] for f in folders if level < len(f)}) > 1:
            return level

    return None
