"""
What do workers answer that are asked, each on a node of its own choice?

This runs in the child process that is connected to the cluster.
"""

from __future__ import annotations

import time

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from . import in_worker


__all__ = ["ask_workers"]

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
    ray.cloudpickle.register_pickle_by_value(in_worker)
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

    function = getattr(in_worker, errand["ask"])
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
