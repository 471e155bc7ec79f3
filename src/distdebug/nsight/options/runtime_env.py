"""
With which ``runtime_env`` does Ray start this worker under nsys?
"""

from __future__ import annotations

import os
import shlex
import sys

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ...errors import NsightError
from ..patch.locate import has_py_executable
from .command import base_switches, nsys_command, output_folder, report_name
from .patterns import match_worker
from .steps import StepRange, parse_step_range, step_range_of_environment
from .switches import check_switches, extra_switches


__all__ = ["Mode", "merge_runtime_env", "nsight_runtime_env"]

Mode = Literal["py_executable", "nsight"]

_MODES = ("py_executable", "nsight")
# What has an activated environment of its own, where "python" is the right
# one; and what starts the worker somewhere else altogether.
_ENVIRONMENTS = ("pip", "uv", "conda")
_CONTAINERS = ("image_uri", "container")
_NESTED = ("env_vars", "config")
_STEPS_VARIABLE = "DISTDEBUG_NSYS_PROFILE_STEP_RANGE"


def nsight_runtime_env(  # noqa: PLR0913
    worker_name: str,
    *,
    patterns: str | Iterable[str] | None = None,
    step_range: StepRange | str | None = None,
    mode: Mode = "py_executable",
    extra_options: Mapping[str, Any] | str | None = None,
    base: Mapping[str, Any] | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    python: str | None = None,
    nsys: str = "nsys",
) -> dict[str, Any]:
    """
    With which ``runtime_env`` does Ray profile this worker, if it is wanted?

    Args:
        worker_name: Its name, which its report bears, too.

        patterns: Who is to be profiled; see `match_worker`.

        step_range: ``"a:b"``: the steps to be captured, from *a*, counted from
            1, up to *b*, which is left out.  The worker has to say where its
            steps are, by `StepProfiler`; it gets the range by a variable.  By
            default what ``DISTDEBUG_NSYS_PROFILE_STEP_RANGE`` says, or else
            ``NRL_NSYS_PROFILE_STEP_RANGE``; if neither is set, all of its life
            is captured.

        mode: ``"py_executable"`` needs no change to Ray (2.43 or newer);
            ``"nsight"`` uses Ray's plugin, which starts the right Python only
            where `ray_nsight_status` says that it is mended.

        extra_options: More options of ``nsys profile``, or others than ours;
            by default what ``DISTDEBUG_NSYS_EXTRA_OPTIONS`` says, or else
            ``NRL_NSYS_EXTRA_OPTIONS``.

        base: The ``runtime_env`` that the worker has anyway; what it says of
            its Python is kept.

        output_dir: Where reports go, in a folder for each node; by default
            into ``logs/nsight/`` of Ray's session, on each node.

        python: The Python of the nodes, if *base* does not name it; by default
            the one that is running.

        nsys: The name of nsys on the nodes, or its path.

    Returns:
        What to give to ``ray.remote(runtime_env=…)``, or to ``.options()``;
        if the worker is not wanted, only what *base* holds.

    Raises:
        NsightError: Something asked makes no sense, or the two ways of
            starting the worker exclude each other.
    """
    given = merge_runtime_env(base, {})
    if match_worker(worker_name, patterns) is None:
        return given

    if mode not in _MODES:
        msg = f"there is no mode {mode!r}"
        raise NsightError(msg, remedy=f"write {' or '.join(_MODES)}")
    steps, extra = _steps(step_range), extra_switches(extra_options)
    check_switches(extra, nsys)
    switches = {**base_switches(steps), **extra}
    name = report_name(worker_name, steps)
    given.pop("nsight", None)
    new: dict[str, Any] = {}
    if steps is not None:
        new["env_vars"] = {_STEPS_VARIABLE: str(steps)}
    if mode == "nsight":
        new["nsight"] = _for_plugin(switches, name, output_dir)
    else:
        _check_ray()
        folder = output_folder(output_dir)
        command = nsys_command(switches, name, folder, nsys=nsys)
        new["py_executable"] = f"{command} {_interpreter(given, python)}"
    return merge_runtime_env(given, new)


def merge_runtime_env(
    base: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> dict[str, Any]:
    """
    What is the ``runtime_env`` of both?

    Ray takes the one that ``.options()`` gives in place of the one of
    ``ray.remote()``, and drops what only the latter holds.

    Args:
        base: The one there is.

        new: What is to be added; it wins.

    Returns:
        Both.  Variables and the configuration are merged one by one.  What Ray
        keeps as ``_nsight`` is called ``nsight``, as Ray wants it to be given.
    """
    first, second = _plain(base), _plain(new)
    merged = {**first, **second}
    for key in _NESTED:
        both = first.get(key), second.get(key)
        if all(isinstance(part, Mapping) for part in both):
            merged[key] = {**first[key], **second[key]}
    return merged


def _plain(env: Mapping[str, Any] | None) -> dict[str, Any]:
    plain = dict(env or {})
    if "_nsight" in plain:
        plain.setdefault("nsight", plain["_nsight"])
        del plain["_nsight"]
    return plain


def _steps(step_range: StepRange | str | None) -> StepRange | None:
    if isinstance(step_range, str):
        return parse_step_range(step_range)
    return step_range or step_range_of_environment()


def _for_plugin(
    switches: Mapping[str, str], name: str, output_dir: object
) -> dict[str, str]:
    if output_dir is not None:
        msg = "Ray's nsight plugin puts reports where it wants"
        raise NsightError(
            msg, remedy='leave out output_dir, or use mode="py_executable"'
        )
    for switch, value in switches.items():
        # It checks options without a shell, and starts the worker with one.
        if shlex.quote(value) != value:
            msg = f"option {switch!r} cannot be {value!r:.60} in this mode"
            raise NsightError(msg, remedy='use mode="py_executable"')

    return {**switches, "o": shlex.quote(name)}


def _interpreter(base: Mapping[str, Any], python: str | None) -> str:
    if any(base.get(key) for key in _CONTAINERS):
        msg = "a worker in a container of its own is not started by this Ray"
        raise NsightError(
            msg, remedy="start nsys in the container, as its entry point"
        )
    command = str(base.get("py_executable") or "").strip()
    if _is_profiled(command):
        msg = "the runtime_env starts the worker under nsys already"
        raise NsightError(msg, remedy="give the one from before as base")
    if command:
        return command  # words for a shell already, options and all
    if python is None and any(base.get(key) for key in _ENVIRONMENTS):
        return "python"
    return shlex.quote(python or sys.executable)


def _is_profiled(command: str) -> bool:
    words = command.split(maxsplit=2)
    return len(words) > 1 and words[0].rpartition("/")[2] == "nsys"


def _check_ray() -> None:
    if has_py_executable() is False:
        msg = "this Ray is too old to start workers by a py_executable"
        raise NsightError(
            msg,
            remedy='use mode="nsight" after "distdebug nsight patch" on every '
            "node, or Ray 2.43 or newer",
        )
