"""
Check a node: GPUs, kernel log, memory, disks, network, and Ray.
"""

from __future__ import annotations

import os
import socket
import time

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from .._in_time import answers_in_time
from .._render import Block, Lines, Shown
from .._text import clean, reason_of, size_text
from ..findings import Finding, Missing
from ..processes import parse_stat, read_link, read_proc
from .gpu import Gpu, check_gpu_driver, check_gpus, parse_gpu_row, read_gpus
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
from .kernel import (
    JobContext,
    KernelEvent,
    check_kernel_events,
    find_events,
    is_suspicious,
    parse_kernel_lines,
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
    check_network,
    interface_kind,
    read_ib_ports,
    read_interfaces,
)
from .ray_node import RayNode, check_ray_node, read_ray_node
from .worker_environment import public_variables


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

        memory: Its memory, and that of the control groups of the job.

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

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data for JSON.
        """
        plain: dict[str, Any] = _to_plain(self)
        return plain


@attrs.frozen(kw_only=True)
class NodeHealth(Shown):
    """
    The state of a node, with findings.

    Attributes:
        facts: What was read.

        findings: What is wrong, most certain first; ``"possible"`` ones may
            not concern the job.

        missing: What could not be read, and why.
    """

    facts: NodeFacts
    findings: tuple[Finding, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """
        Return whether no finding is more than possible.
        """
        return _is_healthy(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data for JSON.
        """
        return {"facts": self.facts.to_dict()} | _to_plain_health(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per finding, for a data frame.
        """
        return [f.to_dict() for f in self.findings]

    def _blocks_(self) -> Iterable[Block]:
        lines = [f"{self.facts.host}: {_summary(self.facts)}"]
        yield Lines(
            [*lines, *_finding_lines(self.findings, self.missing)], _MAX_LINES
        )


@attrs.frozen(kw_only=True)
class EnvironmentHealth(Shown):
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
    findings: tuple[Finding, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """
        Return whether no finding is more than possible.
        """
        return _is_healthy(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data for JSON.
        """
        counts = {"hosts": list(self.hosts), "processes": self.processes}
        return counts | _to_plain_health(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per finding, for a data frame.
        """
        return [f.to_dict() for f in self.findings]

    def _blocks_(self) -> Iterable[Block]:
        if not (self.processes or self.findings or self.missing):
            line = "no environments were compared: there is no worker of a job"
            yield Lines([line], _MAX_LINES)
            return

        line = (
            f"{_count_text(self.processes, 'environment')} of "
            f"{_count_text(len(self.hosts), 'node')}"
        )
        yield Lines(
            [line, *_finding_lines(self.findings, self.missing)], _MAX_LINES
        )


def _count_text(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _is_healthy(findings: tuple[Finding, ...]) -> bool:
    return all(f.cause.is_fine or f.confidence == "possible" for f in findings)


def _to_plain_health(health: NodeHealth | EnvironmentHealth) -> dict[str, Any]:
    return {
        "healthy": health.is_healthy,
        "findings": [f.to_dict() for f in health.findings],
        "missing": [attrs.asdict(m) for m in health.missing],
    }


def _finding_lines(
    findings: tuple[Finding, ...], missing: tuple[Missing, ...]
) -> list[str]:
    lines = []
    for finding in findings:
        label = "note" if finding.cause.is_fine else finding.confidence
        lines.append(f"- {finding.summary.removeprefix('note: ')} ({label})")
        if finding.remedy:
            lines.append(f"  {finding.remedy}")
    if not findings:
        lines.append("nothing is wrong, as far as can be seen")
    lines += [f"not seen: {m.what}: {m.reason}" for m in missing]
    return lines


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


def _to_plain(value: Any) -> Any:
    if attrs.has(type(value)):
        names = (a.name for a in attrs.fields(type(value)))
        return {name: _to_plain(getattr(value, name)) for name in names}
    if isinstance(value, (tuple, list)):
        return [_to_plain(item) for item in value]
    return dict(value) if isinstance(value, dict) else value


_CONFIDENCE_ORDER = {"certain": 0, "likely": 1, "possible": 2}
# The kernel log is complete if its first message is this soon after boot.
_BOOT_S = 60.0


def check_node_facts(
    facts: NodeFacts,
    *,
    ranks: Mapping[int, int] | None = None,
    pids: Collection[int] = (),
    since: float | None = None,
    has_node_pids: bool = True,
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
    """
    known_ranks = dict(ranks or {})
    context = JobContext(
        host=facts.host,
        now=facts.taken,
        since=since,
        ranks=known_ranks if has_node_pids else {},
        pids=frozenset(pids if has_node_pids else ()),
        gpus=facts.gpus or (),
    )
    return sort_by_confidence(
        [
            *check_kernel_events(facts.kernel or (), context),
            *_check_devices(facts, context.ranks),
            *_check_node_memory(facts, since, context.begin),
            *_check_processes(facts, known_ranks, pids),
        ]
    )


def _check_devices(
    facts: NodeFacts, ranks: Mapping[int, int]
) -> Iterator[Finding]:
    host = facts.host
    yield from check_gpus(facts.gpus or (), host=host, ranks=ranks)
    yield from check_gpu_driver(
        facts.gpu_problem, host=host, waited_s=facts.gpu_wait_s
    )
    yield from check_disks(facts.disks or (), host=host)
    yield from check_network(
        facts.interfaces or (), facts.ib_ports or (), host=host
    )
    for node in facts.ray or ():
        yield from check_ray_node(node, host=host)


def _check_node_memory(
    facts: NodeFacts, since: float | None, begin: float
) -> Iterator[Finding]:
    if facts.pressure is not None:
        yield from check_pressure(facts.pressure, host=facts.host)
    if facts.memory is not None:
        yield from check_memory(
            facts.memory,
            host=facts.host,
            begins=_seconds_since_boot(since, facts.booted),
            is_log_whole=_covers_job(facts, begin),
        )


def _check_processes(
    facts: NodeFacts, ranks: Mapping[int, int], pids: Collection[int]
) -> Iterator[Finding]:
    yield from check_blocked_processes(
        facts.blocked or (), host=facts.host, ranks=ranks, pids=pids
    )
    has_rdma = any(x.state == "ACTIVE" for x in facts.ib_ports or ())
    yield from check_limits(
        facts.limits or (), host=facts.host, ranks=ranks, has_rdma=has_rdma
    )


def sort_by_confidence(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """
    Sort findings, most certain first and notes last.
    """
    return tuple(
        sorted(
            findings,
            key=lambda f: (f.cause.is_fine, _CONFIDENCE_ORDER[f.confidence]),
        )
    )


def _seconds_since_boot(
    time: float | None, booted: float | None
) -> float | None:
    return None if time is None or booted is None else time - booted


def _covers_job(facts: NodeFacts, begin: float) -> bool:
    if facts.kernel is None or facts.log_begins is None:
        return False
    if facts.booted and facts.log_begins < facts.booted + _BOOT_S:
        return True
    return facts.log_begins <= begin


# The initial PID namespace has the process IDs that the kernel reports.
_HOST_PID_NAMESPACE = "pid:[4026531836]"
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
    # NaN counts as zero.
    timeout_s = timeout_s if timeout_s > 0 else 0.0
    deadline = time.monotonic() + timeout_s
    taken = time.time() if now is None else now
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    readers = {
        **_node_readers(list(folders), timeout_s),
        **_job_readers(tuple(pids)),
        **_ray_readers(list(ray_sessions), timeout_s, taken),
    }
    values, missing = _run_readers(readers, deadline)
    facts = NodeFacts(
        host=socket.gethostname(), taken=taken, booted=booted, **values
    )
    all_pids = {*pids, *(ranks or ())}
    begin = _earliest_start(all_pids, booted) if since is None else since
    return NodeHealth(
        facts=facts,
        findings=check_node_facts(
            facts,
            ranks=ranks,
            pids=all_pids,
            since=begin,
            has_node_pids=read_link("/proc/self/ns/pid")
            == _HOST_PID_NAMESPACE,
        ),
        missing=(*missing, *_unreadable_disks(facts.disks or ())),
    )


def _unreadable_disks(disks: Iterable[Disk]) -> Iterator[Missing]:
    for disk in disks:
        if disk.problem:
            path = clean(disk.path)
            yield Missing(what="disk", reason=disk.problem, source=path)


def _node_readers(
    folders: list[str | os.PathLike[str]], timeout_s: float
) -> dict[str, _Reader]:
    # They run at the same time.  Each limit is a little below that of all, so
    # that partial results arrive in time.
    limit_s = 0.9 * timeout_s
    return {
        "GPUs": lambda: _read_gpus(limit_s),
        "kernel log": lambda: _read_kernel(limit_s),
        "disks": lambda: {"disks": read_disks(folders, timeout_s=limit_s)},
        "pressure": lambda: {"pressure": read_pressure()},
        "interfaces": lambda: {"interfaces": read_interfaces()},
        "InfiniBand": lambda: {"ib_ports": read_ib_ports()},
        "name of the node": lambda: {"name_address": _name_address()},
    }


def _job_readers(pids: tuple[int, ...]) -> dict[str, _Reader]:
    return {
        "memory": lambda: {"memory": read_memory(pids)},
        "blocked processes": lambda: {"blocked": read_blocked_processes(pids)},
        "limits": lambda: {"limits": read_limits(pids or (os.getpid(),))},
    }


def _ray_readers(
    sessions: list[str | os.PathLike[str]], timeout_s: float, now: float
) -> dict[str, _Reader]:
    limit_s = min(3.0, timeout_s / 2)
    return {
        f"Ray session {clean(os.fspath(path))}": partial(
            _read_ray, path, limit_s, now
        )
        for path in sessions
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
) -> tuple[dict[str, Any], tuple[Missing, ...]]:
    values: dict[str, Any] = {}
    missing = []
    answers = dict(
        answers_in_time(
            lambda item: _run_reader(item[1]),
            list(readers.items()),
            deadline,
            threads=len(readers),
        )
    )
    for item in readers.items():
        answer, reason = answers.get(item, ({}, "did not answer in time"))
        if "ray" in answer and "ray" in values:
            answer = {"ray": (*values["ray"], *answer["ray"])}
        values |= answer
        reason = reason or str(answer.get("gpu_problem", ""))
        if reason:
            missing.append(Missing(what=item[0], reason=reason))
    return values, tuple(missing)


def _run_reader(read: _Reader) -> tuple[Mapping[str, Any], str]:
    try:
        return read(), ""
    except Exception as exc:  # noqa: BLE001 keep the other facts
        reason = reason_of(exc)
        return {}, clean(reason, limit=400) or type(exc).__name__


def _earliest_start(pids: Iterable[int], booted: float) -> float | None:
    stats = (parse_stat(read_proc(f"/proc/{pid}/stat")) for pid in pids)
    ticks = min((x.start_ticks for x in stats if x), default=None)
    if ticks is None:
        return None

    return booted + ticks / os.sysconf("SC_CLK_TCK")


FACTS_LAYOUT = 1
"""The layout of ``node.json``; see :mod:`distdebug.snapshots`."""

_MAX_ENTRIES = 1 << 16
_MAX_STORED_LINES = 100_000
_MAX_NUMBER = 1e18
# The kernel reports start times in units of USER_HZ, which is always 100.
_TICKS_PER_S = 100


def check_node_json(
    node_json: Mapping[str, Any],
    *,
    host: str,
    ranks: Mapping[int, int] | None = None,
    since: float | None = None,
) -> tuple[Finding, ...]:
    """
    Return what was wrong with a node when a snapshot was taken.

    Args:
        node_json: The content of ``node.json``.

        ranks: Ranks by process ID.

        since: Start of the job, in seconds since the epoch; ``None`` if
            unknown.

    Returns:
        Findings, most certain first.
    """
    known_ranks = dict(ranks or {})
    facts = parse_node_json(node_json, host=host)
    return check_node_facts(
        facts, ranks=known_ranks, pids=known_ranks, since=since
    )


def parse_node_json(node_json: Mapping[str, Any], *, host: str) -> NodeFacts:
    """
    Parse the facts in a snapshot; what is malformed is left out.

    Args:
        node_json: The content of ``node.json``.
    """
    data = _as_dict(node_json)
    machine = _as_dict(data.get("machine"))
    taken = _as_number(data.get("taken")) or 0.0
    booted = _as_number(machine.get("booted"))
    return NodeFacts(
        host=clean(host),
        taken=taken,
        booted=booted,
        gpus=tuple(_parse_gpus(data.get("gpus"))),
        memory=_parse_memory(machine),
        kernel=_parse_kernel(data.get("kernel"), booted, taken),
        disks=tuple(_parse_disks(machine.get("disks"))),
        pressure=Pressure(cpus=_as_int(machine.get("cpus"))),
        interfaces=tuple(_parse_interfaces(data.get("interfaces"))) or None,
    )


def worker_environs(
    node_json: Mapping[str, Any],
) -> tuple[dict[str, str], ...]:
    """
    Return the environments of workers in a snapshot of their node.

    Args:
        node_json: The content of ``node.json``.

    Returns:
        One environment per worker, as
        :func:`~distdebug.health.environment_checks.check_environment` takes them.
    """
    environs = []
    for entry in _as_list(_as_dict(node_json).get("variables")):
        variables = _as_dict(_as_dict(entry).get("variables"))
        texts = {
            k: v
            for k, v in variables.items()
            if isinstance(k, str) and isinstance(v, str)
        }
        pids = _as_list(_as_dict(entry).get("pids"))
        environs += [
            public_variables(texts) for _ in pids[:_MAX_ENTRIES] or [0]
        ]
    return tuple(environs[:_MAX_ENTRIES])


def job_start_time(workers_json: Any, *, booted: float | None) -> float | None:
    """
    Return when the first worker in a snapshot of a node started.

    Args:
        workers_json: The content of ``workers.json``.

        booted: Boot time of the node, in seconds since the epoch.

    Returns:
        Seconds since the epoch; ``None`` if unknown.
    """
    values = (
        _as_dict(w).get("start_ticks")
        for w in _as_list(workers_json)[:_MAX_ENTRIES]
    )
    ticks = [t for t in map(_as_number, values) if t is not None and t > 0]
    if booted is None or not ticks:
        return None

    return booted + min(ticks) / _TICKS_PER_S


def _parse_gpus(data: Any) -> Iterator[Gpu]:
    for index, row in enumerate(_as_list(data)):
        texts = {
            k: v
            for k, v in _as_dict(row).items()
            if isinstance(k, str) and isinstance(v, str)
        }
        if texts:
            yield parse_gpu_row(texts, index=index)


def _parse_memory(machine: Mapping[str, Any]) -> Memory | None:
    memory, swap = (
        _as_dict(machine.get("memory")),
        _as_dict(machine.get("swap")),
    )
    if not memory:
        return None

    return Memory(
        total=_as_int(memory.get("total")),
        available=_as_int(memory.get("available")),
        swap_total=_as_int(swap.get("total")),
        swap_used=_as_int(swap.get("used")),
    )


def _parse_disks(data: Any) -> Iterator[Disk]:
    paths = {"tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108 names only
    for name, disk in list(_as_dict(data).items())[:_MAX_ENTRIES]:
        counts = _as_dict(disk)
        free_files = _as_int(counts.get("free_files"))
        text = clean(str(name))
        yield Disk(
            name=text,
            path=paths.get(text, f"the {text}"),
            total=_as_int(counts.get("total")),
            free=_as_int(counts.get("free")),
            # Snapshots may lack the total, and some file systems count none.
            files=_as_int(counts.get("files")),
            free_files=free_files,
        )


def _parse_kernel(
    data: Any, booted: float | None, taken: float
) -> tuple[KernelEvent, ...] | None:
    if not isinstance(data, list):
        return None

    lines = [x for x in data[:_MAX_STORED_LINES] if isinstance(x, str)]
    return find_events(
        parse_kernel_lines(lines, booted=booted or 0.0, now=taken or None)
    )


def _parse_interfaces(data: Any) -> Iterator[Interface]:
    for entry in _as_list(data)[:_MAX_ENTRIES]:
        fields = _as_dict(entry)
        name = fields.get("name")
        if isinstance(name, str):
            addresses = _as_list(fields.get("addresses"))
            yield Interface(
                name=clean(name),
                is_up=fields.get("is_up") is not False,
                addresses=tuple(
                    clean(x) for x in addresses if isinstance(x, str)
                ),
                kind=interface_kind(name),
            )


def _as_dict(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # JSON may hold integers that overflow a float.
    if not -_MAX_NUMBER < value < _MAX_NUMBER:
        return None
    return float(value)


def _as_int(value: Any) -> int | None:
    number = _as_number(value)
    return None if number is None else int(number)
