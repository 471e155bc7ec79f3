"""
Do the variables of the workers fit their nodes, and each other?
"""

from __future__ import annotations

import socket
import time

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from .._text import list_text
from ..findings import Cause, Confidence, Evidence, Finding, Missing
from ..processes import Worker
from .network import (
    judge_devices,
    judge_sockets,
    read_ib_ports,
    read_interfaces,
)
from .node import EnvironmentHealth, NodeFacts, NodeHealth, by_confidence
from .worker_environment import (
    ADDRESS,
    PORT,
    Settings,
    Team,
    by_job,
    read_settings,
    teams,
    those_of_ranks,
)


# Of each node, or of one rank that prints for all.
_OWN = (
    *("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"),
    *("NCCL_TOPO_", "NCCL_GRAPH_", "NCCL_HOSTID", "NCCL_COMM_ID"),
    *("NCCL_IGNORE_CPU_AFFINITY", "NCCL_CONF_FILE", "NCCL_TUNER_CONFIG"),
    *("NCCL_RAS_", "NCCL_PROFILER_", "NCCL_NET_PLUGIN", "NCCL_IB_ROCE_"),
    *("NCCL_CUDA_PATH", "NCCL_ROOT", "NCCL_HOME", "NCCL_VERSION"),
    *("NCCL_INCLUDE", "NCCL_LIB"),
)
# Those by which ranks can no longer talk to each other.
_TALK = frozenset(
    {
        *("NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_IB_DISABLE"),
        *("NCCL_SOCKET_FAMILY", "NCCL_BUFFSIZE", "NCCL_NVLS_ENABLE"),
        *("NCCL_COLLNET_ENABLE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
        *("NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_NTHREADS"),
        *("NCCL_P2P_NET_CHUNKSIZE", "NCCL_CROSS_NIC", "NCCL_MNNVL_ENABLE"),
        "NCCL_P2P_NVL_CHUNKSIZE",
    }
)


def judge_alike(settings: Iterable[Settings]) -> tuple[Finding, ...]:
    """
    Tell which settings differ within a job.

    Args:
        settings: The variables of all processes.

    Returns:
        What was found.
    """
    return tuple(
        finding
        for members in teams(settings).values()
        if len(members) > 1
        for finding in _judge(members)
    )


def _judge(members: list[Settings]) -> Iterator[Finding]:
    names = {
        name
        for x in members
        for name in x.variables
        if name.startswith(("NCCL_", "RCCL_")) and not name.startswith(_OWN)
    }
    for name in sorted(names):
        values: dict[str | None, list[Settings]] = defaultdict(list)
        for x in members:
            values[x.variables.get(name)].append(x)
        if len(values) > 1:
            yield _finding(name, values)


def _finding(name: str, values: dict[str | None, list[Settings]]) -> Finding:
    parts = sorted(values.items(), key=lambda item: len(item[1]))
    few = parts[0][1]
    told = [
        f"{'unset' if value is None else value} "
        f"({list_text((x.name for x in who), most=3)})"
        for value, who in parts
    ]
    ranks = sorted({x.rank for x in few if x.rank is not None})
    return Finding(
        cause=Cause.NETWORK_MISCONFIGURED,
        ranks=tuple(ranks),
        summary=f"{name} differs between ranks: {list_text(told)}",
        confidence="likely" if name in _TALK else "possible",
        remedy="give all ranks of a job the same settings of NCCL, also by "
        "/etc/nccl.conf and ~/.nccl.conf",
        evidence=tuple(
            Evidence(
                kind="environment",
                source=who[0].host,
                location=who[0].name,
                quote=f"{name} unset" if value is None else f"{name}={value}",
            )
            for value, who in parts[:4]
        ),
    )


_Test = Callable[[str | None], bool]


class _Note(NamedTuple):
    """
    What to say if a variable has such a value.
    """

    name: str
    test: _Test
    says: str
    advice: str


def _is_on(value: str | None) -> bool:
    return (value or "").strip().lower() in {"1", "true", "y", "yes", "on"}


def _is_set(value: str | None) -> bool:
    return value is not None


def _has(*words: str) -> _Test:
    return lambda value: (value or "").strip().upper() in words


_NOTES = (
    _Note(
        "CUDA_LAUNCH_BLOCKING",
        _is_on,
        "waits for every kernel, which is slow, and can hang jobs that "
        "overlap collectives",
        "unset it when the error is found",
    ),
    _Note(
        "TORCH_DISTRIBUTED_DEBUG",
        _has("DETAIL"),
        "compares every collective before it starts, which is slow",
        "unset it, or set it to INFO, when the error is found",
    ),
    _Note(
        "NCCL_DEBUG",
        _has("TRACE"),
        "writes a line for every call, which is slow and fills disks",
        "set it to INFO or WARN",
    ),
    _Note(
        "TORCHSPEC_LOG_LEVEL",
        _has("DEBUG", "TRACE"),
        "writes details of every step",
        "set it to INFO when the error is found",
    ),
    _Note(
        "TORCH_NCCL_BLOCKING_WAIT",
        _is_on,
        "makes the program wait for each collective, and turns off the "
        "handling of errors in the background",
        "unset it",
    ),
    _Note(
        "NCCL_BLOCKING_WAIT",
        _is_set,
        "is an old name, which newer torch reads no more",
        "use TORCH_NCCL_BLOCKING_WAIT, if it is meant",
    ),
    _Note(
        "NCCL_ASYNC_ERROR_HANDLING",
        _is_set,
        "is an old name, which newer torch reads no more",
        "use TORCH_NCCL_ASYNC_ERROR_HANDLING",
    ),
    _Note(
        "NCCL_DESYNC_DEBUG",
        _is_set,
        "is an old name, which newer torch reads no more",
        "use TORCH_NCCL_DESYNC_DEBUG",
    ),
    _Note(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        _has("0"),
        "lets ranks hang for ever when a collective fails or times out",
        "unset it",
    ),
    _Note(
        "TORCH_NCCL_ENABLE_MONITORING",
        _has("0", "FALSE"),
        "turns off the watch that ends a job whose watchdog hangs",
        "unset it",
    ),
    _Note(
        "NCCL_P2P_DISABLE",
        _is_on,
        "lets GPUs of a node talk by way of the memory of the host, which is "
        "slow",
        "unset it, unless it is meant to work around a fault",
    ),
    _Note(
        "NCCL_SHM_DISABLE",
        _is_on,
        "lets ranks of a node talk by sockets, which is slow",
        "unset it, and give the container enough shared memory",
    ),
)


def judge_notes(
    settings: Iterable[Settings], *, may_use_nccl: bool = True
) -> tuple[Finding, ...]:
    """
    Tell which settings are worth a note.

    Args:
        settings: The variables of all processes.

        may_use_nccl: Whether there is a GPU for which NCCL could be of use.

    Returns:
        Findings that say that nothing is wrong.
    """
    every = tuple(settings)
    found = []
    for note in _NOTES:
        users: dict[str, list[Settings]] = defaultdict(list)
        for x in every:
            value = x.variables.get(note.name)
            if note.test(value):
                users[value or ""].append(x)
        for value, who in users.items():
            says = f"{note.name}={value} {note.says}"
            found.append(_notes_finding(says, note.advice, who))
    silent = [x for x in every if _records_nothing(x.variables)]
    if silent:
        says = "the Flight Recorder of torch is off (its buffer has size 0)"
        advice = "set TORCH_FR_BUFFER_SIZE and TORCH_NCCL_TRACE_BUFFER_SIZE"
        found.append(_notes_finding(says, f"{advice} to 2000 or more", silent))
    tells = any(_tells_of_nccl(x.variables) for x in every)
    if every and may_use_nccl and not tells:
        says = "NCCL_DEBUG is not set, so NCCL says little of its errors"
        found.append(
            _notes_finding(says, "set NCCL_DEBUG=WARN, or INFO", every)
        )
    return tuple(found)


def _records_nothing(variables: Mapping[str, str]) -> bool:
    # The first that is set counts.
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    return next((variables[x] for x in names if x in variables), "") == "0"


def _tells_of_nccl(variables: Mapping[str, str]) -> bool:
    return bool(variables.get("NCCL_DEBUG"))


def _notes_finding(says: str, advice: str, who: Iterable[Settings]) -> Finding:
    users = tuple(who)
    return Finding(
        cause=Cause.HEALTHY,
        ranks=tuple(sorted({x.rank for x in users if x.rank is not None})),
        summary=f"note: {says}",
        confidence="possible",
        remedy=advice,
        evidence=(
            Evidence(
                kind="environment",
                source=list_text(sorted({x.host for x in users})),
                location=list_text(x.name for x in users),
            ),
        ),
    )


_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def judge_ranks(settings: Iterable[Settings]) -> tuple[Finding, ...]:
    """
    Tell which ranks do not fit the others.

    Args:
        settings: All processes.

    Returns:
        What was found.
    """
    parted = teams(x for x in settings if x.rank is not None)
    found: list[Finding] = []
    for members in parted.values():
        found += _numbers(members)
        found += _gpus(members)
    found += _sizes(parted)
    found += _places(parted)
    return tuple(found)


def _numbers(members: list[Settings]) -> Iterator[Finding]:
    size = members[0].world_size
    beyond = [x for x in members if size is not None and _rank(x) >= size]
    if beyond:
        yield _ranks_finding(
            Cause.NODE_MISCONFIGURED,
            "certain",
            beyond,
            f"{beyond[0].name} does not exist in a job of {size} ranks",
            "set RANK from 0 to WORLD_SIZE - 1",
        )
    if not members[0].variables.get(ADDRESS):
        return  # they may be of several jobs
    same: dict[int, list[Settings]] = defaultdict(list)
    for x in members:
        same[_rank(x)].append(x)
    twice = [x for x in same.values() if len(x) > 1]
    if twice:
        who = list_text(f"rank {_rank(x[0])}" for x in twice)
        yield _ranks_finding(
            Cause.NODE_MISCONFIGURED,
            "likely",
            [y for x in twice for y in x],
            f"several processes of the same job call themselves {who}, on "
            f"{list_text(sorted({y.host for x in twice for y in x}))}",
            "give every process a RANK of its own; on several nodes mostly "
            "the number of the node (--node-rank) is wrong",
        )


def _gpus(members: list[Settings]) -> Iterator[Finding]:
    same: dict[tuple[str, str], list[Settings]] = defaultdict(list)
    for x in members:
        name = next((n for n in _GPUS if n in x.variables), "")
        value = x.variables.get(name, "").strip()
        # With several, each rank chooses its own by its LOCAL_RANK.
        if value and "," not in value and value not in {"-1", "all"}:
            same[x.host, value].append(x)
    for (host, value), users in same.items():
        if len({_rank(x) for x in users}) < 2:
            continue
        who = list_text(x.name for x in users)
        yield _ranks_finding(
            Cause.NODE_MISCONFIGURED,
            "likely" if _sees_all_gpus(users) else "possible",
            users,
            f"{who} share GPU {value} of {host}",
            "give every rank a GPU of its own: NCCL refuses two ranks on one",
        )


def _sees_all_gpus(users: list[Settings]) -> bool:
    """
    Whether the number of a GPU means the same to all of them.

    It may not if they are of several jobs, and not under Slurm, which can
    give each task GPUs of its own that all begin with number 0.
    """
    first = users[0].variables
    return bool(first.get(ADDRESS)) and "SLURM_PROCID" not in first


def _sizes(parted: dict[Team, list[Settings]]) -> Iterator[Finding]:
    sizes: dict[tuple[str, str, str], dict[int, list[Settings]]] = defaultdict(
        dict
    )
    for team, members in parted.items():
        if team.address and team.port and team.size is not None:
            place = (team.address, team.port, team.host)
            sizes[place][team.size] = members
    for (address, port, _), several in sizes.items():
        if len(several) > 1:
            few = min(several.values(), key=len)
            yield _ranks_finding(
                Cause.NODE_MISCONFIGURED,
                "likely",
                few,
                f"ranks that meet at {address}:{port} do not agree on "
                f"WORLD_SIZE: {list_text(sorted(several))}",
                "start all nodes with the same number of nodes and of ranks "
                "per node",
            )


def _places(parted: dict[Team, list[Settings]]) -> Iterator[Finding]:
    """
    Parts of one job that wait for each other at different places.
    """
    by_size: dict[tuple[int, str], list[Team]] = defaultdict(list)
    for team in parted:
        if team.size is not None and team.address:
            by_size[team.size, team.run].append(team)
    for (size, _), several in by_size.items():
        members = [x for team in several for x in parted[team]]
        ranks = sorted(_rank(x) for x in members)
        is_one_job = ranks == list(range(size))
        if len(several) > 1 and is_one_job:
            where = sorted(
                {f"{t.address}:{t.port}".rstrip(":") for t in several}
            )
            has_own = any(t.host for t in several)
            yield _ranks_finding(
                Cause.NETWORK_MISCONFIGURED,
                "likely",
                members,
                f"the {size} ranks of a job wait for each other at different "
                f"places: {list_text(where)}"
                + (", each host at itself" if has_own else ""),
                "set MASTER_ADDR and MASTER_PORT to the same address of the "
                "node of rank 0 everywhere",
            )


def _rank(x: Settings) -> int:
    return -1 if x.rank is None else x.rank


def _ranks_finding(
    cause: Cause,
    confidence: Confidence,
    who: list[Settings],
    says: str,
    remedy: str,
) -> Finding:
    names = (ADDRESS, PORT, "RANK", "WORLD_SIZE", "LOCAL_RANK", *_GPUS)
    return Finding(
        cause=cause,
        ranks=tuple(sorted({_rank(x) for x in who})),
        summary=says,
        confidence=confidence,
        remedy=remedy,
        evidence=tuple(
            Evidence(
                kind="environment",
                source=x.host,
                location=x.name,
                quote=" ".join(
                    f"{n}={x.variables[n]}" for n in names if n in x.variables
                ),
            )
            for x in who[:4]
        ),
    )


def check_environment(
    processes: Iterable[Worker | int]
    | Mapping[str, Iterable[Mapping[str, str]]],
    *,
    nodes: Mapping[str, NodeHealth | NodeFacts] | None = None,
) -> EnvironmentHealth:
    """
    Tell which variables of the workers do not fit.

    Names of interfaces are compared with those that each node has, not with
    those of other nodes: they may differ for good reasons.  So may the
    variables of different jobs, which are not compared either.

    Args:
        processes: Workers, or numbers of processes, of this node; or
            environments of workers by host, such as those that snapshots
            keep.

        nodes: What is known of each host; this node is looked at if it is
            left out.

    Returns:
        What is wrong, notes, and what could not be compared.
    """
    settings, unread = read_settings(processes)
    ranks = those_of_ranks(settings)
    facts = _facts(settings, nodes)
    interfaces = {
        host: x.interfaces for host, x in facts.items() if x.interfaces
    }
    ports = {
        host: x.ib_ports for host, x in facts.items() if x.ib_ports is not None
    }
    hosts = tuple(sorted({x.host for x in settings}))
    found = (
        *(f for job in by_job(ranks) for f in judge_sockets(job, interfaces)),
        *judge_devices(ranks, interfaces, ports),
        *judge_ranks(ranks),
        *(f for job in by_job(ranks) for f in judge_alike(job)),
        *_names(ranks, facts),
        *judge_notes(
            ranks,
            may_use_nccl=not facts
            or any(x.gpus != () for x in facts.values()),
        ),
    )
    return EnvironmentHealth(
        hosts=hosts,
        processes=len(settings),
        findings=by_confidence(found),
        missing=(*unread, *_unknown(settings, hosts, interfaces)),
    )


def _facts(
    settings: Iterable[Settings],
    nodes: Mapping[str, NodeHealth | NodeFacts] | None,
) -> dict[str, NodeFacts]:
    found = {
        host: x.facts if isinstance(x, NodeHealth) else x
        for host, x in (nodes or {}).items()
    }
    here = socket.gethostname()
    if here not in found and any(x.host == here for x in settings):
        # Where the system does not tell, nothing is compared.
        with suppress(OSError):
            found[here] = NodeFacts(
                host=here,
                taken=time.time(),
                interfaces=read_interfaces(),
                ib_ports=read_ib_ports(),
            )
    return found


def _names(
    settings: tuple[Settings, ...], facts: Mapping[str, NodeFacts]
) -> Iterator[Finding]:
    """
    Gloo listens at the address of the name of the node if nothing is set.
    """
    hosts = {x.host for x in settings}
    told = {x.host for x in settings if x.variables.get("GLOO_SOCKET_IFNAME")}
    wrong = sorted(
        host
        for host in hosts - told
        if host in facts
        and (facts[host].name_address or "").startswith("127.")
    )
    if wrong and len(hosts) > 1:
        address = facts[wrong[0]].name_address or ""
        yield Finding(
            cause=Cause.NETWORK_MISCONFIGURED,
            ranks=(),
            summary=f"the names of {list_text(wrong)} stand for {address} "
            "there, and GLOO_SOCKET_IFNAME is not set: Gloo may listen where "
            "no other node reaches it",
            confidence="possible",
            remedy="set GLOO_SOCKET_IFNAME, or mend /etc/hosts",
            evidence=(
                Evidence(
                    kind="environment",
                    source=wrong[0],
                    location="name of the node",
                    quote=address,
                ),
            ),
        )


def _unknown(
    settings: Iterable[Settings],
    hosts: Iterable[str],
    interfaces: Mapping[str, object],
) -> Iterator[Missing]:
    unknown = [host for host in hosts if host not in interfaces]
    if unknown:
        reason = f"nobody told which {list_text(unknown)} has"
        yield Missing(what="interfaces", reason=reason)
    if any(not x.sees_node for x in settings):
        reason = "some processes have a network of their own (a container)"
        yield Missing(what="interfaces", reason=reason)
