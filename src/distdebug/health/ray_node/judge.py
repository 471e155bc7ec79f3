"""
Is Ray alive on a node?
"""

from __future__ import annotations

from collections.abc import Iterator

from ..._text import time_text
from ...findings import Cause, Evidence, Finding
from ..judged import Judged, as_finding
from .read import RayNode


__all__ = ["judge_ray"]

# Three times as long as usual; where only raylet.out is there, twice.
_OTHERS_S = 130.0
_LIMITS = (("debug_state.txt", 30.0), ("raylet.out", _OTHERS_S))


def judge_ray(node: RayNode, *, host: str = "") -> tuple[Finding, ...]:
    """
    Tell whether Ray lives on a node.

    Args:
        node: What shows of it.

        host: The node.

    Returns:
        What was found, nothing if it lives.
    """
    ages = ", ".join(f"{k} {time_text(v)}" for k, v in node.ages.items())
    quote = f"written ago: {ages}" if ages else "none of its files is there"
    evidence = Evidence(kind="ray", source=node.session, quote=quote)
    return tuple(
        as_finding(judged, host=host, evidence=evidence)
        for judged in (*_raylet(node), *_gcs(node), *_versions(node))
    )


def _raylet(node: RayNode) -> Iterator[Judged]:
    silent = _silence(node)
    if node.raylets:
        if "stopped" in node.states:
            yield Judged(
                Cause.STOPPED,
                "certain",
                "Ray's raylet is stopped",
                "let it go on: kill -CONT its process",
            )
        elif silent is not None:
            yield Judged(
                Cause.EVENT_LOOP_STALL,
                "likely",
                f"Ray's raylet runs, but wrote nothing for {silent}",
                (
                    "see its stack (py-spy dump --native, gdb), and whether the "
                    "disk of its session is full"
                ),
            )
    elif node.processes_known and (silent is not None or not node.ages):
        since = f" and wrote nothing for {silent}" if silent else ""
        yield Judged(
            Cause.DEAD,
            "likely",
            (
                f"Ray does not run on this node: the raylet of {node.name} is "
                f"gone{since}"
            ),
            (
                "see the end of raylet.out and raylet.err for why; start the "
                "node again (ray start)"
            ),
        )


def _silence(node: RayNode) -> str | None:
    """
    For how long Ray has written nothing here, if that is too long.
    """
    # The first that is there is the one to go by: others are also written by
    # processes that outlive the raylet.
    for name, limit in _LIMITS:
        if name in node.ages:
            age = node.ages[name]
            return time_text(age) if age > limit else None
    ages = node.ages.values()
    return time_text(min(ages)) if ages and min(ages) > _OTHERS_S else None


def _gcs(node: RayNode) -> Iterator[Judged]:
    if node.gcs == "refused":
        yield Judged(
            Cause.DEAD,
            "likely",
            (
                f"nobody listens at {node.address}: the head of the Ray cluster "
                "(GCS) is gone"
            ),
            (
                "see gcs_server.out and gcs_server.err on the head node, and "
                "whether its memory ran out"
            ),
        )
    elif node.gcs == "silent":
        yield Judged(
            Cause.NETWORK_FAILURE,
            "likely",
            (
                f"the head of the Ray cluster (GCS) at {node.address} cannot be "
                "reached"
            ),
            (
                "see whether the head node is up, and whether this node may "
                "connect to it"
            ),
        )


def _versions(node: RayNode) -> Iterator[Judged]:
    ours, theirs = node.node_version, node.cluster_version
    if ours and theirs and ours != theirs:
        yield Judged(
            Cause.NODE_MISCONFIGURED,
            "likely",
            f"this node runs Ray {ours}, the cluster {theirs}",
            "install the same Ray on all nodes",
        )
