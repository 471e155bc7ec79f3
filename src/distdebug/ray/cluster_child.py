"""
Query the GCS for actors and nodes without joining the cluster (child process).

The GCS always has the tables of actors and nodes; only the state API, which
needs the dashboard, has the representations of actors.
"""

from __future__ import annotations

import json
import os
import sys

from typing import Any


_ANSWER_MARKER = "distdebug:"
_MOST_ACTORS = 10_000


def main(address: str, timeout_s: str) -> None:
    """
    Print the actors and nodes of a cluster, as JSON.

    Args:
        address: The address of the GCS, or ``""`` for the default.

        timeout_s: The timeout, in seconds.
    """
    from ray._private.services import canonicalize_bootstrap_address_or_die

    found = canonicalize_bootstrap_address_or_die(address or None)
    state = _connect_state(found)
    actors = {
        x["ActorID"]: _actor(x) for x in state.actor_table(None).values()
    }
    for actor_id, text in _query_actor_reprs(found, float(timeout_s) / 2):
        # The dashboard may belong to another cluster.
        if actor_id in actors:
            actors[actor_id]["actor_repr"] = text
    nodes = [*map(_node, state.node_table())]
    answer = {"actors": [*actors.values()], "nodes": nodes}
    sys.stdout.write(f"\n{_ANSWER_MARKER}{json.dumps(answer)}\n")
    sys.stdout.flush()


def _connect_state(address: str) -> Any:
    from importlib import import_module

    from ray._private.state import GlobalState

    raylet: Any = import_module("ray._raylet")
    options = raylet.GcsClientOptions.create(
        address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
    )
    state = GlobalState()
    state._initialize_global_state(options)  # noqa: SLF001 there is no other way
    return state


def _query_actor_reprs(address: str, seconds: float) -> list[tuple[str, str]]:
    """
    Query the dashboard, if there is one, for the reprs of actors.
    """
    try:
        from ray.util.state import list_actors

        # This variable overrides the address argument.
        os.environ["RAY_ADDRESS"] = address
        actors = list_actors(
            address=address,
            detail=True,
            limit=_MOST_ACTORS,
            timeout=max(1, int(seconds)),
            raise_on_missing_output=False,
        )
        return [(x.actor_id, x.repr_name or "") for x in actors]
    except Exception:  # noqa: BLE001 the reprs are optional
        return []


def _actor(actor: dict[str, Any]) -> dict[str, Any]:
    return {
        "actor_id": actor["ActorID"],
        "actor_class": actor.get("ActorClassName", ""),
        "actor_name": actor.get("Name", ""),
        "pid": actor.get("Pid", 0),
        "node_id": actor.get("Address", {}).get("NodeID", ""),
        "state": actor.get("State", ""),
    }


def _node(node: dict[str, Any]) -> dict[str, Any]:
    return {
        "node_id": node["NodeID"],
        "ip": node.get("NodeManagerAddress", ""),
        "host": node.get("NodeManagerHostname", ""),
        "is_alive": bool(node.get("Alive", node.get("alive", True))),
    }
