"""
Answer one query about a Ray cluster (child process).

`cluster` starts it as ``python -m distdebug.ray.cluster_child`` and ends it at
the timeout.  It reads one line of JSON and writes one: ``{"answer": …}`` or
``{"reason": …}``.  Only `run_tasks` joins the cluster; the others read the
tables of the GCS, as `ray status` does.
"""

from __future__ import annotations

import json
import os
import sys
import time

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import IO, Any

from ..nodes import answer_stream, node_affinity, shared_env
from . import debugger_worker


def main(stdin: IO[str], stdout: IO[str]) -> None:
    """
    Answer the query on the first line of *stdin*.
    """
    query = json.loads(stdin.readline())
    try:
        reply: dict[str, Any] = {"answer": _run_query(query)}
    except (Exception, SystemExit) as exc:  # noqa: BLE001 -- Ray may exit
        text = str(exc).strip().partition("\n")[0]
        reply = {"reason": f"{type(exc).__name__}: {text[:1000]}"}
    stdout.write(f"{json.dumps(reply)}\n")
    stdout.flush()


def _run_query(query: Mapping[str, Any]) -> Any:
    from ray._private import services

    address, timeout_s = query["address"], query["timeout_s"]
    if address == "auto" and "RAY_ADDRESS" not in os.environ:
        _enable_token()
    address = str(services.canonicalize_bootstrap_address_or_die(address))
    if query["ask"] == "run_tasks":
        return run_tasks(address, query["tasks"], timeout_s)
    if query["ask"] == "list_actors":
        return list_actors(address)
    return read_cluster_state(address)


def _enable_token() -> None:
    """
    Let Ray use the token of the user.

    Like Ray, only for the cluster of this node: another server should not get
    the token unasked.
    """
    # Older versions of Ray have no tokens.
    with suppress(ImportError, AttributeError):
        setup: Any = import_module(
            "ray._private.authentication.authentication_token_setup"
        )
        setup.maybe_enable_token_auth_if_token_available(
            warn_if_disabled=False
        )


_KV_TIMEOUT_S = 10
_HEAD_RESOURCE = "node:__internal_head__"
_ACTOR_ALIVE = 2
_DRIVER_TYPE = 1
_MOST_ENVIRONMENTS = 32
_MOST_RECORDS = 1000
# Namespaces of Ray's own jobs, and of ours.
_INTERNAL_NAMESPACES = ("_ray_", "_distdebug")


def read_cluster_state(address: str) -> dict[str, Any]:
    """
    Read the debugger state of a cluster from its head.

    Args:
        address: The head, as ``HOST:PORT``.

    Returns:
        ``nodes``, the id of the ``head``, paused ``workers``, ``legacy``
        records of the older debugger, runtime ``environments`` in use,
        ``dashboard``, and ``ray_version``.

    Raises:
        Exception: Any error of Ray.
    """
    accessor = _connect(address)
    raylet: Any = import_module("ray._raylet")
    store = raylet.GcsClient(address=address)

    rows = [x for x in accessor.get_node_table() if x["Alive"]]
    heads = (
        x["NodeID"]
        for x in rows
        if _HEAD_RESOURCE in (x.get("Resources") or {})
    )
    nodes = [_parse_node(x) for x in rows]
    actors = [x for x in _list_actors(accessor) if x.state == _ACTOR_ALIVE]
    legacy = list(_list_legacy_records(store))
    metadata = loads_object(_read_key(store, b"CLUSTER_METADATA", b"cluster"))
    return {
        "address": address,
        "nodes": nodes,
        "head": next(heads, ""),
        "workers": list(_list_paused_workers(accessor, actors, legacy)),
        "legacy": legacy,
        "environments": _list_environments(accessor, actors, nodes),
        "dashboard": _read_key(store, b"webui:url", b"dashboard"),
        "ray_version": metadata.get("ray_version", ""),
    }


def _connect(address: str) -> Any:
    """
    Return an accessor to the tables of the GCS, as `ray status` uses it.
    """
    raylet: Any = import_module("ray._raylet")
    options = raylet.GcsClientOptions.create(
        address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
    )
    accessor = raylet.GlobalStateAccessor(options)
    if not accessor.connect():
        msg = "the GCS does not answer"
        raise ConnectionError(msg)
    return accessor


def _parse_node(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "node_id": row["NodeID"],
        "ip": row["NodeManagerAddress"],
        "host": row["NodeManagerHostname"],
        "is_alive": row["Alive"],
    }


def _list_actors(accessor: Any) -> Iterator[Any]:
    from ray.core.generated.gcs_pb2 import ActorTableData

    rows = accessor.get_actor_table(None, None)
    return map(ActorTableData.FromString, rows)


def list_actors(address: str) -> dict[str, Any]:
    """
    List the actors and nodes of a cluster, including dead ones.

    Args:
        address: The head, as ``HOST:PORT``.

    Returns:
        ``actors`` and ``nodes``, with the fields of `KnownActor` and
        `LiveNode`.

    Raises:
        Exception: Any error of Ray.
    """
    accessor = _connect(address)
    actors = [
        {
            "actor_id": x.actor_id.hex(),
            "actor_class": x.class_name,
            "actor_name": x.name,
            "actor_repr": x.repr_name,
            "pid": x.pid,
            "node_id": x.address.node_id.hex(),
            "state": x.ActorState.Name(x.state),
        }
        for x in _list_actors(accessor)
    ]
    nodes = [_parse_node(x) for x in accessor.get_node_table()]
    return {"actors": actors, "nodes": nodes}


