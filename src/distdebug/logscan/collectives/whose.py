"""
Whose log is this file?

Its name may tell, or that of its folder, or what a framework prints at the
beginning about the process.
"""

from __future__ import annotations

import re

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ..._lines import open_log
from .given import attempt_of


__all__ = ["ranks_of_files", "size_by_files"]

_FILE = re.compile(
    r"(?:^|[^a-z])(?:global_?)?rank[_\-.]?(\d{1,7})(?!\d)", re.IGNORECASE
)
_TORCHRUN = re.compile(r"attempt_\d{1,4}[/\\](\d{1,6})[/\\][^/\\]{1,40}$")
# One process each, unless a further one leads them.
_WORKER = re.compile(
    r"^(.{0,200}?(?:worker|proc(?:ess)?|trainer|task)[_\-.]?)(\d{1,7})(\.\D.*|)$",
    re.IGNORECASE,
)
_LEADER = re.compile(r"master|chief|launcher|coordinator", re.IGNORECASE)
_HEAD = 1 << 14
_MOST_HEADS = 4096
# Who a process says it is, by torch, Lightning, Accelerate, and many scripts.
_SELF = (
    re.compile(
        r"store_based_barrier_key:\d{1,9} to store for rank: (\d{1,7})"
    ),
    re.compile(r"GLOBAL_RANK: (\d{1,7}), MEMBER: \d{1,7}/\d"),
    re.compile(r"^Process index: (\d{1,7})\s*$", re.MULTILINE),
    re.compile(
        r"(?:^|[\s:(\[])(?<!node )(?<!local )(?<!machine )(?:global[ _])?rank[ :=]{0,3}(\d{1,7}) ?(?:/|of) ?\d",
        re.IGNORECASE,
    ),
    re.compile(r"^RANK=(\d{1,7})\s*$", re.MULTILINE),
)


def ranks_of_files(paths: Sequence[str]) -> dict[str, int]:
    """
    Whose logs are these?

    Args:
        paths: Such as ``rank3.log``; or ``attempt_0/3/stderr.log`` of
            torchrun, which counts the ranks of its node, so that it only tells
            if there is one node.

    Returns:
        The ranks of those files that tell.
    """
    ranks, local = {}, {}
    for path in paths:
        found = _FILE.search(_name(path))
        if found:
            ranks[path] = int(found[1])
        elif found := _TORCHRUN.search(path):
            local[path] = (path[: found.start()], int(found[1]))
    if len({folder for folder, _ in local.values()}) == 1:
        ranks |= {path: rank for path, (_, rank) in local.items()}
    if not ranks and 1 < len(paths) <= _MOST_HEADS:
        return _introduced(paths) or _numbered(paths)
    return ranks


def size_by_files(paths: Iterable[str]) -> int | None:
    """
    How many ranks have a file, an empty one too?

    Args:
        paths: Such as ``attempt_0/3/stderr.log`` of torchrun, or
            ``rank3.log``.

    Returns:
        How many there are, if the files of one launch are those of ranks 0 to
        N - 1 without a gap; otherwise ``None``.
    """
    starts: dict[tuple[str, int], set[int]] = defaultdict(set)
    for path in paths:
        name = _name(path)
        if found := _FILE.search(name):
            folder = path[: len(path) - len(name)]
        elif found := _TORCHRUN.search(path):
            folder = path[: found.start()]
        else:
            continue
        # Workers that are started again have a folder for each start.
        starts[folder, attempt_of(path)].add(int(found[1]))
    if len({folder for folder, _ in starts}) != 1:
        return None

    ranks, *others = starts.values()
    is_whole = ranks == set(range(len(ranks))) and len(ranks) > 1
    return len(ranks) if is_whole and all(x == ranks for x in others) else None


def _introduced(paths: Iterable[str]) -> dict[str, int]:
    """
    Ranks of files in which just one rank says who it is, and nobody else does.
    """
    found = {}
    for path in paths:
        said = _said(path)
        if len(said) > 1:
            return {}
        if said:
            (found[path],) = said
    return found if _is_each_once(found) else {}


def _said(path: str) -> set[int]:
    try:
        with open_log(path) as file:
            head = file.read(_HEAD).decode("utf-8", "replace")
    except (OSError, ValueError, EOFError):
        # Whoever reads all of it tells that it cannot be read.
        return set()
    return {int(x) for words in _SELF for x in words.findall(head)}


def _numbered(paths: Iterable[str]) -> dict[str, int]:
    """
    Ranks of files of one folder whose names differ in the number of a worker.
    """
    series: dict[tuple[str, str, str], dict[str, int]] = defaultdict(dict)
    for path in paths:
        name = _name(path)
        if _LEADER.search(name):
            return {}
        if found := _WORKER.match(name):
            folder = path[: len(path) - len(name)]
            series[folder, found[1], found[3]][path] = int(found[2])
    found_ranks: dict[str, int] = {}
    for (folder, stem, _), ranks in series.items():
        is_alone = all(x[:2] == (folder, stem) for x in series)
        if (
            is_alone
            and len(ranks) > 1
            and sorted(ranks.values()) == list(range(len(ranks)))
        ):
            found_ranks |= ranks
    return found_ranks


def _is_each_once(ranks: Mapping[str, int]) -> bool:
    return len(ranks) > 1 and max(Counter(ranks.values()).values()) == 1


def _name(path: str) -> str:
    return re.split(r"[/\\]", path)[-1]
