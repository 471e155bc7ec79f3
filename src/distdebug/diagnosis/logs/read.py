"""
What do the logs among these paths tell, each kind on its own?
"""

from __future__ import annotations

import itertools
import os

from collections import defaultdict
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from pathlib import Path

import attrs

from ..._lines import open_log
from ...errors import NoLogsError
from ...logscan.collectives import (
    CollectiveLogs,
    rank_origins,
    read_collective_logs,
)
from ...logscan.model import LogGroup, ScanReport
from ...logscan.scan import scan_logs
from ...nsight.doctor import raylet_findings
from ...raylogs.deaths.find import find_deaths
from ...raylogs.deaths.model import Death, Deaths
from ...raylogs.driver.model import DriverLog
from ...raylogs.driver.read import read_driver_log
from ...raylogs.workers import worker_files
from ...startup.detect import detect_phase
from ...startup.model import PhaseReport
from .model import LogEvidence
from .nodes import Ranks, read_nodes
from .places import Places, find_places


__all__ = ["read_logs"]

_BLOCK = 1 << 22
_OF_RAY = (b"ray.exceptions.", b"ray::")
_LONGEST_WORD = max(map(len, _OF_RAY))
_MOST_DRIVERS = 16
# One process prints how far the start-up came; more logs add little.
_MOST_PHASES = 16


def read_logs(
    paths: Iterable[str | os.PathLike[str]],
    *,
    ranks: Ranks | None = None,
    since: float | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> LogEvidence:
    """
    Read all logs, Ray sessions, and facts of nodes among some paths.

    Args:
        paths: Files and folders.

        ranks: The rank of processes, by host and number, as far as they are
            known from elsewhere.

        since: When the job began, in seconds since the epoch, if that is
            known from elsewhere.

        tell: Called with how many bytes of logs were read, of how many.

    Returns:
        What they tell.
    """
    places = find_places(paths)
    files = [*places.logs, *_worker_parts(places)]
    scan = _scan(files, tell)
    collectives = read_collective_logs(files)
    known = {**_ranks_told(collectives), **(ranks or {})}
    raylets, lost = raylet_findings(*(s.logs for s in places.sessions))
    nodes = read_nodes(places.nodes, known, since)
    deaths = _deaths(places, nodes.oom_kills, known)
    return LogEvidence(
        is_any=bool(files or places.sessions or nodes.findings),
        deaths=deaths,
        raylets=raylets,
        drivers=tuple(_drivers(places.logs)),
        scan=scan,
        collectives=collectives,
        phase=_phase(places.logs[:_MOST_PHASES]),
        nodes=nodes.findings,
        groups=_groups(scan),
        missing=(
            *places.missing,
            *scan.missing,
            *deaths.missing,
            *nodes.missing,
            *lost,
        ),
        files=tuple(map(os.fspath, (*files, *(x for _, x in places.nodes)))),
        facts=nodes.facts,
        environs=nodes.environs,
    )


def _ranks_told(collectives: CollectiveLogs) -> dict[tuple[str, int], int]:
    """
    The rank of processes whose watchdogs or NCCL spoke, by host and number.
    """
    origins = rank_origins(collectives).values()
    return {
        (place, x.pid): x.rank
        for x in origins
        # Ray leaves out the address of the node that the driver is on.
        for place in {x.ip or "", x.host or ""}
        if x.pid is not None
    }


def _deaths(
    places: Places, oom_kills: Collection[tuple[str, int]], ranks: Ranks
) -> Deaths:
    """
    Who died in a Ray cluster, with the ranks that dumps or stacks tell.
    """
    if not places.sessions:
        return Deaths()

    deaths = find_deaths(places.sessions, oom_kills=oom_kills)
    by_pid: dict[int, dict[str, int]] = defaultdict(dict)
    for (host, pid), rank in ranks.items():
        by_pid[pid][host] = rank
    ranked = (
        attrs.evolve(death, rank=_rank_of(death, by_pid))
        for death in deaths.deaths
    )
    return attrs.evolve(deaths, deaths=tuple(ranked))


def _rank_of(
    death: Death, by_pid: Mapping[int, Mapping[str, int]]
) -> int | None:
    if death.rank is not None or death.pid is None:
        return death.rank

    same = by_pid.get(death.pid, {})
    places = [death.host, death.ip or ""]
    here = [same[place] for place in places if place in same]
    # A number alone is enough if nobody else has it.
    found = here[:1] or list(same.values())
    return found[0] if len(found) == 1 else None


def _worker_parts(places: Places) -> list[Path]:
    return [
        part.path
        for log in worker_files(places.sessions)
        for part in (*log.out, *log.err)
    ]


def _scan(
    files: list[Path], tell: Callable[[int, int], None] | None
) -> ScanReport:
    try:
        # To read the rules takes a while.
        return scan_logs(files, tell=tell) if files else ScanReport()
    except NoLogsError:
        return ScanReport()


def _phase(logs: Sequence[Path]) -> PhaseReport | None:
    try:
        return detect_phase(logs) if logs else None
    except NoLogsError:  # none can be read, as the scan tells
        return None


def _groups(scan: ScanReport) -> dict[tuple[str, str], LogGroup]:
    groups = (*scan.groups, *(trace.group for trace in scan.tracebacks))
    return {(g.first.source, g.first.location): g for g in groups}


def _drivers(logs: Iterable[Path]) -> Iterator[DriverLog]:
    """
    What drivers of Ray printed, of those that something failed in.
    """
    spoken = (path for path in logs if _speaks_of_ray(path))
    for path in itertools.islice(spoken, _MOST_DRIVERS):
        driver = read_driver_log(path)
        if driver.failures:
            yield driver


def _speaks_of_ray(path: Path) -> bool:
    """
    Whether a log quotes what Ray raises, in whatever part of it.

    Line by line would take a minute for each gigabyte.
    """
    end = b""
    with suppress(OSError, ValueError), open_log(path) as file:
        while block := file.read(_BLOCK):
            if any(word in end + block for word in _OF_RAY):
                return True
            end = block[-_LONGEST_WORD:]
    return False
