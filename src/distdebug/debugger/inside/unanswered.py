"""
Is somebody there who would answer, if a thread stops at this line again?

A breakpoint that was forgotten in a loop would hold the job for the whole limit
at every turn.  So a line at which nobody asked anything is passed from then on,
until a client comes.
"""

from __future__ import annotations

import itertools


__all__ = [
    "is_unanswered",
    "note_request",
    "note_unanswered",
    "requests_so_far",
]

_count = itertools.count(1)
_requests = [0]
# How many requests there had been, by the file and the line.
_unanswered: dict[tuple[str, int], int] = {}


def note_request() -> None:
    """
    Somebody asks something.
    """
    # No lock: a process that is forked would wait for it for ever.
    _requests[0] = next(_count)


def requests_so_far() -> int:
    """
    How much was asked since this process began?
    """
    return _requests[0]


def note_unanswered(file: str, line: int, requests: int) -> None:
    """
    A pause is over.

    Args:
        file: Where it was.

        line: In which line.

        requests: How much had been asked before the pause.
    """
    _unanswered[file, line] = requests


def is_unanswered(file: str, line: int) -> bool:
    """
    Has nobody asked anything, since a thread began to wait here in vain?

    Args:
        file: Where another one comes to.

        line: In which line.

    Returns:
        Whether it need not wait.
    """
    return _unanswered.get((file, line)) == _requests[0]
