"""
How do the other ranks wait while one is held?

A collective takes its time-out along when it starts, so raising it later helps
nobody.  It is raised before the first one, and put back in the end.
"""

from __future__ import annotations

import functools
import sys

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from .settings import say


__all__ = ["raise_timeouts", "restore_timeouts"]

_MAKERS = ("init_process_group", "new_group")

_before: dict[Any, timedelta] = {}
_makers: dict[tuple[Any, str], Callable[..., Any]] = {}


def raise_timeouts(seconds: float) -> None:
    """
    Let the collectives of all groups wait for so long, at least.

    Groups that are made later are included, if torch has been imported.

    Args:
        seconds: How long a collective may take.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None:
        say("torch is not imported yet: its time-outs stay as they are")
        return

    restore_timeouts()
    timeout = timedelta(seconds=seconds)
    _raise(dist, timeout)
    for module in (dist, getattr(dist, "distributed_c10d", None)):
        for name in _MAKERS:
            if hasattr(module, name):
                _wrap(dist, module, name, timeout)


def _wrap(dist: Any, module: Any, name: str, timeout: timedelta) -> None:
    make = getattr(module, name)

    @functools.wraps(make)
    def patient(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        _raise(dist, timeout)
        return made

    _makers[module, name] = make
    setattr(module, name, patient)


def _raise(dist: Any, timeout: timedelta) -> None:
    c10d = getattr(dist, "distributed_c10d", None)
    groups = getattr(getattr(c10d, "_world", None), "pg_map", {})
    for group in list(groups):
        with suppress(Exception):
            current = _timeout_of(group)
            if current < timeout:
                c10d._set_pg_timeout(timeout, group)  # type: ignore[union-attr] # noqa: SLF001
                _before.setdefault(group, current)


def _timeout_of(group: Any) -> timedelta:
    device = next(iter(group._device_types))  # noqa: SLF001 torch has no other
    options = group._get_backend(device).options  # noqa: SLF001
    timeout: timedelta = options._timeout  # noqa: SLF001
    return timeout


def restore_timeouts() -> None:
    """
    Let collectives that start from now on wait for as long as before.
    """
    for (module, name), make in _makers.items():
        setattr(module, name, make)
    _makers.clear()
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    for group, timeout in _before.items():
        with suppress(Exception):
            c10d._set_pg_timeout(timeout, group)  # noqa: SLF001
    _before.clear()
