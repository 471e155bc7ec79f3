"""
So what is the root cause, given everything that was collected?
"""

from __future__ import annotations

import os

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import attrs

from .._io import is_folder
from ..errors import NoDumpsError
from ..findings import Cause, Diagnosis, Missing
from ..flight_recorder import (
    Dumps,
    FlightReport,
    Sidecar,
    analyze_dumps,
    read_dumps,
)
from ..stacks import (
    ProcessStacks,
    StackFiles,
    explain_stacks,
    is_captured,
    is_stack_like,
    read_stack_files,
)
from .hosts import Seen, all_stacks, diagnose_stacks, ended_well, host_views
from .log_evidence import LogEvidence, read_logs
from .log_join import diagnose_logs, join_logs
from .refine import look_again, refine


# Stacks are often pasted, or printed by the job itself.
_LOGS = {".err", ".log", ".out", ".txt"}
# A job that goes on has none of these.
_STUCK = {
    Cause.RANK_NOT_ARRIVED,
    Cause.RANK_NOT_STARTED,
    Cause.RANK_BLOCKED_IN_LAUNCH,
    Cause.COLLECTIVE_STUCK_IN_FLIGHT,
    Cause.GROUP_ORDER_DEADLOCK,
    Cause.P2P_DEADLOCK,
}
# Nothing on record is stuck.
_GOES_ON = {Cause.HEALTHY, Cause.STRAGGLER}
_REMEDY = (
    "name a folder with files of at least one of these kinds; how to get them "
    "from a job that runs: distdebug snapshot --help"
)
_NO_DUMPS = Missing(
    what="dump", reason="there are no Flight Recorder dumps, only stacks"
)
# A build for GPUs has a recorder, which hears nothing of Gloo.
_NO_CALLS = Missing(
    what="calls",
    reason="the dumps hold none: none was made yet, or only such as Gloo does "
    "not record (send, recv, monitored_barrier; before torch 2.8, all)",
)


def diagnose(
    *paths: str | os.PathLike[str],
    progress: Callable[[int, int], object] | None = None,
) -> Diagnosis:
    """
    Find the root cause of a stuck, slow, or dead job.

    Args:
        paths: Files and folders with whatever was collected: Flight Recorder
            dumps, side-cars, stacks, Ray sessions, logs, snapshots.

        progress: Called with how many files of how many were read.

    Returns:
        The diagnosis; it prints itself, the verdict first.

    Raises:
        NoDumpsError: There is nothing to look at.
    """
    # As paths: a text of several lines would be taken for stacks.
    found = read_stack_files(p for p in map(Path, paths) if _may_hold(p))
    dumps, why = _dumps(paths, progress)
    sidecars = () if dumps is None else dumps.sidecars.values()
    logs = read_logs(
        paths,
        ranks=_ranks_by_process(sidecars, found.stacks),
        since=min((s.started for s in sidecars), default=None),
    )
    if dumps is None and not found.stacks and not logs.is_any:
        raise _nothing(paths, why)

    flight = None if dumps is None else analyze_dumps(dumps)
    seen = Seen(
        paths=tuple(os.fspath(path) for path in paths),
        flight=flight,
        stacks=found.stacks,
        logs=logs,
    )
    return attrs.evolve(_conclude(flight, found, logs), seen=seen)


def _nothing(
    paths: Sequence[str | os.PathLike[str]], why: NoDumpsError
) -> NoDumpsError:
    """
    Say what was looked for, where anything could have been.
    """
    if not any(map(os.path.lexists, paths)):
        return why

    msg = f"{why}; nor are there stacks, logs, or sessions of Ray"
    return NoDumpsError(msg, remedy=_REMEDY)


