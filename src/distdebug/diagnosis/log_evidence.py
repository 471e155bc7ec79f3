"""
What do the logs among these paths tell, each kind on its own?
"""

from __future__ import annotations

import itertools
import json
import os
import re

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
from typing import Any

import attrs

from .._io import (
    check_layout,
    is_file,
    is_folder,
    matching,
    open_ordinary,
    read_ordinary,
    stays_in,
)
from .._text import reason_of
from ..errors import NoLogsError
from ..findings import Finding, Missing
from ..flight_recorder import parse_name
from ..health import (
    FACTS_LAYOUT,
    NodeFacts,
    check_environment,
    environs_of,
    job_start,
    judge_node_facts,
    node_facts,
)
from ..logs import (
    CollectiveLogs,
    LogGroup,
    PhaseReport,
    ScanReport,
    detect_phase,
    open_log,
    rank_origins,
    read_collective_logs,
    scan_logs,
    walk_logs,
)
from ..nsight import raylet_findings
from ..ray import (
    Death,
    Deaths,
    DriverLog,
    RaySession,
    find_deaths,
    find_ray_sessions,
    read_driver_log,
    worker_files,
)
from ..stacks import is_captured


# In a folder only what is called like a log is one: it may hold anything.
_LOG_NAME = re.compile(
    r"(?:\.(?:log|out|err|txt|stdout|stderr|output)|\.[oe]\d{1,12})"
    r"(?:[.-]\d{1,10})?(?:\.(?:gz|bz2|xz))?$|^(?:stdout|stderr|log)$",
    re.IGNORECASE,
)
# What a snapshot writes itself, or is never printed by a job.
_NO_LOG = re.compile(
    r"REPORT\.txt|requirements.*\.txt|CMakeLists\.txt|merges\.txt|vocab\.txt"
    r"|LICENSE.*|README.*",
    re.IGNORECASE,
)
_NODE_FACTS = "node.json"
_MOST_NODES = 16_384
_LOOK = 1 << 12


@attrs.frozen(kw_only=True)
class Places:
    """
    Where a job left words.

    Attributes:
        sessions: Folders of Ray, each of one node.

        logs: Other logs.

        nodes: Files with facts about a node, by its name.

        missing: What could not be looked at, and why.
    """

    sessions: tuple[RaySession, ...] = ()
    logs: tuple[Path, ...] = ()
    nodes: tuple[tuple[str, Path], ...] = ()
    missing: tuple[Missing, ...] = ()


def find_places(paths: Iterable[str | os.PathLike[str]]) -> Places:
    """
    Find what logs could tell.

    Args:
        paths: Files and folders.  A file is taken for a log unless its name or
            its beginning says that it is something else; in a folder its name
            has to say so.

    Returns:
        What there is.
    """
    given = [Path(path) for path in paths]
    folders = [path for path in given if is_folder(path)]
    sessions = _sessions(folders)
    inside = [session.logs.resolve() for session in sessions]
    walk = walk_logs(given)
    logs = tuple(
        path
        for path in walk
        if (_is_log(path) if path in given else _is_called_log(path.name))
        and not any(map(path.resolve().is_relative_to, inside))
    )
    # A dump that cannot be read is told by those who read dumps.
    missing = tuple(m for m in walk.missing if not _is_dump(m.source or ""))
    return Places(
        sessions=sessions,
        logs=logs,
        nodes=tuple(_nodes(folders)),
        missing=missing,
    )


def _sessions(folders: list[Path]) -> tuple[RaySession, ...]:
    # Without a place, those of this machine would be found.
    if not folders:
        return ()
    try:
        return find_ray_sessions(*folders)
    except NoLogsError:
        return ()


