"""
How do the other ranks wait while one is held?

A collective takes its time-out along when it starts, so raising it later helps
nobody.  It is raised before the first one, and put back in the end.
"""

from __future__ import annotations

import functools
import sys

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import Any

from .settings import say


__all__ = ["raise_timeouts", "restore_timeouts", "shortest_timeout_s"]

# Every way to make a group ends in this one: init_process_group, new_group,
# split_group, and a DeviceMesh, which has bound those by name before us.
_REGISTER = "_register_process_group"

_MODULE = "torch.distributed.distributed_c10d"

_before: dict[Any, timedelta] = {}
_register: list[Callable[..., Any]] = []


def raise_timeouts(seconds: float) -> None:
    """
    Let the collectives of all groups wait for so long, at least.

    Groups that are made later are included.

    Args:
        seconds: How long a collective may take.
    """
    try:
        c10d = import_module(_MODULE)
    except Exception as exc:  # noqa: BLE001 an installation that is broken
        say("there is no torch whose time-outs could be raised: %s", exc)
        return

    restore_timeouts()
    timeout = timedelta(seconds=seconds)
    for group in _groups():
        _raise(group, timeout)
    _watch(c10d, timeout)


def _watch(c10d: Any, timeout: timedelta) -> None:
    register = getattr(c10d, _REGISTER, None)
    if register is None:  # in a torch that we do not know
        say("time-outs of groups that are made later stay as they are")
        return

    @functools.wraps(register)
    def patient(name: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        made = register(name, group, *args, **kwargs)
        _raise(group, timeout)
        return made

    _register.append(register)
    setattr(c10d, _REGISTER, patient)


def _raise(group: Any, timeout: timedelta) -> None:
    for backend in _backends(group):
        with suppress(Exception):
            current = _timeout_of(backend)
            if current < timeout:
                backend._set_default_timeout(timeout)  # noqa: SLF001 torch has no other
                _before.setdefault(backend, current)


def restore_timeouts() -> None:
    """
    Let collectives that start from now on wait for as long as before.
    """
    c10d: Any = sys.modules.get(_MODULE)
    while _register:
        setattr(c10d, _REGISTER, _register.pop())
    for backend, timeout in _before.items():
        with suppress(Exception):
            backend._set_default_timeout(timeout)  # noqa: SLF001 torch has no other
    _before.clear()


def shortest_timeout_s() -> float | None:
    """
    After how long does the first of the others give up waiting for this rank?

    Returns:
        The shortest time-out of all groups of this process, in seconds;
        ``None`` if there is none.
    """
    found = []
    for group in _groups():
        for backend in _backends(group):
            with suppress(Exception):
                found.append(_timeout_of(backend).total_seconds())
    return min(found, default=None)


def _groups() -> list[Any]:
    c10d = sys.modules.get(_MODULE)
    return [*getattr(getattr(c10d, "_world", None), "pg_map", {})]


def _backends(group: Any) -> Iterator[Any]:
    """
    What carries out the collectives of a group, for each kind of device.
    """
    with suppress(Exception):
        for device in group._device_types:  # noqa: SLF001 torch has no other
            yield group._get_backend(device)  # noqa: SLF001


def _timeout_of(backend: Any) -> timedelta:
    timeout: timedelta = backend.options._timeout  # noqa: SLF001 torch has no other
    return timeout
