"""
Read and check network interfaces, InfiniBand ports, and their settings.
"""

from __future__ import annotations

import ipaddress
import os
import re

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import attrs

from .._text import clean, list_text
from ..findings import (
    Cause,
    Confidence,
    Evidence,
    Finding,
    NodeFinding,
    as_finding,
)
from ..processes import read_proc, whole_number
from .worker_environment import Settings


_STATE_TEXT = re.compile(r"\d{1,2}: (\w{1,30})")
_COUNTER_NAMES = ("link_downed", "symbol_error", "port_rcv_errors")
_MAX_NAMES = 64


@attrs.frozen(kw_only=True)
class IbPort:
    """
    A port of an RDMA adapter.

    Attributes:
        device: Such as ``"mlx5_0"``.

        port: The port number, from 1.

        link_layer: ``"InfiniBand"`` or ``"Ethernet"`` (RoCE).

        state: ``"ACTIVE"``, ``"INIT"``, ``"DOWN"``, …

        physical: ``"LinkUp"``, ``"Polling"``, ``"Disabled"``, …

        rate: Such as ``"400 Gb/sec (4X NDR)"``.

        link_downed: How often the link went down since the last reset.

        errors: Symbol errors and receive errors.
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
    Return the ports of RDMA adapters by name; none without adapters.
    """
    return tuple(_read_ports(folder))


def _read_ports(folder: str) -> Iterator[IbPort]:
    for device in _list_folder(folder):
        for number in _list_folder(f"{folder}/{device}/ports"):
            if (port := whole_number(number)) is not None:
                yield _read_port(folder, device, port)


def _list_folder(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))[:_MAX_NAMES]  # noqa: PTH208 text is enough
    except OSError:
        return []


def _read_port(folder: str, device: str, number: int) -> IbPort:
    port_folder = f"{folder}/{device}/ports/{number}"
    counts = [
        _read_count(f"{port_folder}/counters/{name}")
        for name in _COUNTER_NAMES
    ]
    return IbPort(
        device=clean(device),
        port=number,
        link_layer=_read_text(f"{port_folder}/link_layer"),
        state=_read_state(f"{port_folder}/state"),
        physical=_read_state(f"{port_folder}/phys_state"),
        rate=_read_text(f"{port_folder}/rate"),
        link_downed=counts[0],
        errors=sum(counts[1:]),
    )


def _read_text(path: str) -> str:
    return clean((read_proc(path, limit=256) or b"").decode(errors="replace"))


def _read_state(path: str) -> str:
    match = _STATE_TEXT.match(_read_text(path))
    return match[1] if match else ""


def _read_count(path: str) -> int:
    return whole_number(_read_text(path)) or 0


InterfaceKind = Literal["loopback", "container", "virtual", "ordinary"]

# Created by container engines and hypervisors: their addresses are the same
# on every host, or are not routed.
_CONTAINER_NAME = re.compile(
    r"(?:docker|br-[0-9a-f]{12}|veth|virbr|vnet|cni|flannel|cali|cilium|lxc"
    r"|lxdbr|podman|kube-|nodelocaldns|weave|vxlan|tunl|nerdctl|buildkit)"
)
_VIRTUAL_NAME = re.compile(
    r"(?:dummy|tun|tap|ifb|sit|gre|ip6tnl|teql|bonding_)"
)


@attrs.frozen(kw_only=True)
class Interface:
    """
    A network interface.

    Attributes:
        name: Such as ``"eth0"``.

        is_up: Whether it is up and has a link.

        addresses: Its addresses with prefix length, such as
            ``"10.0.0.2/24"``, without link-local ones.

        kind: ``"loopback"``; ``"container"`` for bridges and the like of
            container engines; ``"virtual"`` for others without hardware; else
            ``"ordinary"``.

        mtu: In bytes.

        speed_mbps: Link speed in Mbit/s; 0 if unknown.

        packets: Packets received and sent.

        errors: Damaged packets.

        drops: Dropped packets.
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
    Return the network interfaces of this node, or of this container.

    Raises:
        OSError: The system does not list them.
    """
    import psutil

    addresses = psutil.net_if_addrs()
    states: Mapping[str, Any] = psutil.net_if_stats()
    counts = _read_counters(psutil)
    names = [*states, *(x for x in addresses if x not in states)]
    return tuple(
        _make_interface(
            name, addresses.get(name, ()), states.get(name), counts.get(name)
        )
        for name in names
    )