def _nodes(folders: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    for folder in folders:
        found = [folder / _NODE_FACTS, *matching(folder, f"*/{_NODE_FACTS}")]
        for path in found[:_MOST_NODES]:
            if is_file(path) and stays_in(path, folder):
                yield path.absolute().parent.name, path


def _is_called_log(name: str) -> bool:
    is_other = is_captured(name) or _NO_LOG.fullmatch(name)
    return _LOG_NAME.search(name) is not None and not is_other


def _is_log(path: Path) -> bool:
    if _is_called_log(path.name):
        return True
    if is_captured(path.name) or path.suffix == ".json" or _is_dump(path.name):
        return False
    try:
        with open_ordinary(path, "not an ordinary file") as file:
            return b"\0" not in file.read(_LOOK)
    except (OSError, ValueError):
        return False


def _is_dump(name: str) -> bool:
    return parse_name(name).is_dump_like


# The rank of a process, by its host and number.
Ranks = Mapping[tuple[str, int], int]

_MOST_BYTES = 1 << 26
_OOM = "out of memory"


@attrs.frozen(kw_only=True)
class NodeEvidence:
    """
    What the facts of all nodes tell.

    Attributes:
        findings: What is wrong with them, and with the variables of their
            workers.

        oom_kills: Processes that the kernel killed for want of memory, by host
            and number.

        missing: What could not be read, and why.

        facts: What was seen on each node.

        environs: The variables of the workers of each node.
    """

    findings: tuple[Finding, ...] = ()
    oom_kills: frozenset[tuple[str, int]] = frozenset()
    missing: tuple[Missing, ...] = ()
    facts: tuple[NodeFacts, ...] = ()
    environs: Mapping[str, tuple[dict[str, str], ...]] = attrs.field(
        factory=dict
    )


def read_nodes(
    nodes: Iterable[tuple[str, Path]],
    ranks: Ranks,
    since: float | None = None,
) -> NodeEvidence:
    """
    Judge the facts that snapshots keep about nodes.

    Args:
        nodes: The host, and the file of its facts.

        ranks: The rank of each process that is known.

        since: When the job began, in seconds since the epoch, for nodes of
            which the snapshot does not tell: nobody was left there.

    Returns:
        What they tell.
    """
    by_host: dict[str, dict[int, int]] = defaultdict(dict)
    for (host, pid), rank in ranks.items():
        by_host[host][pid] = rank
    found: list[Finding] = []
    missing: list[Missing] = []
    facts: dict[str, NodeFacts] = {}
    environs: dict[str, tuple[dict[str, str], ...]] = {}
    for host, path in nodes:
        told = _read(path)
        if isinstance(told, Missing):
            missing.append(told)
            continue
        facts[host] = node_facts(told, host=host)
        found += judge_node_facts(
            told,
            host=host,
            ranks=by_host[host],
            since=_since(path, facts[host].booted) or since,
        )
        environs[host] = environs_of(told)

    if facts:
        found += check_environment(environs, nodes=facts).findings
    return NodeEvidence(
        findings=tuple(found),
        oom_kills=frozenset(_oom_kills(facts)),
        missing=tuple(missing),
        facts=tuple(facts.values()),
        environs=environs,
    )


def _read(path: Path) -> Mapping[str, Any] | Missing:
    try:
        facts = json.loads(read_ordinary(path, _MOST_BYTES))
        if isinstance(facts, dict):
            check_layout(facts.get("schema", FACTS_LAYOUT), FACTS_LAYOUT)
            return facts
        reason = "it is no object of JSON"
    except (OSError, ValueError, RecursionError) as exc:
        reason = reason_of(exc)
    return Missing(what="facts of node", reason=reason, source=str(path))


def _since(path: Path, booted: float | None) -> float | None:
    """
    When the job began, if the snapshot of the node tells.
    """
    try:
        workers = json.loads(
            read_ordinary(path.with_name("workers.json"), _MOST_BYTES)
        )
    except (OSError, ValueError, RecursionError):
        return None

    return job_start(workers, booted=booted)


def _oom_kills(facts: Mapping[str, NodeFacts]) -> Iterator[tuple[str, int]]:
    for host, told in facts.items():
        for event in told.kernel or ():
            if event.rule == _OOM and event.pid is not None:
                yield host, event.pid


@attrs.frozen(kw_only=True)
class LogEvidence:
    """
    What logs and the facts of nodes tell.

    Attributes:
        is_any: Whether there was anything to read.

        deaths: Who died in a Ray cluster.

        raylets: Whether nsys started the wrong Python.

        drivers: Outputs of Ray's drivers in which something failed.

        scan: What went wrong, line by line.

        collectives: What watchdogs and NCCL said.

        phase: How far the start-up came.

        nodes: What is wrong with nodes.

        groups: What the scan found, by file and place of the first line.

        missing: What could not be read, and why.

        files: The files that were read, but for those of Ray itself.

        facts: What was seen on each node.

        environs: The variables of the workers of each node.
    """

    is_any: bool = False
    deaths: Deaths = attrs.field(factory=Deaths)
    raylets: tuple[Finding, ...] = ()
    drivers: tuple[DriverLog, ...] = ()
    scan: ScanReport = attrs.field(factory=ScanReport)
    collectives: CollectiveLogs = attrs.field(factory=CollectiveLogs)
    phase: PhaseReport | None = None
    nodes: tuple[Finding, ...] = ()
    groups: Mapping[tuple[str, str], LogGroup] = attrs.field(factory=dict)
    missing: tuple[Missing, ...] = ()
    files: tuple[str, ...] = ()
    facts: tuple[NodeFacts, ...] = ()
    environs: Mapping[str, tuple[dict[str, str], ...]] = attrs.field(
        factory=dict
    )


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
