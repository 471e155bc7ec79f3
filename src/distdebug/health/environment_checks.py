"""
Compare the environment variables of workers with their nodes.
"""

from __future__ import annotations

import socket
import time

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from .._text import list_text
from ..findings import Evidence, Finding, Missing
from ..identity import TORCH_VARIABLES
from ..processes import Worker
from .judgements import judge, load_judgements
from .network import (
    Interface,
    check_rdma_devices,
    check_socket_interfaces,
    read_ib_ports,
    read_interfaces,
)
from .node import EnvironmentHealth, NodeFacts, NodeHealth, sort_by_confidence
from .worker_environment import (
    Rendezvous,
    Settings,
    group_by_job,
    group_by_rendezvous,
    grouped,
    read_settings,
    read_variables,
    select_ranks,
)


def check_same_settings(settings: Iterable[Settings]) -> Iterator[Finding]:
    """
    Yield findings about NCCL settings that differ within a job.
    """
    may_differ = tuple(read_variables()["ranks"]["may_differ"])
    for members in group_by_rendezvous(settings).values():
        names = {
            name
            for x in members
            for name in x.variables
            if name.startswith(("NCCL_", "RCCL_"))
            and not name.startswith(may_differ)
        }
        for name in sorted(names):
            values = grouped((x.variables.get(name), x) for x in members)
            if len(values) > 1:
                yield _difference_finding(name, values)


def _difference_finding(
    name: str, values: dict[str | None, list[Settings]]
) -> Finding:
    must_match = name in read_variables()["ranks"]["must_match"]
    by_count = sorted(values.items(), key=lambda item: len(item[1]))
    texts = (
        f"{'unset' if value is None else value} "
        f"({list_text((x.name for x in users), most=3)})"
        for value, users in by_count
    )
    return judge(
        "settings_differ",
        *(
            users[0].evidence(
                f"{name} unset" if value is None else f"{name}={value}"
            )
            for value, users in by_count[:4]
        ),
        ranks=(x.rank for x in by_count[0][1]),
        confidence="likely" if must_match else "possible",
        variable=name,
        values=list_text(texts),
    )


def check_notable_settings(
    settings: Iterable[Settings], *, may_use_nccl: bool = True
) -> Iterator[Finding]:
    """
    Yield notes about slow, obsolete, or risky settings.

    Args:
        may_use_nccl: Whether there is a GPU that NCCL can use.

    Yields:
        Findings with the cause ``healthy``.
    """
    entries = tuple(settings)
    for name, judgement in load_judgements().items():
        variable, notable = judgement.variable, judgement.values
        users = grouped(
            (x.variables[variable], x)
            for x in entries
            if variable in x.variables
        )
        for value, matching in users.items():
            if not notable or value.strip().lower() in notable:
                yield _note(name, matching, setting=f"{variable}={value}")
    without_recorder = [x for x in entries if _is_recorder_off(x.variables)]
    if without_recorder:
        yield _note("recorder_off", without_recorder)
    has_nccl_debug = any(x.variables.get("NCCL_DEBUG") for x in entries)
    if entries and may_use_nccl and not has_nccl_debug:
        yield _note("nccl_silent", entries)


def _is_recorder_off(variables: Mapping[str, str]) -> bool:
    # Torch uses the first one that is set.
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    return next((variables[x] for x in names if x in variables), "") == "0"


def _note(name: str, users: Sequence[Settings], /, **values: Any) -> Finding:
    evidence = Evidence(
        kind="environment",
        source=list_text(sorted({x.host for x in users})),
        location=list_text(x.name for x in users),
    )
    return judge(name, evidence, ranks=(x.rank for x in users), **values)


_VISIBLE_DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
)


def check_rank_settings(settings: Iterable[Settings]) -> Iterator[Finding]:
    """
    Yield findings about ranks that contradict each other.

    Checked are rank numbers, shared GPUs, world sizes, and rendezvous
    addresses.
    """
    groups = group_by_rendezvous(x for x in settings if x.rank is not None)
    for members in groups.values():
        yield from _check_rank_numbers(members)
        yield from _check_shared_gpus(members)
    yield from _check_world_sizes(groups)
    yield from _check_addresses(groups)


def _check_rank_numbers(members: list[Settings]) -> Iterator[Finding]:
    size = members[0].world_size
    too_large = [x for x in members if size is not None and _rank(x) >= size]
    if too_large:
        name = too_large[0].name
        yield _finding("rank_too_large", too_large, name=name, size=size)
    if not members[0].variables.get("MASTER_ADDR"):
        return  # these may be several jobs
    by_rank = grouped((x.rank, x) for x in members)
    duplicates = [users for users in by_rank.values() if len(users) > 1]
    if duplicates:
        users = list(chain(*duplicates))
        yield _finding(
            "rank_taken",
            users,
            names=list_text(x[0].name for x in duplicates),
            hosts=list_text(sorted({x.host for x in users})),
        )