def interface_kind(name: str) -> InterfaceKind:
    """
    Return the kind of an interface by its name.
    """
    if re.fullmatch(r"lo\d{0,3}", name):
        return "loopback"
    if _CONTAINER_NAME.match(name):
        return "container"
    return "virtual" if _VIRTUAL_NAME.match(name) else "ordinary"


def _read_counters(psutil: Any) -> dict[str, Any]:
    try:
        return dict(psutil.net_io_counters(pernic=True))
    except (OSError, RuntimeError):  # some containers have none
        return {}


def _make_interface(
    name: str, addresses: Any, state: Any, counters: Any
) -> Interface:
    texts = [_format_address(x.address, x.netmask) for x in addresses]
    totals = {
        kind: getattr(counters, f"{kind}in", 0)
        + getattr(counters, f"{kind}out", 0)
        for kind in ("err", "drop")
    }
    return Interface(
        name=clean(name),
        is_up=bool(state.isup) if state else True,
        addresses=tuple(x for x in texts if x),
        kind=interface_kind(name),
        mtu=state.mtu if state else 0,
        speed_mbps=state.speed if state else 0,
        packets=getattr(counters, "packets_recv", 0)
        + getattr(counters, "packets_sent", 0),
        errors=totals["err"],
        drops=totals["drop"],
    )


