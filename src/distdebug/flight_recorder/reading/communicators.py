"""
Map the ranks of communicators, all that NCCL Inspector knows, to those of the job.

A process names its host, its PID, and its rank in each communicator.  Sidecars
know processes; otherwise the ranks of the communicator that most processes have
joined are those of the job.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np

from ..._text import clean
from ...findings import Missing
from ...ranks import ranks_text
from ..sidecar import MAX_RANKS, Sidecar
from .columns import GroupConfig, RankDump


_NS_PER_S = 1_000_000_000
# Clocks of hosts differ by less.
_MARGIN_NS = 60 * _NS_PER_S
_NOT_PLACED = (
    "which rank of the job this is, NCCL Inspector does not record, and its "
    "communicators do not show: none spans most processes; put the sidecars of "
    "enable_flight_recorder beside it"
)


class InspectedFile(NamedTuple):
    """
    A file of NCCL Inspector.

    Attributes:
        process: Host and PID.

        ranks: Communicator, rank in it, and number of its ranks.

        dump: Its calls; of no rank yet.
    """

    process: tuple[str, int]
    ranks: tuple[tuple[str, int, int], ...]
    dump: RankDump


def parse_inspected(
    header: Mapping[str, Any], dump: RankDump
) -> InspectedFile | None:
    """
    Return what the decoder says about a file, if it is one of NCCL Inspector.
    """
    try:
        raw = header["inspector"]
        process = str(raw["host"]), int(raw["pid"])
        ranks = tuple(
            (str(name), int(rank), int(size))
            for name, rank, size in raw["ranks"]
        )
    except (LookupError, OverflowError, TypeError, ValueError):
        return None  # a dump, or an answer that was forged

    possible = (own for own in ranks if 0 <= own[1] < own[2] <= MAX_RANKS)
    return InspectedFile(process, tuple(possible), dump)


def place_ranks(
    files: Sequence[InspectedFile],
    sidecars: Iterable[Sidecar],
    groups: Sequence[tuple[str, str]],
) -> tuple[dict[int, RankDump], list[Missing]]:
    """
    Find the rank of each file, and the members of each communicator.

    Args:
        files: All files, perhaps also of earlier runs.

        sidecars: The sidecars of processes.

        groups: Name and description of the groups that records refer to; a
            name begins with the communicator.

    Returns:
        The calls by ascending rank, and why other files are not used.
    """
    current, missing = _drop_earlier(files)
    known = {(s.host, s.pid): s.rank for s in sidecars}
    placed = _place(current, known)
    missing += [
        _missing(f, _NOT_PLACED) for f in current if f.dump.path not in placed
    ]
    by_rank = {
        placed[f.dump.path]: f for f in current if f.dump.path in placed
    }
    members = _find_members(by_rank)
    codes = {
        code: (name, desc, name.partition(" ")[0])
        for code, (name, desc) in enumerate(groups)
    }
    missing += _report_absent(by_rank.values(), members)
    return {
        rank: _placed_dump(rank, by_rank[rank], members, codes)
        for rank in sorted(by_rank)
    }, missing


def _drop_earlier(
    files: Sequence[InspectedFile],
) -> tuple[list[InspectedFile], list[Missing]]:
    """
    Return the files of the newest run, and why others are not used.
    """
    current: list[InspectedFile] = []
    missing: list[Missing] = []
    timed: list[InspectedFile] = []
    for f in files:
        if len({name for name, *_ in f.ranks}) < len(f.ranks):
            reason = "its process had several ranks of one communicator"
            missing.append(_missing(f, reason))
        elif f.ranks and len(f.dump.entries):
            timed.append(f)
    newest = _newest_start_ns(timed)
    for f in timed:
        if _end_ns(f) < newest - _MARGIN_NS:
            reason = "stale: it ends before other processes begin"
            missing.append(_missing(f, reason))
        else:
            current.append(f)
    return current, missing


def _newest_start_ns(files: Sequence[InspectedFile]) -> int:
    """
    Return since when the newest run is on record; 0 if that is not known.

    Processes that share a communicator are of one run; the clock of a single
    one may be wrong.
    """
    starts: dict[str, list[int]] = defaultdict(list)
    for f in files:
        for name, *_ in f.ranks:
            starts[name].append(int(f.dump.entries.created_ns[0]))
    shared = {name: min(x) for name, x in starts.items() if len(x) > 1}
    own = [[shared.get(name, 0) for name, *_ in f.ranks] for f in files]
    return max((min(filter(None, x), default=0) for x in own), default=0)


def _end_ns(file: InspectedFile) -> int:
    return int(file.dump.entries.created_ns.max(initial=0))


def _place(
    files: Sequence[InspectedFile], known: Mapping[tuple[str, int], int]
) -> dict[str, int]:
    """
    Return the rank of each file by its path, as far as it is known.
    """
    # In containers, all processes of a host may have the same PID.
    seen = Counter(f.process for f in files)
    placed = {
        f.dump.path: known[f.process]
        for f in files
        if f.process in known and seen[f.process] == 1
    }
    if placed:
        return placed
    joined = Counter((name, size) for f in files for name, _, size in f.ranks)
    world = max(joined, key=lambda x: (joined[x], x[1]), default=("", 0))
    if 2 * joined[world] <= len(files):
        return {}
    return {
        f.dump.path: rank
        for f in files
        for name, rank, size in f.ranks
        if (name, size) == world
    }


_Members = dict[str, tuple[tuple[int, ...], bool]]


def _find_members(by_rank: Mapping[int, InspectedFile]) -> _Members:
    """
    Return the known members of each communicator in order, and whether that is
    all of them.
    """
    found: dict[str, dict[int, int]] = defaultdict(dict)
    sizes: dict[str, int] = {}
    for rank, file in by_rank.items():
        for name, own, size in file.ranks:
            found[name][own] = rank
            sizes[name] = size
    return {
        name: (
            tuple(rank for _, rank in sorted(ranks.items())),
            len(ranks) == sizes[name],
        )
        for name, ranks in found.items()
    }


def _placed_dump(
    rank: int,
    file: InspectedFile,
    members: _Members,
    codes: Mapping[int, tuple[str, str, str]],
) -> RankDump:
    """
    Return the calls of a rank, with the members of its groups.
    """
    entries = file.dump.entries
    used = {
        code: members.get(codes[code][2], ((), False))
        for code in np.unique(entries.group).tolist()
    }
    whole = [code for code, (_, is_whole) in used.items() if is_whole]
    # A transfer names its peer by its rank in the communicator.
    is_kept = ~entries.is_p2p | np.isin(entries.group, whole)
    return attrs.evolve(
        file.dump,
        rank=rank,
        host=file.process[0],
        sidecar=None,
        entries=entries if is_kept.all() else entries.take(is_kept),
        configs=tuple(
            GroupConfig(*codes[code][:2], ranks)
            for code, (ranks, _) in used.items()
        ),
    )


def _report_absent(
    files: Iterable[InspectedFile], members: _Members
) -> Iterator[Missing]:
    """
    Yield a note for the largest communicator of which files are not there.
    """
    sizes = {name: size for f in files for name, _, size in f.ranks}
    absent = {
        name: sizes[name] - len(ranks)
        for name, (ranks, is_whole) in members.items()
        if not is_whole
    }
    if absent:
        name = max(absent, key=lambda name: sizes[name])
        yield Missing(
            what="calls",
            reason=f"NCCL Inspector left files of "
            f"{ranks_text(sorted(members[name][0]))} only, of {sizes[name]:,} "
            f"ranks of communicator {clean(name)}: whether one of the others "
            "is slow is not known",
        )


def _missing(file: InspectedFile, reason: str) -> Missing:
    return Missing(what="calls", reason=reason, source=file.dump.path)
