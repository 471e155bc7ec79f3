"""
What did all ranks record before the job stopped?

One damaged, foreign, or left-over file must not keep us from looking at the
others: what cannot be used is listed as a problem, with its reason.
"""

from __future__ import annotations

import os

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor

from .._text import list_text
from ..errors import NoDumpsError
from ..findings import Missing
from .reading.assemble import (
    Decoded,
    Tables,
    UnusableError,
    announce_failures,
    announce_losses,
    choose_dumps,
    parse_frames,
    plan_reading,
)
from .reading.columns import Dumps, Frame, RankDump
from .reading.files import DumpFile, find_files
from .reading.sandbox import TIME_LIMIT_S, decode_files, decode_frames
from .sidecar import Sidecar


Path = str | os.PathLike[str]
Progress = Callable[[int, int], object]

_REMEDY = (
    "switch recording on before the first process group is created, and give "
    "the folder that the dumps are written to"
)
_TYPO = "check the path; one that does not begin with / is looked for here"


def read_dumps(
    path: Path | Iterable[Path],
    *,
    ranks: Iterable[int] | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> Dumps:
    """
    Read the Flight Recorder dumps of a job.

    Any version of the format is understood, as pickle or JSON, compressed by
    gzip or not.  Nothing in a file is ever executed: files are decoded by
    child processes that refuse code and have limits on memory and time.

    Args:
        path: A folder, which is searched with all that is in it; or a file;
            or several of them.

        ranks: The ranks to read; by default all.

        executor: Where to decode; by default in one process per core here.

        progress: Called with the number of files that are done, and of all.

        time_limit_s: How long decoding one file may take, in seconds.

    Returns:
        What the ranks recorded, in columns.  Whatever could not be read is in
        its `problems`.

    Raises:
        NoDumpsError: There is neither a dump nor anything that was meant to
            be one.
    """
    places = _places(path)
    found = find_files(places)
    plan = plan_reading(found, None if ranks is None else set(ranks))
    tables = Tables()
    decoded, failed = _decode(
        plan.chains, tables, executor, progress, time_limit_s
    )
    by_rank, unused = choose_dumps(decoded)
    problems = [
        *plan.problems,
        *unused,
        *announce_failures(failed, decoded),
        *announce_losses(decoded),
        *(p for p in found.problems if p.what == "sidecar"),
    ]
    if not (by_rank or problems or plan.sidecars or plan.skipped):
        raise _nothing(places, found.problems)

    problems += [p for p in found.problems if p.what != "sidecar"]
    return Dumps(
        by_rank=by_rank,
        groups=tables.groups,
        ops=tables.ops,
        shapes=tables.shapes,
        sidecars=plan.sidecars,
        earlier=plan.earlier,
        problems=tuple(sorted(problems, key=_order)),
        world_size=_world_size(plan.sidecars, by_rank),
        read_frames=_read_frames,
    )


def _nothing(
    places: Sequence[str], problems: Iterable[Missing]
) -> NoDumpsError:
    """
    Say why there is nothing to read.
    """
    if not any(map(os.path.lexists, places)):
        msg = f"no such file or folder: {list_text(places)}"
        return NoDumpsError(msg, remedy=_TYPO)

    reasons = "".join(f" ({p.reason})" for p in problems)
    msg = f"no Flight Recorder dumps in {', '.join(places)}{reasons}"
    return NoDumpsError(msg, remedy=_REMEDY)


def _places(path: Path | Iterable[Path]) -> list[str]:
    if isinstance(path, str | os.PathLike):
        path = [path]
    return [os.fspath(place) for place in path]


def _decode(
    chains: list[list[DumpFile]],
    tables: Tables,
    executor: Executor | None,
    progress: Progress | None,
    time_limit_s: float,
) -> tuple[list[Decoded], list[tuple[DumpFile, UnusableError]]]:
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
                decoded.append(
                    Decoded(file, dump, header["unreadable"], header["damage"])
                )
            done += 1
            if progress is not None:
                progress(done, total + len(chains))

    return decoded, failed


def _order(problem: Missing) -> tuple[bool, int, str, str]:
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
    wanted: Mapping[str, Sequence[int]],
) -> dict[str, list[tuple[Frame, ...]]]:
    return {
        path: parse_frames(message, len(wanted[path]))
        for path, message in decode_frames(wanted)
    }
