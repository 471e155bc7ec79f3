"""
Read the Flight Recorder dumps of all ranks of a job.

One damaged, foreign, or stale file must not hide the others: each unusable
file is listed as a problem, with its reason.
"""

from __future__ import annotations

import os

from collections import defaultdict
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor
from pathlib import PurePath
from statistics import median
from typing import Any, NamedTuple

import attrs
import numpy as np

from numpy.typing import NDArray

from .._text import clean, list_text
from ..errors import NoDumpsError
from ..findings import Missing
from ..ranks import RankChoice, select_ranks
from .reading.assemble import (
    InspectedFile,
    Tables,
    UnusableError,
    parse_frames,
    parse_inspected,
    place_ranks,
)
from .reading.columns import COMPLETED, Dumps, Entries, Frame, RankDump
from .reading.files import DumpFile, FoundFiles, find_files
from .reading.sandbox import TIME_LIMIT_S, decode_files, decode_frames
from .sidecar import Sidecar, mesh_of


AnyPath = str | os.PathLike[str]
Progress = Callable[[int, int], object]

_REMEDY = (
    "switch recording on before the first process group is created, and give "
    "the folder that the dumps are written to; for logs: distdebug diagnose"
)
_PATH_REMEDY = (
    "check the path; one that does not begin with / is looked for here"
)


