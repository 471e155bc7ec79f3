"""
Do the interfaces and adapters of a node work?
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..._text import list_text
from ...findings import Cause, Evidence, Finding
from ..judged import Judged, as_finding
from .infiniband import IbPort
from .interfaces import Interface


__all__ = ["judge_network"]

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
                f"the InfiniBand network did not accept {_names(trying)}",
                "see that a subnet manager (opensm) runs in this network",
            ),
            _names(trying),
        )
    # A port that nobody ever plugged in is no news.
    works = any(x.state == "ACTIVE" for x in ports)
    broken = [x for x in ports if x.state == "DOWN" and x.link_downed]
    if broken and works:
        yield (
            Judged(
                Cause.NETWORK_FAILURE,
                "possible",
                f"the link of {_names(broken)} is down, and was up before",
                _CABLE,
            ),
            _names(broken),
        )


def _names(ports: Iterable[IbPort]) -> str:
    return list_text(f"{x.device}:{x.port}" for x in ports)
