"""
Do all ranks of a job have the same settings of NCCL?

Some settings change which messages NCCL sends: if they differ, ranks wait for
each other for ever, or fail.  Others are a matter of each node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from ..._text import list_text
from ...findings import Cause, Evidence, Finding
from .meeting import teams
from .processes import Settings


__all__ = ["judge_alike"]

# Of each node, or of one rank that prints for all.
_OWN = (
    *("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"),
    *("NCCL_TOPO_", "NCCL_GRAPH_", "NCCL_HOSTID", "NCCL_COMM_ID"),
    *("NCCL_IGNORE_CPU_AFFINITY", "NCCL_CONF_FILE", "NCCL_TUNER_CONFIG"),
    *("NCCL_RAS_", "NCCL_PROFILER_", "NCCL_NET_PLUGIN", "NCCL_IB_ROCE_"),
    *("NCCL_CUDA_PATH", "NCCL_ROOT", "NCCL_HOME", "NCCL_VERSION"),
    *("NCCL_INCLUDE", "NCCL_LIB"),
)
# Those by which ranks can no longer talk to each other.
_TALK = frozenset(
    {
        *("NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_IB_DISABLE"),
        *("NCCL_SOCKET_FAMILY", "NCCL_BUFFSIZE", "NCCL_NVLS_ENABLE"),
        *("NCCL_COLLNET_ENABLE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
        *("NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_NTHREADS"),
        *("NCCL_P2P_NET_CHUNKSIZE", "NCCL_CROSS_NIC", "NCCL_MNNVL_ENABLE"),
        "NCCL_P2P_NVL_CHUNKSIZE",
    }
)


def judge_alike(settings: Iterable[Settings]) -> tuple[Finding, ...]:
    """
    Tell which settings differ within a job.

    Args:
        settings: The variables of all processes.

    Returns:
        What was found.
    """
    return tuple(
        finding
        for members in teams(settings).values()
        if len(members) > 1
        for finding in _judge(members)
    )


def _judge(members: list[Settings]) -> Iterator[Finding]:
    names = {
        name
        for x in members
        for name in x.variables
        if name.startswith(("NCCL_", "RCCL_")) and not name.startswith(_OWN)
    }
    for name in sorted(names):
        values: dict[str | None, list[Settings]] = defaultdict(list)
        for x in members:
            values[x.variables.get(name)].append(x)
        if len(values) > 1:
            yield _finding(name, values)


def _finding(name: str, values: dict[str | None, list[Settings]]) -> Finding:
    parts = sorted(values.items(), key=lambda item: len(item[1]))
    few = parts[0][1]
    told = [
        f"{'unset' if value is None else value} "
        f"({list_text((x.name for x in who), most=3)})"
        for value, who in parts
    ]
    ranks = sorted({x.rank for x in few if x.rank is not None})
    return Finding(
        cause=Cause.NETWORK_MISCONFIGURED,
        ranks=tuple(ranks),
        summary=f"{name} differs between ranks: {list_text(told)}",
        confidence="likely" if name in _TALK else "possible",
        remedy="give all ranks of a job the same settings of NCCL, also by "
        "/etc/nccl.conf and ~/.nccl.conf",
        evidence=tuple(
            Evidence(
                kind="environment",
                source=who[0].host,
                location=who[0].name,
                quote=f"{name} unset" if value is None else f"{name}={value}",
            )
            for value, who in parts[:4]
        ),
    )