def _format_address(address: str, netmask: str | None) -> str:
    """
    Return such as 10.0.0.2/24; `""` for MAC and link-local addresses.
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


_MAX_ERROR_RATIO = 0.01
_MIN_ERRORS = 1000
_CABLE_REMEDY = "check the cable, the port of the switch, and the adapter"


def check_network(
    interfaces: Iterable[Interface],
    ports: Iterable[IbPort] = (),
    *,
    host: str = "",
) -> tuple[Finding, ...]:
    """
    Return findings about interfaces with errors and broken InfiniBand links.

    Interfaces that are off, and ports without a cable, are normal.
    """
    problems = [*_check_ports(tuple(ports)), *_check_interfaces(interfaces)]
    return tuple(
        as_finding(
            problem,
            host=host,
            evidence=Evidence(kind="interface", source=host, quote=names),
        )
        for problem, names in problems
    )


def _check_interfaces(
    interfaces: Iterable[Interface],
) -> Iterator[tuple[NodeFinding, str]]:
    for x in interfaces:
        is_used = x.is_up and x.kind != "loopback"
        if is_used and x.errors > max(
            _MIN_ERRORS, _MAX_ERROR_RATIO * x.packets
        ):
            yield (
                NodeFinding(
                    Cause.NETWORK_FAILURE,
                    "possible",
                    f"{x.errors} packets of {x.name} were damaged, and "
                    f"{x.packets} were not",
                    _CABLE_REMEDY,
                ),
                x.name,
            )


def _check_ports(
    ports: tuple[IbPort, ...],
) -> Iterator[tuple[NodeFinding, str]]:
    rejected = [
        x
        for x in ports
        if x.state in {"INIT", "ARMED"} and x.physical == "LinkUp"
    ]
    if rejected:
        yield (
            NodeFinding(
                Cause.NETWORK_FAILURE,
                "likely",
                f"the InfiniBand network did not accept {_port_names(rejected)}",
                "see that a subnet manager (opensm) runs in this network",
            ),
            _port_names(rejected),
        )
    # Ports that never had a cable are normal.
    has_active = any(x.state == "ACTIVE" for x in ports)
    broken = [x for x in ports if x.state == "DOWN" and x.link_downed]
    if broken and has_active:
        yield (
            NodeFinding(
                Cause.NETWORK_FAILURE,
                "possible",
                f"the link of {_port_names(broken)} is down, and was up before",
                _CABLE_REMEDY,
            ),
            _port_names(broken),
        )


def _port_names(ports: Iterable[IbPort]) -> str:
    return list_text(f"{x.device}:{x.port}" for x in ports)


class InterfaceUse(NamedTuple):
    """
    Processes of a host that select interfaces by the same setting.

    Attributes:
        variable: Such as ``"NCCL_SOCKET_IFNAME"``.

        value: Its value; ``""`` if it is not set.

        host: The node.

        chosen: The interfaces that it selects and that are usable.

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
        Return the ranks of the processes.
        """
        return {x.rank for x in self.users if x.rank is not None}


def check_across_hosts(
    variable: str, uses: list[InterfaceUse]
) -> Iterator[Finding]:
    """
    Yield findings about interfaces that do not connect the hosts.

    Args:
        variable: Such as ``"NCCL_SOCKET_IFNAME"``.

        uses: Its use on each host.
    """
    owners: dict[str, set[str]] = defaultdict(set)
    networks: dict[str, set[object]] = defaultdict(set)
    for use in uses:
        for address in _ipv4_addresses(use):
            owners[str(address.ip)].add(use.host)
            networks[use.host].add(address.network)
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
            evidence=interface_evidence(uses),
        )
    elif len(networks) > 1 and _has_isolated_host(networks):
        yield Finding(
            cause=Cause.NETWORK_MISCONFIGURED,
            ranks=(),
            summary=f"the interfaces that {variable} leads to are in "
            f"different networks on {list_text(sorted(networks))}",
            confidence="possible",
            remedy="see whether the nodes reach each other by these "
            f"addresses; else set {variable} to interfaces of one network",
            evidence=interface_evidence(uses),
        )


def _has_isolated_host(networks: Mapping[str, set[object]]) -> bool:
    """
    Return whether some hosts, but not all, share no network with others.

    In large clusters every host has its own network, with routes between
    them, which is no problem.
    """
    counts: dict[object, int] = defaultdict(int)
    for host_networks in networks.values():
        for network in host_networks:
            counts[network] += 1
    isolated = [
        host
        for host, host_networks in networks.items()
        if all(counts[network] == 1 for network in host_networks)
    ]
    return bool(isolated) and len(isolated) < len(networks)


def _ipv4_addresses(
    use: InterfaceUse,
) -> Iterator[ipaddress.IPv4Interface | ipaddress.IPv6Interface]:
    for interface in use.chosen:
        for text in interface.addresses:
            try:
                address = ipaddress.ip_interface(text)
            except ValueError:
                continue
            # All hosts share loopback addresses.
            if not address.is_loopback and address.version == 4:
                yield address


def check_set_everywhere(
    variable: str, settings: tuple[Settings, ...]
) -> Iterator[Finding]:
    """
    Yield a finding if only some nodes, or some ranks, set a variable.

    Args:
        variable: Such as ``"NCCL_SOCKET_IFNAME"``.
    """
    is_set: dict[str, set[bool]] = defaultdict(set)
    for x in settings:
        is_set[x.host].add(bool(x.variables.get(variable)))
    on = sorted(h for h, states in is_set.items() if states == {True})
    off = sorted(h for h, states in is_set.items() if states == {False})
    mixed = sorted(h for h, states in is_set.items() if len(states) > 1)
    if not mixed and not (on and off):
        return
    users = [x for x in settings if x.variables.get(variable)]
    where = (
        f"on {list_text(on)}, and not on {list_text(off)}"
        if on and off
        else f"by {list_text(dict.fromkeys(x.name for x in users))} only"
    )
    yield Finding(
        cause=Cause.NETWORK_MISCONFIGURED,
        ranks=tuple(sorted({x.rank for x in users if x.rank is not None})),
        summary=f"{variable} is set {where}",
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


def interface_evidence(uses: Iterable[InterfaceUse]) -> tuple[Evidence, ...]:
    """
    Return evidence of the interfaces that hosts use.
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


