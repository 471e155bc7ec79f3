"""
Which files belong to frameworks, so that no user would change them?
"""

from __future__ import annotations

import re


__all__ = ["is_framework"]

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
