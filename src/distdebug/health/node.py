"""
Check a node: GPUs, kernel log, memory, disks, network, and Ray.
"""

from __future__ import annotations

import os
import re
import socket
import time

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import attrs

from .._io import is_folder, matching, resolved
from .._proc import map_with_timeout
from .._render import Block, Lines, Shown, as_plain
from .._text import clean, count_text, reason_of, size_text, time_text
from ..errors import NoLogsError
from ..findings import CONFIDENCES, Evidence, Finding, Missing
from ..logs import open_log
from ..nodes import last_address, probe_port
from ..processes import first_start, has_node_pids
from .gpu import Gpu, check_gpu_driver, check_gpus, read_gpus
from .host import (
    Blocked,
    Disk,
    Limits,
    check_blocked_processes,
    check_disks,
    check_limits,
    read_blocked_processes,
    read_disks,
    read_limits,
)
from .judgements import judge
from .kernel import (
    JobContext,
    KernelEvent,
    boot_time,
    check_kernel_events,
    find_events,
    is_suspicious,
    read_kernel_log,
)
from .memory import (
    Memory,
    Pressure,
    check_memory,
    check_pressure,
    read_memory,
    read_pressure,
)
from .network import (
    IbPort,
    Interface,
    check_interfaces,
    check_ports,
    read_ib_ports,
    read_interfaces,
)


_HEARTBEAT_FILES = (
    *("debug_state.txt", "debug_state_gcs.txt", "monitor.log", "raylet.out"),
    *("gcs_server.out", "log_monitor.log", "dashboard_agent.log"),
)
_SESSION_NAME = re.compile(r"session_\d{4}-[\w-]{1,80}")
_VERSION_TEXT = re.compile(r"ray_version=(\d[\w.+-]{0,40})")
_DIST_INFO = re.compile(r"ray-(\d[\w.+]{0,40})\.dist-info")
_HEAD_BYTES = 1 << 16
_PROCESS_FIELDS = ("pid", "status", "cmdline")


@attrs.frozen(kw_only=True)
class RayNode:
    """
    The state of Ray on this node.

    Attributes:
        session: The folder of the session.

        name: The session name, which all nodes of the cluster share.

        ages: Seconds since the last write to each log file.

        raylets: Process IDs of the raylets of this session.

        states: The process status of each raylet, such as ``"sleeping"``.

        processes_known: Whether processes could be listed.

        address: The address of the GCS, if known.

        gcs: The result of the connection attempt: ``"answers"``,
            ``"refused"``, ``"silent"``, or ``""`` without one.

        cluster_version: The Ray version of the head node.

        node_version: The Ray version of the raylet.
    """

    session: str
    name: str
    ages: dict[str, float]
    raylets: tuple[int, ...] = ()
    states: tuple[str, ...] = ()
    processes_known: bool = True
    address: str = ""
    gcs: str = ""
    cluster_version: str = ""
    node_version: str = ""


def read_ray_node(
    session: str | os.PathLike[str],
    *,
    timeout_s: float = 3.0,
    now: float | None = None,
) -> RayNode:
    """
    Read the state of Ray on this node.

    Args:
        session: The folder of a session, or the folder that holds
            ``session_latest``.

        timeout_s: Limit for the connection to the GCS, in seconds.

        now: The time, in seconds since the epoch.

    Raises:
        NoLogsError: There is no session.
    """
    folder = _find_session(Path(session))
    logs, address = folder / "logs", last_address(folder)
    raylets, is_known = _find_raylets(folder.name)
    return RayNode(
        session=str(folder),
        name=clean(folder.name),
        ages=dict(_file_ages(logs, time.time() if now is None else now)),
        raylets=tuple(pid for pid, _, _ in raylets),
        states=tuple(state for _, state, _ in raylets),
        processes_known=is_known,
        address=address,
        gcs=probe_port(address, timeout_s) if address else "",
        cluster_version=_cluster_version(logs),
        node_version=next((version for _, _, version in raylets), ""),
    )