def match_names_like_nccl(spec: str, names: Iterable[str]) -> tuple[str, ...]:
    """
    Return the names that a specification selects, by the rules of NCCL.

    Args:
        spec: Such as ``"eth,ib0"``, ``"=eth0"``, ``"^docker,lo"``, or
            ``"^=eth1"``; ports after a colon are ignored.
    """
    text = spec.strip()
    is_negated = text.startswith("^")
    text = text.removeprefix("^")
    is_exact = text.startswith("=")
    patterns = [
        pattern.partition(":")[0].strip()
        for pattern in text.removeprefix("=").split(",")
    ]
    patterns = [pattern for pattern in patterns if pattern]
    if not patterns:
        return tuple(names)

    is_match: Callable[[str], bool] = (
        (lambda name: name in patterns)
        if is_exact
        else (lambda name: name.startswith(tuple(patterns)))
    )
    return tuple(name for name in names if is_match(name) != is_negated)


def select_like_nccl(
    spec: str | None, interfaces: Iterable[Interface]
) -> tuple[Interface, ...]:
    """
    Select interfaces by the rules of NCCL.

    Args:
        spec: The value of ``NCCL_SOCKET_IFNAME``; ``None`` or ``""`` if it is
            not set.

    Returns:
        All that match, usable or not.  Without *spec*, those whose name starts
        with ``ib``, or else all but those of Docker, loopback, and libvirt.
    """
    candidates = tuple(interfaces)
    if spec:
        names = set(match_names_like_nccl(spec, (x.name for x in candidates)))
        return tuple(x for x in candidates if x.name in names)

    for default in ("ib", "^docker,lo,virbr", "docker", "lo", "virbr"):
        selected = usable_interfaces(select_like_nccl(default, candidates))
        if selected:
            return selected
    return ()


def select_by_name(
    names: Iterable[str], interfaces: Iterable[Interface]
) -> tuple[tuple[Interface, ...], tuple[str, ...]]:
    """
    Return the interfaces with these names, and the names without one.
    """
    known = {x.name: x for x in interfaces}
    requested = [name for name in names if name]
    found = tuple(known[name] for name in requested if name in known)
    return found, tuple(name for name in requested if name not in known)


def usable_interfaces(
    interfaces: Iterable[Interface],
) -> tuple[Interface, ...]:
    """
    Return the interfaces that are up and have an address.
    """
    return tuple(x for x in interfaces if x.is_up and x.addresses)


_NCCL = "NCCL_SOCKET_IFNAME"
_GLOO = "GLOO_SOCKET_IFNAME"
_TENSORPIPE = "TP_SOCKET_IFNAME"
_EXACT_NAME_HINT = " by its whole name (signs such as ^ are for NCCL only)"


class _Mismatch(NamedTuple):
    """
    Why a value does not fit a host; braces stand for the hosts.
    """

    confidence: Confidence
    message: str


def check_socket_interfaces(
    settings: Iterable[Settings],
    interfaces: Mapping[str, tuple[Interface, ...]],
) -> tuple[Finding, ...]:
    """
    Return findings about interface names that do not fit.

    Checked are ``NCCL_SOCKET_IFNAME``, ``GLOO_SOCKET_IFNAME``, and
    ``TP_SOCKET_IFNAME``.  Hosts with the same problem share one finding.

    Args:
        settings: The variables of all processes.

        interfaces: Interfaces by host, as far as known.
    """
    entries = tuple(settings)
    is_multi_node = _has_several_nodes(entries)
    findings: list[Finding] = []
    for variable in (_NCCL, _GLOO, _TENSORPIPE):
        uses: list[InterfaceUse] = []
        mismatches: dict[tuple[str, _Mismatch], list[InterfaceUse]] = (
            defaultdict(list)
        )
        for value, host, users in _group_values(entries, variable):
            if host not in interfaces or not users[0].shares_network:
                continue
            chosen, absent = _select_interfaces(
                variable, value, interfaces[host]
            )
            use = InterfaceUse(
                variable, value, host, usable_interfaces(chosen), users
            )
            uses.append(use)
            mismatch = _find_mismatch(
                use, chosen, absent, is_multi_node=is_multi_node
            )
            if mismatch is not None:
                mismatches[value, mismatch].append(use)
        findings += _mismatch_findings(mismatches, interfaces)
        if is_multi_node:
            findings += check_across_hosts(variable, uses)
        findings += check_set_everywhere(variable, entries)
    return tuple(findings)


