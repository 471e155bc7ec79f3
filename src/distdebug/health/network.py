"""
Which interfaces has a node, and do they work?
"""

from __future__ import annotations

import ipaddress
import os
import re

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import attrs

from .._text import clean, list_text
from ..findings import Cause, Evidence, Finding
from ..processes.procfs import read_proc, whole_number
from .judged import Judged, as_finding


_STATE = re.compile(r"\d{1,2}: (\w{1,30})")
_COUNTERS = ("link_downed", "symbol_error", "port_rcv_errors")
_MOST = 64


@attrs.frozen(kw_only=True)
class IbPort:
    """
    A port of an adapter for RDMA.

    Attributes:
        device: Such as ``"mlx5_0"``.

        port: Its number, from 1.

        link_layer: ``"InfiniBand"`` or ``"Ethernet"`` (RoCE).

        state: ``"ACTIVE"``, ``"INIT"``, ``"DOWN"``, …

        physical: ``"LinkUp"``, ``"Polling"``, ``"Disabled"``, …

        rate: Such as ``"400 Gb/sec (4X NDR)"``.

        link_downed: How often its link went down since it was reset.

        errors: Symbols and packets that came damaged.
    """

    device: str
    port: int
    link_layer: str = ""
    state: str = ""
    physical: str = ""
    rate: str = ""
    link_downed: int = 0
    errors: int = 0


def read_ib_ports(
    *, folder: str = "/sys/class/infiniband"
) -> tuple[IbPort, ...]:
    """
    List the ports of adapters for RDMA.

    Args:
        folder: Where the kernel shows them.

    Returns:
        All of them by name; none if there are none.
    """
    return tuple(_ports(folder))


def _ports(folder: str) -> Iterator[IbPort]:
    for device in _names(folder):
        for number in _names(f"{folder}/{device}/ports"):
            if (port := whole_number(number)) is not None:
                yield _port(folder, device, port)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))[:_MOST]  # noqa: PTH208 text is enough
    except OSError:
        return []


def _port(folder: str, device: str, number: int) -> IbPort:
    place = f"{folder}/{device}/ports/{number}"
    counts = [_count(f"{place}/counters/{name}") for name in _COUNTERS]
    return IbPort(
        device=clean(device),
        port=number,
        link_layer=_text(f"{place}/link_layer"),
        state=_state(f"{place}/state"),
        physical=_state(f"{place}/phys_state"),
        rate=_text(f"{place}/rate"),
        link_downed=counts[0],
        errors=sum(counts[1:]),
    )


def _text(path: str) -> str:
    return clean((read_proc(path, limit=256) or b"").decode(errors="replace"))


def _state(path: str) -> str:
    found = _STATE.match(_text(path))
    return found[1] if found else ""


def _count(path: str) -> int:
    return whole_number(_text(path)) or 0


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


_BAD_SHARE = 0.01
_MANY = 1000
_CABLE = "check the cable, the port of the switch, and the adapter"


def judge_network(
    interfaces: Iterable[Interface],
    ports: Iterable[IbPort] = (),
    *,
    host: str = "",
) -> tuple[Finding, ...]:
    """
    Tell what is wrong with the network of a node.

    Args:
        interfaces: All of the node.

        ports: Those of its adapters for RDMA.

        host: The node.

    Returns:
        What was found.  Interfaces that are off, and ports that nobody
        plugged in, are usual.
    """
    judged = [*_of_ports(tuple(ports)), *_of_interfaces(interfaces)]
    return tuple(
        as_finding(
            verdict,
            host=host,
            evidence=Evidence(kind="interface", source=host, quote=names),
        )
        for verdict, names in judged
    )


def _of_interfaces(
    interfaces: Iterable[Interface],
) -> Iterator[tuple[Judged, str]]:
    for x in interfaces:
        is_used = x.is_up and x.kind != "loopback"
        if is_used and x.errors > max(_MANY, _BAD_SHARE * x.packets):
            yield (
                Judged(
                    Cause.NETWORK_FAILURE,
                    "possible",
                    f"{x.errors} packets of {x.name} were damaged, and "
                    f"{x.packets} were not",
                    _CABLE,
                ),
                x.name,
            )


def _of_ports(ports: tuple[IbPort, ...]) -> Iterator[tuple[Judged, str]]:
    trying = [
        x
        for x in ports
        if x.state in {"INIT", "ARMED"} and x.physical == "LinkUp"
    ]
    if trying:
        yield (
            Judged(
                Cause.NETWORK_FAILURE,
                "likely",
                f"the InfiniBand network did not accept {_judge_names(trying)}",
                "see that a subnet manager (opensm) runs in this network",
            ),
            _judge_names(trying),
        )
    # A port that nobody ever plugged in is no news.
    works = any(x.state == "ACTIVE" for x in ports)
    broken = [x for x in ports if x.state == "DOWN" and x.link_downed]
    if broken and works:
        yield (
            Judged(
                Cause.NETWORK_FAILURE,
                "possible",
                f"the link of {_judge_names(broken)} is down, and was up before",
                _CABLE,
            ),
            _judge_names(broken),
        )


def _judge_names(ports: Iterable[IbPort]) -> str:
    return list_text(f"{x.device}:{x.port}" for x in ports)
