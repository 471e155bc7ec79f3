"""
Find dump files and sidecars, and map dump files to ranks and hosts.

A dump does not name its rank.  Its sidecar does; otherwise the file name has
to.  Files that are clearly something else are skipped.
"""

from __future__ import annotations

import os
import re

from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from ..._io import MAX_FILES, FileWalk, open_ordinary
from ..._lazy import late_pattern
from ..._text import reason_of
from ...findings import Missing
from ...identity import ranks_in_name
from ..sidecar import MAX_RANKS, SIDECAR_SUFFIX, Sidecar, read_sidecar
from .clog import is_clog
from .inspector import is_inspector


_UNFINISHED = late_pattern(
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
    max_files: int = MAX_FILES
    prefixes: tuple[str, ...] | None = None

    def is_candidate(
        self, entry: os.DirEntry[str], names: Collection[str]
    ) -> bool:
        """
        Return whether an entry of a folder may be, or hold, a dump or sidecar.
        """
        name = entry.name
        if _UNFINISHED.search(name):
            return False
        if self.prefixes is None:
            return True

        prefixes = tuple(filter(None, self.prefixes))
        return (
            name.endswith(SIDECAR_SUFFIX)
            or name + SIDECAR_SUFFIX in names
            or (bool(prefixes) and name.startswith(prefixes))
            or ("" in self.prefixes and name.isdigit())
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
_STACK_FILES = late_pattern(
    r"(?:pyspy|cudagdb)_.+_[0-9]+\.(?:json|txt)|workers\.json"
)

_LAST_NUMBER = late_pattern(r"(?<![0-9])([0-9]{1,9})$")

# Usual words in names of dumps; other words may be the host.
_DUMP_WORDS = late_pattern(
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
    walk = FileWalk(
        paths,
        is_wanted=search.is_candidate,
        follows_out=True,
        max_depth=float("inf") if search.prefixes is None else 1,
        max_files=search.max_files,
        deadline=search.deadline,
    )
    listed = list(walk)
    problems = [_unreadable(path, why) for path, why in walk.problems]
    sidecars: list[Sidecar] = []
    for file in listed:
        if file.path.endswith(SIDECAR_SUFFIX):
            _read_sidecar(file.path, sidecars, problems)
    by_dump = _sidecars_by_dump(sidecars)
    files, folders = [], []
    for root, path, modified, _ in listed:
        if path.endswith(SIDECAR_SUFFIX) or _STACK_FILES.fullmatch(
            os.path.basename(path)  # noqa: PTH119 of thousands of files
        ):
            continue
        name, sidecar = parse_dump_name(path), by_dump.get(path)
        dump_file = DumpFile(path, name, None, modified, sidecar)
        if _may_be_dump(dump_file):
            files.append(dump_file)
            below = filter(None, path[len(root) :].split(os.sep))  # noqa: PTH206
            folders.append([*below][:-1])
    hosts = _infer_hosts(files, folders)
    files = [f._replace(host=h) for f, h in zip(files, hosts, strict=True)]
    return FoundFiles(sorted(files), sidecars, problems)


def _unreadable(path: str, why: str | Exception) -> Missing:
    if not isinstance(why, str):
        why = f"cannot be read: {reason_of(why)}"
    return Missing(what="dump", reason=why, source=path)


def _may_be_dump(file: DumpFile) -> bool:
    """
    Return whether a file is worth a process that decodes it.

    A folder of a job also holds logs: a file with the name of a dump is always
    tried, and any other if it begins like a pickle, JSON, or gzip.
    """
    if file.is_expected:
        return True

    try:
        with open_ordinary(file.path, "it is not a file") as opened:
            head = opened.read(64)
    except (OSError, ValueError):
        return True

    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    is_dump = head[:1] == b"\x80" or text[:1] in _FIRST_BYTES
    return is_dump or is_clog(head)


def is_call_log(head: bytes) -> bool:
    """
    Return whether a file that begins so lists calls, and is no log to people.
    """
    return is_clog(head) or is_inspector(head)


def parse_dump_name(path: str) -> FileName:
    """
    Parse rank, host, and family from the name of a dump.

    The rank is the number after the last ``rank``, or else the number at the
    end of the name, unless that is a rank of another kind.
    """
    # Names of thousands of files: pathlib takes several times as long.
    name = os.path.basename(path)  # noqa: PTH119
    stem, suffix = os.path.splitext(name)  # noqa: PTH122
    while suffix.lower() in _DUMP_SUFFIXES:
        name = stem
        stem, suffix = os.path.splitext(name)  # noqa: PTH122
    is_foreign = suffix.lower() in _FOREIGN_SUFFIXES
    if not is_foreign:
        stem = name

    ranks = list(ranks_in_name(stem))
    named = [x for x in ranks if x.is_global]
    # torch appends the rank to a prefix, which may hold anything.
    number, start, stop = _last_number(stem)
    if named:
        number, start, stop = named[-1].number, named[-1].start, named[-1].stop
    elif ranks and ranks[-1].stop == stop:
        number = None  # such as dp_rank_3
    if start is None:
        return FileName(None, "", stem, is_dump_like=False)

    host = _DUMP_WORDS.sub("", f"{stem[:start]}_{stem[stop:]}").strip("_-.")
    return FileName(
        rank=number if number is not None and number < MAX_RANKS else None,
        # A number alone is a time or a process id.
        host=host if re.search(r"[a-z]", host, re.IGNORECASE) else "",
        family=re.sub(r"[0-9]+", "#", stem),
        is_dump_like=not is_foreign
        and bool(ranks or _DUMP_WORDS.search(stem)),
    )


def _last_number(stem: str) -> tuple[int | None, int | None, int | None]:
    found = _LAST_NUMBER.search(stem)
    return (int(found[1]), *found.span()) if found else (None, None, None)


def _read_sidecar(
    path: str, sidecars: list[Sidecar], problems: list[Missing]
) -> None:
    try:
        sidecars.append(read_sidecar(Path(path)))
    except (OSError, ValueError) as exc:
        rank = parse_dump_name(path.removesuffix(SIDECAR_SUFFIX)).rank
        problems.append(
            Missing(what="sidecar", reason=str(exc), rank=rank, source=path)
        )


def _sidecars_by_dump(sidecars: Iterable[Sidecar]) -> dict[str, Sidecar]:
    """
    Return the newest sidecar that names each dump beside it.
    """
    return {
        os.path.join(os.path.dirname(sidecar.path), sidecar.dump): sidecar  # noqa: PTH118, PTH120
        for sidecar in sorted(sidecars, key=lambda s: s.written)
        # A sidecar only describes files in its own folder.
        if sidecar.dump and os.path.basename(sidecar.dump) == sidecar.dump  # noqa: PTH119
    }


def _infer_hosts(
    files: Iterable[DumpFile], folders_of_files: Sequence[Sequence[str]]
) -> list[str | None]:
    """
    Return the host of each file: from its sidecar, its name, or its folder.

    Args:
        folders_of_files: For each file, the folders from the given path to it.
    """
    names = {f.name.host for f in files if f.name.host}
    level = _first_differing_level(folders_of_files)
    hosts: list[str | None] = []
    for file, folders in zip(files, folders_of_files, strict=True):
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


def _first_differing_level(folders: Sequence[Sequence[str]]) -> int | None:
    """
    Return the first level at which the files are in different folders.
    """
    levels = enumerate(zip_longest(*folders))
    return next((i for i, x in levels if len({*x} - {None}) > 1), None)
