"""
Which agents of nsys were left behind by those that they served?

An nsys that is killed hard leaves an agent that goes on, with no parent but
the first process.
"""

from __future__ import annotations

import re

from collections.abc import Iterator
from contextlib import suppress

import psutil


__all__ = ["all_processes", "find_orphans"]

_AGENT = "--start-agent"
# "--session-name=profile-python-8173": the last number is that of the command
# which started the agent, unless the user named the session.
_SESSION = re.compile(r"--session-name=.{0,400}-([0-9]{1,7})")


def all_processes() -> Iterator[psutil.Process]:
    """
    Which processes does this node show?

    Yields:
        All of them; none where even their list is not shown.
    """
    with suppress(OSError):
        yield from psutil.process_iter()


def find_orphans() -> tuple[int, ...]:
    """
    Which agents of nsys have nobody left whom they serve?

    Returns:
        Their numbers, as far as we may see.
    """
    agents: dict[int, list[str]] = {}
    commands = set()
    for process in all_processes():
        with suppress(psutil.Error, OSError):
            words = process.cmdline()
            if not words or words[0].rpartition("/")[2] != "nsys":
                continue
            if _AGENT in words:
                agents[process.pid] = words
            else:
                commands.add(process.pid)
    return tuple(
        sorted(
            p for p, words in agents.items() if not _served(words, commands)
        )
    )


def _served(words: list[str], commands: set[int]) -> bool:
    matches = filter(None, map(_SESSION.fullmatch, words))
    numbers = {int(match[1]) for match in matches}
    return bool(numbers & commands) if numbers else bool(commands)
