"""
Do the variables that name adapters for RDMA fit the nodes?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..._text import list_text
from ...findings import Cause, Confidence, Evidence, Finding
from ..network.infiniband import IbPort
from ..network.interfaces import Interface
from .choice import chosen_names
from .processes import Settings


__all__ = ["judge_devices"]

_HCA, _UCX = "NCCL_IB_HCA", "UCX_NET_DEVICES"
_OFF = "NCCL_IB_DISABLE"


class _Wrong(NamedTuple):
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
    wrong: dict[tuple[str, str, _Wrong], list[Settings]] = defaultdict(list)
    for (variable, value, host), who in users.items():
        trouble = _judge(
            variable, value, interfaces.get(host, ()), ports[host]
        )
        if trouble is not None:
            wrong[variable, value, trouble] += who
    return tuple(
        _finding(f"{variable}={value}", trouble, who)
        for (variable, value, trouble), who in wrong.items()
    )


def _judge(
    variable: str,
    value: str,
    interfaces: tuple[Interface, ...],
    ports: tuple[IbPort, ...],
) -> _Wrong | None:
    devices = sorted({x.device for x in ports})
    if variable == _HCA and not chosen_names(value, devices):
        return _Wrong(
            # Where there is none at all, sockets are what there is.
            "likely" if devices else "possible",
            "names no adapter, so that NCCL uses sockets, which is slow, or "
            "fails",
            f"name one that is there: {list_text(devices, most=8) or 'none'}",
        )
    if variable == _UCX and _names_nothing(value, devices, interfaces):
        return _Wrong(
            "likely",
            "names neither an adapter nor an interface",
            f"name one that is there: {list_text(devices, most=8)}",
        )
    if variable == _OFF and value == "1":
        works = {x.link_layer for x in ports if x.state == "ACTIVE"}
        if "InfiniBand" in works:
            return _Wrong(
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


def _finding(setting: str, wrong: _Wrong, who: list[Settings]) -> Finding:
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
