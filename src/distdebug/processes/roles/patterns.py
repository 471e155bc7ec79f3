"""
Which command lines does the user mean?
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Sequence

from ..._patterns import check_pattern
from ..._text import clean
from ...errors import PatternError
from .frameworks import WRAPPERS
from .scan import Process


__all__ = ["compile_patterns", "is_match"]

# Anybody can have a process with a long command line, and a pattern may look
# at each part of it many times.
_MOST_TEXT = 4096


def compile_patterns(patterns: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """
    Read the user's patterns.

    Args:
        patterns: Regular expressions; one alone may be given as it is.

    Returns:
        The same, ready for use.

    Raises:
        PatternError: If one of them is no regular expression, or may take
            for ever to match.
    """
    if isinstance(patterns, str):
        patterns = (patterns,)
    return tuple(map(_compile, patterns))


def is_match(process: Process, wanted: Sequence[re.Pattern[str]]) -> bool:
    """
    Does the command line of a process match, of which 4,096 characters count?

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
    return any(pattern.search(text, 0, _MOST_TEXT) for pattern in wanted)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        # First, because it refuses what would take long to compile.
        check_pattern(pattern)
        return re.compile(pattern)
    except (ValueError, re.error, RecursionError, OverflowError) as exc:
        # What Python says of it quotes it.
        why = clean(str(exc), limit=300)
        msg = f"no regular expression to search with: {why}"
        raise PatternError(
            msg,
            remedy="put a \\ before each of . * + ? ( ) [ ] { } | ^ $ \\, "
            "and repeat less",
        ) from exc
