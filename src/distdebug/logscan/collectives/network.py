"""
What is wrong with the network or the nodes, as NCCL tells?
"""

from __future__ import annotations

import re

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ...findings import Cause, Finding
from .logs import CollectiveLogs
from .model import NcclNote
from .quoting import nccl_finding
from .remedies import OTHER_INTERFACE
from .warned import explain_warnings


__all__ = ["explain_network"]

_INTERFACE = re.compile(
    r"(?:\[\d{1,3}\])?([\w.@-]{1,64}):([0-9a-fA-F.:\[\]%]{2,60}?)<"
)
_VIRTUAL = re.compile(r"docker|veth|virbr|br-|podman|cni\d|cali|lo$|lo:")


def explain_network(
    logs: CollectiveLogs, *, has_failed: bool
) -> list[Finding]:
    """
    What do the lines of NCCL complain of?

    Args:
        logs: What was read.

        has_failed: Whether something else shows that the job did not go on;
            without it, oddities that may be meant are not told.

    Returns:
        What is wrong with the network, and with nodes.
    """
    return [
        *explain_warnings(logs.notes),
        *_interfaces(logs.notes, has_failed=has_failed),
        *_networks(logs.notes, has_failed=has_failed),
        *_versions(logs.notes),
    ]


def _interfaces(
    notes: Iterable[NcclNote], *, has_failed: bool
) -> Iterator[Finding]:
    """
    Interfaces that other nodes cannot reach.
    """
    used = [x for x in notes if x.kind == "interface"]
    if len({x.host for x in used}) < 2:
        return
    virtual = [x for x in used if any(map(_is_virtual, _listed(x)))]
    if virtual:
        names = sorted({x.host for x in virtual})
        yield nccl_finding(
            Cause.NETWORK_MISCONFIGURED,
            f"NCCL uses an interface on {', '.join(names[:4])} that other "
            f"nodes cannot reach: {virtual[0].text}",
            virtual,
            OTHER_INTERFACE,
        )
    elif has_failed:
        yield from _different(used)


def _different(used: Sequence[NcclNote]) -> Iterator[Finding]:
    """
    Nodes whose first interfaces differ in name and network.
    """
    first: dict[str, tuple[str, str]] = {}
    for note in used:
        for interface in _listed(note)[:1]:
            first.setdefault(note.host, interface)
    names = {name for name, _ in first.values()}
    nets = {address.rsplit(".", 2)[0] for _, address in first.values()}
    if len(names) > 1 and len(nets) > 1:
        told = sorted(f"{h}: {n} {a}" for h, (n, a) in first.items())
        yield nccl_finding(
            Cause.NETWORK_MISCONFIGURED,
            "nodes use interfaces of different networks: "
            + ", ".join(told[:4]),
            used,
            OTHER_INTERFACE,
            confidence="possible",
        )


def _listed(note: NcclNote) -> list[tuple[str, str]]:
    """
    Interfaces with their addresses.
    """
    return _INTERFACE.findall(note.text)


def _is_virtual(interface: tuple[str, str]) -> bool:
    name, address = interface
    return bool(_VIRTUAL.match(name)) or address.startswith("127.")


def _networks(
    notes: Iterable[NcclNote], *, has_failed: bool
) -> Iterator[Finding]:
    by_network: dict[str, list[NcclNote]] = defaultdict(list)
    for note in notes:
        if note.kind == "network":
            by_network[note.text].append(note)
    socket = by_network.get("Socket", [])
    hosts = {x.host for x in socket}
    other_hosts = {
        x.host
        for name, found in by_network.items()
        if name != "Socket"
        for x in found
    }
    if hosts and other_hosts and not hosts & other_hosts:
        others = sorted(name for name in by_network if name != "Socket")
        yield nccl_finding(
            Cause.NETWORK_MISCONFIGURED,
            f"{', '.join(sorted(hosts)[:4])} fell back to plain sockets where "
            f"others use {', '.join(others)}",
            socket,
            "see what these nodes lack: cards, drivers, the plug-in of the "
            "network, or NCCL_IB_DISABLE that differs",
            confidence="likely" if has_failed else "possible",
        )


def _versions(notes: Iterable[NcclNote]) -> Iterator[Finding]:
    found: dict[str, list[NcclNote]] = defaultdict(list)
    for note in notes:
        # Each run may have another one, so only within the same one.
        if note.kind == "version":
            found[note.text.partition("+")[0]].append(note)
    attempts = Counter(
        attempt
        for notes_ in found.values()
        for attempt in {x.attempt for x in notes_}
    )
    hosts = [{x.host for x in x_} - {""} for x_ in found.values()]
    if (
        len(found) > 1
        and max(attempts.values()) > 1
        and all(hosts)
        and len(set().union(*hosts)) > 1
    ):
        yield nccl_finding(
            Cause.NODE_MISCONFIGURED,
            f"nodes use different versions of NCCL: {', '.join(sorted(found))}",
            [x[0] for x in found.values()],
            "install the same version on all nodes",
        )
