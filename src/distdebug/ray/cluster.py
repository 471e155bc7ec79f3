"""
Query a live Ray cluster for actors and nodes.

Only `query_live_cluster` needs Ray to be installed.
"""

from __future__ import annotations

import json
import sys

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

from .._text import clean
from ..capture import run_tool
from ..errors import MissingDependencyError, NodesError
from ..findings import as_plain
from ..nodes import as_address, last_address, probe_port, read_ray_file
from .sessions import RaySession, WorkerLog
from .workers import KnownActor, add_actor_facts


_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from distdebug.ray.cluster_child import main; main(*sys.argv[2:])"
)
_ANSWER_MARKER = "distdebug:"
_REMEDY = (
    "it may be over, and its files are still readable; or name its address, "
    "host:port"
)
_PROBE_S = 2.0


@attrs.frozen(kw_only=True)
class LiveNode:
    """
    A node of a live cluster.

    Attributes:
        node_id: Ray's id of the node, 56 hexadecimal digits.

        ip: Its address.

        host: Its host name.

        is_alive: Whether the head reaches it.
    """

    node_id: str
    ip: str = ""
    host: str = ""
    is_alive: bool = True


@attrs.frozen(kw_only=True)
class LiveCluster:
    """
    The actors and nodes of a live cluster.

    Attributes:
        actors: Its actors, including dead ones that the GCS still lists.

        nodes: Its nodes, including dead ones.
    """

    actors: tuple[KnownActor, ...] = ()
    nodes: tuple[LiveNode, ...] = ()

    @property
    def dead_nodes(self) -> tuple[LiveNode, ...]:
        """
        Return the nodes that the head does not reach.
        """
        return tuple(node for node in self.nodes if not node.is_alive)

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data.
        """
        return as_plain(self)


def query_live_cluster(
    address: str | RaySession | None = None, *, timeout_s: float = 20.0
) -> LiveCluster:
    """
    Query a live cluster for its actors and nodes.

    A child process queries it, so this process neither joins the cluster nor
    hangs.

    Args:
        address: ``"host:port"`` of the GCS, or a session, whose folder
            contains the address; by default ``RAY_ADDRESS``, or the cluster of
            this machine.

        timeout_s: The timeout, in seconds.

    Raises:
        MissingDependencyError: Ray is not installed.

        NodesError: No cluster answers, or a different one than that of the
            session, or the session does not contain an address.
    """
    if find_spec("ray") is None:
        msg = "asking a cluster needs Ray"
        remedy = "pip install 'distdebug[ray]'; files alone need nothing"
        raise MissingDependencyError(msg, remedy=remedy)

    if not isinstance(address, RaySession):
        return _query_cluster(address or "", timeout_s)

    gcs_address = _find_address(address)
    if not gcs_address and not address.node_id:
        msg = f"{address.root} does not tell where its cluster answers"
        remedy = "name its address, host:port; files alone need none"
        raise NodesError(msg, remedy=remedy)

    live = _query_cluster(gcs_address, timeout_s)
    # A newer cluster may have the address of the session's cluster.
    node_ids = {node.node_id for node in live.nodes}
    if address.node_id and address.node_id not in node_ids:
        msg = f"another cluster than that of {address.name} answers"
        raise NodesError(msg, remedy=_REMEDY)

    return live


def _query_cluster(address: str, timeout_s: float) -> LiveCluster:
    root = str(Path(__file__).parents[2])
    result = run_tool(
        [*(sys.executable, "-c", _PROGRAM), *(root, address, str(timeout_s))],
        timeout_s=timeout_s,
    )
    answer = (
        result.output.rpartition(_ANSWER_MARKER)[2]
        if result.status == 0
        else ""
    )
    try:
        return _parse_cluster(json.loads(answer))
    except (ValueError, LookupError, TypeError) as exc:
        reason = result.complaint.strip().splitlines()[-1:] or [
            f"nothing within {timeout_s:g} s"
        ]
        msg = f"no Ray cluster answers: {clean(reason[0])}"
        raise NodesError(msg, remedy=_REMEDY) from exc


def add_live_actors(
    logs: Iterable[WorkerLog], live: LiveCluster
) -> tuple[WorkerLog, ...]:
    """
    Add names, classes, and ids that a live cluster knows to worker logs.

    Args:
        live: The result of `query_live_cluster`.
    """
    by_id = {actor.actor_id: actor for actor in live.actors}
    by_process = {(x.node_id, x.pid): x for x in live.actors if x.pid}
    found = []
    for log in logs:
        key = log.session.node_id or "", log.pid
        actor = by_id.get(log.actor_id or "") or by_process.get(key)
        found.append(add_actor_facts(log, actor) if actor else log)
    return tuple(found)


def _find_address(session: RaySession) -> str:
    """
    Find an address at which the GCS of a session answers.

    The last address in the session's temporary folder is tried, too; ``""`` if
    none answers.
    """
    host = f"[{session.ip}]" if ":" in (session.ip or "") else session.ip
    ports = map(read_ray_file, sorted(session.root.glob("gcs_server_port_*")))
    addresses = [as_address(f"{host}:{port}") for port in ports if host]
    addresses.append(last_address(session.root))
    return next(
        (x for x in addresses if x and probe_port(x, _PROBE_S) == "answers"),
        "",
    )


def _parse_cluster(data: dict[str, Any]) -> LiveCluster:
    return LiveCluster(
        actors=tuple(KnownActor(**x) for x in data["actors"]),
        nodes=tuple(LiveNode(**x) for x in data["nodes"]),
    )