def _list_paused_workers(
    accessor: Any, actors: Iterable[Any], legacy: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    from ray.core.generated.gcs_pb2 import WorkerTableData

    legacy_ids = {record.get("worker_id") for record in legacy}
    by_worker = {actor.address.worker_id: actor for actor in actors}
    rows = accessor.get_worker_table()
    for worker in map(WorkerTableData.FromString, rows):
        place = worker.worker_address
        is_waiting = (
            worker.num_paused_threads > 0
            or place.worker_id.hex() in legacy_ids
        )
        # A dead worker's row keeps its port.
        if not (worker.is_alive and is_waiting):
            continue
        actor = by_worker.get(place.worker_id)
        yield {
            "worker_id": place.worker_id.hex(),
            "node_id": place.node_id.hex(),
            "ip": place.ip_address,
            "pid": worker.pid,
            "port": worker.debugger_port,
            "paused": worker.num_paused_threads,
            "is_driver": worker.worker_type == _DRIVER_TYPE,
            "actor_id": actor.actor_id.hex() if actor else "",
            "actor": (actor.name or actor.repr_name) if actor else "",
            "task": actor.class_name if actor else "",
            "job_id": actor.job_id.hex() if actor else "",
        }


def _list_legacy_records(store: Any) -> Iterator[dict[str, Any]]:
    # The same keys as `ray debug` reads.
    keys = store.internal_kv_keys(b"RAY_PDB_", b"ray_pdb", _KV_TIMEOUT_S)
    for key in keys[:_MOST_RECORDS]:
        if not key.startswith(b"RAY_PDB_CONTINUE"):
            record = loads_object(_read_key(store, key, b"ray_pdb"))
            # Drop the traceback: it is not shown.
            yield {k: v for k, v in record.items() if k != "traceback"}


def _list_environments(
    accessor: Any, actors: Iterable[Any], nodes: Iterable[Mapping[str, str]]
) -> list[dict[str, Any]]:
    from ray.core.generated.gcs_pb2 import JobTableData

    uses: list[tuple[str, str, str, list[str]]] = []
    node_ids = [node["node_id"] for node in nodes]
    for job in map(JobTableData.FromString, accessor.get_job_table()):
        if not job.is_dead:
            config, user = job.config, f"job {job.job_id.hex()}"
            text = config.runtime_env_info.serialized_runtime_env
            uses.append((config.ray_namespace, text, user, node_ids))
    for x in actors:
        text, place = x.serialized_runtime_env, [x.address.node_id.hex()]
        uses.append((x.ray_namespace, text, x.class_name, place))
    found: dict[str, dict[str, Any]] = {}
    for namespace, text, user, places in uses:
        env = shared_env(loads_object(text))
        key = json.dumps(env, sort_keys=True)
        is_full = key not in found and len(found) >= _MOST_ENVIRONMENTS
        if is_full or namespace.startswith(_INTERNAL_NAMESPACES):
            continue
        entry = found.setdefault(key, {"env": env, "who": {}, "nodes": {}})
        entry["who"][user] = None
        entry["nodes"] |= dict.fromkeys(places)
    return [
        {"env": x["env"], "who": [*x["who"]], "nodes": [*x["nodes"]]}
        for x in found.values()
    ]


def _read_key(store: Any, key: bytes, namespace: bytes) -> str:
    value = store.internal_kv_get(key, namespace, _KV_TIMEOUT_S)
    return value.decode("utf-8", "replace") if value else ""


def loads_object(data: str | bytes) -> dict[str, Any]:
    """
    Parse a JSON object that another process wrote; ``{}`` if it is none.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


_MOST_ANSWER = 16 << 20


def run_tasks(
    address: str, tasks: Iterable[Mapping[str, Any]], timeout_s: float
) -> list[dict[str, Any]]:
    """
    Run functions of `debugger_worker` as Ray tasks that need no CPU.

    Args:
        address: The head, as ``HOST:PORT``.

        tasks: Each with the function's name as ``ask``, its arguments as
            ``with``, a ``node``, and the runtime environment as ``env``.

        timeout_s: The timeout for all tasks, in seconds.

    Returns:
        For each task, in the same order, ``answer``, or ``reason`` if it
        failed.

    Raises:
        Exception: Any error of Ray when it connects.
    """
    import ray

    # The workers must not get this process's environment.
    ray.init(address, log_to_driver=False, namespace="_distdebug")
    ray.cloudpickle.register_pickle_by_value(debugger_worker)
    deadline = time.monotonic() + timeout_s
    try:
        refs = [_submit_task(task) for task in tasks]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=timeout_s)
        return [_get_answer(ref, deadline) for ref in refs]
    finally:
        ray.shutdown()


def _submit_task(task: Mapping[str, Any]) -> Any:
    import ray

    function = getattr(debugger_worker, task["ask"])
    # No CPU, so it runs beside a job that uses all of them.
    remote_function = ray.remote(num_cpus=0, max_retries=0)(function).options(
        name="distdebug",
        scheduling_strategy=node_affinity(task["node"]),
        runtime_env=dict(task["env"]),
    )
    return remote_function.remote(*task["with"])


def _get_answer(ref: Any, deadline: float) -> dict[str, Any]:
    import ray

    from ray.exceptions import GetTimeoutError

    timeout_left = max(deadline - time.monotonic(), 0.01)
    try:
        answer = ray.get(ref, timeout=timeout_left)
    except GetTimeoutError:
        with suppress(Exception):
            ray.cancel(ref, force=True)
        return {"reason": "no worker answered in time"}
    except Exception as exc:  # noqa: BLE001 -- any error of the task
        return {"reason": f"{type(exc).__name__}: {str(exc).strip()[:500]}"}
    if type(answer) is not str or len(answer) > _MOST_ANSWER:
        return {"reason": "the answer of a worker is not understood"}
    return {"answer": answer}


if __name__ == "__main__":
    with answer_stream() as answers:
        main(sys.stdin, answers)
