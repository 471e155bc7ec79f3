"""
Compare the environment variables of workers with their nodes.
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
    check_rdma_devices,
    check_socket_interfaces,
    read_ib_ports,
    read_interfaces,
)
from .node import EnvironmentHealth, NodeFacts, NodeHealth, sort_by_confidence
from .worker_environment import (
    ADDRESS,
    PORT,
    Rendezvous,
    Settings,
    group_by_job,
    group_by_rendezvous,
    read_settings,
    select_ranks,
)


# These may differ: they belong to one node, or to one rank that logs for all.
_MAY_DIFFER = (
    *("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"),
    *("NCCL_TOPO_", "NCCL_GRAPH_", "NCCL_HOSTID", "NCCL_COMM_ID"),
    *("NCCL_IGNORE_CPU_AFFINITY", "NCCL_CONF_FILE", "NCCL_TUNER_CONFIG"),
    *("NCCL_RAS_", "NCCL_PROFILER_", "NCCL_NET_PLUGIN", "NCCL_IB_ROCE_"),
    *("NCCL_CUDA_PATH", "NCCL_ROOT", "NCCL_HOME", "NCCL_VERSION"),
    *("NCCL_INCLUDE", "NCCL_LIB"),
)
# If these differ, ranks cannot communicate.
_MUST_MATCH = frozenset(
    {
        *("NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_IB_DISABLE"),
        *("NCCL_SOCKET_FAMILY", "NCCL_BUFFSIZE", "NCCL_NVLS_ENABLE"),
        *("NCCL_COLLNET_ENABLE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
        *("NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_NTHREADS"),
        *("NCCL_P2P_NET_CHUNKSIZE", "NCCL_CROSS_NIC", "NCCL_MNNVL_ENABLE"),
        "NCCL_P2P_NVL_CHUNKSIZE",
    }
)


def check_same_settings(settings: Iterable[Settings]) -> tuple[Finding, ...]:
    """
    Return findings about NCCL settings that differ within a job.
    """
    return tuple(
        finding
        for members in group_by_rendezvous(settings).values()
        if len(members) > 1
        for finding in _differing_settings(members)
    )


def _differing_settings(members: list[Settings]) -> Iterator[Finding]:
    names = {
        name
        for x in members
        for name in x.variables
        if name.startswith(("NCCL_", "RCCL_"))
        and not name.startswith(_MAY_DIFFER)
    }
    for name in sorted(names):
        values: dict[str | None, list[Settings]] = defaultdict(list)
        for x in members:
            values[x.variables.get(name)].append(x)
        if len(values) > 1:
            yield _difference_finding(name, values)


def _difference_finding(
    name: str, values: dict[str | None, list[Settings]]
) -> Finding:
    by_count = sorted(values.items(), key=lambda item: len(item[1]))
    minority = by_count[0][1]
    parts_text = [
        f"{'unset' if value is None else value} "
        f"({list_text((x.name for x in users), most=3)})"
        for value, users in by_count
    ]
    ranks = sorted({x.rank for x in minority if x.rank is not None})
    return Finding(
        cause=Cause.NETWORK_MISCONFIGURED,
        ranks=tuple(ranks),
        summary=f"{name} differs between ranks: {list_text(parts_text)}",
        confidence="likely" if name in _MUST_MATCH else "possible",
        remedy="give all ranks of a job the same settings of NCCL, also by "
        "/etc/nccl.conf and ~/.nccl.conf",
        evidence=tuple(
            Evidence(
                kind="environment",
                source=users[0].host,
                location=users[0].name,
                quote=f"{name} unset" if value is None else f"{name}={value}",
            )
            for value, users in by_count[:4]
        ),
    )


_ValueTest = Callable[[str | None], bool]


class _NotableSetting(NamedTuple):
    """
    A setting that is worth a note if *test* holds for its value.
    """

    name: str
    matches: _ValueTest
    effect: str
    advice: str


def _is_on(value: str | None) -> bool:
    return (value or "").strip().lower() in {"1", "true", "y", "yes", "on"}


def _is_set(value: str | None) -> bool:
    return value is not None


def _is_one_of(*values: str) -> _ValueTest:
    return lambda value: (value or "").strip().upper() in values


_NOTABLE_SETTINGS = (
    _NotableSetting(
        "CUDA_LAUNCH_BLOCKING",
        _is_on,
        "waits for every kernel, which is slow, and can hang jobs that "
        "overlap collectives",
        "unset it when the error is found",
    ),
    _NotableSetting(
        "TORCH_DISTRIBUTED_DEBUG",
        _is_one_of("DETAIL"),
        "compares every collective before it starts, which is slow",
        "unset it, or set it to INFO, when the error is found",
    ),
    _NotableSetting(
        "NCCL_DEBUG",
        _is_one_of("TRACE"),
        "writes a line for every call, which is slow and fills disks",
        "set it to INFO or WARN",
    ),
    _NotableSetting(
        "TORCHSPEC_LOG_LEVEL",
        _is_one_of("DEBUG", "TRACE"),
        "writes details of every step",
        "set it to INFO when the error is found",
    ),
    _NotableSetting(
        "TORCH_NCCL_BLOCKING_WAIT",
        _is_on,
        "makes the program wait for each collective, and turns off the "
        "handling of errors in the background",
        "unset it",
    ),
    _NotableSetting(
        "NCCL_BLOCKING_WAIT",
        _is_set,
        "is an old name, which newer torch reads no more",
        "use TORCH_NCCL_BLOCKING_WAIT, if it is meant",
    ),
    _NotableSetting(
        "NCCL_ASYNC_ERROR_HANDLING",
        _is_set,
        "is an old name, which newer torch reads no more",
        "use TORCH_NCCL_ASYNC_ERROR_HANDLING",
    ),
    _NotableSetting(
        "NCCL_DESYNC_DEBUG",
        _is_set,
        "is an old name, which newer torch reads no more",
        "use TORCH_NCCL_DESYNC_DEBUG",
    ),
    _NotableSetting(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        _is_one_of("0"),
        "lets ranks hang for ever when a collective fails or times out",
        "unset it",
    ),
    _NotableSetting(
        "TORCH_NCCL_ENABLE_MONITORING",
        _is_one_of("0", "FALSE"),
        "turns off the watch that ends a job whose watchdog hangs",
        "unset it",
    ),
    _NotableSetting(
        "NCCL_P2P_DISABLE",
        _is_on,
        "lets GPUs of a node talk by way of the memory of the host, which is "
        "slow",
        "unset it, unless it is meant to work around a fault",
    ),
    _NotableSetting(
        "NCCL_SHM_DISABLE",
        _is_on,
        "lets ranks of a node talk by sockets, which is slow",
        "unset it, and give the container enough shared memory",
    ),
)


def check_notable_settings(
    settings: Iterable[Settings], *, may_use_nccl: bool = True
) -> tuple[Finding, ...]:
    """
    Return notes about slow, obsolete, or risky settings.

    Args:
        may_use_nccl: Whether there is a GPU that NCCL can use.

    Returns:
        Findings with the cause ``healthy``.
    """
    entries = tuple(settings)
    findings = []
    for note in _NOTABLE_SETTINGS:
        users: dict[str, list[Settings]] = defaultdict(list)
        for x in entries:
            value = x.variables.get(note.name)
            if note.matches(value):
                users[value or ""].append(x)
        for value, matching in users.items():
            message = f"{note.name}={value} {note.effect}"
            findings.append(_note_finding(message, note.advice, matching))
    without_recorder = [x for x in entries if _is_recorder_off(x.variables)]
    if without_recorder:
        message = "the Flight Recorder of torch is off (its buffer has size 0)"
        advice = "set TORCH_FR_BUFFER_SIZE and TORCH_NCCL_TRACE_BUFFER_SIZE"
        findings.append(
            _note_finding(
                message, f"{advice} to 2000 or more", without_recorder
            )
        )
    has_nccl_debug = any(_has_nccl_debug(x.variables) for x in entries)
    if entries and may_use_nccl and not has_nccl_debug:
        message = "NCCL_DEBUG is not set, so NCCL says little of its errors"
        findings.append(
            _note_finding(message, "set NCCL_DEBUG=WARN, or INFO", entries)
        )
    return tuple(findings)


def _is_recorder_off(variables: Mapping[str, str]) -> bool:
    # Torch uses the first one that is set.
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    return next((variables[x] for x in names if x in variables), "") == "0"


def _has_nccl_debug(variables: Mapping[str, str]) -> bool:
    return bool(variables.get("NCCL_DEBUG"))


def _note_finding(
    message: str, advice: str, processes: Iterable[Settings]
) -> Finding:
    users = tuple(processes)
    return Finding(
        cause=Cause.HEALTHY,
        ranks=tuple(sorted({x.rank for x in users if x.rank is not None})),
        summary=f"note: {message}",
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


_VISIBLE_DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
)


def check_rank_settings(settings: Iterable[Settings]) -> tuple[Finding, ...]:
    """
    Return findings about ranks that contradict each other.

    Checked are rank numbers, shared GPUs, world sizes, and rendezvous
    addresses.
    """
    groups = group_by_rendezvous(x for x in settings if x.rank is not None)
    findings: list[Finding] = []
    for members in groups.values():
        findings += _check_rank_numbers(members)
        findings += _check_shared_gpus(members)
    findings += _check_world_sizes(groups)
    findings += _check_addresses(groups)
    return tuple(findings)


def _check_rank_numbers(members: list[Settings]) -> Iterator[Finding]:
    size = members[0].world_size
    out_of_range = [
        x
        for x in members
        if size is not None and _rank_or_minus_one(x) >= size
    ]
    if out_of_range:
        yield _rank_finding(
            Cause.NODE_MISCONFIGURED,
            "certain",
            out_of_range,
            f"{out_of_range[0].name} does not exist in a job of {size} ranks",
            "set RANK from 0 to WORLD_SIZE - 1",
        )
    if not members[0].variables.get(ADDRESS):
        return  # these may be several jobs
    by_rank: dict[int, list[Settings]] = defaultdict(list)
    for x in members:
        by_rank[_rank_or_minus_one(x)].append(x)
    duplicates = [x for x in by_rank.values() if len(x) > 1]
    if duplicates:
        ranks = list_text(
            f"rank {_rank_or_minus_one(x[0])}" for x in duplicates
        )
        yield _rank_finding(
            Cause.NODE_MISCONFIGURED,
            "likely",
            [y for x in duplicates for y in x],
            f"several processes of the same job call themselves {ranks}, on "
            f"{list_text(sorted({y.host for x in duplicates for y in x}))}",
            "give every process a RANK of its own; on several nodes mostly "
            "the number of the node (--node-rank) is wrong",
        )


def _check_shared_gpus(members: list[Settings]) -> Iterator[Finding]:
    by_gpu: dict[tuple[str, str], list[Settings]] = defaultdict(list)
    for x in members:
        name = next((n for n in _VISIBLE_DEVICES if n in x.variables), "")
        value = x.variables.get(name, "").strip()
        # With several GPUs, each rank selects one by its LOCAL_RANK.
        if value and "," not in value and value not in {"-1", "all"}:
            by_gpu[x.host, value].append(x)
    for (host, value), users in by_gpu.items():
        if len({_rank_or_minus_one(x) for x in users}) < 2:
            continue
        ranks = list_text(x.name for x in users)
        yield _rank_finding(
            Cause.NODE_MISCONFIGURED,
            "likely" if _has_comparable_gpu_indices(users) else "possible",
            users,
            f"{ranks} share GPU {value} of {host}",
            "give every rank a GPU of its own: NCCL refuses two ranks on one",
        )


def _has_comparable_gpu_indices(users: list[Settings]) -> bool:
    """
    Return whether a GPU index means the same GPU to all of them.

    It may not for several jobs, and not under Slurm, which can give each task
    its own GPUs, all counted from 0.
    """
    first = users[0].variables
    return bool(first.get(ADDRESS)) and "SLURM_PROCID" not in first


def _check_world_sizes(
    groups: dict[Rendezvous, list[Settings]],
) -> Iterator[Finding]:
    sizes: dict[tuple[str, str, str], dict[int, list[Settings]]] = defaultdict(
        dict
    )
    for rendezvous, members in groups.items():
        if (
            rendezvous.address
            and rendezvous.port
            and rendezvous.size is not None
        ):
            key = (rendezvous.address, rendezvous.port, rendezvous.host)
            sizes[key][rendezvous.size] = members
    for (address, port, _), by_size in sizes.items():
        if len(by_size) > 1:
            minority = min(by_size.values(), key=len)
            yield _rank_finding(
                Cause.NODE_MISCONFIGURED,
                "likely",
                minority,
                f"ranks that meet at {address}:{port} do not agree on "
                f"WORLD_SIZE: {list_text(sorted(by_size))}",
                "start all nodes with the same number of nodes and of ranks "
                "per node",
            )


def _check_addresses(
    groups: dict[Rendezvous, list[Settings]],
) -> Iterator[Finding]:
    """
    Yield findings about parts of one job with different addresses.
    """
    by_size: dict[tuple[int, str], list[Rendezvous]] = defaultdict(list)
    for rendezvous in groups:
        if rendezvous.size is not None and rendezvous.address:
            by_size[rendezvous.size, rendezvous.run].append(rendezvous)
    for (size, _), parts in by_size.items():
        members = [x for rendezvous in parts for x in groups[rendezvous]]
        ranks = sorted(_rank_or_minus_one(x) for x in members)
        is_one_job = ranks == list(range(size))
        if len(parts) > 1 and is_one_job:
            addresses = sorted(
                {
                    f"{rendezvous.address}:{rendezvous.port}".rstrip(":")
                    for rendezvous in parts
                }
            )
            is_loopback = any(rendezvous.host for rendezvous in parts)
            yield _rank_finding(
                Cause.NETWORK_MISCONFIGURED,
                "likely",
                members,
                f"the {size} ranks of a job wait for each other at different "
                f"places: {list_text(addresses)}"
                + (", each host at itself" if is_loopback else ""),
                "set MASTER_ADDR and MASTER_PORT to the same address of the "
                "node of rank 0 everywhere",
            )


def _rank_or_minus_one(x: Settings) -> int:
    return -1 if x.rank is None else x.rank


def _rank_finding(
    cause: Cause,
    confidence: Confidence,
    processes: list[Settings],
    message: str,
    remedy: str,
) -> Finding:
    names = (
        ADDRESS,
        PORT,
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        *_VISIBLE_DEVICES,
    )
    return Finding(
        cause=cause,
        ranks=tuple(sorted({_rank_or_minus_one(x) for x in processes})),
        summary=message,
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
            for x in processes[:4]
        ),
    )


def check_environment(
    processes: Iterable[Worker | int]
    | Mapping[str, Iterable[Mapping[str, str]]],
    *,
    nodes: Mapping[str, NodeHealth | NodeFacts] | None = None,
) -> EnvironmentHealth:
    """
    Check the environment variables of workers.

    Interface names are compared with the interfaces of the same node only:
    they may differ between nodes.  Variables of different jobs are not
    compared.

    Args:
        processes: Workers, or process IDs, of this node; or environments of
            workers by host, such as those in snapshots.

        nodes: Facts about each host; by default this node is examined.

    Returns:
        Findings, notes, and what could not be compared.
    """
    settings, unreadable = read_settings(processes)
    ranks = select_ranks(settings)
    facts = _collect_facts(settings, nodes)
    interfaces = {
        host: x.interfaces for host, x in facts.items() if x.interfaces
    }
    ports = {
        host: x.ib_ports for host, x in facts.items() if x.ib_ports is not None
    }
    hosts = tuple(sorted({x.host for x in settings}))
    findings = (
        *(
            f
            for job in group_by_job(ranks)
            for f in check_socket_interfaces(job, interfaces)
        ),
        *check_rdma_devices(ranks, interfaces, ports),
        *check_rank_settings(ranks),
        *(f for job in group_by_job(ranks) for f in check_same_settings(job)),
        *_check_name_address(ranks, facts),
        *check_notable_settings(
            ranks,
            may_use_nccl=not facts
            or any(x.gpus != () for x in facts.values()),
        ),
    )
    return EnvironmentHealth(
        hosts=hosts,
        processes=len(settings),
        findings=sort_by_confidence(findings),
        missing=(
            *unreadable,
            *_missing_interfaces(settings, hosts, interfaces),
        ),
    )


def _collect_facts(
    settings: Iterable[Settings],
    nodes: Mapping[str, NodeHealth | NodeFacts] | None,
) -> dict[str, NodeFacts]:
    facts = {
        host: x.facts if isinstance(x, NodeHealth) else x
        for host, x in (nodes or {}).items()
    }
    local_host = socket.gethostname()
    if local_host not in facts and any(x.host == local_host for x in settings):
        # Without these facts, nothing is compared.
        with suppress(OSError):
            facts[local_host] = NodeFacts(
                host=local_host,
                taken=time.time(),
                interfaces=read_interfaces(),
                ib_ports=read_ib_ports(),
            )
    return facts


def _check_name_address(
    settings: tuple[Settings, ...], facts: Mapping[str, NodeFacts]
) -> Iterator[Finding]:
    """
    Yield a finding if the host name resolves to a loopback address.

    Gloo listens at that address if ``GLOO_SOCKET_IFNAME`` is not set.
    """
    hosts = {x.host for x in settings}
    configured = {
        x.host for x in settings if x.variables.get("GLOO_SOCKET_IFNAME")
    }
    wrong = sorted(
        host
        for host in hosts - configured
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


def _missing_interfaces(
    settings: Iterable[Settings],
    hosts: Iterable[str],
    interfaces: Mapping[str, object],
) -> Iterator[Missing]:
    unknown = [host for host in hosts if host not in interfaces]
    if unknown:
        reason = f"nobody told which {list_text(unknown)} has"
        yield Missing(what="interfaces", reason=reason)
    if any(not x.shares_network for x in settings):
        reason = "some processes have a network of their own (a container)"
        yield Missing(what="interfaces", reason=reason)