def _find_session(path: Path) -> Path:
    for folder in (path, path / "session_latest"):
        if is_folder(folder / "logs"):
            return resolved(folder)
    sessions = []
    if is_folder(path):
        sessions = list(filter(is_folder, matching(path, "session_2*")))
    if sessions:  # the link may be broken, and names sort by time
        return resolved(sessions[-1])

    msg = f"{path} is no session of Ray, and holds none"
    raise NoLogsError(msg, remedy="give a folder such as /tmp/ray")


def _file_ages(logs: Path, now: float) -> Iterator[tuple[str, float]]:
    for name in _HEARTBEAT_FILES:
        with suppress(OSError):
            yield name, now - (logs / name).stat().st_mtime


def _find_raylets(name: str) -> tuple[list[tuple[int, str, str]], bool]:
    """
    Return process ID, status, and version of the raylets of this session, and
    whether processes are listed.
    """
    import psutil

    raylets = []
    try:
        for process in psutil.process_iter(_PROCESS_FIELDS):
            pid, state, argv = map(process.info.get, _PROCESS_FIELDS)
            if not argv or not f"/{argv[0]}".endswith("/raylet"):
                continue
            sessions = set(_SESSION_NAME.findall(" ".join(argv)))
            if not sessions or name in sessions:
                raylets.append((pid, state, _installed_version(argv[0])))
    except (psutil.Error, OSError):
        return raylets, False
    return raylets, True


def _installed_version(program: str) -> str:
    """
    Return the version of the package that a raylet belongs to.
    """
    # site-packages/ray/core/src/ray/raylet/raylet
    with suppress(OSError, IndexError):
        names = os.listdir(Path(program).parents[5])  # noqa: PTH208 names are enough
        matches = filter(None, map(_DIST_INFO.fullmatch, names))
        return next((match[1] for match in matches), "")
    return ""