def _check_shared_gpus(members: list[Settings]) -> Iterator[Finding]:
    by_gpu = grouped(((x.host, _visible_devices(x)), x) for x in members)
    for (host, value), users in by_gpu.items():
        # With several GPUs, each rank selects one by its LOCAL_RANK.
        is_single = value not in {"", "-1", "all"} and "," not in value
        if not is_single or len({x.rank for x in users}) < 2:
            continue
        # A GPU index may mean another GPU to each of several jobs, and to
        # tasks of Slurm, which can each get their own GPUs, counted from 0.
        first = users[0].variables
        is_same = first.get("MASTER_ADDR") and "SLURM_PROCID" not in first
        yield _finding(
            "gpu_shared",
            users,
            confidence="likely" if is_same else "possible",
            names=list_text(x.name for x in users),
            gpu=value,
            hosts=host,
        )


def _visible_devices(x: Settings) -> str:
    values = (x.variables[n] for n in _VISIBLE_DEVICES if n in x.variables)
    return next(values, "").strip()


def _check_world_sizes(
    groups: dict[Rendezvous, list[Settings]],
) -> Iterator[Finding]:
    # Parts with the same size may have different run IDs.
    places = grouped(
        ((place.address, place.port, place.host), (place.size, x))
        for place, members in groups.items()
        if place.address and place.port and place.size is not None
        for x in members
    )
    for (address, port, _), sized_members in places.items():
        by_size = grouped(sized_members)
        if len(by_size) > 1:
            yield _finding(
                "world_sizes",
                min(by_size.values(), key=len),
                address=f"{address}:{port}",
                sizes=list_text(sorted(by_size)),
            )


def _check_addresses(
    groups: dict[Rendezvous, list[Settings]],
) -> Iterator[Finding]:
    """
    Yield findings about parts of one job with different addresses.
    """
    jobs = grouped(
        ((place.size, place.run), place) for place in groups if place.address
    )
    for (size, _), parts in jobs.items():
        members = [x for place in parts for x in groups[place]]
        is_one_job = sorted(map(_rank, members)) == list(range(size or 0))
        if len(parts) < 2 or not is_one_job:
            continue
        addresses = {f"{x.address}:{x.port}".rstrip(":") for x in parts}
        is_loopback = any(x.host for x in parts)
        yield _finding(
            "different_places",
            members,
            size=size,
            addresses=list_text(sorted(addresses)),
            each=", each host at itself" if is_loopback else "",
        )


def _rank(x: Settings) -> int:
    return -1 if x.rank is None else x.rank


def _finding(
    name: str, processes: list[Settings], /, **values: Any
) -> Finding:
    names = (*TORCH_VARIABLES, *_VISIBLE_DEVICES)
    quotes = (
        " ".join(f"{n}={x.variables[n]}" for n in names if n in x.variables)
        for x in processes[:4]
    )
    return judge(
        name,
        *map(Settings.evidence, processes, quotes),
        ranks=(x.rank for x in processes),
        **values,
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
    ranks, facts = select_ranks(settings), _collect_facts(settings, nodes)
    interfaces = {k: x.interfaces for k, x in facts.items() if x.interfaces}
    hosts = tuple(sorted({x.host for x in settings}))
    return EnvironmentHealth(
        hosts=hosts,
        processes=len(settings),
        findings=sort_by_confidence(_check_settings(ranks, facts, interfaces)),
        missing=(
            *unreadable,
            *_missing_interfaces(settings, hosts, interfaces),
        ),
    )


def _check_settings(
    ranks: tuple[Settings, ...],
    facts: Mapping[str, NodeFacts],
    interfaces: Mapping[str, tuple[Interface, ...]],
) -> Iterator[Finding]:
    ports = {
        host: x.ib_ports for host, x in facts.items() if x.ib_ports is not None
    }
    jobs = group_by_job(ranks)
    for job in jobs:
        yield from check_socket_interfaces(job, interfaces)
    yield from check_rdma_devices(ranks, interfaces, ports)
    yield from check_rank_settings(ranks)
    for job in jobs:
        yield from check_same_settings(job)
    yield from _check_name_address(ranks, facts)
    has_gpus = not facts or any(x.gpus != () for x in facts.values())
    yield from check_notable_settings(ranks, may_use_nccl=has_gpus)


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
    addresses = {
        host: x.name_address
        for host, x in sorted(facts.items())
        if host in hosts - configured
        and (x.name_address or "").startswith("127.")
    }
    if addresses and len(hosts) > 1:
        first, address = next(iter(addresses.items()))
        evidence = Evidence(
            kind="environment",
            source=first,
            location="name of the node",
            quote=address or "",
        )
        yield judge(
            "name_is_loopback",
            evidence,
            hosts=list_text(addresses),
            address=address,
        )


def _missing_interfaces(
    settings: Iterable[Settings],
    hosts: Iterable[str],
    interfaces: Mapping[str, object],
) -> Iterator[Missing]:
    unknown = [host for host in hosts if host not in interfaces]
    if unknown:
        reason = f"the interfaces of {list_text(unknown)} are unknown"
        yield Missing(what="interfaces", reason=reason)
    if any(not x.shares_network for x in settings):
        reason = "some processes have a network of their own (a container)"
        yield Missing(what="interfaces", reason=reason)
