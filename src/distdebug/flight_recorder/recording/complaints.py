"""
How does something go wrong inside a job without harming it?

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import logging

from collections.abc import Callable


__all__ = ["quietly"]

_logger = logging.getLogger("distdebug")
_known: set[str] = set()

# A message that differs each time must not fill the log.
_MOST = 20


def quietly(action: Callable[[], object]) -> None:
    """
    Do something; if it fails, say so once, and go on.

    Args:
        action: What to do.
    """
    try:
        action()
    except Exception as exc:  # noqa: BLE001 the job comes first
        complaint = f"{type(exc).__name__}: {exc}"
        if complaint not in _known and len(_known) < _MOST:
            _known.add(complaint)
            _logger.warning("recording goes on without: %s", complaint)
