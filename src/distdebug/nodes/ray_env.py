"""
In which runtime environment does a job on Ray run?
"""

from __future__ import annotations

import json

from collections.abc import Mapping
from typing import Any, NamedTuple

from .._text import clean
from ..errors import NodesError


__all__ = ["runtime_env_of", "shared_env"]

# What is there for the workers of the job itself, such as a profiler, stays
# away from ours.
_SHARED = (
    "working_dir",
    "py_modules",
    "py_executable",
    "pip",
    "uv",
    "conda",
    "env_vars",
    "container",
    "image_uri",
    "config",
)
_HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"


class _Job(NamedTuple):
    number: str
    submission: str
    entrypoint: str
    env: dict[str, Any]


def runtime_env_of(
    given: Mapping[str, Any] | None, job: str | None
) -> Mapping[str, Any] | None:
    """
    Which runtime environment is like that of a job?

    Args:
        given: The one to take in any case.

        job: The number of a job, such as ``"02000000"``, or what ``ray job
            submit`` called it; by default the only one that runs.

    Returns:
        The runtime environment, with what of it was uploaded already.

    Raises:
        NodesError: There is no such job, or there are several that differ.
    """
    if given is not None:
        return given
    running = _running_jobs()
    if job is not None:
        running = [x for x in running if job in {x.number, x.submission}]
        if not running:
            msg = f"Ray runs no job {clean(job)!r}"
            raise NodesError(msg, remedy="`ray job list` tells their names")
    if any(x.env != running[0].env for x in running[1:]):
        names = ", ".join(_name(x) for x in running)
        msg = f"jobs with different runtime environments run: {names}"
        raise NodesError(msg, remedy="say which one by job=...")
    return running[0].env if running else None


def shared_env(whole: Mapping[str, Any]) -> dict[str, Any]:
    """
    What of the runtime environment of a job is for other workers, too?

    Args:
        whole: The runtime environment, as Ray keeps it.

    Returns:
        A part of it, which another worker can be given.
    """
    env = {key: whole[key] for key in _SHARED if key in whole}
    variables = env.get("env_vars")
    if isinstance(variables, dict):
        env["env_vars"] = {k: v for k, v in variables.items() if k != _HOOK}
    return env


def _name(job: _Job) -> str:
    return f"{job.submission or job.number} ({clean(job.entrypoint)[:60]})"


def _running_jobs() -> list[_Job]:
    """
    The jobs that run, without those of ours and of Ray itself.
    """
    import ray

    # The public way to this table needs a dashboard, which many have not.
    client = ray._private.worker.global_worker.gcs_client  # noqa: SLF001
    ours = ray.get_runtime_context().get_job_id()
    try:
        table = client.get_all_job_info(
            skip_submission_job_info_field=True,
            skip_is_running_tasks_field=True,
        )
        rows = [row for row in table.values() if not row.is_dead]
        return [
            _job(row)
            for row in rows
            if row.job_id.hex() != ours
            and not row.config.ray_namespace.startswith(("_ray_", "_distdeb"))
        ]
    except (AttributeError, TypeError, ValueError) as exc:
        msg = f"this Ray does not tell its jobs: {type(exc).__name__}: {exc}"
        raise NodesError(msg, remedy="give runtime_env=...") from exc


def _job(row: Any) -> _Job:
    text = row.config.runtime_env_info.serialized_runtime_env
    env = shared_env(json.loads(text or "{}"))
    return _Job(
        row.job_id.hex(),
        str(row.config.metadata.get("job_submission_id", "")),
        str(row.entrypoint),
        env,
    )
