"""
Which network interfaces has this node?
"""

from __future__ import annotations

import ipaddress
import re

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from ..._text import clean


__all__ = ["Interface", "InterfaceKind", "interface_kind", "read_interfaces"]

InterfaceKind = Literal["loopback", "container", "virtual", "ordinary"]

# What container engines and hypervisors make for themselves: the addresses
# are the same on every host, or lead nowhere.
_CONTAINER = re.compile(
    r"(?:docker|br-[0-9a-f]{12}|veth|virbr|vnet|cni|flannel|cali|cilium|lxc"
    r"|lxdbr|podman|kube-|nodelocaldns|weave|vxlan|tunl|nerdctl|buildkit)"
)
_VIRTUAL = re.compile(r"(?:dummy|tun|tap|ifb|sit|gre|ip6tnl|teql|bonding_)")


@attrs.frozen(kw_only=True)
class Interface:
    """
    A network interface.

    Attributes:
        name: Such as ``"eth0"``.

        is_up: Whether it is on and has a link.

        addresses: Its addresses with the length of the prefix, such as
            ``"10.0.0.2/24"``; those that only work on its own link are left
            out.

        kind: ``"loopback"``; ``"container"`` for bridges and the like of
            container engines; ``"virtual"`` for others without hardware; else
            ``"ordinary"``.

        mtu: Size of the largest packet, in bytes.

        speed_mbps: Speed of the link in Mbit/s; 0 if unknown.

        packets: Packets received and sent since it was made.

        errors: Those that were damaged.

        drops: Those that were thrown away.
    """

    name: str
    is_up: bool = True
    addresses: tuple[str, ...] = ()
    kind: InterfaceKind = "ordinary"
    mtu: int = 0
    speed_mbps: int = 0
    packets: int = 0
    errors: int = 0
    drops: int = 0


def read_interfaces() -> tuple[Interface, ...]:
    """
    List the network interfaces of this node, or of this container.

    Returns:
        All of them, in the order of the system.

    Raises:
        OSError: The system does not tell.
    """
    import psutil

    addresses = psutil.net_if_addrs()
    states: Mapping[str, Any] = psutil.net_if_stats()
    counts = _counts(psutil)
    names = [*states, *(x for x in addresses if x not in states)]
    return tuple(
        _interface(
            name, addresses.get(name, ()), states.get(name), counts.get(name)
        )
        for name in names
    )


def interface_kind(name: str) -> InterfaceKind:
    """
    Tell by its name what an interface is for.
    """
    if re.fullmatch(r"lo\d{0,3}", name):
        return "loopback"
    if _CONTAINER.match(name):
        return "container"
    return "virtual" if _VIRTUAL.match(name) else "ordinary"


def _counts(psutil: Any) -> dict[str, Any]:
    try:
        return dict(psutil.net_io_counters(pernic=True))
    except (OSError, RuntimeError):  # some containers show none
        return {}


def _interface(name: str, told: Any, state: Any, counts: Any) -> Interface:
    texts = [_with_prefix(x.address, x.netmask) for x in told]
    count = {
        what: getattr(counts, f"{what}in", 0)
        + getattr(counts, f"{what}out", 0)
        for what in ("err", "drop")
    }
    return Interface(
        name=clean(name),
        is_up=bool(state.isup) if state else True,
        addresses=tuple(x for x in texts if x),
        kind=interface_kind(name),
        mtu=state.mtu if state else 0,
        speed_mbps=state.speed if state else 0,
        packets=getattr(counts, "packets_recv", 0)
        + getattr(counts, "packets_sent", 0),
        errors=count["err"],
        drops=count["drop"],
    )


def _with_prefix(address: str, netmask: str | None) -> str:
    """
    Such as 10.0.0.2/24; `""` for MAC addresses and those of one link.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if ip.is_link_local:
        return ""

    length: int = ip.max_prefixlen
    if netmask:
        try:
            length = int(ipaddress.ip_address(netmask)).bit_count()
        except ValueError:
            length = ip.max_prefixlen
    return f"{ip}/{length}"
