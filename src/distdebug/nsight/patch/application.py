"""
How does an application see to it, whenever it is imported?
"""

from __future__ import annotations

import logging
import os
import threading

from contextlib import suppress

from .change import patch_ray_nsight
from .model import PatchStatus


__all__ = ["apply_ray_nsight_patch"]

_logger = logging.getLogger("distdebug.nsight")
_lock = threading.Lock()
_done: list[PatchStatus | None] = []
_HINDRANCES = ("read_only", "not_permitted", "busy")
# An import must not wait for long.
_WAIT_S = 5.0


def apply_ray_nsight_patch() -> PatchStatus | None:
    """
    Mend Ray's nsight plugin once, before the application starts Ray.

    For the ``__init__.py`` of an application.  It imports nothing of Ray,
    never raises, and says nothing unless it changed the file or could not.  A
    cluster that runs already does not see the change; that is said, too.

    Returns:
        The state of the plugin; ``None`` if that could not be told.
    """
    with _lock:
        if not _done:
            _done.append(None)
            with suppress(Exception):
                status = patch_ray_nsight(wait_s=_WAIT_S)
                _done[0] = status
                _tell(status)
        return _done[0]


def _forget() -> None:
    global _lock  # noqa: PLW0603 who holds it does not exist in a child
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _tell(status: PatchStatus) -> None:
    if status.state in _HINDRANCES or (status.changed and not status.is_fine):
        _logger.warning("%s", status)
    elif status.changed:
        _logger.info("%s", status)
