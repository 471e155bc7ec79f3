"""
What does NCCL warn of?
"""

from __future__ import annotations

import re

from collections import defaultdict
from collections.abc import Iterable

from ...findings import Cause, Finding
from .model import NcclNote
from .quoting import nccl_finding
from .remedies import OTHER_INTERFACE


__all__ = ["explain_warnings"]

_LINKS = (
    "check links, switches, and cards between these nodes (ibstat, "
    "ibv_devinfo, ethtool), and NCCL_IB_HCA and NCCL_IB_GID_INDEX"
)
# The first that is found in a warning tells its cause.
_WARNINGS: tuple[tuple[re.Pattern[str], Cause, str, str], ...] = (
    (
        re.compile(r"Duplicate GPU detected", re.IGNORECASE),
        Cause.NODE_MISCONFIGURED,
        "two ranks use the same GPU",
        (
            "set the device of each rank by its local rank, and check "
            "CUDA_VISIBLE_DEVICES"
        ),
    ),
    (
        re.compile(r"[Mm]ismatched NCCL version|version mismatch"),
        Cause.NODE_MISCONFIGURED,
        "ranks use different versions of NCCL",
        (
            "install the same version on all nodes, and look for another one in "
            "LD_LIBRARY_PATH or LD_PRELOAD"
        ),
    ),
    (
        re.compile(
            r"no socket interface found|No interface found", re.IGNORECASE
        ),
        Cause.NETWORK_MISCONFIGURED,
        "NCCL found no network interface to use",
        OTHER_INTERFACE,
    ),
    (
        re.compile(
            r"status ?= ?(?:IBV_WC_RETRY_EXC_ERR\()?12\b|vendor.err ?=? ?129"
            r"|RETRY_EXC"
        ),
        Cause.NETWORK_FAILURE,
        "a card sent again and again and got no answer (status 12)",
        _LINKS,
    ),
    (
        re.compile(
            r"Got completion from peer|completion with error|async.{0,20}(?:event|fatal)"
        ),
        Cause.NETWORK_FAILURE,
        "a network card reported an error",
        _LINKS,
    ),
    (
        re.compile(
            r"(?:onnect|socket)[^\n]{0,120}(?:refused|timed out|No route to host"
            r"|unreachable)",
            re.IGNORECASE,
        ),
        Cause.NETWORK_FAILURE,
        "a rank was not reached",
        OTHER_INTERFACE,
    ),
)


def explain_warnings(notes: Iterable[NcclNote]) -> list[Finding]:
    """
    What do warnings of NCCL mean?

    Args:
        notes: What NCCL says.

    Returns:
        One finding for each kind of warning whose cause is known.
    """
    found: dict[int, list[NcclNote]] = defaultdict(list)
    for note in notes:
        # Who tries again may well succeed.
        if note.kind == "warning" and "retrying" not in note.text:
            for i, (pattern, *_) in enumerate(_WARNINGS):
                if pattern.search(note.text):
                    found[i].append(note)
                    break
    return [_warned(i, warned) for i, warned in sorted(found.items())]


def _warned(i: int, warned: list[NcclNote]) -> Finding:
    _, cause, summary, remedy = _WARNINGS[i]
    hosts = sorted({x.host for x in warned})
    where = f" (on {', '.join(hosts[:4])}{'…' if len(hosts) > 4 else ''})"
    return nccl_finding(
        cause, f"{summary}{where}: {warned[0].text}", warned, remedy
    )
