"""
Which InfiniBand and RoCE adapters has this node, and are their links up?
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterator

import attrs

from ..._text import clean
from ...processes.procfs import read_proc, whole_number


__all__ = ["IbPort", "read_ib_ports"]

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
