"""
Separate user code from framework code in stacks, by file name.
"""

from __future__ import annotations

import re

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol


if TYPE_CHECKING:
    from .findings import Location


# Code that cloudpickle sends by value (<dynamic-code>) is the user's; since
# 3.1.3, cloudpickle does not name its file.
_FRAMEWORK_PATH = re.compile(
    r"^<(?!dynamic-code>)|(^|[/\\])(site-packages|dist-packages)[/\\]"
    r"|[/\\]lib[/\\]python3?\.?\d*[/\\]"
    r"|(^|[/\\])(torch|distdebug)[/\\](distributed|utils|nn|autograd|_\w+"
    r"|flight_recorder)[/\\]"
)


def is_framework(filename: str) -> bool:
    """
    Return whether a file belongs to a framework rather than to the user.
    """
    return _FRAMEWORK_PATH.search(filename) is not None


class FrameLike(Protocol):
    """
    One line of a stack, of any frame class.
    """

    @property
    def name(self) -> str:
        """
        Return the name of the function.
        """

    @property
    def filename(self) -> str:
        """
        Return the path of its file.
        """

    @property
    def line(self) -> int:
        """
        Return the current line, counted from 1.
        """


def user_location(frames: Iterable[FrameLike]) -> Location | None:
    """
    Find the innermost line that is not part of a framework.

    Args:
        frames: Innermost first.

    Returns:
        The line, or the innermost one if all are framework code; ``None`` for
        an empty stack.
    """
    # Jobs load this module for is_framework, and need no attrs for it.
    from .findings import Location

    innermost = None
    for frame in frames:
        location = Location(
            function=frame.name, file=frame.filename, line=frame.line
        )
        if not is_framework(frame.filename):
            return location
        innermost = innermost or location

    return innermost
