"""
Which command lines does the user mean?
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Sequence

from ...errors import PatternError
from .frameworks import WRAPPERS
from .scan import Process


__all__ = ["compile_patterns", "is_match"]


def compile_patterns(patterns: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """
    Read the user's patterns.

    Args:
        patterns: Regular expressions; one alone may be given as it is.

    Returns:
        The same, ready for use.

    Raises:
        PatternError: If one of them is no regular expression.
    """
    if isinstance(patterns, str):
        patterns = (patterns,)
    return tuple(map(_compile, patterns))


def is_match(process: Process, wanted: Sequence[re.Pattern[str]]) -> bool:
    """
    Does the command line of a process match?

    That of a shell, of ``ssh``, ``srun`` or ``grep`` holds the command lines
    of others; there only the program's own name counts.

    Args:
        process: The process.

        wanted: What to look for.
    """
    text = process.text
    first = process.arguments[0] if process.arguments else text
    # Some change their title: "tmux: server", "sshd: me@pts/1".
    name = first.partition(":")[0].rpartition("/")[2].lstrip("-")
    if name in WRAPPERS:
        text = first
    return any(pattern.search(text) for pattern in wanted)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as exc:
        msg = f"no regular expression: {pattern!r} ({exc})"
        raise PatternError(
            msg, remedy="put a \\ before each of . * + ? ( ) [ ] { } | ^ $ \\"
        ) from exc
