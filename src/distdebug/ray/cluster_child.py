"""
How does one ask a cluster of Ray without joining it?

This runs in a process of its own.  The tables of the GCS are always there; only
the state API, which needs the dashboard, knows representations of actors.
"""

from __future__ import annotations

import json
import os
import sys

from typing import Any


_MARK = "distdebug:"
_MOST = 10_000


def main(address: str, timeout_s: str) -> None:
    """
    Print what a cluster knows, as JSON.

    Args:
        address: That of the GCS, or ``""`` for the usual one.

        timeout_s: How long it may take, in seconds.
    """
    from ray._private.services import canonicalize_bootstrap_address_or_die

    found = canonicalize_bootstrap_address_or_die(address or None)
    state = _tables(found)
    actors = {
        x["ActorID"]: _actor(x) for x in state.actor_table(None).values()
    }
    for actor_id, text in _texts(found, float(timeout_s) / 2):
        # Whoever answers may be another cluster's dashboard.
        if actor_id in actors:
            actors[actor_id]["actor_repr"] = text
    nodes = [*map(_node, state.node_table())]
    told = {"actors": [*actors.values()], "nodes": nodes}
    sys.stdout.write(f"\n{_MARK}{json.dumps(told)}\n")
    sys.stdout.flush()


def _tables(address: str) -> Any:
    from importlib import import_module

    from ray._private.state import GlobalState

    raylet: Any = import_module("ray._raylet")
    options = raylet.GcsClientOptions.create(
        address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
    )
    state = GlobalState()
    state._initialize_global_state(options)  # noqa: SLF001 there is no other way
    return state


def _texts(address: str, seconds: float) -> list[tuple[str, str]]:
    """
    What the dashboard, if there is one, knows of actors' representations.
    """
    try:
        from ray.util.state import list_actors

        # This wins over any address that is passed.
        os.environ["RAY_ADDRESS"] = address
        actors = list_actors(
            address=address,
            detail=True,
            limit=_MOST,
            timeout=max(1, int(seconds)),
            raise_on_missing_output=False,
        )
        return [(x.actor_id, x.repr_name or "") for x in actors]
    except Exception:  # noqa: BLE001 whatever is missing, the tables are left
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
