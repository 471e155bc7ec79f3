"""
Read and check network interfaces, InfiniBand ports, and their settings.
"""

from __future__ import annotations

import ipaddress
import os
import re

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

import attrs

from .._text import clean, list_text
from ..findings import Confidence, Evidence, Finding
from ..processes import read_proc, whole_number
from .judgements import judge
from .worker_environment import Settings, grouped


_RDMA_FOLDER = "/sys/class/infiniband"
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


def read_ib_ports() -> tuple[IbPort, ...]:
    """
    Return the ports of RDMA adapters by name; none without adapters.
    """
    return tuple(
        _read_port(device, port)
        for device in _list_folder(_RDMA_FOLDER)
        for number in _list_folder(f"{_RDMA_FOLDER}/{device}/ports")
        if (port := whole_number(number)) is not None
    )


def _list_folder(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))[:_MAX_NAMES]  # noqa: PTH208 text is enough
    except OSError:
        return []


def _read_port(device: str, number: int) -> IbPort:
    port_folder = f"{_RDMA_FOLDER}/{device}/ports/{number}"
    counts = [
        whole_number(_read_text(f"{port_folder}/counters/{name}")) or 0
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


InterfaceKind = Literal["loopback", "container", "virtual", "ordinary"]

# Created by container engines and hypervisors: their addresses are the same
# on every host, or are not routed.
_CONTAINER_NAME = re.compile(
    r"(?:docker|br-[0-9a-f]{12}|veth|virbr|vnet|cni|flannel|cali|cilium|lxc"
    r"|lxdbr|podman|kube-|nodelocaldns|weave|vxlan|tunl|nerdctl|buildkit)"
)
_COUNTER_FIELDS = (
    *(("packets_recv", "packets_sent"), ("errin", "errout")),
    ("dropin", "dropout"),
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
    counters: Mapping[str, Any] = {}
    with suppress(OSError, RuntimeError):  # some containers have none
        counters = psutil.net_io_counters(pernic=True)
    names = [*states, *(x for x in addresses if x not in states)]
    return tuple(
        _make_interface(
            name, addresses.get(name, ()), states.get(name), counters.get(name)
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


def _make_interface(
    name: str, addresses: Any, state: Any, counters: Any
) -> Interface:
    texts = (_format_address(x.address, x.netmask) for x in addresses)
    packets, errors, drops = (
        sum(getattr(counters, field, 0) for field in fields)
        for fields in _COUNTER_FIELDS
    )
    return Interface(
        name=clean(name),
        is_up=bool(state.isup) if state else True,
        addresses=tuple(filter(None, texts)),
        kind=interface_kind(name),
        mtu=state.mtu if state else 0,
        speed_mbps=state.speed if state else 0,
        packets=packets,
        errors=errors,
        drops=drops,
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
    with suppress(ValueError):
        length = int(ipaddress.ip_address(netmask or "")).bit_count()
    return f"{ip}/{length}"


_MAX_ERROR_RATIO = 0.01
_MIN_ERRORS = 1000


def check_ports(
    ports: Collection[IbPort], *, host: str = ""
) -> Iterator[Finding]:
    """
    Yield findings about broken InfiniBand links.

    Ports that never had a cable are normal.
    """
    affected: dict[str, list[str]] = defaultdict(list)
    has_active = any(x.state == "ACTIVE" for x in ports)
    for x in ports:
        if x.state in {"INIT", "ARMED"} and x.physical == "LinkUp":
            affected["port_rejected"].append(f"{x.device}:{x.port}")
        elif has_active and x.state == "DOWN" and x.link_downed:
            affected["port_down"].append(f"{x.device}:{x.port}")
    for name, found in affected.items():
        names = list_text(found)
        evidence = Evidence(kind="interface", source=host, quote=names)
        yield judge(name, evidence, ports=names)


def check_interfaces(
    interfaces: Iterable[Interface], *, host: str = ""
) -> Iterator[Finding]:
    """
    Yield findings about interfaces with errors; those that are off are normal.
    """
    for x in interfaces:
        limit = max(_MIN_ERRORS, _MAX_ERROR_RATIO * x.packets)
        if x.is_up and x.kind != "loopback" and x.errors > limit:
            yield judge(
                "damaged_packets",
                Evidence(kind="interface", source=host, quote=x.name),
                errors=x.errors,
                packets=x.packets,
                interface=x.name,
            )


@attrs.frozen(kw_only=True)
class InterfaceUse:
    """
    Processes of a host that select interfaces by the same setting.

    Attributes:
        variable: Such as ``"NCCL_SOCKET_IFNAME"``.

        value: Its value; ``""`` if it is not set.

        host: The node.

        users: The processes.

        selected: The interfaces that it selects.

        absent: The names without an interface.
    """

    variable: str
    value: str
    host: str
    users: tuple[Settings, ...]
    selected: tuple[Interface, ...]
    absent: tuple[str, ...]

    @property
    def chosen(self) -> tuple[Interface, ...]:
        """
        Return the selected interfaces that are usable.
        """
        return usable_interfaces(self.selected)

    @property
    def addresses(self) -> Iterator[ipaddress.IPv4Interface]:
        """
        Yield the IPv4 addresses of the usable interfaces.
        """
        for text in (text for x in self.chosen for text in x.addresses):
            with suppress(ValueError):
                address = ipaddress.IPv4Interface(text)
                # All hosts share loopback addresses.
                if not address.is_loopback:
                    yield address

    @property
    def evidence(self) -> Evidence:
        """
        Return the variable and the interfaces as evidence.
        """
        shown = (f"{x.name} {' '.join(x.addresses)}" for x in self.chosen[:4])
        return self.users[0].evidence(
            f"{self.variable}={self.value}; {', '.join(shown)}"
        )


def _check_across_hosts(
    variable: str, uses: list[InterfaceUse]
) -> Iterator[Finding]:
    """
    Yield findings about interfaces that do not connect the hosts.
    """
    places = [(use.host, x) for use in uses for x in use.addresses]
    owners = grouped((str(x.ip), host) for host, x in places)
    networks = grouped((host, x.network) for host, x in places)
    evidence = (use.evidence for use in uses[:8])
    shared = sorted(ip for ip, hosts in owners.items() if len(set(hosts)) > 1)
    if shared:
        yield judge(
            "same_address",
            *evidence,
            ranks=(x.rank for use in uses for x in use.users),
            hosts=list_text(sorted(set(owners[shared[0]]))),
            address=shared[0],
            variable=variable,
        )
    elif _has_isolated_host(networks):
        hosts = list_text(sorted(networks))
        yield judge(
            "different_networks", *evidence, variable=variable, hosts=hosts
        )


def _has_isolated_host(networks: Mapping[str, Collection[object]]) -> bool:
    """
    Return whether some hosts, but not all, share no network with others.

    In large clusters every host has its own network, with routes between
    them, which is no problem.
    """
    counts = Counter(x for shared in networks.values() for x in set(shared))
    isolated = [
        all(counts[network] == 1 for network in host_networks)
        for host_networks in networks.values()
    ]
    return any(isolated) and not all(isolated)


def _check_set_everywhere(
    variable: str, settings: tuple[Settings, ...]
) -> Iterator[Finding]:
    """
    Yield a finding if only some nodes, or some ranks, set a variable.
    """
    is_set = grouped(
        (x.host, bool(x.variables.get(variable))) for x in settings
    )
    on, off, mixed = (
        sorted(host for host, found in is_set.items() if set(found) == states)
        for states in ({True}, {False}, {True, False})
    )
    if not mixed and not (on and off):
        return

    users = [x for x in settings if x.variables.get(variable)]
    where = (
        f"on {list_text(on)}, and not on {list_text(off)}"
        if on and off
        else f"by {list_text(dict.fromkeys(x.name for x in users))} only"
    )
    yield judge(
        "set_by_some",
        Evidence(
            kind="environment",
            source=list_text(on or mixed),
            location=variable,
            quote=users[0].variables[variable],
        ),
        ranks=(x.rank for x in users),
        variable=variable,
        where=where,
    )


def match_names_like_nccl(spec: str, names: Iterable[str]) -> tuple[str, ...]:
    """
    Return the names that a specification selects, by the rules of NCCL.

    Args:
        spec: Such as ``"eth,ib0"``, ``"=eth0"``, ``"^docker,lo"``, or
            ``"^=eth1"``; ports after a colon are ignored.
    """
    text = spec.strip()
    is_negated, text = text.startswith("^"), text.removeprefix("^")
    is_exact, text = text.startswith("="), text.removeprefix("=")
    parts = (part.partition(":")[0].strip() for part in text.split(","))
    patterns = tuple(filter(None, parts))
    return tuple(
        name
        for name in names
        if not patterns
        or is_negated
        != (name in patterns if is_exact else name.startswith(patterns))
    )


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


def check_socket_interfaces(
    settings: Iterable[Settings],
    interfaces: Mapping[str, tuple[Interface, ...]],
) -> Iterator[Finding]:
    """
    Yield findings about interface names that do not fit.

    Checked are ``NCCL_SOCKET_IFNAME``, ``GLOO_SOCKET_IFNAME``, and
    ``TP_SOCKET_IFNAME``.  Hosts with the same problem share one finding.

    Args:
        settings: The variables of all processes.

        interfaces: Interfaces by host, as far as known.
    """
    entries = tuple(settings)
    is_multi_node = _has_several_nodes(entries)
    for variable in (_NCCL, _GLOO, _TENSORPIPE):
        uses = list(_interface_uses(variable, entries, interfaces))
        mismatches = grouped(
            (
                (use.value, _find_mismatch(use, is_multi_node=is_multi_node)),
                use,
            )
            for use in uses
        )
        for (_, mismatch), found in mismatches.items():
            if mismatch is not None:
                yield _interface_finding(*mismatch, found, interfaces)
        if is_multi_node:
            yield from _check_across_hosts(variable, uses)
        yield from _check_set_everywhere(variable, entries)


def _interface_finding(
    name: str,
    names: str,
    uses: list[InterfaceUse],
    interfaces: Mapping[str, tuple[Interface, ...]],
) -> Finding:
    first = uses[0]
    variable, value, host = first.variable, first.value, first.host
    return judge(
        name,
        *(use.evidence for use in uses[:8]),
        ranks=(x.rank for use in uses for x in use.users),
        setting=f"{variable}={value}" if value else variable,
        hosts=list_text(sorted({use.host for use in uses})),
        names=names,
        hint="" if variable == _NCCL else _EXACT_NAME_HINT,
        host_name=host,
        known=list_text((x.name for x in interfaces[host]), most=8),
    )


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


def _interface_uses(
    variable: str,
    settings: tuple[Settings, ...],
    interfaces: Mapping[str, tuple[Interface, ...]],
) -> Iterator[InterfaceUse]:
    groups = grouped(
        ((x.variables.get(variable, "").strip(), x.host), x) for x in settings
    )
    for (value, host), users in groups.items():
        is_used = bool(value) or variable == _NCCL
        if is_used and host in interfaces and users[0].shares_network:
            selected, absent = _select(variable, value, interfaces[host])
            yield InterfaceUse(
                variable=variable,
                value=value,
                host=host,
                users=tuple(users),
                selected=selected,
                absent=absent,
            )


def _select(
    variable: str, value: str, interfaces: tuple[Interface, ...]
) -> tuple[tuple[Interface, ...], tuple[str, ...]]:
    """
    Return the selected interfaces, and the names without one.
    """
    if variable == _NCCL:
        selected = select_like_nccl(value, interfaces)
        return selected, () if selected else (value,)

    # TensorPipe takes the whole value as one name.
    names = value.split(",") if variable == _GLOO else [value]
    known = {x.name: x for x in interfaces}
    return (
        tuple(known[name] for name in names if name in known),
        tuple(name for name in names if name and name not in known),
    )


def _find_mismatch(
    use: InterfaceUse, *, is_multi_node: bool
) -> tuple[str, str] | None:
    """
    Return the entry of the judgements, and the names of interfaces.
    """
    kinds = {x.kind for x in use.chosen}
    names = list_text(x.name for x in use.chosen or use.selected)
    if not use.value:
        first = use.chosen[0] if use.chosen else None
        is_bridge = first is not None and first.kind == "container"
        if is_multi_node and first is not None and is_bridge:
            return "interface_default", first.name
    elif use.absent:
        return "interface_absent", list_text(use.absent)
    elif not use.chosen:
        return "interface_down", names
    elif is_multi_node and kinds == {"loopback"}:
        return "interface_loopback", names
    elif is_multi_node and kinds <= {"container", "loopback"}:
        return "interface_container", names
    return None


_NCCL_HCA, _UCX_DEVICES = "NCCL_IB_HCA", "UCX_NET_DEVICES"
_NCCL_IB_DISABLE = "NCCL_IB_DISABLE"


def check_rdma_devices(
    settings: Iterable[Settings],
    interfaces: Mapping[str, tuple[Interface, ...]],
    ports: Mapping[str, tuple[IbPort, ...]],
) -> Iterator[Finding]:
    """
    Yield findings about RDMA settings that name no device or disable it.

    Args:
        settings: The variables of all processes.

        interfaces: Interfaces by host, as far as known.

        ports: RDMA ports by host, as far as known.
    """
    mismatches = grouped(
        (_find_device_mismatch(variable, x, interfaces, ports), x)
        for x in settings
        for variable in (_NCCL_HCA, _UCX_DEVICES, _NCCL_IB_DISABLE)
    )
    for mismatch, users in mismatches.items():
        if mismatch is None:
            continue
        name, confidence, setting, known = mismatch
        hosts = list_text(sorted({x.host for x in users}))
        yield judge(
            name,
            attrs.evolve(users[0].evidence(setting), source=hosts),
            ranks=(x.rank for x in users),
            confidence=confidence,
            setting=setting,
            hosts=hosts,
            known=known,
        )


# The entry of the judgements, how sure it is if surer or less sure than that,
# the setting, and the adapters of the node.
_DeviceMismatch = tuple[str, Confidence | None, str, str]


def _find_device_mismatch(
    variable: str,
    user: Settings,
    interfaces: Mapping[str, tuple[Interface, ...]],
    host_ports: Mapping[str, tuple[IbPort, ...]],
) -> _DeviceMismatch | None:
    value = user.variables.get(variable, "").strip()
    ports = host_ports.get(user.host)
    if not value or ports is None:
        return None

    adapters = sorted({x.device for x in ports})
    setting = f"{variable}={value}"
    known = list_text(adapters, most=8) or "none"
    if variable == _NCCL_HCA and not match_names_like_nccl(value, adapters):
        # Without adapters, NCCL uses sockets anyway.
        confidence: Confidence | None = None if adapters else "possible"
        return "adapter_absent", confidence, setting, known
    if variable == _UCX_DEVICES and not value.startswith("^"):
        names = {x.partition(":")[0] for x in value.split(",")}
        known_names = (x.name for x in interfaces.get(user.host, ()))
        if not names & {*adapters, *known_names, "all"}:
            return "device_absent", None, setting, known
    layers = {x.link_layer for x in ports if x.state == "ACTIVE"}
    is_off = variable == _NCCL_IB_DISABLE and value == "1"
    if is_off and "InfiniBand" in layers:
        return "adapter_unused", None, setting, known
    return None
