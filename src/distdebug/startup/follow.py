"""
What does one log tell about the phases of its job?
"""

from __future__ import annotations

import os

from collections.abc import Iterable

from .blocks import passages, read_blocks
from .clock import Clock
from .reader import Reader
from .rulebook import RuleBook
from .sieve import Sieve
from .story import Story


__all__ = ["follow_log"]


def follow_log(
    source: str | os.PathLike[str] | Iterable[str],
    rules: RuleBook,
    *,
    now: float | None = None,
) -> Story:
    """
    Read a log, and note what it tells of each phase.

    Args:
        source: A path; or lines, or a text of several.

        rules: What to look for.

        now: The time by which years are chosen where none are told.

    Returns:
        What its last attempt tells.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.
    """
    reader = Reader(rules, Clock(now=now))
    story = reader.story
    if isinstance(source, os.PathLike) or (
        isinstance(source, str) and "\n" not in source
    ):
        story.source = os.fspath(source)
        story.mtime = os.stat(source).st_mtime  # noqa: PTH116 may be a text
    sieve = Sieve(rules=rules, story=story)
    blocks = read_blocks(source, lose=story.lost.append)
    for block in passages(blocks, sieve.lets_through):
        reader.read(block)
    reader.close()
    return story
