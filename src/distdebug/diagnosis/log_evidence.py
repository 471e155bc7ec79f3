"""
Read logs, Ray sessions, and node facts, each kind on its own.
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
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import attrs

from .. import health, logs, nsight, ray
from .._io import (
    check_layout,
    is_file,
    is_folder,
    matching,
    open_ordinary,
    read_ordinary,
    stays_in,
)
from .._lazy import late_pattern
from .._text import reason_of
from ..errors import NoLogsError
from ..findings import Finding, Missing
from ..flight_recorder import is_call_log, parse_dump_name
from ..stacks import is_capture_file


if TYPE_CHECKING:
    from ..health import NodeFacts
    from ..logs import (
        CollectiveLogs,
        LogGroup,
        LogSurvey,
        PhaseReport,
        ProcessRanks,
        RanksByProcess,
        RasStatus,
        ScanReport,
    )
    from ..ray import Deaths, DriverLog, RaySession


# In a folder, only files with such a name are read as logs.
_LOG_NAME = late_pattern(
    r"(?:\.(?:log|out|err|txt|stdout|stderr|output)|\.[oe]\d{1,12})"
    r"(?:[.-]\d{1,10})?(?:\.(?:gz|bz2|xz))?$|^(?:stdout|stderr|log)$",
    re.IGNORECASE,
)
_RAS_NAME = late_pattern(r".*ras.*\.json")
# Files that snapshots write, and texts that no job prints.
_NOT_A_LOG = late_pattern(
    r"REPORT\.txt|requirements.*\.txt|CMakeLists\.txt|merges\.txt|vocab\.txt"
    r"|LICENSE.*|README.*",
    re.IGNORECASE,
)
_NODE_FACTS = "node.json"
_MAX_NODES = 16_384
_SNIFF_BYTES = 1 << 12


@attrs.frozen(kw_only=True)
class LogSources:
    """
    Log files, Ray sessions, and node facts among the inputs.

    Attributes:
        sessions: Folders of Ray, one per node.

        logs: Other logs.

        nodes: Files with facts about a node, by its name.

        ras: Files with the status of NCCL's RAS.

        missing: What could not be read, and why.
    """

    sessions: tuple[RaySession, ...] = ()
    logs: tuple[Path, ...] = ()
    nodes: tuple[tuple[str, Path], ...] = ()
    ras: tuple[Path, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def is_any(self) -> bool:
        """
        Whether there is anything to read.
        """
        return bool(self.sessions or self.logs or self.nodes or self.ras)


def find_log_sources(paths: Iterable[str | os.PathLike[str]]) -> LogSources:
    """
    Find logs, Ray sessions, and node facts.

    Args:
        paths: Files and folders.  A named file counts as a log unless its name
            or its first bytes show something else.  In a folder, only files
            with the name of a log count.
    """
    roots = {Path(path): None for path in paths}
    folders = [path for path in roots if is_folder(path)]
    sessions = _find_sessions(folders)
    session_folders = [session.logs.resolve() for session in sessions]

    def is_of_ray(path: Path) -> bool:
        # People put their own logs beside those of a session.
        path = path.resolve()
        if path.parent in session_folders:
            return ray.is_own_log(path.name)
        return any(map(path.is_relative_to, session_folders))

    walk = logs.LogWalk(roots, _is_log_or_ras_name)
    found = tuple(
        path
        for path in walk
        if (path not in roots or _is_document(path) or _is_log(path))
        and not is_of_ray(path)
    )
    # The reader of dumps reports unreadable dumps.
    missing = tuple(
        m for m in walk.missing if not _is_dump_name(m.source or "")
    )
    # A file that is named twice must not confirm itself.
    known = {path.resolve(): path for path in found}
    kinds = {path: _kind_by_head(path) for path in known.values()}
    return LogSources(
        sessions=sessions,
        logs=tuple(x for x in found if not (kinds.get(x) or _is_document(x))),
        nodes=tuple(_node_fact_files(folders)),
        ras=tuple(path for path, kind in kinds.items() if kind == "ras"),
        missing=missing,
    )


def _find_sessions(folders: list[Path]) -> tuple[RaySession, ...]:
    # Without a folder, find_ray_sessions searches this machine.
    if not folders:
        return ()
    try:
        return ray.find_ray_sessions(*folders)
    except NoLogsError:
        return ()


def _node_fact_files(folders: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    for folder in folders:
        found = [folder / _NODE_FACTS, *matching(folder, f"*/{_NODE_FACTS}")]
        for path in found[:_MAX_NODES]:
            if is_file(path) and stays_in(path, folder):
                yield path.absolute().parent.name, path


def _is_log_name(name: str) -> bool:
    is_other = is_capture_file(name) or _NOT_A_LOG.fullmatch(name)
    return _LOG_NAME.search(name) is not None and not is_other


def _is_log_or_ras_name(name: str) -> bool:
    return _is_log_name(name) or _RAS_NAME.fullmatch(name) is not None


def _is_document(path: Path) -> bool:
    return path.suffix == ".json"


_SOURCE_SUFFIXES = frozenset(
    {".c", ".cc", ".cfg", ".cpp", ".cu", ".go", ".h", ".ini", ".ipynb", ".js"}
    | {".md", ".py", ".rs", ".rst", ".sbatch", ".sh", ".toml", ".ts", ".yaml"}
    | {".yml"}
)


def is_source_file(name: str) -> bool:
    """
    Return whether a name is that of source code, settings, or documentation.

    Such words as a job prints stand in these, too.
    """
    return os.path.splitext(name)[1].lower() in _SOURCE_SUFFIXES  # noqa: PTH122 of thousands


def _is_log(path: Path) -> bool:
    name = path.name
    if _is_log_name(name):
        return True
    is_known = is_source_file(name) or is_capture_file(name)
    if is_known or _is_document(path) or _is_dump_name(name):
        return False
    head = _head(path)
    return head is not None and b"\0" not in head


def _kind_by_head(path: Path) -> Literal["", "ras", "calls"]:
    """
    Return what a file is, if it is no log; the reader of dumps reads calls.
    """
    head = _head(path) or b""
    if logs.is_ras_status(head):
        return "ras"
    return "calls" if is_call_log(head) else ""


def _head(path: Path) -> bytes | None:
    try:
        with open_ordinary(path, "not an ordinary file") as file:
            return file.read(_SNIFF_BYTES)
    except (OSError, ValueError):
        return None


def _is_dump_name(name: str) -> bool:
    return parse_dump_name(name).is_dump_like


_MAX_FACT_BYTES = 1 << 26
_OOM_RULE = "out of memory"


@attrs.frozen(kw_only=True)
class NodeEvidence:
    """
    Results from the facts of all nodes.

    Attributes:
        findings: Problems of the nodes, and of the variables of their workers.

        oom_kills: Processes that the OOM killer of the kernel ended, by host
            and PID.

        missing: What could not be read, and why.

        facts: The facts of each node.

        environs: The variables of the workers of each node.

        processes: The ranks of processes, nodes, and GPUs; ``None`` if unknown.
    """

    findings: tuple[Finding, ...] = ()
    oom_kills: frozenset[tuple[str, int]] = frozenset()
    missing: tuple[Missing, ...] = ()
    facts: tuple[NodeFacts, ...] = ()
    environs: Mapping[str, tuple[dict[str, str], ...]] = attrs.field(
        factory=dict
    )


def read_node_evidence(
    nodes: Iterable[tuple[str, Path]],
    ranks: RanksByProcess,
    since: float | None = None,
) -> NodeEvidence:
    """
    Check the node facts that snapshots hold.

    Args:
        nodes: Host name and file of facts.

        ranks: The known ranks of processes.

        since: When the job began, in seconds since the epoch, as its dumps
            say; older workers on a node may be those of another job.
    """
    by_host: dict[str, dict[int, int]] = defaultdict(dict)
    for (host, pid), rank in ranks.items():
        by_host[host][pid] = rank
    found: list[Finding] = []
    missing: list[Missing] = []
    facts: dict[str, NodeFacts] = {}
    environs: dict[str, tuple[dict[str, str], ...]] = {}
    for host, path in nodes:
        data = _read_facts(path)
        if isinstance(data, Missing):
            missing.append(data)
            continue
        facts[host] = health.parse_node_json(data, host=host)
        environs[host] = health.worker_environs(data)
        found += health.check_stored_facts(
            facts[host],
            environs[host],
            ranks=by_host[host],
            since=_later(_job_start(path, facts[host].booted), since),
        )

    if facts:
        found += health.check_environment(environs, nodes=facts).findings
    return NodeEvidence(
        findings=tuple(found),
        oom_kills=frozenset(
            (host, event.pid)
            for host, node in facts.items()
            for event in node.kernel or ()
            if event.rule == _OOM_RULE and event.pid is not None
        ),
        missing=tuple(missing),
        facts=tuple(facts.values()),
        environs=environs,
    )


def _read_facts(path: Path) -> Mapping[str, Any] | Missing:
    try:
        facts = json.loads(read_ordinary(path, _MAX_FACT_BYTES))
        if isinstance(facts, dict):
            check_layout(
                facts.get("schema", health.FACTS_LAYOUT), health.FACTS_LAYOUT
            )
            return facts
        reason = "it is no object of JSON"
    except (OSError, ValueError, RecursionError) as exc:
        reason = reason_of(exc)
    return Missing(what="facts of node", reason=reason, source=str(path))


def _job_start(path: Path, booted: float | None) -> float | None:
    """
    Return when the job began, from the workers in the snapshot of a node.
    """
    try:
        workers = json.loads(
            read_ordinary(path.with_name("workers.json"), _MAX_FACT_BYTES)
        )
    except (OSError, ValueError, RecursionError):
        return None

    return health.job_start_time(workers, booted=booted)


def _later(*times: float | None) -> float | None:
    return max((x for x in times if x is not None), default=None)


@attrs.frozen(kw_only=True)
class LogEvidence:
    """
    Results from logs and node facts.

    Attributes:
        sessions: The folders of Ray sessions.

        raylets: Findings about nsys that started the wrong Python.

        drivers: Outputs of Ray drivers with failures.

        phase: The start-up phase that the job reached.

        ras: The status of NCCL's RAS, in the order of the files, then what the
            job printed.

        nodes: Findings about nodes.

        complete: The logs that show that the job surely did all of its work.

        groups: Groups of the scan, by file and location of the first line.

        missing: What could not be read, and why.

        files: The files that were read, except those of Ray itself.

        facts: The facts of each node.

        environs: The variables of the workers of each node.
    """

    sessions: tuple[str, ...] = ()
    _deaths: Deaths | None = None
    raylets: tuple[Finding, ...] = ()
    drivers: tuple[DriverLog, ...] = ()
    _scan: ScanReport | None = None
    _collectives: CollectiveLogs | None = None
    phase: PhaseReport | None = None
    ras: tuple[RasStatus, ...] = ()
    nodes: tuple[Finding, ...] = ()
    complete: frozenset[str] = frozenset()
    groups: Mapping[tuple[str, str], LogGroup] = attrs.field(factory=dict)
    missing: tuple[Missing, ...] = ()
    files: tuple[str, ...] = ()
    facts: tuple[NodeFacts, ...] = ()
    environs: Mapping[str, tuple[dict[str, str], ...]] = attrs.field(
        factory=dict
    )
    processes: ProcessRanks | None = None

    @property
    def is_any(self) -> bool:
        """
        Whether there is anything to judge: a log of unknown lines is nothing.
        """
        phase, scan, calls = self.phase, self._scan, self._collectives
        return any(
            (
                *(self.sessions, self.nodes, self.ras, self.drivers),
                scan and (scan.findings or scan.harmless),
                calls and calls.records,
                phase and (phase.framework or phase.current or phase.ended),
                phase and phase.findings,
            )
        )

    # What has no logs does not load the rooms that read them.
    @property
    def deaths(self) -> Deaths:
        """
        Processes and nodes that died in a Ray cluster.
        """
        return self._deaths or ray.Deaths()

    @property
    def scan(self) -> ScanReport:
        """
        Errors found line by line.
        """
        return self._scan or logs.ScanReport()

    @property
    def collectives(self) -> CollectiveLogs:
        """
        Messages of watchdogs and NCCL.
        """
        return self._collectives or logs.CollectiveLogs()


_RAY_MARKERS = (b"ray.exceptions.", b"ray::")
_MAX_DRIVERS = 16
# One log shows the start-up phase; more add little.
_MAX_PHASE_LOGS = 16


def read_logs(
    paths: Iterable[str | os.PathLike[str]],
    *,
    ranks: RanksByProcess | None = None,
    since: float | None = None,
    known: Mapping[str, Any] = MappingProxyType({}),
    tell: Callable[[int, int], None] | None = None,
) -> LogEvidence:
    """
    Read all logs, Ray sessions, and node facts among some paths.

    Args:
        ranks: Ranks of processes by host and PID, as far as other evidence
            shows them.

        since: When the job began, in seconds since the epoch, if other
            evidence shows it.

        known: What need not be read, by its field: ``scan``, ``collectives``,
            ``phase``.

        tell: Called with the bytes of logs read so far, and all bytes.
    """
    sources = find_log_sources(paths)
    if not (known or sources.is_any):
        return LogEvidence(missing=sources.missing)

    files = [*sources.logs, *_worker_log_files(sources)]
    survey = _survey(files, sources, known, ranks or {}, tell)
    processes = survey.processes
    nodes = read_node_evidence(sources.nodes, processes.by_process, since)
    deaths = _find_deaths(sources.sessions, nodes.oom_kills, processes)
    drivers = _failed_drivers(sources.logs, survey.mentioning, processes)
    raylets, lost = nsight.raylet_findings(*(s.logs for s in sources.sessions))
    ras, ras_missing = _read_ras(sources.ras)
    read = (*files, *(x for _, x in sources.nodes), *sources.ras)
    return LogEvidence(
        sessions=tuple(os.path.realpath(s.root) for s in sources.sessions),
        deaths=deaths,
        raylets=raylets,
        drivers=tuple(drivers),
        scan=survey.scan,
        collectives=survey.collectives,
        phase=survey.phase,
        ras=(*ras, *survey.ras),
        complete=survey.complete,
        nodes=nodes.findings,
        groups=_groups_by_place(survey.scan),
        missing=(
            *(*sources.missing, *survey.scan.missing, *deaths.missing),
            *(*nodes.missing, *lost, *ras_missing),
        ),
        files=tuple(map(os.fspath, read)),
        facts=nodes.facts,
        environs=nodes.environs,
        processes=processes,
    )


def _survey(
    files: Iterable[Path],
    sources: LogSources,
    known: Mapping[str, Any],
    ranks: RanksByProcess,
    tell: Callable[[int, int], None] | None,
) -> LogSurvey:
    """
    Read the logs once, for all that is not known.
    """
    survey = logs.survey_logs(
        files,
        phase_files=sources.logs[:_MAX_PHASE_LOGS],
        words=_RAY_MARKERS,
        known=known,
        ranks=ranks,
        on_progress=tell,
    )
    return attrs.evolve(survey, **known)


def _find_deaths(
    sessions: Sequence[RaySession],
    oom_kills: Collection[tuple[str, int]],
    processes: ProcessRanks,
) -> Deaths:
    """
    Find deaths in a Ray cluster, with the ranks of their processes.
    """
    if not sessions:
        return ray.Deaths()

    found = ray.find_deaths(sessions, oom_kills=oom_kills)
    ranked = (
        _with_rank(x, [x.host, x.ip or ""], processes) for x in found.deaths
    )
    return attrs.evolve(found, deaths=tuple(ranked))


def _with_rank(
    ended: Any, places: Iterable[str], processes: ProcessRanks
) -> Any:
    """
    Return a death, or a failure of a driver, with the rank of its process.
    """
    if ended.rank is not None:
        return ended
    return attrs.evolve(ended, rank=processes.rank_of(ended.pid, places))


def _worker_log_files(places: LogSources) -> list[Path]:
    return [
        part.path
        for log in ray.worker_files(places.sessions)
        for part in (*log.out, *log.err)
    ]


def _read_ras(
    paths: Iterable[Path],
) -> tuple[list[RasStatus], list[Missing]]:
    statuses: list[RasStatus] = []
    missing: list[Missing] = []
    for path in paths:
        try:
            statuses += logs.read_ras_status(path)
        except (OSError, ValueError) as exc:
            missing.append(Missing.log(path, exc))
    return statuses, missing


def _groups_by_place(scan: ScanReport) -> dict[tuple[str, str], LogGroup]:
    groups = (*scan.groups, *(trace.group for trace in scan.tracebacks))
    return {(g.first.source, g.first.location): g for g in groups}


def _failed_drivers(
    log_files: Iterable[Path],
    mentioning: Collection[str],
    processes: ProcessRanks,
) -> Iterator[DriverLog]:
    """
    Yield the outputs of Ray drivers that hold failures.

    Args:
        mentioning: The files that quote an exception of Ray.

        processes: The ranks of processes.
    """
    drivers = (path for path in log_files if os.fspath(path) in mentioning)
    for path in itertools.islice(drivers, _MAX_DRIVERS):
        driver = ray.read_driver_log(path)
        failures = tuple(
            _with_rank(x, [x.ip or ""], processes) for x in driver.failures
        )
        if failures:
            yield attrs.evolve(driver, failures=failures)
