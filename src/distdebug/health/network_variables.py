"""
Do the interfaces that the nodes of a job use lead to each other?
"""

from __future__ import annotations

import ipaddress

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from .._text import list_text
from ..findings import Cause, Confidence, Evidence, Finding
from ..processes.procfs import whole_number
from .network import IbPort, Interface
from .worker_environment import Settings


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
