"""
Send messages about hangs to any service that *apprise* knows.
"""

from __future__ import annotations

import os

from collections.abc import Callable
from pathlib import Path

from .._io import read_ordinary
from .._text import reason_of
from ..errors import ConfigError, HookError, MissingDependencyError
from ..watching import Hang


try:
    import apprise
except ImportError as exc:
    _MISSING = "messages to such services need the package apprise"
    raise MissingDependencyError(
        _MISSING, remedy="pip install 'distdebug[notify]'"
    ) from exc


_MAX_BYTES = 1 << 16
_REMEDY = (
    "write one address per line, such as mailto://user:password@example.com or "
    "slack://…; see the documentation of apprise"
)


def notify_hook(file: str | os.PathLike[str]) -> Callable[[Hang], None]:
    """
    Return a hook that sends a message when a job hangs.

    Args:
        file: Addresses of services as *apprise* has them, one per line; it is
            read again for each message.

    Returns:
        The hook, for ``on_hang=``.  It raises
        :class:`~distdebug.errors.HookError` if a message does not arrive.

    Raises:
        ConfigError: The file cannot be read, or a line is no address.
    """
    path = Path(file).absolute()
    _read_services(path)  # an error is raised now, not at the first hang

    def run_hook(hang: Hang) -> None:
        lost = [
            number
            for number, service in _read_services(path)
            if not service.notify(
                title="distdebug: a job hangs", body=hang.message
            )
        ]
        if lost:
            lines = ", ".join(map(str, lost))
            msg = (
                f"{path}: the service in line {lines} did not take the message"
            )
            raise HookError(msg, remedy="see what apprise logged above")

    return run_hook


def _read_services(path: Path) -> list[tuple[int, apprise.Apprise]]:
    """
    Return the service of each line, with its number.
    """
    try:
        lines = read_ordinary(path, _MAX_BYTES).decode().splitlines()
    except (OSError, ValueError) as exc:
        msg = f"cannot read the addresses in {path}: {reason_of(exc)}"
        raise ConfigError(msg, remedy=_REMEDY) from exc

    services = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        service = apprise.Apprise()
        if not service.add(line.strip()):
            # The line may hold a password.
            msg = f"{path}: apprise knows no service by the address in line {number}"
            raise ConfigError(msg, remedy=_REMEDY)
        services.append((number, service))
    if not services:
        msg = f"no address of a service in {path}"
        raise ConfigError(msg, remedy=_REMEDY)
    return services
