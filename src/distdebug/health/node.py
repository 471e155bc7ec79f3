"""
Is this node, with its GPUs and its network, able to work?
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
from .gpu import Gpu, gpu_of_row, judge_driver, judge_gpus, read_gpus
from .host import (
    Blocked,
    Disk,
    Limits,
    judge_blocked,
    judge_disks,
    judge_limits,
    read_blocked,
    read_disks,
    read_limits,
)
from .kernel import (
    Circumstances,
    KernelEvent,
    find_events,
    is_suspicious,
    judge_events,
    parse_kernel_lines,
    read_kernel_log,
)
from .memory import (
    Memory,
    Pressure,
    judge_memory,
    judge_pressure,
    read_memory,
    read_pressure,
)
from .network import (
    IbPort,
    Interface,
    interface_kind,
    judge_network,
    read_ib_ports,
    read_interfaces,
)
from .ray_node import RayNode, judge_ray, read_ray
from .worker_environment import public_variables


_MOST_LINES = 200


@attrs.frozen(kw_only=True)
class NodeFacts:
    """
    What was seen on a node.  ``None`` where it could not be looked at.

    Attributes:
        host: The node.

        taken: When, in seconds since the epoch.

        booted: When it was started.

        gpus: Its GPUs; empty if there is no way to ask for any.

        gpu_problem: Why its GPUs could not be asked, if they could not.

        gpu_wait_s: How long an answer of their driver was waited for in vain,
            in seconds; 0 if it answered, be it with an error.

        memory: Its memory, and that of the control groups of the job.

        kernel: What the kernel told of, and what is not over.

        log_begins: How far back the kernel's log goes.

        disks: The file systems that the job writes to.

        pressure: What processes wait for.

        blocked: Processes that are stuck in the kernel.

        limits: What the processes of the job may use.

        interfaces: Its network interfaces.

        ib_ports: The ports of its adapters for RDMA.

        ray: What shows of Ray, for each session that was asked for.

        name_address: The address that the name of the node stands for here.
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
        Plain data, fit for JSON.
        """
        told: dict[str, Any] = _plain(self)
        return told


@attrs.frozen(kw_only=True)
class NodeHealth(Shown):
    """
    Is a node able to work?

    Attributes:
        facts: What was seen.

        findings: What is wrong, the surest first; those that are only
            ``"possible"`` need not have to do with the job.

        missing: What could not be looked at, and why.
    """

    facts: NodeFacts
    findings: tuple[Finding, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """
        Whether nothing was found that is more than possible.
        """
        return _is_healthy(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data, fit for JSON.
        """
        return {"facts": self.facts.to_dict()} | _told(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per finding, for a data frame.
        """
        return [f.to_dict() for f in self.findings]

    def _blocks_(self) -> Iterable[Block]:
        lines = [f"{self.facts.host}: {_seen(self.facts)}"]
        yield Lines(
            [*lines, *_lines(self.findings, self.missing)], _MOST_LINES
        )


@attrs.frozen(kw_only=True)
class EnvironmentHealth(Shown):
    """
    Do the variables of the workers fit their nodes, and each other?

    Attributes:
        hosts: The nodes.

        processes: How many environments were compared.

        findings: What is wrong, the surest first, and notes about what is
            slow; notes are fine, and say so by their cause.

        missing: What could not be looked at, and why.
    """

    hosts: tuple[str, ...] = ()
    processes: int = 0
    findings: tuple[Finding, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """
        Whether nothing was found that is more than possible.
        """
        return _is_healthy(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data, fit for JSON.
        """
        counts = {"hosts": list(self.hosts), "processes": self.processes}
        return counts | _told(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per finding, for a data frame.
        """
        return [f.to_dict() for f in self.findings]

    def _blocks_(self) -> Iterable[Block]:
        if not (self.processes or self.findings or self.missing):
            line = "no environments were compared: there is no worker of a job"
            yield Lines([line], _MOST_LINES)
            return

        line = (
            f"{_counted(self.processes, 'environment')} of "
            f"{_counted(len(self.hosts), 'node')}"
        )
        yield Lines([line, *_lines(self.findings, self.missing)], _MOST_LINES)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _is_healthy(findings: tuple[Finding, ...]) -> bool:
    return all(f.cause.is_fine or f.confidence == "possible" for f in findings)


def _told(health: NodeHealth | EnvironmentHealth) -> dict[str, Any]:
    return {
        "healthy": health.is_healthy,
        "findings": [f.to_dict() for f in health.findings],
        "missing": [attrs.asdict(m) for m in health.missing],
    }


def _lines(
    findings: tuple[Finding, ...], missing: tuple[Missing, ...]
) -> list[str]:
    lines = []
    for finding in findings:
        sure = "note" if finding.cause.is_fine else finding.confidence
        lines.append(f"- {finding.summary.removeprefix('note: ')} ({sure})")
        if finding.remedy:
            lines.append(f"  {finding.remedy}")
    if not findings:
        lines.append("nothing is wrong, as far as can be seen")
    lines += [f"not seen: {m.what}: {m.reason}" for m in missing]
    return lines


def _seen(facts: NodeFacts) -> str:
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


def _plain(value: Any) -> Any:
    if attrs.has(type(value)):
        names = (a.name for a in attrs.fields(type(value)))
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, dict) else value


_ORDER = {"certain": 0, "likely": 1, "possible": 2}
# The first messages of a kernel are about its start.
_START_S = 60.0


def judge_facts(
    facts: NodeFacts,
    *,
    ranks: Mapping[int, int] | None = None,
    pids: Collection[int] = (),
    since: float | None = None,
    has_node_pids: bool = True,
) -> tuple[Finding, ...]:
    """
    Tell what is wrong with a node.

    Args:
        facts: What was seen on it.

        ranks: The rank of each process that is known.

        pids: The processes of the job.

        since: When the job began, in seconds since the epoch; ``None`` if
            unknown: then what happened within a day may have to do with it.

        has_node_pids: Whether processes have the numbers here that the kernel
            and the driver tell; in a container they mostly do not.

    Returns:
        What was found, the surest first.
    """
    known = dict(ranks or {})
    about = Circumstances(
        host=facts.host,
        now=facts.taken,
        since=since,
        ranks=known if has_node_pids else {},
        pids=frozenset(pids if has_node_pids else ()),
        gpus=facts.gpus or (),
    )
    return by_confidence(
        [
            *judge_events(facts.kernel or (), about),
            *_of_devices(facts, about.ranks),
            *_of_memory(facts, since, about.begin),
            *_of_processes(facts, known, pids),
        ]
    )


def _of_devices(
    facts: NodeFacts, ranks: Mapping[int, int]
) -> Iterator[Finding]:
    host = facts.host
    yield from judge_gpus(facts.gpus or (), host=host, ranks=ranks)
    yield from judge_driver(
        facts.gpu_problem, host=host, waited_s=facts.gpu_wait_s
    )
    yield from judge_disks(facts.disks or (), host=host)
    yield from judge_network(
        facts.interfaces or (), facts.ib_ports or (), host=host
    )
    for node in facts.ray or ():
        yield from judge_ray(node, host=host)


def _of_memory(
    facts: NodeFacts, since: float | None, begin: float
) -> Iterator[Finding]:
    if facts.pressure is not None:
        yield from judge_pressure(facts.pressure, host=facts.host)
    if facts.memory is not None:
        yield from judge_memory(
            facts.memory,
            host=facts.host,
            begins=_since_boot(since, facts.booted),
            is_log_whole=_is_whole(facts, begin),
        )


def _of_processes(
    facts: NodeFacts, ranks: Mapping[int, int], pids: Collection[int]
) -> Iterator[Finding]:
    yield from judge_blocked(
        facts.blocked or (), host=facts.host, ranks=ranks, pids=pids
    )
    has_rdma = any(x.state == "ACTIVE" for x in facts.ib_ports or ())
    yield from judge_limits(
        facts.limits or (), host=facts.host, ranks=ranks, has_rdma=has_rdma
    )


def by_confidence(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """
    Sort findings, the surest first and notes last.
    """
    return tuple(
        sorted(findings, key=lambda f: (f.cause.is_fine, _ORDER[f.confidence]))
    )


def _since_boot(time: float | None, booted: float | None) -> float | None:
    return None if time is None or booted is None else time - booted


def _is_whole(facts: NodeFacts, begin: float) -> bool:
    if facts.kernel is None or facts.log_begins is None:
        return False
    if facts.booted and facts.log_begins < facts.booted + _START_S:
        return True
    return facts.log_begins <= begin


# Of the whole kernel: its processes have the numbers that it tells.
_FIRST_SPACE = "pid:[4026531836]"
_Read = Callable[[], Mapping[str, Any]]


def check_node(  # noqa: PLR0913 each is a question of its own
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
    Tell whether this node is able to work, and what is wrong with it.

    Nothing is changed, nothing is left running, and no right of an
    administrator is needed; what may not be seen is told.

    Args:
        pids: The processes of the job on this node.

        folders: Folders that the job writes to, such as that of its
            checkpoints.

        ray_sessions: Folders of Ray sessions of this node, such as
            ``"/tmp/ray"``.

        ranks: The rank of each process that is known.

        since: When the job began, in seconds since the epoch; by default when
            the first of *pids* started.

        timeout_s: How long it may take in all, in seconds.

        now: The time, in seconds since the epoch.

    Returns:
        The facts, what is wrong, and what could not be seen and why.
    """
    # Not a number is no time at all.
    timeout_s = timeout_s if timeout_s > 0 else 0.0
    deadline = time.monotonic() + timeout_s
    when = time.time() if now is None else now
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    wanted = {
        **_node_parts(list(folders), timeout_s),
        **_job_parts(tuple(pids)),
        **_ray_parts(list(ray_sessions), timeout_s, when),
    }
    known, missing = _learn(wanted, deadline)
    facts = NodeFacts(
        host=socket.gethostname(), taken=when, booted=booted, **known
    )
    everybody = {*pids, *(ranks or ())}
    begin = _first_start(everybody, booted) if since is None else since
    return NodeHealth(
        facts=facts,
        findings=judge_facts(
            facts,
            ranks=ranks,
            pids=everybody,
            since=begin,
            has_node_pids=read_link("/proc/self/ns/pid") == _FIRST_SPACE,
        ),
        missing=(*missing, *_absent(facts.disks or ())),
    )


def _absent(disks: Iterable[Disk]) -> Iterator[Missing]:
    for disk in disks:
        if disk.problem:
            path = clean(disk.path)
            yield Missing(what="disk", reason=disk.problem, source=path)


def _node_parts(
    folders: list[str | os.PathLike[str]], timeout_s: float
) -> dict[str, _Read]:
    # They run at the same time; the bound of each is a little below that of
    # all, so that it can still tell what it has.
    bound = 0.9 * timeout_s
    return {
        "GPUs": lambda: _gpus(bound),
        "kernel log": lambda: _kernel(bound),
        "disks": lambda: {"disks": read_disks(folders, timeout_s=bound)},
        "pressure": lambda: {"pressure": read_pressure()},
        "interfaces": lambda: {"interfaces": read_interfaces()},
        "InfiniBand": lambda: {"ib_ports": read_ib_ports()},
        "name of the node": lambda: {"name_address": _own_address()},
    }


def _job_parts(pids: tuple[int, ...]) -> dict[str, _Read]:
    return {
        "memory": lambda: {"memory": read_memory(pids)},
        "blocked processes": lambda: {"blocked": read_blocked(pids)},
        "limits": lambda: {"limits": read_limits(pids or (os.getpid(),))},
    }


def _ray_parts(
    sessions: list[str | os.PathLike[str]], timeout_s: float, now: float
) -> dict[str, _Read]:
    bound = min(3.0, timeout_s / 2)
    return {
        f"Ray session {clean(os.fspath(path))}": partial(
            _ray, path, bound, now
        )
        for path in sessions
    }


def _ray(
    path: str | os.PathLike[str], timeout_s: float, now: float
) -> dict[str, Any]:
    return {"ray": (read_ray(path, timeout_s=timeout_s, now=now),)}


def _gpus(timeout_s: float) -> dict[str, Any]:
    # That they cannot be asked is a fact, too.
    try:
        return {"gpus": read_gpus(timeout_s=timeout_s) or ()}
    except TimeoutError as exc:
        why = str(exc) or f"did not answer within {timeout_s:.1f} s"
        return {"gpu_problem": why, "gpu_wait_s": timeout_s}
    except OSError as exc:
        return {"gpu_problem": clean(reason_of(exc), limit=400)}


def _kernel(timeout_s: float) -> dict[str, Any]:
    log = read_kernel_log(timeout_s=timeout_s, keep=is_suspicious)
    return {"kernel": find_events(log.lines), "log_begins": log.begins}


def _own_address() -> str | None:
    try:
        return socket.gethostbyname(socket.gethostname())
    except (OSError, UnicodeError):
        return None


def _learn(
    wanted: Mapping[str, _Read], deadline: float
) -> tuple[dict[str, Any], tuple[Missing, ...]]:
    known: dict[str, Any] = {}
    missing = []
    answers = dict(
        answers_in_time(
            lambda item: _try(item[1]),
            list(wanted.items()),
            deadline,
            threads=len(wanted),
        )
    )
    for item in wanted.items():
        got, why = answers.get(item, ({}, "did not answer in time"))
        if "ray" in got and "ray" in known:
            got = {"ray": (*known["ray"], *got["ray"])}
        known |= got
        why = why or str(got.get("gpu_problem", ""))
        if why:
            missing.append(Missing(what=item[0], reason=why))
    return known, tuple(missing)


def _try(read: _Read) -> tuple[Mapping[str, Any], str]:
    try:
        return read(), ""
    except Exception as exc:  # noqa: BLE001 the other facts are worth it
        why = reason_of(exc)
        return {}, clean(why, limit=400) or type(exc).__name__


def _first_start(pids: Iterable[int], booted: float) -> float | None:
    stats = (parse_stat(read_proc(f"/proc/{pid}/stat")) for pid in pids)
    ticks = min((x.start_ticks for x in stats if x), default=None)
    if ticks is None:
        return None

    return booted + ticks / os.sysconf("SC_CLK_TCK")


FACTS_LAYOUT = 1
"""The layout of ``node.json``; see :mod:`distdebug.snapshots`."""

_MOST = 1 << 16
_STORED_MOST_LINES = 100_000
_HUGE = 1e18
# In these the kernel counts for all programs, whatever its own clock is.
_TICKS_PER_S = 100


def judge_node_facts(
    node_json: Mapping[str, Any],
    *,
    host: str,
    ranks: Mapping[int, int] | None = None,
    since: float | None = None,
) -> tuple[Finding, ...]:
    """
    Tell what was wrong with a node when a snapshot was taken.

    Args:
        node_json: What stands in its ``node.json``.

        host: The node.

        ranks: The rank of each process that is known.

        since: When the job began, in seconds since the epoch; ``None`` if
            unknown.

    Returns:
        What was found, the surest first.
    """
    known = dict(ranks or {})
    facts = node_facts(node_json, host=host)
    return judge_facts(facts, ranks=known, pids=known, since=since)


def node_facts(node_json: Mapping[str, Any], *, host: str) -> NodeFacts:
    """
    Understand the facts in a snapshot.

    Args:
        node_json: What stands in ``node.json``.

        host: The node.

    Returns:
        What is known; what is not understood is left out.
    """
    whole = _dict(node_json)
    machine = _dict(whole.get("machine"))
    taken = _number(whole.get("taken")) or 0.0
    booted = _number(machine.get("booted"))
    return NodeFacts(
        host=clean(host),
        taken=taken,
        booted=booted,
        gpus=tuple(_stored_gpus(whole.get("gpus"))),
        memory=_memory(machine),
        kernel=_stored_kernel(whole.get("kernel"), booted, taken),
        disks=tuple(_disks(machine.get("disks"))),
        pressure=Pressure(cpus=_whole(machine.get("cpus"))),
        interfaces=tuple(_interfaces(whole.get("interfaces"))) or None,
    )


def environs_of(node_json: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    """
    Find the environments of the workers in a snapshot of their node.

    Args:
        node_json: What stands in ``node.json``.

    Returns:
        One environment for each worker, as
        :func:`~distdebug.health.environment.check_environment` takes them.
    """
    found = []
    for entry in _list(_dict(node_json).get("variables")):
        told = _dict(_dict(entry).get("variables"))
        texts = {
            k: v
            for k, v in told.items()
            if isinstance(k, str) and isinstance(v, str)
        }
        pids = _list(_dict(entry).get("pids"))
        found += [public_variables(texts) for _ in pids[:_MOST] or [0]]
    return tuple(found[:_MOST])


def job_start(workers_json: Any, *, booted: float | None) -> float | None:
    """
    When did the job on a node begin, as a snapshot tells?

    Args:
        workers_json: What stands in ``workers.json``.

        booted: When the node was started, in seconds since the epoch.

    Returns:
        When the first of its workers was started, in seconds since the epoch;
        ``None`` if that is unknown.
    """
    told = (_dict(w).get("start_ticks") for w in _list(workers_json)[:_MOST])
    ticks = [t for t in map(_number, told) if t is not None and t > 0]
    if booted is None or not ticks:
        return None

    return booted + min(ticks) / _TICKS_PER_S


def _stored_gpus(told: Any) -> Iterator[Gpu]:
    for index, row in enumerate(_list(told)):
        texts = {
            k: v
            for k, v in _dict(row).items()
            if isinstance(k, str) and isinstance(v, str)
        }
        if texts:
            yield gpu_of_row(texts, index=index)


def _memory(machine: Mapping[str, Any]) -> Memory | None:
    memory, swap = _dict(machine.get("memory")), _dict(machine.get("swap"))
    if not memory:
        return None

    return Memory(
        total=_whole(memory.get("total")),
        available=_whole(memory.get("available")),
        swap_total=_whole(swap.get("total")),
        swap_used=_whole(swap.get("used")),
    )


def _disks(told: Any) -> Iterator[Disk]:
    paths = {"tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108 names only
    for name, disk in list(_dict(told).items())[:_MOST]:
        counts = _dict(disk)
        free_files = _whole(counts.get("free_files"))
        text = clean(str(name))
        yield Disk(
            name=text,
            path=paths.get(text, f"the {text}"),
            total=_whole(counts.get("total")),
            free=_whole(counts.get("free")),
            # How many there are was not kept, and some count none.
            files=_whole(counts.get("files")),
            free_files=free_files,
        )


def _stored_kernel(
    told: Any, booted: float | None, taken: float
) -> tuple[KernelEvent, ...] | None:
    if not isinstance(told, list):
        return None

    lines = [x for x in told[:_STORED_MOST_LINES] if isinstance(x, str)]
    return find_events(
        parse_kernel_lines(lines, booted=booted or 0.0, now=taken or None)
    )


def _interfaces(told: Any) -> Iterator[Interface]:
    for entry in _list(told)[:_MOST]:
        known = _dict(entry)
        name = known.get("name")
        if isinstance(name, str):
            addresses = _list(known.get("addresses"))
            yield Interface(
                name=clean(name),
                is_up=known.get("is_up") is not False,
                addresses=tuple(
                    clean(x) for x in addresses if isinstance(x, str)
                ),
                kind=interface_kind(name),
            )


def _dict(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # JSON knows whole numbers that are too large for any machine.
    if not -_HUGE < value < _HUGE:
        return None
    return float(value)


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