def _cluster_version(logs: Path) -> str:
    try:
        with open_log(logs / "gcs_server.out") as file:
            head = file.read(_HEAD_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""
    match = _VERSION_TEXT.search(head)
    return match[1] if match else ""


# Three times the usual interval; for raylet.out, twice.
_MAX_AGE_S = 130.0
_FILE_MAX_AGES = (("debug_state.txt", 30.0), ("raylet.out", _MAX_AGE_S))


def check_ray_node(node: RayNode) -> Iterator[Finding]:
    """
    Yield findings about a dead raylet or GCS, or mixed Ray versions.
    """
    ages = ", ".join(f"{k} {time_text(v)}" for k, v in node.ages.items())
    quote = f"written ago: {ages}" if ages else "none of its files is there"
    evidence = Evidence(kind="ray", source=node.session, quote=quote)
    silent = _silent_time(node)
    is_known = node.processes_known and (silent is not None or not node.ages)
    if "stopped" in node.states:
        yield judge("raylet_stopped", evidence)
    elif node.raylets and silent is not None:
        yield judge("raylet_silent", evidence, silent=silent)
    elif not node.raylets and is_known:
        text = f" and wrote nothing for {silent}" if silent else ""
        yield judge("raylet_gone", evidence, session=node.name, silent=text)
    if node.gcs in {"refused", "silent"}:
        yield judge(f"gcs_{node.gcs}", evidence, address=node.address)
    own, common = node.node_version, node.cluster_version
    if own and common and own != common:
        yield judge("ray_versions", evidence, node=own, cluster=common)


def _silent_time(node: RayNode) -> str | None:
    """
    Return how long Ray has written nothing, if that is too long.
    """
    # The first file that exists decides: processes that outlive the raylet
    # write to the others.
    for name, limit in _FILE_MAX_AGES:
        if name in node.ages:
            age = node.ages[name]
            return time_text(age) if age > limit else None
    ages = node.ages.values()
    return time_text(min(ages)) if ages and min(ages) > _MAX_AGE_S else None


_MAX_LINES = 200


@attrs.frozen(kw_only=True)
class NodeFacts:
    """
    What was read on a node; ``None`` where it could not be read.

    Attributes:
        host: The node.

        taken: When, in seconds since the epoch.

        booted: Boot time.

        gpus: Its GPUs; empty without a driver.

        gpu_problem: Why its GPUs could not be read.

        gpu_wait_s: How long the driver did not answer, in seconds; 0 if it
            answered, even with an error.

        memory: Its memory, and that of the cgroups of the job.

        kernel: Kernel events that did not recover.

        log_begins: Time of the first message in the kernel log.

        disks: The file systems that the job writes to.

        pressure: Pressure stall information.

        blocked: Processes in uninterruptible sleep.

        limits: Resource limits of the processes of the job.

        interfaces: Its network interfaces.

        ib_ports: The ports of its RDMA adapters.

        ray: The state of Ray, for each session that was asked for.

        name_address: The address that the host name resolves to on this node.

        platform: Its architecture, such as ``"aarch64"``; ``""`` if unknown.

        driver: Version of its NVIDIA driver; ``""`` without one.
    """

    host: str
    taken: float
    booted: float | None = None
    gpus: tuple[Gpu, ...] | None = None
    gpu_problem: str = ""
    gpu_wait_s: float = 0.0
    memory: Memory | None = None
    kernel: tuple[KernelEvent, ...] | None = None
    log_begins: float | None = None
    disks: tuple[Disk, ...] | None = None
    pressure: Pressure | None = None
    blocked: tuple[Blocked, ...] | None = None
    limits: tuple[Limits, ...] | None = None
    interfaces: tuple[Interface, ...] | None = None
    ib_ports: tuple[IbPort, ...] | None = None
    ray: tuple[RayNode, ...] | None = None
    name_address: str | None = None
    platform: str = ""
    driver: str = ""

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data for JSON.
        """
        return as_plain(self)


@attrs.frozen(kw_only=True)
class _Health:
    """
    Findings, and what could not be read.
    """

    findings: tuple[Finding, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """
        Return whether no finding is more than possible.
        """
        return all(
            f.cause.is_fine or f.confidence == "possible"
            for f in self.findings
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data for JSON.
        """
        return {
            "healthy": self.is_healthy,
            "findings": self.to_records(),
            "missing": [attrs.asdict(m) for m in self.missing],
        }

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per finding, for a data frame.
        """
        return [f.to_dict() for f in self.findings]

    def _lines(self, title: str) -> Lines:
        lines = [title]
        for finding in self.findings:
            label = "note" if finding.cause.is_fine else finding.confidence
            lines.append(f"- {finding.summary} ({label})")
            lines += [f"  {finding.remedy}"] if finding.remedy else []
        if not self.findings:
            lines.append("nothing is wrong, as far as can be seen")
        lines += [f"not seen: {m.what}: {m.reason}" for m in self.missing]
        return Lines(lines, _MAX_LINES)


@attrs.frozen(kw_only=True)
class NodeHealth(_Health, Shown):
    """
    The state of a node, with findings.

    Attributes:
        facts: What was read.

        findings: What is wrong, most certain first; ``"possible"`` ones may
            not concern the job.

        missing: What could not be read, and why.
    """

    facts: NodeFacts

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data for JSON.
        """
        return {"facts": self.facts.to_dict()} | super().to_dict()

    def _blocks_(self) -> Iterable[Block]:
        yield self._lines(f"{self.facts.host}: {_summary(self.facts)}")


@attrs.frozen(kw_only=True)
class EnvironmentHealth(_Health, Shown):
    """
    Findings about the environment variables of workers.

    Attributes:
        hosts: The nodes.

        processes: Number of compared environments.

        findings: What is wrong, most certain first, then notes, which have
            the cause ``healthy``.

        missing: What could not be read, and why.
    """

    hosts: tuple[str, ...] = ()
    processes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data for JSON.
        """
        counts = {"hosts": list(self.hosts), "processes": self.processes}
        return counts | super().to_dict()

    def _blocks_(self) -> Iterable[Block]:
        if not (self.processes or self.findings or self.missing):
            line = "no environments were compared: there is no worker of a job"
            yield Lines([line], _MAX_LINES)
            return

        environments = count_text(self.processes, "environment")
        nodes = count_text(len(self.hosts), "node")
        yield self._lines(f"{environments} of {nodes}")


def _summary(facts: NodeFacts) -> str:
    parts = [f"{len(facts.gpus or ())} GPUs"]
    memory = facts.memory
    if memory and memory.total and memory.available is not None:
        parts.append(
            f"{size_text(memory.available)} of {size_text(memory.total)} "
            "memory left"
        )
    up = [x.name for x in facts.interfaces or () if x.is_up and x.addresses]
    if up:
        parts.append(f"interfaces {', '.join(up[:8])}")
    return ", ".join(parts)


# The kernel log is complete if its first message is this soon after boot.
_BOOT_S = 60.0


def check_node_facts(  # noqa: PLR0913 each is independent
    facts: NodeFacts,
    *,
    ranks: Mapping[int, int] | None = None,
    pids: Collection[int] = (),
    since: float | None = None,
    has_node_pids: bool = True,
    knows_all: bool = False,
) -> tuple[Finding, ...]:
    """
    Return what is wrong with a node, most certain first.

    Args:
        facts: What was read on the node.

        ranks: Ranks by process ID.

        pids: The processes of the job.

        since: Start of the job, in seconds since the epoch; if ``None``,
            events of the last day may concern it.

        has_node_pids: Whether process IDs are those that the kernel and the
            driver report; in a container they mostly are not.

        knows_all: Whether *pids* holds all processes that the job had on the
            node, also those that have ended.
    """
    context = JobContext(
        host=facts.host,
        now=facts.taken,
        since=since,
        ranks=ranks if ranks and has_node_pids else {},
        pids=frozenset(pids if has_node_pids else ()),
        gpus=facts.gpus or (),
        knows_all=knows_all and has_node_pids,
    )
    has_rdma = any(x.state == "ACTIVE" for x in facts.ib_ports or ())
    findings = [
        *_check_devices(facts, context),
        *_check_node_memory(facts, context),
        *check_blocked_processes(facts.blocked or (), ranks=ranks, pids=pids),
        *check_limits(facts.limits or (), ranks=ranks, has_rdma=has_rdma),
    ]
    prefix = f"{facts.host}: " if facts.host else ""
    return sort_by_confidence(
        attrs.evolve(x, summary=f"{prefix}{x.summary}") for x in findings
    )


def _check_devices(facts: NodeFacts, context: JobContext) -> Iterator[Finding]:
    host, waited_s = facts.host, facts.gpu_wait_s
    yield from check_kernel_events(facts.kernel or (), context)
    yield from check_gpus(facts.gpus or (), host=host, ranks=context.ranks)
    yield from check_gpu_driver(
        facts.gpu_problem, host=host, waited_s=waited_s
    )
    yield from check_disks(facts.disks or ())
    yield from check_ports(facts.ib_ports or (), host=host)
    yield from check_interfaces(facts.interfaces or (), host=host)
    yield from chain.from_iterable(map(check_ray_node, facts.ray or ()))
    yield from check_pressure(facts.pressure or Pressure())


def _check_node_memory(
    facts: NodeFacts, context: JobContext
) -> Iterator[Finding]:
    since, begin, booted = context.since, context.begin, facts.booted
    first_needed = max(begin, booted + _BOOT_S) if booted else begin
    is_log_whole = (
        facts.kernel is not None
        and facts.log_begins is not None
        and facts.log_begins <= first_needed
    )
    yield from check_memory(
        facts.memory or Memory(),
        begins=None if since is None or booted is None else since - booted,
        is_log_whole=is_log_whole,
    )


def sort_by_confidence(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """
    Sort findings, most certain first and notes last.
    """
    return tuple(
        sorted(
            findings,
            key=lambda f: (f.cause.is_fine, CONFIDENCES.index(f.confidence)),
        )
    )


_Reader = Callable[[], Mapping[str, Any]]


def check_node(  # noqa: PLR0913 each is independent
    *,
    pids: Collection[int] = (),
    folders: Iterable[str | os.PathLike[str]] = (),
    ray_sessions: Iterable[str | os.PathLike[str]] = (),
    ranks: Mapping[int, int] | None = None,
    since: float | None = None,
    timeout_s: float = 10.0,
    now: float | None = None,
) -> NodeHealth:
    """
    Check whether this node works, and what is wrong with it.

    It needs no root permissions and changes nothing; what it may not read is
    listed as missing.

    Args:
        pids: The processes of the job on this node.

        folders: Folders that the job writes to, such as its checkpoint
            folder.

        ray_sessions: Folders of Ray sessions of this node, such as
            ``"/tmp/ray"``.

        ranks: Ranks by process ID.

        since: Start of the job, in seconds since the epoch; by default the
            start of the first of *pids*.

        timeout_s: Limit for all checks, in seconds.

        now: The time, in seconds since the epoch.
    """
    now = time.time() if now is None else now
    # NaN counts as zero.
    timeout_s = timeout_s if timeout_s > 0 else 0.0
    deadline = time.monotonic() + timeout_s
    readers = _readers(tuple(pids), list(folders), 0.9 * timeout_s)
    for path in ray_sessions:
        readers[f"Ray session {clean(os.fspath(path))}"] = partial(
            _read_ray, path, min(3.0, timeout_s / 2), now
        )
    values, missing = _run_readers(readers, deadline)
    booted = boot_time()
    facts = NodeFacts(
        host=socket.gethostname(), taken=now, booted=booted, **values
    )
    all_pids = {*pids, *(ranks or ())}
    started = first_start(all_pids)
    if since is None and started is not None:
        since = booted + started
    findings = check_node_facts(
        facts,
        ranks=ranks,
        pids=all_pids,
        since=since,
        # The kernel log has those.
        has_node_pids=has_node_pids(),
    )
    return NodeHealth(facts=facts, findings=findings, missing=tuple(missing))


def _readers(
    pids: tuple[int, ...],
    folders: list[str | os.PathLike[str]],
    limit_s: float,
) -> dict[str, _Reader]:
    """
    Return what reads the facts; all run at the same time.

    Args:
        limit_s: A little less than the limit of all, so that partial results
            arrive in time.
    """
    return {
        "GPUs": lambda: _read_gpus(limit_s),
        "kernel log": lambda: _read_kernel(limit_s),
        "disks": lambda: {"disks": read_disks(folders, timeout_s=limit_s)},
        "pressure": lambda: {"pressure": read_pressure()},
        "interfaces": lambda: {"interfaces": read_interfaces()},
        "InfiniBand": lambda: {"ib_ports": read_ib_ports()},
        "name of the node": lambda: {"name_address": _name_address()},
        "memory": lambda: {"memory": read_memory(pids)},
        "blocked processes": lambda: {"blocked": read_blocked_processes(pids)},
        "limits": lambda: {"limits": read_limits(pids or (os.getpid(),))},
    }


def _read_ray(
    path: str | os.PathLike[str], timeout_s: float, now: float
) -> dict[str, Any]:
    return {"ray": (read_ray_node(path, timeout_s=timeout_s, now=now),)}


def _read_gpus(timeout_s: float) -> dict[str, Any]:
    # An error is a fact, too.
    try:
        return {"gpus": read_gpus(timeout_s=timeout_s) or ()}
    except TimeoutError as exc:
        reason = str(exc) or f"did not answer within {timeout_s:.1f} s"
        return {"gpu_problem": reason, "gpu_wait_s": timeout_s}
    except OSError as exc:
        return {"gpu_problem": clean(reason_of(exc), limit=400)}


def _read_kernel(timeout_s: float) -> dict[str, Any]:
    log = read_kernel_log(timeout_s=timeout_s, keep=is_suspicious)
    return {"kernel": find_events(log.lines), "log_begins": log.begins}


def _name_address() -> str | None:
    try:
        return socket.gethostbyname(socket.gethostname())
    except (OSError, UnicodeError):
        return None


def _run_readers(
    readers: Mapping[str, _Reader], deadline: float
) -> tuple[dict[str, Any], list[Missing]]:
    values: dict[str, Any] = {}
    missing = []
    done = dict(
        map_with_timeout(
            lambda what: readers[what](),
            readers,
            deadline=deadline,
            threads=len(readers),
        )
    )
    for what in readers:
        future = done.get(what)
        if future is None:
            reason = "did not answer in time"
        elif error := future.exception():
            reason = clean(reason_of(error), limit=400)
        else:
            answer = dict(future.result())
            if "ray" in answer:
                answer["ray"] = (*values.get("ray", ()), *answer["ray"])
            values |= answer
            reason = str(answer.get("gpu_problem", ""))
        if reason:
            missing.append(Missing(what=what, reason=reason))
    missing += [
        Missing(what="disk", reason=disk.problem, source=clean(disk.path))
        for disk in values.get("disks", ())
        if disk.problem
    ]
    return values, missing
