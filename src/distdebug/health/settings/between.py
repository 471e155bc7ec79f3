"""
Do the interfaces that the nodes of a job use lead to each other?
"""

from __future__ import annotations

import ipaddress

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ..._text import list_text
from ...findings import Cause, Evidence, Finding
from ..network.interfaces import Interface
from .processes import Settings


__all__ = ["Use", "judge_between", "judge_half_set", "use_evidence"]


class Use(NamedTuple):
    """
    Who chooses interfaces of a host in the same way.

    Attributes:
        variable: Such as ``"NCCL_SOCKET_IFNAME"``.

        value: Its value; ``""`` if it is not set.

        host: The node.

        chosen: The interfaces that are meant and can be used.

        users: The processes.
    """

    variable: str
    value: str
    host: str
    chosen: tuple[Interface, ...]
    users: tuple[Settings, ...]

    @property
    def ranks(self) -> set[int]:
        """
        The ranks among the processes.
        """
        return {x.rank for x in self.users if x.rank is not None}


def judge_between(variable: str, uses: list[Use]) -> Iterator[Finding]:
    """
    Tell what is wrong between hosts.

    Args:
        variable: Such as ``"NCCL_SOCKET_IFNAME"``.

        uses: What each host uses.

    Yields:
        What was found.
    """
    owners: dict[str, set[str]] = defaultdict(set)
    nets: dict[str, set[object]] = defaultdict(set)
    for use in uses:
        for address in _addresses(use):
            owners[str(address.ip)].add(use.host)
            nets[use.host].add(address.network)
    shared = {ip: x for ip, x in owners.items() if len(x) > 1}
    if shared:
        ip, hosts = next(iter(sorted(shared.items())))
        yield Finding(
            cause=Cause.NETWORK_MISCONFIGURED,
            ranks=tuple(sorted({rank for use in uses for rank in use.ranks})),
            summary=f"{list_text(sorted(hosts))} have the same address {ip} "
            f"on the interface that {variable} leads to, so that each "
            "reaches itself only",
            confidence="likely",
            remedy=f"set {variable} to an interface that has an address of "
            "its own on each node",
            evidence=use_evidence(uses),
        )
    elif len(nets) > 1 and _is_apart(nets):
        yield Finding(
            cause=Cause.NETWORK_MISCONFIGURED,
            ranks=(),
            summary=f"the interfaces that {variable} leads to are in "
            f"different networks on {list_text(sorted(nets))}",
            confidence="possible",
            remedy="see whether the nodes reach each other by these "
            f"addresses; else set {variable} to interfaces of one network",
            evidence=use_evidence(uses),
        )


def _is_apart(nets: Mapping[str, set[object]]) -> bool:
    """
    Whether a host has no network in common with any other.

    In large clusters every host has a network of its own, with routes between
    them: that is no trouble.
    """
    counts: dict[object, int] = defaultdict(int)
    for several in nets.values():
        for net in several:
            counts[net] += 1
    alone = [
        host
        for host, several in nets.items()
        if all(counts[net] == 1 for net in several)
    ]
    return bool(alone) and len(alone) < len(nets)


def _addresses(
    use: Use,
) -> Iterator[ipaddress.IPv4Interface | ipaddress.IPv6Interface]:
    for interface in use.chosen:
        for text in interface.addresses:
            try:
                address = ipaddress.ip_interface(text)
            except ValueError:
                continue
            # Hosts have loopback in common.
            if not address.is_loopback and address.version == 4:
                yield address


def judge_half_set(
    variable: str, settings: tuple[Settings, ...]
) -> Iterator[Finding]:
    """
    Tell whether only some nodes, or some ranks, have a variable.

    Args:
        variable: Such as ``"NCCL_SOCKET_IFNAME"``.

        settings: The variables of all processes.

    Yields:
        What was found.
    """
    has: dict[str, set[bool]] = defaultdict(set)
    for x in settings:
        has[x.host].add(bool(x.variables.get(variable)))
    on = sorted(h for h, several in has.items() if several == {True})
    off = sorted(h for h, several in has.items() if several == {False})
    mixed = sorted(h for h, several in has.items() if len(several) > 1)
    if not mixed and not (on and off):
        return
    users = [x for x in settings if x.variables.get(variable)]
    who = (
        f"on {list_text(on)}, and not on {list_text(off)}"
        if on and off
        else f"by {list_text(dict.fromkeys(x.name for x in users))} only"
    )
    yield Finding(
        cause=Cause.NETWORK_MISCONFIGURED,
        ranks=tuple(sorted({x.rank for x in users if x.rank is not None})),
        summary=f"{variable} is set {who}",
        confidence="possible",
        remedy="set it for all ranks, or for none",
        evidence=(
            Evidence(
                kind="environment",
                source=list_text(on or mixed),
                location=variable,
                quote=users[0].variables[variable],
            ),
        ),
    )


def use_evidence(uses: Iterable[Use]) -> tuple[Evidence, ...]:
    """
    Quote what some hosts use.
    """
    return tuple(
        Evidence(
            kind="environment",
            source=use.host,
            location=use.users[0].name,
            quote=f"{use.variable}={use.value}; "
            + ", ".join(
                f"{x.name} {' '.join(x.addresses)}" for x in use.chosen[:4]
            ),
        )
        for use in list(uses)[:8]
    )
