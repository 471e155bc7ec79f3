"""
Is this worker to be profiled?
"""

from __future__ import annotations

import logging
import threading

from collections.abc import Iterable
from fnmatch import fnmatchcase

from ..._text import clean
from .variables import variable


__all__ = ["match_worker", "split_patterns"]

_MOST_PATTERN = 1000
_logger = logging.getLogger("distdebug.nsight")
_told: set[str] = set()
_lock = threading.Lock()


def match_worker(
    name: str, patterns: str | Iterable[str] | None = None
) -> str | None:
    """
    Which pattern says that this worker is to be profiled?

    Upper and lower case differ.  That a worker matches is logged the first
    time that this process asks for it, at the level of information.

    Args:
        name: The name of the worker, such as ``"dtensor_policy_worker"``.

        patterns: Wildcards of a shell (``*``, ``?``, ``[seq]``, ``[!seq]``),
            separated by commas, or one by one; by default those in
            ``DISTDEBUG_NSYS_WORKER_PATTERNS``, or else in
            ``NRL_NSYS_WORKER_PATTERNS``.  Blanks around a pattern are left
            out, and so are empty ones.  One of more than 1,000 characters
            matches nothing.

    Returns:
        The first pattern that matches; ``None`` if there is none.
    """
    for pattern in split_patterns(patterns):
        # Reading one takes time that grows with the square of its length.
        if len(pattern) <= _MOST_PATTERN and fnmatchcase(name, pattern):
            _tell_once(name, pattern)
            return pattern

    return None


def split_patterns(
    patterns: str | Iterable[str] | None = None,
) -> tuple[str, ...]:
    """
    Which patterns are there?

    Args:
        patterns: As for `match_worker`.

    Returns:
        The patterns in their order, without blanks around them.
    """
    if patterns is None:
        _, patterns = variable("WORKER_PATTERNS")
    texts = [patterns] if isinstance(patterns, str) else patterns
    parts = (part.strip() for text in texts for part in text.split(","))
    return tuple(part for part in parts if part)


def _tell_once(name: str, pattern: str) -> None:
    with _lock:
        is_new = name not in _told
        _told.add(name)
    if is_new:
        _logger.info(
            "Nsight profiling enabled for worker '%s' (matched pattern '%s')",
            clean(name),
            clean(pattern),
        )
