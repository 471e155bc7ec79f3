"""
What do variables of the environment say about profiling?
"""

from __future__ import annotations

import os

from collections.abc import Mapping


__all__ = ["variable"]

# The second is that of NeMo RL, whose scripts go on working.
_PREFIXES = ("DISTDEBUG_NSYS_", "NRL_NSYS_")


def variable(
    name: str, environ: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """
    Which variable sets this, and to what?

    Args:
        name: Its name without the prefix, such as ``"WORKER_PATTERNS"``.

        environ: The environment; by default that of this process.

    Returns:
        The name of the first of ``DISTDEBUG_NSYS_…`` and ``NRL_NSYS_…`` that
        is set and not blank, and its text without blanks around it; two empty
        texts if there is none.
    """
    environ = os.environ if environ is None else environ
    for prefix in _PREFIXES:
        if text := environ.get(f"{prefix}{name}", "").strip():
            return f"{prefix}{name}", text

    return "", ""
