"""
Does Ray's own nsight plugin start the right Python, and if not, mend it.

The plugin appends ``python`` to the command of nsys, in place of the
interpreter that the worker should have; see
https://github.com/ray-project/ray/issues/66093.  It is loaded by an agent that
starts with Ray, so it has to be mended on every node before that.
"""

from __future__ import annotations

import errno
import os

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs

from ..._files import read_ordinary
from .agents import stale_agents
from .bytecode import remove_bytecode, stale_bytecode
from .locate import locate_plugin, ray_version
from .lock import file_lock
from .model import PatchState, PatchStatus
from .replace import leftovers, lock_of, replace_text
from .text import judge_source, mend_source, unmend_source


__all__ = ["patch_ray_nsight", "ray_nsight_status", "revert_ray_nsight"]

_MOST_BYTES = 1 << 20
_WAIT_S = 30.0


def ray_nsight_status(
    path: str | os.PathLike[str] | None = None,
) -> PatchStatus:
    """
    With which Python does Ray's nsight plugin start workers?

    Ray is not imported, and nothing is changed.

    Args:
        path: The plugin, the package ``ray``, or what it is installed in; by
            default what ``import ray`` would load.

    Returns:
        The state of the plugin, and which running agents do not know it.
    """
    plugin = locate_plugin(path)
    if plugin is None:
        where = None if path is None else os.fspath(path)
        return PatchStatus(state="absent", path=where)

    status = PatchStatus(
        state="unknown", path=str(plugin), ray_version=ray_version(plugin)
    )
    try:
        state = judge_source(read_ordinary(plugin, _MOST_BYTES))
    except (OSError, ValueError) as exc:
        return _failed(status, exc)

    return attrs.evolve(
        status,
        state=state,
        stale_bytecode=stale_bytecode(plugin),
        stale_agents=stale_agents(plugin) if state == "patched" else (),
    )


def patch_ray_nsight(
    path: str | os.PathLike[str] | None = None, *, wait_s: float = _WAIT_S
) -> PatchStatus:
    """
    Let Ray's nsight plugin start workers with the right Python.

    Only the one line that is known to be wrong is changed, and only if all the
    rest of the file is Python still.  The file is replaced by another of the
    same mode and owner, so that nobody ever sees half of it, and other
    environments that share it by links keep theirs.

    Args:
        path: As for `ray_nsight_status`.

        wait_s: How long to wait for another process that does the same, in
            seconds.

    Returns:
        The state afterwards.  What cannot be changed is a state as well, and
        raises nothing.
    """
    return _change(path, "needs_patch", mend_source, wait_s)


def revert_ray_nsight(
    path: str | os.PathLike[str] | None = None, *, wait_s: float = _WAIT_S
) -> PatchStatus:
    """
    Give Ray's nsight plugin the text back that it came with, byte by byte.

    Args:
        path: As for `ray_nsight_status`.

        wait_s: How long to wait for another process that does the same, in
            seconds.

    Returns:
        The state afterwards.
    """
    return _change(path, "patched", unmend_source, wait_s)


def _change(
    path: str | os.PathLike[str] | None,
    wanted: PatchState,
    rewrite: Callable[[bytes], bytes],
    wait_s: float,
) -> PatchStatus:
    before = ray_nsight_status(path)
    if before.path is None or before.state == "absent":
        return before

    plugin, is_wanted = Path(before.path), before.state == wanted
    lock = lock_of(plugin)
    # Also what is done may have been left in the midst of it.
    is_whole = not (before.stale_bytecode or leftovers(plugin))
    if not is_wanted and is_whole and not os.path.lexists(lock):
        return before

    try:
        with file_lock(lock, wait_s):
            changed = _rewrite(plugin, wanted, rewrite)
    except (OSError, ValueError) as exc:
        return _failed(before, exc) if is_wanted else before

    after = ray_nsight_status(plugin)
    agents = stale_agents(plugin) if changed else after.stale_agents
    return attrs.evolve(after, changed=changed, stale_agents=agents)


def _rewrite(
    plugin: Path, wanted: PatchState, rewrite: Callable[[bytes], bytes]
) -> bool:
    for file in leftovers(plugin):
        with suppress(OSError):
            file.unlink()
    source = read_ordinary(plugin, _MOST_BYTES)
    # Meanwhile, somebody else may have done it.
    is_wanted = judge_source(source) == wanted
    if is_wanted:
        replace_text(plugin, rewrite(source))
    remove_bytecode(plugin)
    return is_wanted


def _failed(status: PatchStatus, exc: Exception) -> PatchStatus:
    detail = getattr(exc, "strerror", None) or str(exc)
    return attrs.evolve(status, state=_state_of(exc), detail=detail)


def _state_of(exc: Exception) -> PatchState:
    if isinstance(exc, PermissionError):
        return "not_permitted"
    if isinstance(exc, ValueError):
        return "unknown"
    if isinstance(exc, FileNotFoundError):
        return "absent"
    is_read_only = getattr(exc, "errno", None) == errno.EROFS
    return "read_only" if is_read_only else "busy"
