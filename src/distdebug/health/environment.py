"""
Do the variables of the workers fit their nodes, and each other?
"""

from __future__ import annotations

import socket
import time

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from .._text import list_text
from ..findings import Cause, Evidence, Finding, Missing
from ..processes.model import Worker
from .model import EnvironmentHealth, NodeFacts, NodeHealth
from .network.infiniband import read_ib_ports
from .network.interfaces import read_interfaces
from .settings.alike import judge_alike
from .settings.devices import judge_devices
from .settings.notes import judge_notes
from .settings.processes import (
    Settings,
    by_job,
    read_settings,
    those_of_ranks,
)
from .settings.ranks import judge_ranks
from .settings.sockets import judge_sockets
from .verdicts import by_confidence


__all__ = ["check_environment"]


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
