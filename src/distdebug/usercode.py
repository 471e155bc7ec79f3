"""
Which files belong to frameworks, so that no user would change them?
"""

from __future__ import annotations

import re

from collections.abc import Iterable
from typing import Protocol

from .findings import Location


# What cloudpickle takes along by value is the user's; since 3.1.3, it does not
# name the file that it came from.
_FRAMEWORK = re.compile(
    r"^<(?!dynamic-code>)|(^|[/\\])(site-packages|dist-packages)[/\\]"
    r"|[/\\]lib[/\\]python3?\.?\d*[/\\]"
    r"|(^|[/\\])(torch|distdebug)[/\\](distributed|utils|nn|autograd|_\w+"
    r"|flight_recorder)[/\\]"
)


def is_framework(filename: str) -> bool:
    """
    Does this file belong to a framework, as far as its name tells?

    Args:
        filename: The file of a frame.

    Returns:
        Whether no user would change it.
    """
    return _FRAMEWORK.search(filename) is not None


class FrameLike(Protocol):
    """
    One line of a stack, wherever it comes from.
    """

    @property
    def name(self) -> str:
        """
        The function.
        """

    @property
    def filename(self) -> str:
        """
        The file it is in.
        """

    @property
    def line(self) -> int:
        """
        The line that runs, counted from 1.
        """


def user_location(frames: Iterable[FrameLike]) -> Location | None:
    """
    Find the innermost line that is not part of a framework.

    Args:
        frames: Innermost first.

    Returns:
        The line, or the innermost one of all if there is no other; ``None``
        for an empty stack.
    """
    innermost = None
    for frame in frames:
        where = Location(
            function=frame.name, file=frame.filename, line=frame.line
        )
        if not is_framework(frame.filename):
            return where
        innermost = innermost or where

    return innermost
