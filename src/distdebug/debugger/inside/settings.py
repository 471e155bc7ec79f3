"""
Is the debugger switched on here, and how long may it hold a rank?

``DISTDEBUG=0`` switches everything off; any other value that is not empty arms
a process at its first breakpoint.  ``DISTDEBUG_LIMIT`` is the limit of a pause
in seconds; with 0, nothing is held unless a client asks for it.
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

from ..._in_time import in_time
from ...identity import current_identity


DEFAULT_LIMIT_S = 30 * 60.0
_LONGEST_LIMIT_S = 366 * 86400.0

_LONGEST_SAY_S = 1.0

_logger = logging.getLogger("distdebug")
_said: set[str] = set()


def is_off() -> bool:
    """
    Did the user switch the debugger off?
    """
    return os.environ.get("DISTDEBUG") == "0"


def is_wanted() -> bool:
    """
    Did the user switch the debugger on, without a line of code?
    """
    return os.environ.get("DISTDEBUG", "0") not in {"", "0"}


def is_post_mortem_wanted() -> bool:
    """
    Did the user say, without a line of code, to stop where a rank fails?
    """
    return os.environ.get("DISTDEBUG_POST_MORTEM", "0") not in {"", "0"}


def pause_limit_s(wanted: float | None = None) -> float:
    """
    How long may a pause last, if nobody asks for more?

    Args:
        wanted: What the caller asked for, in seconds.

    Returns:
        That, or ``DISTDEBUG_LIMIT``, or 30 minutes.  It is always finite, and
        0 if nothing is to be held.
    """
    variable = os.environ.get("DISTDEBUG_LIMIT") or None
    for name, value in (("limit", wanted), ("DISTDEBUG_LIMIT", variable)):
        if value is None:
            continue
        with suppress(ValueError, TypeError):
            seconds = float(value)
            if seconds >= 0 and math.isfinite(seconds):
                return min(seconds, _LONGEST_LIMIT_S)
        say_once(f"{name} is no number of seconds: {value!r:.100}")

    return DEFAULT_LIMIT_S


def say(text: str, *args: object) -> None:
    """
    Log something that whoever reads the log of the job should know.

    Args:
        text: What to say, with a ``%s`` for each of *args*.

        args: What to fill in.
    """

    # A thread that is held may hold the lock of a handler.
    def work() -> None:
        with suppress(Exception):
            _logger.warning(text, *args)

    try:
        in_time(work, _LONGEST_SAY_S)
    except TimeoutError:
        pass
    except RuntimeError:  # no more threads
        work()


def say_once(text: str) -> None:
    """
    Log something, unless it has been logged already.

    Args:
        text: What to say.
    """
    if text not in _said:
        _said.add(text)
        say("%s", text)


_GROUP = re.compile(r"[A-Za-z0-9_-]{1,100}")
_NOT_IN_GROUP = re.compile(r"[^A-Za-z0-9_-]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_KNOWN = frozenset({"group", "rank", "world_size", "coords"})

_own: dict[str, Any] = {}
_mesh: dict[str, int] = {}
_launcher: list[Callable[[], Mapping[str, Any]]] = []


def set_labels(
    labels: Mapping[str, Any] | None, mesh: Mapping[str, int] | None
) -> None:
    """
    Address this process by other labels than those of its launcher.

    Args:
        labels: Any of *group* (letters, digits, ``-``, and ``_``), *rank*,
            *world_size*, and *coords*, the index in each dimension by name.

        mesh: Size of each dimension, outermost first; the coordinates follow
            from the rank, the last dimension varying fastest.

    Raises:
        ValueError: A label is not known, or not of this form.
    """
    wanted = dict(labels or {})
    if unknown := wanted.keys() - _KNOWN:
        msg = f"unknown labels: {', '.join(sorted(unknown))}"
        raise ValueError(msg)
    if not _GROUP.fullmatch(wanted.get("group", "job")):
        msg = f"a group is written with letters, digits, - and _: {wanted}"
        raise ValueError(msg)
    for name in {**wanted.get("coords", {}), **(mesh or {})}:
        if not _NAME.fullmatch(name):
            msg = f"a dimension is written as a Python name: {name!r}"
            raise ValueError(msg)

    _own.update(wanted)
    if mesh is not None:
        _mesh.clear()
        _mesh.update(mesh)


def label_by(tell: Callable[[], Mapping[str, Any]]) -> None:
    """
    Let a launcher say how this process is addressed, whenever that is asked.

    One process may hold several actors, and a message may reach it under
    another rank than the one before.

    Args:
        tell: Returns what it knows of *group*, *rank*, *world_size*, and
            *coords*, for the thread that calls it.
    """
    _launcher[:] = [tell]


def describe_process() -> dict[str, Any]:
    """
    How is this process addressed, as seen from the thread that asks?

    Returns:
        Plain data: group, rank (``None`` where nobody tells), world_size,
        local_rank, coords, and what identifies the process.
    """
    host, pid, start = process_key()
    identity = current_identity()
    group = os.environ.get("DISTDEBUG_GROUP", "")
    labels: dict[str, Any] = {
        "group": group if _GROUP.fullmatch(group) else "job",
        "rank": identity.rank,
        "world_size": identity.world_size,
        **_told(),
        **_own,
    }
    coords = labels.pop("coords", None)
    if coords is None:
        coords = _coordinates(labels["rank"], _mesh or _mesh_of_environment())
    return {
        **labels,
        "local_rank": identity.local_rank,
        "coords": dict(coords),
        "host": host,
        "pid": pid,
        "start": start,
    }


def _told() -> dict[str, Any]:
    """
    What the launcher says, as far as it can be written in a command.
    """
    told: dict[str, Any] = {}
    with suppress(Exception):  # a debugger may not harm the job
        for tell in _launcher:
            told.update(tell())
    if "group" in told:
        group = _NOT_IN_GROUP.sub("-", str(told["group"]))[:100]
        told["group"] = group or "job"
    return told


def process_key() -> tuple[str, int, int]:
    """
    What tells this process from all others?

    Returns:
        The host, the number of the process, and when it started, in ticks of
        the kernel since it booted; 0 if it does not tell.
    """
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 lighter
            ticks = int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        ticks = 0
    return socket.gethostname(), os.getpid(), ticks


def _mesh_of_environment() -> dict[str, int]:
    """
    ``DISTDEBUG_MESH``, such as ``pp=2,dp=4``; nothing if it is malformed.
    """
    mesh = {}
    value = os.environ.get("DISTDEBUG_MESH", "")
    for part in filter(None, value.split(",")):
        name, _, size = part.strip().partition("=")
        if not (_NAME.fullmatch(name) and size.isdecimal() and int(size)):
            say_once(
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
    rest = rank
    for name, size in reversed([*mesh.items()]):
        if size < 1:
            return {}
        rest, found[name] = divmod(rest, size)

    # A rank beyond the mesh has no place in it.
    return {} if rest else {name: found[name] for name in mesh}