def _conclude(
    flight: FlightReport | None, found: StackFiles, logs: LogEvidence
) -> Diagnosis:
    """
    Join what each kind of evidence says.
    """
    if flight is None and not found.stacks:
        return diagnose_logs(logs)
    if flight is None:
        from_stacks = attrs.evolve(
            diagnose_stacks(found.stacks), missing=(_NO_DUMPS, *found.missing)
        )
        return join_logs(from_stacks, logs, alive=_alive(found.stacks))

    return join_logs(
        _from_dumps(flight, found),
        logs,
        alive=_alive(found.stacks),
        has_ended_well=ended_well(flight.dumps),
    )


def _dumps(
    paths: tuple[str | os.PathLike[str], ...],
    progress: Callable[[int, int], object] | None,
) -> tuple[Dumps | None, NoDumpsError]:
    """
    The dumps, or why there are none.
    """
    try:
        return read_dumps(paths, progress=progress), NoDumpsError("")
    except NoDumpsError as exc:
        return None, exc


def _ranks_by_process(
    sidecars: Iterable[Sidecar], stacks: Iterable[ProcessStacks]
) -> dict[tuple[str, int], int]:
    """
    The rank of each process that is known, by host and number.
    """
    return {
        **{(s.host, s.pid): s.rank for s in sidecars},
        **{
            (p.host or "", p.pid): p.rank for p in stacks if p.rank is not None
        },
    }


def _alive(stacks: Iterable[ProcessStacks]) -> set[int]:
    """
    Ranks that ran when they were looked at; a log shows those that died too.
    """
    return {
        p.rank
        for p in stacks
        if p.rank is not None and is_captured(Path(p.source).name)
    }


def _from_dumps(flight: FlightReport, found: StackFiles) -> Diagnosis:
    dumps = flight.dumps
    diagnosis = flight.to_diagnosis()
    if _is_silent(dumps):
        # Ranks that are asked tell their stacks also where nothing recorded.
        stacks = all_stacks(dumps, found.stacks)
        is_open = diagnosis.verdict.cause is Cause.UNKNOWN
        has_any = is_open and any(p.threads for p in stacks)
        if has_any or (found.stacks and not len(dumps)):
            unread = (*diagnosis.missing, *found.missing)
            lost = (_NO_CALLS, *unread) if len(dumps) else unread
            return attrs.evolve(diagnose_stacks(stacks), missing=lost)

    views = host_views(dumps, found.stacks)
    diagnosis = refine(diagnosis, views, dumps, flight.waits)
    if diagnosis.verdict.cause in _GOES_ON and not ended_well(dumps):
        stacks = all_stacks(dumps, found.stacks)
        diagnosis = look_again(diagnosis, views, dumps, stacks)
    diagnosis = _with_movement(diagnosis, found.stacks)
    return attrs.evolve(
        diagnosis, missing=(*diagnosis.missing, *found.missing)
    )


def _is_silent(dumps: Dumps) -> bool:
    """
    Whether no call is on record, of a job that did not end well.
    """
    has_calls = any(len(dump.entries) for dump in dumps)
    return not (has_calls or ended_well(dumps))


def _may_hold(path: Path) -> bool:
    is_log = path.suffix in _LOGS
    return is_folder(path) or is_log or is_stack_like(path.name)


def _with_movement(
    diagnosis: Diagnosis, stacks: Sequence[ProcessStacks]
) -> Diagnosis:
    """
    Say so if the dumps show a wait, and the stacks a job that goes on.
    """
    is_stuck = diagnosis.verdict.cause in _STUCK
    seen = explain_stacks(stacks) if is_stuck else ()
    moving = [f for f in seen if f.cause is Cause.PROGRESSING]
    if not moving:
        return diagnosis

    verdict = attrs.evolve(
        diagnosis.verdict,
        confidence="possible",
        summary=f"{diagnosis.verdict.summary}; but {moving[0].summary}",
        evidence=(*diagnosis.verdict.evidence, *moving[0].evidence),
    )
    others = [f for f in diagnosis.findings if f != diagnosis.verdict]
    return attrs.evolve(
        diagnosis, verdict=verdict, findings=(verdict, *others, *moving)
    )
