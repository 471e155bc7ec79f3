"""
How are the workers of Ray debugged like any other rank?

Ray calls a function in each worker before that gets its first task; see
https://docs.ray.io/en/latest/ray-core/handling-dependencies.html.  It overwrites
``PYTHONBREAKPOINT`` there, and catches what tasks raise.

This module is imported inside training jobs: it needs nothing but the standard
library and Ray.
"""

from __future__ import annotations

import os
import re
import sys

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ...identity import current_identity
from ..folders import base_folder
from ..inside.arming import arm
from ..inside.labels import label_by
from ..inside.settings import is_off
from .caught import examine_caught


__all__ = ["ray_debugger_env", "ray_debugger_setup", "ray_labels"]

_HOOK = "worker_process_setup_hook"
_SETUP = "distdebug.ray_debugger_setup"
_NUMBER = re.compile(r"[-_:.#]{0,4}([0-9]{1,9})\Z")


def ray_debugger_setup() -> None:
    """
    Let this worker of Ray be debugged from outside.

    To be given to Ray, which calls it in each worker::

        ray.init(
            runtime_env={
                "worker_process_setup_hook": distdebug.ray_debugger_setup
            }
        )

    From then on ``breakpoint()`` stops there, and ``distdebug dbg`` lists every
    worker: its group is the name of its actor without the number at its end,
    or the class if it has none, or the task; its rank is what the environment
    or torch says, or else the attribute *rank* of the actor, or the number at
    the end of its name.

    With ``RAY_DEBUG_POST_MORTEM=1``, and in a worker that has come to a
    breakpoint, a task that fails stops where it raised.
    """
    if is_off():
        return

    label_by(ray_labels)
    folder = os.environ.get("DISTDEBUG_DIR") or _folder()
    arm(dir=folder, breakpoints=True)
    _take_crashes()


def ray_debugger_env(
    runtime_env: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """
    Add :func:`ray_debugger_setup` to the runtime environment of a job.

    Variables of this process whose names begin with ``DISTDEBUG`` are passed
    on to the workers.  Nothing has to be changed in a program that is started
    with ``RAY_RUNTIME_ENV_HOOK=distdebug.ray_debugger_env``.

    Args:
        runtime_env: What the job has by itself.  A set-up function of its own
            is kept, and called by nobody else: it has to call ours.

    Returns:
        The runtime environment with which to initialize Ray.
    """
    found = dict(runtime_env or {})
    passed = {k: v for k, v in os.environ.items() if k.startswith("DISTDEBUG")}
    found["env_vars"] = {**passed, **(found.get("env_vars") or {})}
    found.setdefault(_HOOK, _SETUP)
    return found


def _folder() -> str:
    """
    One for each job of each cluster on this node.
    """
    job, session = "job", ""
    with suppress(Exception):
        context = _context()
        job = context.get_job_id()
        session = context.get_session_name().rpartition("_")[2]
    return str(base_folder() / f"ray-{job}-{session}")


def _take_crashes() -> None:
    """
    Stop where a task raised, instead of letting Ray's debugger do so.
    """
    with suppress(Exception):
        from ray.util import rpdb

        # Ray's worker asks for them by name, whenever a task has failed.
        vars(rpdb).update(
            _is_ray_debugger_post_mortem_enabled=lambda: True,
            _post_mortem=_examine,
        )


def _examine() -> None:
    examine_caught(always=os.environ.get("RAY_DEBUG_POST_MORTEM") == "1")


def ray_labels() -> dict[str, Any]:
    """
    How is this worker addressed, as Ray says to any of its threads?

    Returns:
        Its *group*, and its *rank* if the environment does not tell it.
    """
    ray: Any = sys.modules["ray"]
    worker = ray._private.worker.global_worker  # noqa: SLF001 of this process
    if not _has_job(worker):
        return {"group": "idle"}

    actor = worker.actors.get(worker.actor_id)
    if actor is None:
        task = _context().get_task_function_name() or "idle"
        return {"group": task.rpartition(".")[2]}

    name = _context().get_actor_name() or ""
    group = _NUMBER.sub("", name) or type(actor).__name__
    return {"group": group, **_rank(actor, name)}


def _has_job(worker: Any) -> bool:
    """
    Whether Ray may be asked what this worker does: before, it would abort.
    """
    core = getattr(worker, "core_worker", None)
    return core is not None and not core.get_current_job_id().is_nil()


def _context() -> Any:
    # That of the module *ray* would start a cluster of its own where this
    # process is not connected to any.
    return sys.modules["ray.runtime_context"].get_runtime_context()


def _rank(actor: object, name: str) -> dict[str, int]:
    if current_identity().rank is not None:
        return {}

    own = getattr(actor, "__dict__", {}).get("rank")
    if isinstance(own, int):
        return {"rank": own}
    number = _NUMBER.search(name)
    return {"rank": int(number[1])} if number else {}
