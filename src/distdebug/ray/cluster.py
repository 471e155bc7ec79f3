"""
Query a live Ray cluster: actors, nodes, and tasks on its workers.

Ray changes the process that connects, and may wait for ever or end it, so a
child process connects.  Only querying needs Ray to be installed.
"""

from __future__ import annotations

import json

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from .._proc import run_child
from .._render import as_plain
from .._text import clean
from ..errors import NodesError
from ..nodes import (
    as_address,
    last_address,
    probe_port,
    ray_child,
    read_ray_file,
    resolve_cluster,
)
from .cluster_child import loads_object
from .sessions import RaySession, WorkerLog
from .workers import KnownActor, join_actors


_CHILD_MODULE = f"{__package__}.cluster_child"
# Time for Ray to end cleanly after the timeout, in seconds.
_GRACE_S = 3.0
# Share of the timeout for the work; the rest is for starting and connecting.
_CHILD_SHARE = 0.8
_REMEDY = (
    "run it on a node of the cluster, where `ray status` answers, with the "
    "Ray and the Python of the cluster; with RAY_AUTH_MODE=token if it wants one"
)


def query_cluster(
    address: str | None,
    ask: str,
    *,
    timeout_s: float,
    tasks: Sequence[Mapping[str, Any]] = (),
) -> Any:
    """
    Let a child process that connects to a cluster answer a query.

    Args:
        address: The cluster, as ``HOST:PORT``; by default the one that this
            process, or this node, belongs to.

        ask: The name of a function of `cluster_child`.

        timeout_s: The timeout, in seconds.

        tasks: See `cluster_child.run_tasks`.

    Returns:
        What the function returned; its form is not checked.

    Raises:
        MissingDependencyError: Ray is not installed.

        NodesError: No such cluster answers in time.
    """
    cluster, _ = resolve_cluster(address)
    argv, environment = ray_child(_CHILD_MODULE)
    query = {
        "address": cluster,
        "ask": ask,
        "tasks": list(tasks),
        "timeout_s": timeout_s * _CHILD_SHARE,
    }
    child = run_child(
        argv,
        environment=environment,
        timeout_s=timeout_s,
        grace_s=_GRACE_S,
        data=json.dumps(query).encode() + b"\n",
    )
    if child.status is None:
        msg = f"no Ray cluster answers at {cluster} within {timeout_s:g} s"
        raise NodesError(msg, remedy=_REMEDY)
    reply = loads_object(child.output)
    if "answer" in reply:
        return reply["answer"]
    error_text = clean(child.stderr.decode("utf-8", "replace")[-300:])
    reason = plain_text(reply.get("reason")) or error_text or "no answer"
    msg = f"there is no way to a Ray cluster at {cluster}: {reason}"
    raise NodesError(msg, remedy=_REMEDY)


def make_answer_error(answer: object) -> NodesError:
    """
    Return the error for an answer of another form than expected.
    """
    msg = f"the answer of the Ray cluster is not understood: {answer!r:.80}"
    return NodesError(msg, remedy="use the Ray of the cluster here")


def plain_text(value: object, *, limit: int = 500) -> str:
    """
    Return a clean copy of *value* if it is a text, or else ``""``.
    """
    return clean(value, limit=limit) if isinstance(value, str) else ""


_PROBE_S = 2.0
_FILES_REMEDY = (
    "it may be over, and its files are still readable; or name its address, "
    "host:port"
)


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
    if not isinstance(address, RaySession):
        return _query_actors(address, timeout_s)

    gcs_address = _find_address(address)
    if not gcs_address and not address.node_id:
        msg = f"{address.root} does not say where its cluster answers"
        remedy = "name its address, host:port; files alone need none"
        raise NodesError(msg, remedy=remedy)

    live = _query_actors(gcs_address, timeout_s)
    # A newer cluster may have the address of the session's cluster.
    node_ids = {node.node_id for node in live.nodes}
    if address.node_id and address.node_id not in node_ids:
        msg = f"another cluster than that of {address.name} answers"
        raise NodesError(msg, remedy=_FILES_REMEDY)

    return live


def _query_actors(address: str | None, timeout_s: float) -> LiveCluster:
    try:
        answer = query_cluster(
            address or None, "list_actors", timeout_s=timeout_s
        )
    except NodesError as exc:
        raise NodesError(str(exc), remedy=_FILES_REMEDY) from exc
    try:
        return LiveCluster(
            actors=tuple(KnownActor(**x) for x in answer["actors"]),
            nodes=tuple(LiveNode(**x) for x in answer["nodes"]),
        )
    except (LookupError, TypeError) as exc:
        raise make_answer_error(answer) from exc


def add_live_actors(
    logs: Iterable[WorkerLog], live: LiveCluster
) -> tuple[WorkerLog, ...]:
    """
    Add names, classes, and ids that a live cluster knows to worker logs.

    Args:
        live: The result of `query_live_cluster`.
    """
    return tuple(join_actors(logs, live.actors))


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
