"""
Which line of the user's own code is this?

Stacks end deep inside frameworks; the line that a person can change is the
innermost one that belongs to none of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ._frameworks import is_framework
from .findings import Location


__all__ = ["FrameLike", "user_location"]


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
