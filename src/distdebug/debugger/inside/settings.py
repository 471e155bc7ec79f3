"""
Settings of the debugger, its log messages, and the labels of this process.

``DISTDEBUG=0`` disables the debugger; any other value that is not empty arms a
process at its first breakpoint.  ``DISTDEBUG_LIMIT`` is the time limit of a
stop in seconds; with 0, only requests of a client stop a rank.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ..._proc import in_time
from ...identity import current_identity
from ...processes import parse_stat, read_proc


DEFAULT_LIMIT_S = 30 * 60.0
_MAX_LIMIT_S = 366 * 86400.0

_LOG_TIMEOUT_S = 1.0

_logger = logging.getLogger("distdebug")
_logged: set[str] = set()


def is_disabled() -> bool:
    """
    Return whether the user disabled the debugger.
    """
    return os.environ.get("DISTDEBUG") == "0"


def is_enabled() -> bool:
    """
    Return whether the user enabled the debugger by a variable.
    """
    return os.environ.get("DISTDEBUG", "0") not in {"", "0"}


def is_post_mortem_enabled() -> bool:
    """
    Return whether a variable asks to stop where a rank fails.
    """
    return os.environ.get("DISTDEBUG_POST_MORTEM", "0") not in {"", "0"}


def pause_limit_s(requested_s: float | None = None) -> float:
    """
    Return the time limit of a stop, in seconds.

    Args:
        requested_s: The limit of the caller, if any.

    Returns:
        That limit, or ``DISTDEBUG_LIMIT``, or 30 minutes.  It is finite; 0
        means that breakpoints do not stop.
    """
    variable = os.environ.get("DISTDEBUG_LIMIT") or None
    for name, value in (("limit", requested_s), ("DISTDEBUG_LIMIT", variable)):
        if value is None:
            continue
        with suppress(ValueError, TypeError):
            seconds = float(value)
            if seconds >= 0 and math.isfinite(seconds):
                return min(seconds, _MAX_LIMIT_S)
        log_warning_once(f"{name} is not a number of seconds: {value!r:.100}")

    return DEFAULT_LIMIT_S


def log_warning(text: str, *args: object) -> None:
    """
    Log a warning, without blocking for long.
    """

    # A stopped thread may hold the lock of a log handler.
    def work() -> None:
        with suppress(Exception):
            _logger.warning(text, *args)

    with suppress(TimeoutError):
        in_time(work, _LOG_TIMEOUT_S, may_block=True)


def log_warning_once(text: str) -> None:
    """
    Log a warning, unless it has been logged already.
    """
    if text not in _logged:
        _logged.add(text)
        log_warning("%s", text)


_GROUP = re.compile(r"[A-Za-z0-9_-]{1,100}")
_NOT_IN_GROUP = re.compile(r"[^A-Za-z0-9_-]")
_DIMENSION = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_LABELS = frozenset({"group", "rank", "world_size", "coords"})

_own_labels: dict[str, Any] = {}
_mesh: dict[str, int] = {}
_label_sources: list[Callable[[], Mapping[str, Any]]] = []


def set_labels(
    labels: Mapping[str, Any] | None, mesh: Mapping[str, int] | None
) -> None:
    """
    Set the labels of this process, instead of those of its launcher.

    Args:
        labels: Any of *group* (letters, digits, ``-``, and ``_``), *rank*,
            *world_size*, and *coords*, the index in each dimension by name.

        mesh: Size of each dimension, outermost first; the coordinates follow
            from the rank, the last dimension varying fastest.

    Raises:
        ValueError: A label is unknown or invalid.
    """
    requested = dict(labels or {})
    if unknown := requested.keys() - _LABELS:
        msg = f"unknown labels: {', '.join(sorted(unknown))}"
        raise ValueError(msg)
    if not _GROUP.fullmatch(requested.get("group", "job")):
        msg = f"a group is written with letters, digits, - and _: {requested}"
        raise ValueError(msg)
    for name in {**requested.get("coords", {}), **(mesh or {})}:
        if not _DIMENSION.fullmatch(name):
            msg = f"a dimension is written as a Python name: {name!r}"
            raise ValueError(msg)

    _own_labels.update(requested)
    if mesh is not None:
        _mesh.clear()
        _mesh.update(mesh)


def set_label_source(get_labels: Callable[[], Mapping[str, Any]]) -> None:
    """
    Set the function of a launcher that returns the current labels.

    One process may hold several actors, and each message may address another
    rank.

    Args:
        get_labels: Returns any of *group*, *rank*, *world_size*, and *coords*
            for the calling thread.
    """
    _label_sources[:] = [get_labels]


def describe_process() -> dict[str, Any]:
    """
    Return the labels of this process, for the calling thread.

    Returns:
        Plain data: group, rank (``None`` if unknown), world_size, local_rank,
        coords, host, pid, and start, in clock ticks since boot; 0 if it cannot
        be read.
    """
    identity = current_identity()
    status = parse_stat(read_proc("/proc/self/stat"))
    group = os.environ.get("DISTDEBUG_GROUP", "")
    labels: dict[str, Any] = {
        "group": group if _GROUP.fullmatch(group) else "job",
        "rank": identity.rank,
        "world_size": identity.world_size,
        **_launcher_labels(),
        **_own_labels,
    }
    coords = labels.pop("coords", None)
    if coords is None:
        coords = _coordinates(
            labels["rank"], _mesh or _mesh_from_environment()
        )
    return {
        **labels,
        "local_rank": identity.local_rank,
        "coords": dict(coords),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "start": status.start_ticks if status else 0,
    }


def _launcher_labels() -> dict[str, Any]:
    """
    Return the labels of the launcher, with a valid group name.
    """
    labels: dict[str, Any] = {}
    with suppress(Exception):  # a debugger must not harm the job
        for get_labels in _label_sources:
            labels.update(get_labels())
    if "group" in labels:
        group = _NOT_IN_GROUP.sub("-", str(labels["group"]))[:100]
        labels["group"] = group or "job"
    return labels


def _mesh_from_environment() -> dict[str, int]:
    """
    Parse ``DISTDEBUG_MESH``, such as ``pp=2,dp=4``; return {} if invalid.
    """
    mesh = {}
    value = os.environ.get("DISTDEBUG_MESH", "")
    for part in filter(None, value.split(",")):
        name, _, size = part.strip().partition("=")
        if not (_DIMENSION.fullmatch(name) and size.isdecimal() and int(size)):
            log_warning_once(
                "DISTDEBUG_MESH is not written as pp=2,dp=4, and left out: "
                f"{value!r:.100}"
            )
            return {}
        mesh[name] = int(size)

    return mesh


def _coordinates(rank: int | None, mesh: Mapping[str, int]) -> dict[str, int]:
    if rank is None:
        return {}

    found = {}
    quotient = rank
    for name, size in reversed([*mesh.items()]):
        if size < 1:
            return {}
        quotient, found[name] = divmod(quotient, size)

    # A rank beyond the mesh has no coordinates.
    return {} if quotient else {name: found[name] for name in mesh}