def _has_several_nodes(settings: tuple[Settings, ...]) -> bool:
    """
    Return whether the job has more than one node.
    """
    if len({x.host for x in settings}) > 1:
        return True

    local = "LOCAL_WORLD_SIZE"
    return any(
        x.world_size is not None
        and (local_size := whole_number(x.variables.get(local))) is not None
        and x.world_size > local_size
        for x in settings
    )


def _group_values(
    settings: tuple[Settings, ...], variable: str
) -> Iterator[tuple[str, str, tuple[Settings, ...]]]:
    groups: dict[tuple[str, str], list[Settings]] = defaultdict(list)
    for x in settings:
        value = x.variables.get(variable, "").strip()
        if value or variable == _NCCL:
            groups[value, x.host].append(x)
    for (value, host), users in groups.items():
        yield value, host, tuple(users)


def _select_interfaces(
    variable: str, value: str, interfaces: tuple[Interface, ...]
) -> tuple[tuple[Interface, ...], tuple[str, ...]]:
    """
    Return the selected interfaces, and the names without one.
    """
    if variable == _NCCL:
        chosen = select_like_nccl(value, interfaces)
        return chosen, () if chosen else (value,)
    # TensorPipe takes the whole value as one name.
    names = value.split(",") if variable == _GLOO else [value]
    return select_by_name(names, interfaces)


def _find_mismatch(
    use: InterfaceUse,
    chosen: tuple[Interface, ...],
    absent: tuple[str, ...],
    *,
    is_multi_node: bool,
) -> _Mismatch | None:
    if not use.value:
        return _find_default_mismatch(use) if is_multi_node else None
    if absent:
        return _Mismatch(
            "certain", f"names no interface of {{}}: {list_text(absent)}"
        )
    names = list_text(x.name for x in use.chosen or chosen)
    if not use.chosen:
        return _Mismatch(
            "likely", f"names {names} of {{}}, which is down or has no address"
        )
    kinds = {x.kind for x in use.chosen}
    if is_multi_node and kinds == {"loopback"}:
        return _Mismatch(
            "likely",
            f"names {names} of {{}}, by which no other node is reached",
        )
    if is_multi_node and kinds <= {"container", "loopback"}:
        return _Mismatch(
            "likely",
            f"names {names} of {{}}, which mostly leads to containers of the "
            "same host only",
        )
    return None


def _find_default_mismatch(use: InterfaceUse) -> _Mismatch | None:
    """
    Return a mismatch if NCCL selects a container bridge by default.
    """
    first = use.chosen[0] if use.chosen else None
    if first is None or first.kind != "container":
        return None

    return _Mismatch(
        "possible",
        f"is not set on {{}}, where NCCL may take {first.name}, which mostly "
        "leads to containers of the same host only",
    )


def _mismatch_findings(
    mismatches: Mapping[tuple[str, _Mismatch], list[InterfaceUse]],
    interfaces: Mapping[str, tuple[Interface, ...]],
) -> Iterator[Finding]:
    for (value, mismatch), uses in mismatches.items():
        first = uses[0]
        hosts = list_text(sorted({use.host for use in uses}))
        interface_names = list_text(
            (x.name for x in interfaces[first.host]), most=8
        )
        confidence, message = mismatch
        setting = f"{first.variable}={value}" if value else first.variable
        hint = "" if first.variable == _NCCL else _EXACT_NAME_HINT
        yield Finding(
            cause=Cause.NETWORK_MISCONFIGURED,
            ranks=tuple(sorted({rank for use in uses for rank in use.ranks})),
            summary=f"{setting} {message.replace('{}', hosts)}",
            confidence=confidence,
            remedy="name one that works and leads to the other nodes"
            f"{hint}; {first.host} has {interface_names}",
            evidence=interface_evidence(uses),
        )