def read_dumps(
    path: AnyPath | Iterable[AnyPath],
    *,
    ranks: RankChoice | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> Dumps:
    """
    Read the Flight Recorder dumps of a job, and files of NCCL Inspector.

    It reads any version of the format, as pickle or JSON, also compressed by
    gzip.  Nothing in a file is ever executed: files are decoded by child
    processes that refuse code and have limits on memory and time.

    Example::

        dumps = distdebug.read_dumps("dumps", ranks="0-7")
        calls = dumps.calls()  # a data frame

    Args:
        path: A file, or a folder that is searched recursively; or several of
            them.

        ranks: The ranks to read, or a selection; by default all.

        executor: Where to decode; by default in one process per core here.

        progress: Called with the number of files that are done, and of all.

        time_limit_s: Limit for decoding one file, in seconds.

    Returns:
        The dumps in columns; unreadable files are in `problems`.

    Raises:
        NoDumpsError: There is neither a dump nor a file that should be one.
    """
    paths = _as_paths(path)
    found = find_files(paths)
    plan = plan_reading(found, _select_ranks(ranks, found))
    tables = Tables()
    decoded, inspected, failed, damage = _decode(
        plan.chains, tables, executor, progress, time_limit_s
    )
    by_rank, unused = choose_dumps(decoded)
    inspector, unplaced = place_ranks(
        inspected, plan.sidecars.values(), tables.groups
    )
    problems = [
        *plan.problems,
        *unused,
        *unplaced,
        *report_failures(failed, decoded),
        *damage,
        *(p for p in found.problems if p.what == "sidecar"),
    ]
    is_any = by_rank or inspector or problems
    if not (is_any or plan.sidecars or plan.skipped):
        raise _no_dumps_error(paths, found.problems)

    problems += [p for p in found.problems if p.what != "sidecar"]
    return Dumps(
        by_rank=by_rank,
        groups=tuple(tables.groups),
        ops=tuple(tables.ops),
        shapes=tables.shapes,
        sidecars=plan.sidecars,
        inspector=inspector,
        earlier=plan.earlier,
        problems=tuple(sorted(problems, key=_problem_order)),
        world_size=_world_size(plan.sidecars, by_rank),
        read_frames=_read_frames,
    )


_MOST_REASONS = 4


def check_readable(dumps: Dumps) -> None:
    """
    Refuse dumps of which none could be read.

    Raises:
        NoDumpsError: There is neither a dump nor a sidecar; it says why.
    """
    if len(dumps) or dumps.inspector or dumps.sidecars or dumps.earlier:
        return
    reasons = [
        f"{PurePath(p.source or '').name}: {p.reason}" for p in dumps.problems
    ]
    msg = f"no dump can be read: {list_text(reasons, most=_MOST_REASONS)}"
    raise NoDumpsError(
        msg,
        remedy="see that these are dumps, and were copied whole; their names "
        "end with the rank, as in nccl_trace_rank_3",
    )


def check_recorded(dumps: Dumps) -> None:
    """
    Refuse what lists no rank's calls in order.

    Raises:
        NoDumpsError: There is no dump; it says why.
    """
    check_readable(dumps)
    if dumps.inspector and not len(dumps):
        msg = "no Flight Recorder dumps, only files of NCCL Inspector"
        raise NoDumpsError(msg, remedy=_REMEDY)


def _no_dumps_error(
    paths: Sequence[str], problems: Iterable[Missing]
) -> NoDumpsError:
    """
    Return the error for folders without dumps.
    """
    if not any(map(os.path.lexists, paths)):
        msg = f"no such file or folder: {list_text(paths)}"
        return NoDumpsError(msg, remedy=_PATH_REMEDY)

    reasons = "".join(f" ({p.reason})" for p in problems)
    msg = f"no Flight Recorder dumps in {', '.join(paths)}{reasons}"
    return NoDumpsError(msg, remedy=_REMEDY)


def _as_paths(path: AnyPath | Iterable[AnyPath]) -> list[str]:
    if isinstance(path, str | os.PathLike):
        path = [path]
    return [os.fspath(item) for item in path]


def _decode(
    chains: list[list[DumpFile]],
    tables: Tables,
    executor: Executor | None,
    progress: Progress | None,
    time_limit_s: float,
) -> tuple[
    list[DecodedFile],
    list[InspectedFile],
    list[tuple[DumpFile, UnusableError]],
    list[Missing],
]:
    """
    Decode the first file of each chain, or the next if that is broken.

    Returns:
        Dumps that were read, files of NCCL Inspector, files that cannot be
        read, and what is damaged.
    """
    decoded, inspected, failed = [], [], []
    damage: list[Missing] = []
    done = 0
    while chains:
        todo = {chain[0].path: chain for chain in chains}
        chains = []
        total = done + len(todo)
        for path, message in decode_files(
            list(todo), executor=executor, time_limit_s=time_limit_s
        ):
            file, *others = todo[path]
            try:
                dump, header = tables.add(file, message)
            except UnusableError as exc:
                failed.append((file, exc))
                chains += [others] if others else []
            else:
                one = DecodedFile(file, dump)
                if found := parse_inspected(header, dump):
                    inspected.append(found)
                    # The number in its name is a process.
                    one = one._replace(file=_unnumbered(file))
                else:
                    decoded.append(one)
                damage += _describe_damage(one, header)
            done += 1
            if progress is not None:
                progress(done, total + len(chains))

    return decoded, inspected, failed, damage


def _unnumbered(file: DumpFile) -> DumpFile:
    return file._replace(name=file.name._replace(rank=None), sidecar=None)


def _problem_order(problem: Missing) -> tuple[bool, int, str, str]:
    rank = problem.rank
    return rank is None, rank or 0, problem.source or "", problem.reason


def _world_size(
    sidecars: Mapping[int, Sidecar], by_rank: Mapping[int, RankDump]
) -> int | None:
    if sidecars:
        return max(s.world_size for s in sidecars.values())

    # Ranks share most of these, and they are long.
    members = {
        id(c.ranks): c.ranks for d in by_rank.values() for c in d.configs
    }
    return (
        1 + max(map(max, filter(None, members.values())), default=-1) or None
    )


def _read_frames(
    rows_by_file: Mapping[str, Sequence[int]],
) -> dict[str, list[tuple[Frame, ...]]]:
    return {
        path: parse_frames(message, len(rows_by_file[path]))
        for path, message in decode_frames(rows_by_file)
    }


class ReadPlan(NamedTuple):
    """
    The files to read.

    Attributes:
        chains: Lists of files; the first readable one of each is used.

        sidecars: The newest sidecar of each rank.

        earlier: Earlier sidecars of the same process, oldest first.

        problems: Why other files are not read.

        skipped: How many dumps belong to ranks that are not selected.
    """

    chains: list[list[DumpFile]]
    sidecars: dict[int, Sidecar]
    earlier: dict[int, tuple[Sidecar, ...]]
    problems: list[Missing]
    skipped: int


class DecodedFile(NamedTuple):
    """
    A file that was read, and its content.
    """

    file: DumpFile
    dump: RankDump


def plan_reading(found: FoundFiles, ranks: Collection[int] | None) -> ReadPlan:
    """
    Choose the files to read, by their names and sidecars.

    Args:
        ranks: The ranks to read; `None` for all.
    """
    jobs = {"", current_job(found.sidecars)}
    selected = [f for f in found.files if _is_selected(f.rank, ranks)]
    sidecars: dict[int, list[Sidecar]] = defaultdict(list)
    for s in sorted(found.sidecars, key=lambda s: (s.rank, *_recency(s))):
        if s.job in jobs and _is_selected(s.rank, ranks):
            sidecars[s.rank].append(s)
    chains, problems = _chain_files(selected, jobs)
    return ReadPlan(
        chains=chains,
        sidecars={rank: of_rank[-1] for rank, of_rank in sidecars.items()},
        earlier={
            rank: tuple(s for s in older if s.process == newest.process)
            for rank, (*older, newest) in sidecars.items()
        },
        problems=problems,
        skipped=sum(
            f.is_expected
            for f in found.files
            if not _is_selected(f.rank, ranks)
        ),
    )


def _chain_files(
    files: Iterable[DumpFile], jobs: Collection[str]
) -> tuple[list[list[DumpFile]], list[Missing]]:
    """
    Return the files of each rank, newest first, and why others are stale.
    """
    chains: dict[int | str, list[DumpFile]] = defaultdict(list)
    problems = []
    for file in files:
        if file.sidecar is None:
            chains[file.path].append(file)
        elif file.sidecar.job in jobs:
            chains[file.sidecar.rank].append(file)
        else:
            reason = "stale: an earlier run, or another job, left it"
            problems.append(_missing_dump(file, reason))

    for chain in chains.values():
        if len(chain) == 1:
            continue
        chain.sort(key=lambda file: _recency(file.sidecar), reverse=True)
        reason = f"stale: {_file_name(chain[0])} is of a later process"
        problems += [
            _missing_dump(file, reason)
            for file in chain[1:]
            if _process(file) != _process(chain[0])
        ]
    return list(chains.values()), problems


def choose_dumps(
    decoded: Iterable[DecodedFile],
) -> tuple[dict[int, RankDump], list[Missing]]:
    """
    Choose one dump per rank, and none of an earlier run.

    Returns:
        The dumps by ascending rank, and why others were not chosen.
    """
    problems = []
    candidates = defaultdict(list)
    for one in decoded:
        rank = infer_rank(one.file, one.dump)
        if rank is None:
            problems.append(_missing_dump(one.file, _NO_RANK))
        else:
            dump = attrs.evolve(one.dump, rank=rank)
            candidates[rank].append(one._replace(dump=dump))

    by_rank = {}
    for rank, rivals in sorted(candidates.items()):
        best = max(rivals, key=_preference)
        by_rank[rank] = best.dump
        problems += [
            _missing_dump(r.file, _reason_against(r.file, best.file), rank)
            for r in rivals
            if r is not best and not _is_same_dump(r, best)
        ]

    for rank, seconds in find_stale(list(by_rank.values())).items():
        reason = (
            f"stale: its last record is {seconds:,.0f} s before the others"
        )
        path = by_rank.pop(rank).path
        problems.append(
            Missing(what="dump", reason=reason, rank=rank, source=path)
        )
    return by_rank, problems


def report_failures(
    failed: Sequence[tuple[DumpFile, UnusableError]],
    decoded: Sequence[DecodedFile],
) -> list[Missing]:
    """
    List files that are broken, but not foreign files, which need not be dumps.

    Args:
        failed: Files that could not be read.

        decoded: Files that could; they show the naming pattern of the job.
    """
    families = {one.file.name.family for one in decoded}
    return [
        _missing_dump(file, str(failure))
        for file, failure in failed
        if not failure.is_foreign
        or file.sidecar is not None
        or file.name.family in families
        or (file.name.is_dump_like and not families)
    ]


def _describe_damage(
    one: DecodedFile, header: Mapping[str, Any]
) -> Iterable[Missing]:
    """
    Yield why only a part of a file could be read, by the decoder's header.
    """
    count, unreadable = len(one.dump.entries), header["unreadable"]
    if damage := header["damage"]:
        reason = f"damaged: only {count:,} records could be read: {damage}"
        yield _missing_dump(one.file, reason)
    if unreadable:
        reason = (
            f"{unreadable:,} of {count + unreadable:,} records cannot be read"
        )
        yield _missing_dump(one.file, reason)
    elif not count and "inspector" in header:
        reason = "no call in it, written to its end, shows who was late"
        yield _missing_dump(one.file, reason)


_NO_RANK = (
    "neither its name nor its content shows the rank: name it like rank_3"
)


def _select_ranks(
    ranks: RankChoice | None, found: FoundFiles
) -> frozenset[int] | None:
    """
    Return the ranks to read, of the job that sidecars and names show.
    """
    if ranks is None:
        return None

    known = (file.name.rank for file in found.files)
    sizes = (sidecar.world_size for sidecar in found.sidecars)
    world_size = max(
        *(x + 1 for x in known if x is not None), *filter(None, sizes), 0, 0
    )
    mesh = mesh_of(found.sidecars)
    return frozenset(select_ranks(ranks, mesh, world_size))


def _is_selected(rank: int | None, ranks: Collection[int] | None) -> bool:
    return ranks is None or rank is None or rank in ranks


def _recency(sidecar: Sidecar | None) -> tuple[float, float]:
    return (sidecar.started, sidecar.written) if sidecar else (0.0, 0.0)


def _process(file: DumpFile) -> tuple[object, ...] | None:
    return file.sidecar.process if file.sidecar else None


def _preference(one: DecodedFile) -> tuple[object, ...]:
    return (
        *_recency(one.file.sidecar),
        one.dump.last_activity_ns,
        len(one.dump.entries),
        # A copy of the dump in JSON has no stacks.
        ".json" not in one.file.path.lower(),
        one.file.modified,
        one.file.path,
    )


def _is_same_dump(one: DecodedFile, other: DecodedFile) -> bool:
    """
    Return whether one file only repeats the other in another format.
    """
    first, second = (
        (_process(d.file), d.dump.last_activity_ns, len(d.dump.entries))
        for d in (one, other)
    )
    return first == second


def _missing_dump(
    file: DumpFile, reason: str, rank: int | None = None
) -> Missing:
    return Missing(
        what="dump",
        reason=clean(reason),
        rank=file.rank if rank is None else rank,
        source=file.path,
    )


def _reason_against(file: DumpFile, best: DumpFile) -> str:
    """
    Return why a dump is not used where there is another one of the same rank.
    """
    is_elsewhere = PurePath(file.path).parent != PurePath(best.path).parent
    if is_elsewhere and not (file.sidecar or best.sidecar):
        return (
            f"not used: {best.path} is newer; if that is of another node, name "
            "the files by their rank in the whole job"
        )
    return f"not used: {_file_name(best)} is newer"


def _file_name(file: DumpFile) -> str:
    return os.path.basename(file.path)  # noqa: PTH119 of thousands of files


def infer_rank(file: DumpFile, dump: RankDump) -> int | None:
    """
    Return the rank of a dump.

    A rank is in all process groups that its dump lists.  If the number in the
    name of the file is not, the files are numbered on each node anew.
    """
    if file.sidecar is not None:
        return file.rank

    members = [set(c.ranks) for c in dump.configs if c.ranks]
    common = set.intersection(*members) if members else set()
    if file.rank is not None and (file.rank in common or len(common) != 1):
        return file.rank
    return common.pop() if len(common) == 1 else None


_NS_PER_S = 1_000_000_000

# Clocks differ by seconds, and the last record may be a minute old.
_STALE_MARGIN_NS = 60 * _NS_PER_S

# A larger margin where the ring lost the oldest records.
_WRAPPED_STALE_MARGIN_NS = 600 * _NS_PER_S

# Timeout of calls where the dump has none.
_DEFAULT_TIMEOUT_NS = 1800 * _NS_PER_S

# A suspect is compared with at most this many other dumps.
_MAX_REFERENCES = 16


def current_job(sidecars: Iterable[Sidecar]) -> str:
    """
    Return the identifier of the newest run, or ``""`` if there is none.
    """
    started = defaultdict(list)
    for sidecar in sidecars:
        if sidecar.job:
            started[sidecar.job].append(sidecar.started)

    # The median, because the clock of one host may be wrong.
    return max(started, key=lambda job: median(started[job]), default="")


def find_stale(dumps: Sequence[RankDump]) -> dict[int, float]:
    """
    Find dumps of an earlier run by their timestamps.

    The majority decides which run is the current one.

    Args:
        dumps: One per rank.

    Returns:
        By rank, how many seconds the dump is older than the others.
    """
    ends = {d.rank: d.last_activity_ns for d in dumps if len(d.entries)}
    if len(ends) < 3:
        return {}

    newest = median(ends.values())
    suspects = [
        d for d in dumps if 0 < ends.get(d.rank, 0) < newest - _STALE_MARGIN_NS
    ]
    others = [
        d for d in dumps if ends.get(d.rank, 0) >= newest - _STALE_MARGIN_NS
    ]
    references = others[:: len(others) // _MAX_REFERENCES + 1]
    return {
        d.rank: (newest - ends[d.rank]) / _NS_PER_S
        for d in suspects
        if d.sidecar is None and _is_stale(d, ends[d.rank], references)
    }


def _is_stale(
    dump: RankDump, end: int, references: Sequence[RankDump]
) -> bool:
    whole = [w for w in references if not w.wrapped]
    margin = (
        _STALE_MARGIN_NS
        if len(whole) * 2 > len(references)
        else _WRAPPED_STALE_MARGIN_NS
    )
    gaps = [_entry_gap_ns(dump.entries, w.entries) for w in references]
    known_gaps = [gap for gap in gaps if gap is not None]
    if known_gaps:
        return bool(median(known_gaps) > margin)

    # Without common calls, only the distance in time is left.
    firsts = [int(w.entries.created_ns[0]) for w in whole]
    return len(whole) * 2 > len(references) and end + margin + _timeout_ns(
        dump.entries
    ) < median(firsts)


def _entry_gap_ns(one: Entries, other: Entries) -> int | None:
    """
    Return by how many nanoseconds *one* entered the same calls earlier.

    A rank can enter one call long before the others, and wait there; so the
    call that they entered most closely together counts.  If the rank left only
    that one, it may have waited there until the timeout.
    """
    keys, rows, other_rows = np.intersect1d(
        _collective_keys(one), _collective_keys(other), return_indices=True
    )
    rows, other_rows = rows[keys >= 0], other_rows[keys >= 0]
    if not len(rows):
        return None

    left = (one.state[rows] == COMPLETED) | one.retired[rows]
    seen = np.maximum(one.created_ns[rows], one.completed_ns[rows])
    gaps = other.created_ns[other_rows] - seen
    if np.count_nonzero(left) > 1:
        return int(gaps[left].min())

    return int(gaps.min()) - _timeout_ns(one)


def _collective_keys(entries: Entries) -> NDArray[np.int64]:
    """
    Return a number per call that all ranks share; -1 for point-to-point calls.
    """
    seq = entries.seq.astype(np.int64)
    keys = entries.group.astype(np.int64) << 40 | seq & (1 << 40) - 1
    return np.where(entries.is_p2p, -1, keys)


def _timeout_ns(entries: Entries) -> int:
    """
    Return how long the calls wait for other ranks, in nanoseconds.
    """
    limit = int(entries.timeout_ms.max(initial=0)) * 1_000_000
    return limit if limit > 0 else _DEFAULT_TIMEOUT_NS
