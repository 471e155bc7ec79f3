"""
What does a cluster that is alive know about actors that its files leave out?

Nothing here needs Ray to be installed but `ask_live_actors`; and nothing else
needs that.
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
from ..nodes import as_address, knock, last_address, read_short
from .sessions import RaySession, WorkerLog
from .workers import KnownActor, with_actor


_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from distdebug.ray.cluster_child import main; main(*sys.argv[2:])"
)
_MARK = "distdebug:"
_OVER = (
    "it may be over, and its files are still readable; or name its address, "
    "host:port"
)
_KNOCK_S = 2.0


@attrs.frozen(kw_only=True)
class LiveNode:
    """
    A node, as a cluster that is alive knows it.

    Attributes:
        node_id: What Ray calls it, 56 hexadecimal digits.

        ip: Its address.

        host: Its name.

        is_alive: Whether the head reaches it.
    """

    node_id: str
    ip: str = ""
    host: str = ""
    is_alive: bool = True


@attrs.frozen(kw_only=True)
class LiveCluster:
    """
    What a cluster told.

    Attributes:
        actors: Its actors, also dead ones, as far as it remembers them.

        nodes: Its nodes, also dead ones.
    """

    actors: tuple[KnownActor, ...] = ()
    nodes: tuple[LiveNode, ...] = ()

    @property
    def dead_nodes(self) -> tuple[LiveNode, ...]:
        """
        Those that the head does not reach.
        """
        return tuple(node for node in self.nodes if not node.is_alive)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return as_plain(self)


def ask_live_actors(
    address: str | RaySession | None = None, *, timeout_s: float = 20.0
) -> LiveCluster:
    """
    Ask a cluster that is alive who its actors are.

    A process of its own asks, so that this one neither joins the cluster nor
    waits for ever.

    Args:
        address: ``"host:port"`` of the GCS, or a session, whose folder tells
            the address; by default that of ``RAY_ADDRESS``, or the cluster of
            this machine.

        timeout_s: How long it may take, in seconds.

    Returns:
        What the cluster told.

    Raises:
        MissingDependencyError: Ray is not installed.

        NodesError: No cluster answers, or another one than that of the
            session, or the session does not tell where its cluster is.
    """
    if find_spec("ray") is None:
        msg = "asking a cluster needs Ray"
        remedy = "pip install 'distdebug[ray]'; files alone need nothing"
        raise MissingDependencyError(msg, remedy=remedy)

    if not isinstance(address, RaySession):
        return _ask(address or "", timeout_s)

    place = _address_of(address)
    if not place and not address.node_id:
        msg = f"{address.root} does not tell where its cluster answers"
        remedy = "name its address, host:port; files alone need none"
        raise NodesError(msg, remedy=remedy)

    live = _ask(place, timeout_s)
    # A session outlives its cluster, whose address the next one may have.
    node_ids = {node.node_id for node in live.nodes}
    if address.node_id and address.node_id not in node_ids:
        msg = f"another cluster than that of {address.name} answers"
        raise NodesError(msg, remedy=_OVER)

    return live


def _ask(address: str, timeout_s: float) -> LiveCluster:
    root = str(Path(__file__).parents[2])
    told = run_tool(
        [*(sys.executable, "-c", _PROGRAM), *(root, address, str(timeout_s))],
        timeout_s=timeout_s,
    )
    answer = told.output.rpartition(_MARK)[2] if told.status == 0 else ""
    try:
        return _cluster(json.loads(answer))
    except (ValueError, LookupError, TypeError) as exc:
        why = told.complaint.strip().splitlines()[-1:] or [
            f"nothing within {timeout_s:g} s"
        ]
        msg = f"no Ray cluster answers: {clean(why[0])}"
        raise NodesError(msg, remedy=_OVER) from exc


def with_live(
    logs: Iterable[WorkerLog], live: LiveCluster
) -> tuple[WorkerLog, ...]:
    """
    Join workers with what their cluster knows of them.

    Args:
        logs: The logs of workers.

        live: What the cluster told.

    Returns:
        The same, with names, classes, and ids that the files leave out.
    """
    by_id = {actor.actor_id: actor for actor in live.actors}
    by_place = {(x.node_id, x.pid): x for x in live.actors if x.pid}
    found = []
    for log in logs:
        place = log.session.node_id or "", log.pid
        actor = by_id.get(log.actor_id or "") or by_place.get(place)
        found.append(with_actor(log, actor) if actor else log)
    return tuple(found)


def _address_of(session: RaySession) -> str:
    """
    Where the GCS of a session listens, or else that of the cluster that was
    the last to use its temporary folder; ``""`` if neither does.
    """
    host = f"[{session.ip}]" if ":" in (session.ip or "") else session.ip
    ports = map(read_short, sorted(session.root.glob("gcs_server_port_*")))
    told = [as_address(f"{host}:{port}") for port in ports if host]
    told.append(last_address(session.root))
    return next((x for x in told if x and knock(x, _KNOCK_S) == "answers"), "")


def _cluster(data: dict[str, Any]) -> LiveCluster:
    return LiveCluster(
        actors=tuple(KnownActor(**x) for x in data["actors"]),
        nodes=tuple(LiveNode(**x) for x in data["nodes"]),
    )
