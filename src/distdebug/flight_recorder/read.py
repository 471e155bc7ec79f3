"""
Read the Flight Recorder dumps of all ranks of a job.

One damaged, foreign, or stale file must not hide the others: each unusable
file is listed as a problem, with its reason.
"""

from __future__ import annotations

import os

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor

from .._text import list_text
from ..errors import NoDumpsError
from ..findings import Missing
from .reading.assemble import (
    DecodedFile,
    Tables,
    UnusableError,
    choose_dumps,
    parse_frames,
    plan_reading,
    report_damage,
    report_failures,
)
from .reading.columns import Dumps, Frame, RankDump
from .reading.files import DumpFile, find_files
from .reading.sandbox import TIME_LIMIT_S, decode_files, decode_frames
from .sidecar import Sidecar


AnyPath = str | os.PathLike[str]
Progress = Callable[[int, int], object]

_REMEDY = (
    "switch recording on before the first process group is created, and give "
    "the folder that the dumps are written to"
)
_PATH_REMEDY = (
    "check the path; one that does not begin with / is looked for here"
)


def read_dumps(
    path: AnyPath | Iterable[AnyPath],
    *,
    ranks: Iterable[int] | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> Dumps:
    """
    Read the Flight Recorder dumps of a job.

    It reads any version of the format, as pickle or JSON, also compressed by
    gzip.  Nothing in a file is ever executed: files are decoded by child
    processes that refuse code and have limits on memory and time.

    Args:
        path: A file, or a folder that is searched recursively; or several of
            them.

        ranks: The ranks to read; by default all.

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
    plan = plan_reading(found, None if ranks is None else set(ranks))
    tables = Tables()
    decoded, failed = _decode(
        plan.chains, tables, executor, progress, time_limit_s
    )
    by_rank, unused = choose_dumps(decoded)
    problems = [
        *plan.problems,
        *unused,
        *report_failures(failed, decoded),
        *report_damage(decoded),
        *(p for p in found.problems if p.what == "sidecar"),
    ]
    if not (by_rank or problems or plan.sidecars or plan.skipped):
        raise _no_dumps_error(paths, found.problems)

    problems += [p for p in found.problems if p.what != "sidecar"]
    return Dumps(
        by_rank=by_rank,
        groups=tables.groups,
        ops=tables.ops,
        shapes=tables.shapes,
        sidecars=plan.sidecars,
        earlier=plan.earlier,
        problems=tuple(sorted(problems, key=_problem_order)),
        world_size=_world_size(plan.sidecars, by_rank),
        read_frames=_read_frames,
    )


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
) -> tuple[list[DecodedFile], list[tuple[DumpFile, UnusableError]]]:
    """
    Decode the first file of each chain, or the next if that is broken.
    """
    decoded = []
    failed = []
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
                found = header["unreadable"], header["damage"]
                decoded.append(DecodedFile(file, dump, *found))
            done += 1
            if progress is not None:
                progress(done, total + len(chains))

    return decoded, failed


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
