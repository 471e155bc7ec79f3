"""
What does a Ray cluster say to somebody who may not be kept waiting?

It is started as ``python -m distdebug.ray.debugger_child`` by `ask`,
which ends it when it takes too long.  One line of JSON comes in, and one goes
out: ``{"answer": …}`` or ``{"reason": …}``.
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

from ..nodes import shared_env
from . import debugger_worker


def main(stdin: IO[str], stdout: IO[str]) -> int:
    """
    Answer the question on the first line.

    Args:
        stdin: Where it comes from.

        stdout: Where the answer goes.

    Returns:
        The exit status.
    """
    question = json.loads(stdin.readline())
    try:
        said: dict[str, Any] = {"answer": _answer(question)}
    except (Exception, SystemExit) as exc:  # noqa: BLE001 -- Ray exits, too
        text = str(exc).strip().partition("\n")[0]
        said = {"reason": f"{type(exc).__name__}: {text[:1000]}"}
    stdout.write(f"{json.dumps(said)}\n")
    stdout.flush()
    return 0


def _answer(question: Mapping[str, Any]) -> Any:

    if question["address"] == "auto" and "RAY_ADDRESS" not in os.environ:
        _use_token()
    address = _resolved(question["address"])
    if question["errands"] is None:
        return read_tables(address)
    return ask_workers(address, question["errands"], question["timeout_s"])


def _use_token() -> None:
    """
    Let Ray find the token of the user.

    As Ray itself, only for the cluster of this node: whoever listens at an
    address that was given should not learn it unasked.
    """
    # Its older versions know of none.
    with suppress(ImportError, AttributeError):
        setup: Any = import_module(
            "ray._private.authentication.authentication_token_setup"
        )
        setup.maybe_enable_token_auth_if_token_available(
            warn_if_disabled=False
        )


def _resolved(address: str) -> str:
    from ray._private import services

    return str(services.canonicalize_bootstrap_address_or_die(address))


def _main() -> int:
    # Only our own line goes where somebody reads it.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answers:
        return main(sys.stdin, answers)


if __name__ == "__main__":
    sys.exit(_main())


_WAIT_S = 10
_HEAD = "node:__internal_head__"
_ALIVE = 2
_DRIVER = 1
_MOST_ENVIRONMENTS = 32
_MOST_RECORDS = 1000
# Those of Ray itself, and ours.
_NO_JOBS = ("_ray_", "_distdebug")


def read_tables(address: str) -> dict[str, Any]:
    """
    Read what concerns the debugger.

    Args:
        address: Where the head is, as ``HOST:PORT``.

    Returns:
        ``nodes``, ``workers`` that are paused, ``legacy`` records of the
        older debugger, runtime ``environments`` that are in use,
        ``dashboard``, and ``ray_version``.

    Raises:
        Exception: Whatever Ray raises.
    """
    from ray._private.state import GlobalState

    raylet: Any = import_module("ray._raylet")
    options = raylet.GcsClientOptions.create(
        address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
    )
    state = GlobalState()
    state._initialize_global_state(options)  # noqa: SLF001 -- as `ray status`
    tables = state._connect_and_get_accessor()  # noqa: SLF001
    store = raylet.GcsClient(address=address)

    nodes = list(_nodes(tables.get_node_table()))
    actors = list(_actors(tables))
    legacy = list(_legacy(store))
    metadata = _loads(_stored(store, b"CLUSTER_METADATA", b"cluster"))
    return {
        "address": address,
        "nodes": nodes,
        "workers": list(_workers(tables, actors, legacy)),
        "legacy": legacy,
        "environments": _environments(tables, actors, nodes),
        "dashboard": _stored(store, b"webui:url", b"dashboard"),
        "ray_version": metadata.get("ray_version", ""),
    }


def _nodes(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if row["Alive"]:
            yield {
                "id": row["NodeID"],
                "name": row["NodeManagerHostname"],
                "ip": row["NodeManagerAddress"],
                "is_head": _HEAD in (row.get("Resources") or {}),
            }


def _actors(tables: Any) -> Iterator[Any]:
    from ray.core.generated.gcs_pb2 import ActorTableData

    for data in tables.get_actor_table(None, None):
        actor = ActorTableData.FromString(data)
        if actor.state == _ALIVE:
            yield actor


def _workers(
    tables: Any, actors: Iterable[Any], legacy: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    from ray.core.generated.gcs_pb2 import WorkerTableData

    wanted = {record.get("worker_id") for record in legacy}
    by_worker = {actor.address.worker_id: actor for actor in actors}
    for data in tables.get_worker_table():
        worker = WorkerTableData.FromString(data)
        place = worker.worker_address
        waits = (
            worker.num_paused_threads > 0 or place.worker_id.hex() in wanted
        )
        # A worker that died keeps its port.
        if not (worker.is_alive and waits):
            continue
        actor = by_worker.get(place.worker_id)
        yield {
            "worker_id": place.worker_id.hex(),
            "node_id": place.node_id.hex(),
            "ip": place.ip_address,
            "pid": worker.pid,
            "port": worker.debugger_port,
            "paused": worker.num_paused_threads,
            "is_driver": worker.worker_type == _DRIVER,
            "actor_id": actor.actor_id.hex() if actor else "",
            "actor": (actor.name or actor.repr_name) if actor else "",
            "task": actor.class_name if actor else "",
            "job_id": actor.job_id.hex() if actor else "",
        }


def _legacy(store: Any) -> Iterator[dict[str, Any]]:
    # As `ray debug` finds them.
    keys = store.internal_kv_keys(b"RAY_PDB_", b"ray_pdb", _WAIT_S)
    for key in keys[:_MOST_RECORDS]:
        if not key.startswith(b"RAY_PDB_CONTINUE"):
            record = _loads(_stored(store, key, b"ray_pdb"))
            # It holds a traceback that nobody shows.
            yield {k: v for k, v in record.items() if k != "traceback"}


def _environments(
    tables: Any, actors: Iterable[Any], nodes: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    from ray.core.generated.gcs_pb2 import JobTableData

    found: dict[str, dict[str, Any]] = {}
    everywhere = [node["id"] for node in nodes]
    for data in tables.get_job_table():
        job = JobTableData.FromString(data)
        if job.is_dead or job.config.ray_namespace.startswith(_NO_JOBS):
            continue
        text = job.config.runtime_env_info.serialized_runtime_env
        _add(found, text, f"job {job.job_id.hex()}", everywhere)
    for actor in actors:
        if actor.ray_namespace.startswith(_NO_JOBS):
            continue
        node = [actor.address.node_id.hex()]
        _add(found, actor.serialized_runtime_env, actor.class_name, node)
    return [
        {**entry, "nodes": list(entry["nodes"])} for entry in found.values()
    ]


def _add(
    found: dict[str, dict[str, Any]], text: str, who: str, nodes: list[str]
) -> None:
    env = shared_env(_loads(text))
    key = json.dumps(env, sort_keys=True)
    if key not in found and len(found) >= _MOST_ENVIRONMENTS:
        return
    entry = found.setdefault(key, {"env": env, "who": [], "nodes": {}})
    if who not in entry["who"]:
        entry["who"].append(who)
    entry["nodes"] |= dict.fromkeys(nodes)


def _stored(store: Any, key: bytes, namespace: bytes) -> str:
    value = store.internal_kv_get(key, namespace, _WAIT_S)
    return value.decode("utf-8", "replace") if value else ""


def _loads(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


_MOST_ANSWER = 16 << 20


def ask_workers(
    address: str, errands: Iterable[Mapping[str, Any]], timeout_s: float
) -> list[dict[str, Any]]:
    """
    Run functions of `in_worker` as tasks that need no CPU.

    Args:
        address: Where the cluster is, as ``HOST:PORT``.

        errands: Each with the function's name as ``ask``, its arguments as
            ``with``, a ``node``, and the runtime environment as ``env``.

        timeout_s: How long all of them may take, in seconds.

    Returns:
        For each, in the same order, ``answer``, or ``reason`` if there is
        none.

    Raises:
        Exception: Whatever Ray raises if it cannot connect.
    """
    import ray

    # What we were started by, and what is set here, is none of the workers'.
    ray.init(address, log_to_driver=False, namespace="_distdebug")
    ray.cloudpickle.register_pickle_by_value(debugger_worker)
    deadline = time.monotonic() + timeout_s
    try:
        refs = [_send(errand) for errand in errands]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=timeout_s)
        return [_come(ref, deadline) for ref in refs]
    finally:
        ray.shutdown()


def _send(errand: Mapping[str, Any]) -> Any:
    import ray

    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    function = getattr(debugger_worker, errand["ask"])
    place = NodeAffinitySchedulingStrategy(errand["node"], soft=False)
    # It runs beside a job that uses every CPU.
    task = ray.remote(num_cpus=0, max_retries=0)(function).options(
        name="distdebug",
        scheduling_strategy=place,
        runtime_env=dict(errand["env"]),
    )
    return task.remote(*errand["with"])


def _come(ref: Any, deadline: float) -> dict[str, Any]:
    import ray

    from ray.exceptions import GetTimeoutError

    left = max(deadline - time.monotonic(), 0.01)
    try:
        answer = ray.get(ref, timeout=left)
    except GetTimeoutError:
        with suppress(Exception):
            ray.cancel(ref, force=True)
        return {"reason": "no worker answered in time"}
    except Exception as exc:  # noqa: BLE001 -- whatever Ray makes of it
        return {"reason": f"{type(exc).__name__}: {str(exc).strip()[:500]}"}
    if type(answer) is not str or len(answer) > _MOST_ANSWER:
        return {"reason": "a worker answered what nobody understands"}
    return {"answer": answer}
