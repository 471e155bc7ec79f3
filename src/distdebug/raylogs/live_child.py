"""
How does one ask a cluster of Ray without joining it?

This runs in a process of its own.  The state API knows most, but needs the
dashboard; the tables of the GCS are always there.
"""

from __future__ import annotations

import json
import sys

from typing import Any


__all__ = ["main"]

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
    try:
        actors = _of_state_api(found, float(timeout_s) / 2)
    except Exception:  # noqa: BLE001 whatever is missing, the tables are left
        actors = [_of_table(x) for x in state.actor_table(None).values()]
    told = {"actors": actors, "nodes": [*map(_node, state.node_table())]}
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


def _of_state_api(address: str, seconds: float) -> list[dict[str, Any]]:
    from ray.util.state import list_actors

    actors = list_actors(
        address=address,
        detail=True,
        limit=_MOST,
        timeout=max(1, int(seconds)),
        raise_on_missing_output=False,
    )
    return [
        {
            "actor_id": actor.actor_id,
            "actor_class": actor.class_name or "",
            "actor_name": actor.name or "",
            "actor_repr": actor.repr_name or "",
            "pid": actor.pid or 0,
            "node_id": actor.node_id or "",
            "state": actor.state or "",
        }
        for actor in actors
    ]


def _of_table(actor: dict[str, Any]) -> dict[str, Any]:
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
