"""
Send messages about hangs to any service that *apprise* knows.
"""

from __future__ import annotations

import os

from collections.abc import Callable
from pathlib import Path

from .._text import clean
from ..errors import ConfigError, HookError, MissingDependencyError
from ..watching import Hang


try:
    import apprise
except ImportError as exc:
    _MISSING = "messages to such services need the package apprise"
    raise MissingDependencyError(
        _MISSING, remedy="pip install 'distdebug[notify]'"
    ) from exc


_MAX_SUMMARY = 1000
_REMEDY = (
    "write one address per line, such as mailto://user:password@example.com or "
    "slack://…; see the documentation of apprise"
)


def notify_hook(file: str | os.PathLike[str]) -> Callable[[Hang], None]:
    """
    Return a hook that sends a message when a job hangs.

    Args:
        file: Addresses of services, as a configuration of *apprise*; it is read
            again for each message.

    Returns:
        The hook, for ``on_hang=``.  It raises
        :class:`~distdebug.errors.HookError` if a message does not arrive.

    Raises:
        ConfigError: The file cannot be read, or holds no address.
    """
    path = Path(file).absolute()
    _read_services(path)  # an error is raised now, not at the first hang

    def run_hook(hang: Hang) -> None:
        is_sent = _read_services(path).notify(
            title="distdebug: a job hangs",
            body=f"{clean(hang.summary, limit=_MAX_SUMMARY)}\n{hang.folder}",
        )
        if not is_sent:
            msg = f"not all services of {path} took the message"
            raise HookError(msg, remedy="see the log of apprise above")

    return run_hook


def _read_services(path: Path) -> apprise.Apprise:
    config = apprise.AppriseConfig()
    services = apprise.Apprise()
    # Only this file is read, and none that it includes.
    if path.is_file() and config.add(f"{path.as_uri()}?format=text"):
        services.add(config)
    if not len(services):
        msg = f"no address of a service in {path}"
        raise ConfigError(msg, remedy=_REMEDY)
    return services