_NCCL_HCA, _UCX_DEVICES = "NCCL_IB_HCA", "UCX_NET_DEVICES"
_NCCL_IB_DISABLE = "NCCL_IB_DISABLE"


class _DeviceMismatch(NamedTuple):
    """
    Why a value does not fit a host.
    """

    confidence: Confidence
    message: str
    remedy: str


def check_rdma_devices(
    settings: Iterable[Settings],
    interfaces: Mapping[str, tuple[Interface, ...]],
    ports: Mapping[str, tuple[IbPort, ...]],
) -> tuple[Finding, ...]:
    """
    Return findings about RDMA settings that name no device or disable it.

    Args:
        settings: The variables of all processes.

        interfaces: Interfaces by host, as far as known.

        ports: RDMA ports by host, as far as known.
    """
    users: dict[tuple[str, str, str], list[Settings]] = defaultdict(list)
    for x in settings:
        for variable in (_NCCL_HCA, _UCX_DEVICES, _NCCL_IB_DISABLE):
            value = x.variables.get(variable, "").strip()
            if value and x.host in ports:
                users[variable, value, x.host].append(x)
    mismatches: dict[tuple[str, str, _DeviceMismatch], list[Settings]] = (
        defaultdict(list)
    )
    for (variable, value, host), group in users.items():
        mismatch = _find_device_mismatch(
            variable, value, interfaces.get(host, ()), ports[host]
        )
        if mismatch is not None:
            mismatches[variable, value, mismatch] += group
    return tuple(
        _device_finding(f"{variable}={value}", mismatch, group)
        for (variable, value, mismatch), group in mismatches.items()
    )


def _find_device_mismatch(
    variable: str,
    value: str,
    interfaces: tuple[Interface, ...],
    ports: tuple[IbPort, ...],
) -> _DeviceMismatch | None:
    devices = sorted({x.device for x in ports})
    if variable == _NCCL_HCA and not match_names_like_nccl(value, devices):
        return _DeviceMismatch(
            # Without adapters, NCCL uses sockets anyway.
            "likely" if devices else "possible",
            "names no adapter, so that NCCL uses sockets, which is slow, or "
            "fails",
            f"name one that is there: {list_text(devices, most=8) or 'none'}",
        )
    if variable == _UCX_DEVICES and _matches_nothing(
        value, devices, interfaces
    ):
        return _DeviceMismatch(
            "likely",
            "names neither an adapter nor an interface",
            f"name one that is there: {list_text(devices, most=8)}",
        )
    if variable == _NCCL_IB_DISABLE and value == "1":
        active_layers = {x.link_layer for x in ports if x.state == "ACTIVE"}
        if "InfiniBand" in active_layers:
            return _DeviceMismatch(
                "possible",
                "though there is InfiniBand: NCCL uses sockets, which is slow",
                "unset it, unless InfiniBand is broken",
            )
    return None


def _matches_nothing(
    value: str, devices: Iterable[str], interfaces: Iterable[Interface]
) -> bool:
    if value.startswith("^"):
        return False

    known = {*devices, *(x.name for x in interfaces), "all"}
    return all(x.partition(":")[0] not in known for x in value.split(","))


def _device_finding(
    setting: str, mismatch: _DeviceMismatch, processes: list[Settings]
) -> Finding:
    hosts = list_text(sorted({x.host for x in processes}))
    return Finding(
        cause=Cause.NETWORK_MISCONFIGURED,
        ranks=tuple(sorted({x.rank for x in processes if x.rank is not None})),
        summary=f"{setting} on {hosts} {mismatch.message}",
        confidence=mismatch.confidence,
        remedy=mismatch.remedy,
        evidence=(
            Evidence(
                kind="environment",
                source=hosts,
                location=processes[0].name,
                quote=setting,
            ),
        ),
    )
