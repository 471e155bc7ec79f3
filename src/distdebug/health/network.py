"""
Which interfaces has a node, and do they work?
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
from ..findings import Cause, Confidence, Evidence, Finding, Judged, as_finding
from ..processes import read_proc, whole_number
from .worker_environment import Settings


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


def chosen_names(spec: str, names: Iterable[str]) -> tuple[str, ...]:
    """
    Choose among names as NCCL does.

    Args:
        spec: Such as ``"eth,ib0"``, ``"=eth0"``, ``"^docker,lo"``, or
            ``"^=eth1"``; a port behind a colon does not matter.

        names: What there is.

    Returns:
        Those that are meant.
    """
    text = spec.strip()
    is_not = text.startswith("^")
    text = text.removeprefix("^")
    is_exact = text.startswith("=")
    words = [
        word.partition(":")[0].strip()
        for word in text.removeprefix("=").split(",")
    ]
    words = [word for word in words if word]
    if not words:
        return tuple(names)

    fits: Callable[[str], bool] = (
        (lambda name: name in words)
        if is_exact
        else (lambda name: name.startswith(tuple(words)))
    )
    return tuple(name for name in names if fits(name) != is_not)


def chosen_by_nccl(
    spec: str | None, interfaces: Iterable[Interface]
) -> tuple[Interface, ...]:
    """
    Choose interfaces as NCCL does.

    Args:
        spec: The variable; ``None`` or ``""`` if it is not set.

        interfaces: Those of the node.

    Returns:
        All that are meant, also those that cannot be used.  If nothing is
        set, those with ``ib`` in front, or else all but Docker's, loopback,
        and libvirt's.
    """
    every = tuple(interfaces)
    if spec:
        names = set(chosen_names(spec, (x.name for x in every)))
        return tuple(x for x in every if x.name in names)

    for default in ("ib", "^docker,lo,virbr", "docker", "lo", "virbr"):
        found = usable(chosen_by_nccl(default, every))
        if found:
            return found
    return ()


def chosen_exactly(
    names: Iterable[str], interfaces: Iterable[Interface]
) -> tuple[tuple[Interface, ...], tuple[str, ...]]:
    """
    Choose interfaces by their names.

    Args:
        names: Their names.

        interfaces: Those of the node.

    Returns:
        The interfaces, and the names of which there is none.
    """
    known = {x.name: x for x in interfaces}
    wanted = [name for name in names if name]
    found = tuple(known[name] for name in wanted if name in known)
    return found, tuple(name for name in wanted if name not in known)


def usable(interfaces: Iterable[Interface]) -> tuple[Interface, ...]:
    """
    Those that are up and have an address.
    """
    return tuple(x for x in interfaces if x.is_up and x.addresses)


_NCCL = "NCCL_SOCKET_IFNAME"
_GLOO = "GLOO_SOCKET_IFNAME"
_TENSORPIPE = "TP_SOCKET_IFNAME"
_EXACTLY = " by its whole name (signs such as ^ are for NCCL only)"


class _Wrong(NamedTuple):
    """
    Why a value does not fit a host; braces stand for the hosts.
    """

    confidence: Confidence
    says: str


def judge_sockets(
    settings: Iterable[Settings],
    interfaces: Mapping[str, tuple[Interface, ...]],
) -> tuple[Finding, ...]:
    """
    Tell which of these variables do not fit.

    Args:
        settings: The variables of all processes.

        interfaces: Those of each host, as far as they are known.

    Returns:
        What was found, hosts with the same trouble together.
    """
    every = tuple(settings)
    spread = _is_spread(every)
    found: list[Finding] = []
    for variable in (_NCCL, _GLOO, _TENSORPIPE):
        uses: list[Use] = []
        wrong: dict[tuple[str, _Wrong], list[Use]] = defaultdict(list)
        for value, host, users in _uses(every, variable):
            if host not in interfaces or not users[0].sees_node:
                continue
            chosen, absent = _choose(variable, value, interfaces[host])
            use = Use(variable, value, host, usable(chosen), users)
            uses.append(use)
            trouble = _judge(use, chosen, absent, spread=spread)
            if trouble is not None:
                wrong[value, trouble].append(use)
        found += _findings(wrong, interfaces)
        if spread:
            found += judge_between(variable, uses)
        found += judge_half_set(variable, every)
    return tuple(found)


def _is_spread(settings: tuple[Settings, ...]) -> bool:
    """
    Whether the job has more than one node.
    """
    if len({x.host for x in settings}) > 1:
        return True

    local = "LOCAL_WORLD_SIZE"
    return any(
        x.world_size is not None
        and (here := whole_number(x.variables.get(local))) is not None
        and x.world_size > here
        for x in settings
    )


def _uses(
    settings: tuple[Settings, ...], variable: str
) -> Iterator[tuple[str, str, tuple[Settings, ...]]]:
    alike: dict[tuple[str, str], list[Settings]] = defaultdict(list)
    for x in settings:
        value = x.variables.get(variable, "").strip()
        if value or variable == _NCCL:
            alike[value, x.host].append(x)
    for (value, host), users in alike.items():
        yield value, host, tuple(users)


def _choose(
    variable: str, value: str, interfaces: tuple[Interface, ...]
) -> tuple[tuple[Interface, ...], tuple[str, ...]]:
    """
    The interfaces that are meant, and the names of which there is none.
    """
    if variable == _NCCL:
        chosen = chosen_by_nccl(value, interfaces)
        return chosen, () if chosen else (value,)
    # TensorPipe takes one name, whatever is in it.
    names = value.split(",") if variable == _GLOO else [value]
    return chosen_exactly(names, interfaces)


def _judge(
    use: Use,
    chosen: tuple[Interface, ...],
    absent: tuple[str, ...],
    *,
    spread: bool,
) -> _Wrong | None:
    if not use.value:
        return _judge_default(use) if spread else None
    if absent:
        return _Wrong(
            "certain", f"names no interface of {{}}: {list_text(absent)}"
        )
    names = list_text(x.name for x in use.chosen or chosen)
    if not use.chosen:
        return _Wrong(
            "likely", f"names {names} of {{}}, which is down or has no address"
        )
    kinds = {x.kind for x in use.chosen}
    if spread and kinds == {"loopback"}:
        return _Wrong(
            "likely",
            f"names {names} of {{}}, by which no other node is reached",
        )
    if spread and kinds <= {"container", "loopback"}:
        return _Wrong(
            "likely",
            f"names {names} of {{}}, which mostly leads to containers of the "
            "same host only",
        )
    return None


def _judge_default(use: Use) -> _Wrong | None:
    """
    NCCL meets at the first interface, and takes bridges for good ones.
    """
    first = use.chosen[0] if use.chosen else None
    if first is None or first.kind != "container":
        return None

    return _Wrong(
        "possible",
        f"is not set on {{}}, where NCCL may take {first.name}, which mostly "
        "leads to containers of the same host only",
    )


def _findings(
    wrong: Mapping[tuple[str, _Wrong], list[Use]],
    interfaces: Mapping[str, tuple[Interface, ...]],
) -> Iterator[Finding]:
    for (value, trouble), uses in wrong.items():
        first = uses[0]
        hosts = list_text(sorted({use.host for use in uses}))
        has = list_text((x.name for x in interfaces[first.host]), most=8)
        confidence, says = trouble
        setting = f"{first.variable}={value}" if value else first.variable
        how = "" if first.variable == _NCCL else _EXACTLY
        yield Finding(
            cause=Cause.NETWORK_MISCONFIGURED,
            ranks=tuple(sorted({rank for use in uses for rank in use.ranks})),
            summary=f"{setting} {says.replace('{}', hosts)}",
            confidence=confidence,
            remedy="name one that works and leads to the other nodes"
            f"{how}; {first.host} has {has}",
            evidence=use_evidence(uses),
        )


_HCA, _UCX = "NCCL_IB_HCA", "UCX_NET_DEVICES"
_OFF = "NCCL_IB_DISABLE"


class _DevicesWrong(NamedTuple):
    """
    Why a value does not fit a host.
    """

    confidence: Confidence
    says: str
    remedy: str


def judge_devices(
    settings: Iterable[Settings],
    interfaces: Mapping[str, tuple[Interface, ...]],
    ports: Mapping[str, tuple[IbPort, ...]],
) -> tuple[Finding, ...]:
    """
    Tell which of these variables name nothing.

    Args:
        settings: The variables of all processes.

        interfaces: Those of each host, as far as they are known.

        ports: Those of the adapters of each host, as far as they are known.

    Returns:
        What was found.
    """
    users: dict[tuple[str, str, str], list[Settings]] = defaultdict(list)
    for x in settings:
        for variable in (_HCA, _UCX, _OFF):
            value = x.variables.get(variable, "").strip()
            if value and x.host in ports:
                users[variable, value, x.host].append(x)
    wrong: dict[tuple[str, str, _DevicesWrong], list[Settings]] = defaultdict(
        list
    )
    for (variable, value, host), who in users.items():
        trouble = _devices_judge(
            variable, value, interfaces.get(host, ()), ports[host]
        )
        if trouble is not None:
            wrong[variable, value, trouble] += who
    return tuple(
        _finding(f"{variable}={value}", trouble, who)
        for (variable, value, trouble), who in wrong.items()
    )


def _devices_judge(
    variable: str,
    value: str,
    interfaces: tuple[Interface, ...],
    ports: tuple[IbPort, ...],
) -> _DevicesWrong | None:
    devices = sorted({x.device for x in ports})
    if variable == _HCA and not chosen_names(value, devices):
        return _DevicesWrong(
            # Where there is none at all, sockets are what there is.
            "likely" if devices else "possible",
            "names no adapter, so that NCCL uses sockets, which is slow, or "
            "fails",
            f"name one that is there: {list_text(devices, most=8) or 'none'}",
        )
    if variable == _UCX and _names_nothing(value, devices, interfaces):
        return _DevicesWrong(
            "likely",
            "names neither an adapter nor an interface",
            f"name one that is there: {list_text(devices, most=8)}",
        )
    if variable == _OFF and value == "1":
        works = {x.link_layer for x in ports if x.state == "ACTIVE"}
        if "InfiniBand" in works:
            return _DevicesWrong(
                "possible",
                "though there is InfiniBand: NCCL uses sockets, which is slow",
                "unset it, unless InfiniBand is broken",
            )
    return None


def _names_nothing(
    value: str, devices: Iterable[str], interfaces: Iterable[Interface]
) -> bool:
    if value.startswith("^"):
        return False

    known = {*devices, *(x.name for x in interfaces), "all"}
    return all(x.partition(":")[0] not in known for x in value.split(","))


def _finding(
    setting: str, wrong: _DevicesWrong, who: list[Settings]
) -> Finding:
    hosts = list_text(sorted({x.host for x in who}))
    return Finding(
        cause=Cause.NETWORK_MISCONFIGURED,
        ranks=tuple(sorted({x.rank for x in who if x.rank is not None})),
        summary=f"{setting} on {hosts} {wrong.says}",
        confidence=wrong.confidence,
        remedy=wrong.remedy,
        evidence=(
            Evidence(
                kind="environment",
                source=hosts,
                location=who[0].name,
                quote=setting,
            ),
        ),
    )
